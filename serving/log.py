"""What a server's process logs: on stderr, with the time."""

import logging


def start_logging() -> None:
    """Log warnings of all packages, and Emberline's notes too, such as of a delta that was added."""
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("emberline").setLevel(logging.INFO)
