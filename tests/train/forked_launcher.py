"""PyTorch's launcher, whose ranks are forked from a process that has imported everything: they begin at once, not seconds later.

    forked_launcher.py OPTION... train ARGUMENT...

Options are those of `torchrun`; each rank is `emberline train ARGUMENT...`. Only how processes are made differs from `torchrun -m emberline.train`.
"""

import sys
from dataclasses import replace

from torch.distributed.launcher.api import elastic_launch
from torch.distributed.run import config_from_args, parse_args

from emberline.cli import main as emberline


def run_rank(*arguments: str) -> None:
    """One rank, until it ends."""
    sys.exit(emberline(list(arguments)))


def main() -> None:
    options = parse_args(sys.argv[1:])  # type: ignore[no-untyped-call]
    config, _, _ = config_from_args(options)
    elastic_launch(replace(config, start_method="fork"), run_rank)(options.training_script, *options.training_script_args)


if __name__ == "__main__":
    main()
