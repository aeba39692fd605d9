"""NVIDIA's kernel of tables that grow, the package `dynamicemb`: whether it is here, which release of it, and which kernel runs.

Names and behaviour are those of NVIDIA/recsys-examples, corelib/dynamicemb. Releases are told apart by what they have: their version says little.
It is CUDA only. `options` and `sharding` put tables on it, `files` carries their contents between its files and our checkpoints.
"""

import importlib
import importlib.metadata
import importlib.util
import inspect
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from emberline.errors import ConfigError, MissingDependencyError, first_line
from emberline.train.dynamic.options import KernelKind

PACKAGE = "dynamicemb"
OURS_INSTEAD = "or take our kernel: `--dynamic-kernel emberline`"


@dataclass(frozen=True)
class NvidiaPackage:
    """An installed `dynamicemb`, and what tells its releases apart.

    Args:
        version: as installed; "unknown" where it was not installed by a package manager.
        top: module `dynamicemb`.
        planner: module `dynamicemb.planner`.
        shard: module with its sharded collections.
        tables: class of its kernel.
        weighs_bags: weights of bags and counts of reads are two arguments; before, weights were taken for counts, and bags were not weighed.
        strategy_counts: the strategy of admission has the counter; before, the table's options had it.
        options_route: the table's options say how ids are spread over ranks; before, the sharding alone did.
        dumps_counters: counters of admission are written too.
        ids_are_unsigned: loading tells the rank of a negative id as reading does; before, by another remainder, so that ids were lost.
    """

    version: str
    top: ModuleType
    planner: ModuleType
    shard: ModuleType
    tables: type[Any]
    weighs_bags: bool
    strategy_counts: bool
    options_route: bool
    dumps_counters: bool
    ids_are_unsigned: bool

    def __str__(self) -> str:
        return f"{PACKAGE} {self.version}"


@dataclass(frozen=True)
class KernelChoice:
    """Which kernel holds tables that grow, and why.

    Args:
        kernel: never `AUTO`.
        reason: one clause.
        package: NVIDIA's, where it is chosen.
    """

    kernel: KernelKind
    reason: str
    package: NvidiaPackage | None = None

    def __str__(self) -> str:
        whose = "NVIDIA's" if self.kernel is KernelKind.NVIDIA else "our"
        return f"{whose} kernel, since {self.reason}"


def find_package() -> NvidiaPackage:
    """Import the package.

    Raises:
        MissingDependencyError: it is not installed, does not import here, or is of a release that is too old.
    """
    try:
        top = importlib.import_module(PACKAGE)
    except ModuleNotFoundError as error:
        if error.name == PACKAGE:
            raise MissingDependencyError(f"package {PACKAGE} is not installed") from error
        raise MissingDependencyError(f"package {PACKAGE} does not import: {first_line(error)}") from error
    except Exception as error:  # its extension fails in many ways without the right CUDA
        raise MissingDependencyError(f"package {PACKAGE} does not import: {first_line(error)}") from error
    try:
        return _described(top)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise MissingDependencyError(f"package {PACKAGE} {_version()} is of a release that we do not know: {first_line(error)}") from error


def choose_kernel(device: torch.device, asked: KernelKind = KernelKind.AUTO) -> KernelChoice:
    """Which kernel holds tables that grow on a device.

    Args:
        device: of this rank.
        asked: what the user wants.

    Raises:
        ConfigError: NVIDIA's kernel is asked for, and the device is none of CUDA's.
        MissingDependencyError: it is asked for, and its package is not there.
    """
    if asked is KernelKind.EMBERLINE:
        return KernelChoice(KernelKind.EMBERLINE, "it was asked for")
    if device.type != "cuda":
        if asked is KernelKind.NVIDIA:
            raise ConfigError(f"NVIDIA's kernel of tables that grow needs CUDA, and these ranks are on {device.type}; leave the choice to us")
        return KernelChoice(KernelKind.EMBERLINE, f"NVIDIA's is for CUDA alone, and this is {device.type}")
    try:
        package = find_package()
    except MissingDependencyError as error:
        if asked is KernelKind.NVIDIA:
            raise
        return KernelChoice(KernelKind.EMBERLINE, str(error))
    reason = "it was asked for" if asked is KernelKind.NVIDIA else f"{package} is installed, and this is CUDA"
    return KernelChoice(KernelKind.NVIDIA, reason, package)


def kernel_here() -> KernelChoice:
    """Which kernel a job on this machine takes: on CUDA where there is a GPU."""
    return choose_kernel(torch.device("cuda" if torch.cuda.is_available() else "cpu"))


def _described(top: ModuleType) -> NvidiaPackage:
    planner = importlib.import_module(f"{PACKAGE}.planner")
    shard = importlib.import_module(f"{PACKAGE}.shard")
    tables = importlib.import_module(f"{PACKAGE}.batched_dynamicemb_tables").BatchedDynamicEmbeddingTablesV2
    return NvidiaPackage(
        version=_version(),
        top=top,
        planner=planner,
        shard=shard,
        tables=tables,
        weighs_bags=_takes(tables.forward, "pooling_weights"),
        strategy_counts=_takes(top.FrequencyAdmissionStrategy, "counter"),
        options_route=_takes(top.DynamicEmbTableOptions, "dist_type"),
        dumps_counters=_takes(top.DynamicEmbDump, "counter") and _takes(top.DynamicEmbLoad, "counter"),
        ids_are_unsigned=importlib.util.find_spec(f"{PACKAGE}.key_ownership") is not None,
    )


def _takes(called: Any, argument: str) -> bool:
    return argument in inspect.signature(called).parameters


def _version() -> str:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
