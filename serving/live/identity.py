"""Which artifact is served."""

from typing import NamedTuple


class Identity(NamedTuple):
    """One state of one version: another manifest is another thing, though the version's number is the same.

    Args:
        version: its number.
        digest: of its manifest (`emberline.manifest.manifest_digest`), which holds the digests of all its files.
    """

    version: int
    digest: str
