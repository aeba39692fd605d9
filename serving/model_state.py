"""What a repository says of one of its models."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ModelState:
    """One model of the folder: the version that is served, empty where none is, and why none is or why it is not a newer one."""

    name: str
    version: str
    reason: str = ""
