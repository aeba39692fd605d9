"""Options of the commands that write Triton model repositories: `TritonSettings` on the command line, the same for each of them."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emberline.serving.limits import DEFAULT_LIMITS, RequestLimits
from emberline.serving.lookup import LOOKUPS
from emberline.serving.program import FORMATS
from emberline.serving.row_layout import DEFAULT_GROWTH
from emberline.serving.tables import TABLE_MEMORIES
from emberline.serving.triton.settings import DEFAULTS, TritonSettings

_SETTINGS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "device": ("device", {"help": f"where models run: cpu, cuda (each GPU) or cuda:NUMBER (default: {DEFAULTS.device})"}),
    "instances": ("instances", {"type": int, "metavar": "N", "help": "processes for each model, on each of its devices (default: 1)"}),
    "threads": ("num_threads", {"type": int, "metavar": "N", "help": "threads of each (default: a model's processes share the CPUs)"}),
    "tables": ("tables", {"choices": TABLE_MEMORIES, "help": f"where tables are (default: {DEFAULTS.tables})"}),
    "row-growth": (
        "row_growth",
        {"type": float, "metavar": "SHARE", "help": f"by what share private tables may be larger than their files (default: {DEFAULT_GROWTH})"},
    ),
    "by-feature": ("by_feature", {"action": "store_true", "help": "take values.FEATURE, lengths.FEATURE and so on, beside the packed inputs"}),
    "max-waiting": (
        "max_waiting",
        {"type": int, "metavar": "N", "help": f"requests that may wait for a model; 0 sets no limit (default: {DEFAULTS.max_waiting})"},
    ),
    "timeout": ("timeout_s", {"type": float, "metavar": "S", "help": "seconds that a request may wait, at a price (default: any)"}),
    "delta-poll": (
        "delta_poll_s",
        {"type": float, "metavar": "S", "help": f"seconds between two looks for new deltas; 0 never looks (default: {DEFAULTS.delta_poll_s:g})"},
    ),
    "program-format": ("format", {"choices": FORMATS, "help": "programs to run (default: the first of these that is there and runs)"}),
    "lookup": ("lookup", {"choices": LOOKUPS, "help": "what looks rows up (default: native where a C compiler is or was, else torch)"}),
    "cache": ("cache", {"type": Path, "metavar": "DIR", "help": "where what comes from a URL is kept (default: ~/.cache/emberline/artifacts)"}),
}
"""By option, the setting and what argparse is told of it."""
_LIMITS: Mapping[str, tuple[str, str]] = {
    "max-request-rows": ("rows", "rows of a request"),
    "max-request-ids": ("ids", "ids of a request"),
    "max-padded-steps": ("padded_steps", "steps of a padded sequence in a request, once its rows are filled up to the longest"),
}


def add_options(parser: argparse.ArgumentParser | argparse._ArgumentGroup, prefix: str = "") -> None:
    """Add an option for each setting that a generated config can say.

    Args:
        parser: of a command, or a group of its options.
        prefix: what the options begin with, such as `triton-`.
    """
    for option, (_, told) in _SETTINGS.items():
        parser.add_argument(f"--{prefix}{option}", default=None, **told)
    for option, (limit, text) in _LIMITS.items():
        parser.add_argument(f"--{prefix}{option}", type=int, metavar="N", help=f"{text} (default: {getattr(DEFAULT_LIMITS, limit):,})")


def given_options(args: argparse.Namespace, prefix: str = "") -> list[str]:
    """Those of the options that a command line has, as they are typed."""
    return [f"--{prefix}{option}" for option in (*_SETTINGS, *_LIMITS) if _value(args, prefix, option) is not None]


def settings_of(args: argparse.Namespace, prefix: str = "") -> TritonSettings:
    """What a command line asks for; the usual where it says nothing.

    Raises:
        ConfigError: nothing can be served so.
    """
    settings = {setting: value for option, (setting, _) in _SETTINGS.items() if (value := _value(args, prefix, option)) is not None}
    limits = {limit: value for option, (limit, _) in _LIMITS.items() if (value := _value(args, prefix, option)) is not None}
    return TritonSettings(**settings, limits=RequestLimits(**limits))


def _value(args: argparse.Namespace, prefix: str, option: str) -> Any:
    return getattr(args, f"{prefix}{option}".replace("-", "_"))
