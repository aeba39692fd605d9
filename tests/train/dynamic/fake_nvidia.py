"""A package `dynamicemb` that is not NVIDIA's: it has the names that the adapter uses, and keeps what it is given."""

import enum
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torchrec.distributed.types import ParameterSharding

CALLS: list[tuple[str, dict[str, Any]]] = []
MODULES = ("dynamicemb", "dynamicemb.planner", "dynamicemb.shard", "dynamicemb.batched_dynamicemb_tables", "dynamicemb.key_ownership")


class Mode(enum.Enum):
    NORMAL = "normal"
    TRUNCATED_NORMAL = "truncated_normal"
    UNIFORM = "uniform"
    CONSTANT = "constant"
    DEBUG = "debug"


class Scores(enum.IntEnum):
    TIMESTAMP = 0
    STEP = 1
    CUSTOMIZED = 2
    LFU = 3
    NO_EVICTION = 4


class Check(enum.IntEnum):
    ERROR = 0
    WARNING = 1
    IGNORE = 2


class Pooling(enum.IntEnum):
    SUM = 0
    MEAN = 1
    NONE = 2


@dataclass
class InitializerArgs:
    mode: Mode = Mode.UNIFORM
    mean: float = 0.0
    std_dev: float = 1.0
    lower: float | None = None
    upper: float | None = None
    value: float = 0.0


class KVCounter:
    def __init__(self, capacity: int, bucket_capacity: int = 1024, key_type: torch.dtype = torch.int64) -> None:
        self.capacity, self.bucket_capacity, self.key_type = capacity, bucket_capacity, key_type


class NewStrategy:
    def __init__(self, threshold: int, counter: KVCounter | None = None, initializer_args: InitializerArgs | None = None) -> None:
        self.threshold, self.counter, self.initializer_args = threshold, counter, initializer_args


class OldStrategy:
    def __init__(self, threshold: int, initializer_args: InitializerArgs | None = None) -> None:
        self.threshold, self.initializer_args = threshold, initializer_args


@dataclass
class OldOptions:
    embedding_dtype: torch.dtype | None = None
    dim: int | None = None
    max_capacity: int | None = None
    local_hbm_for_values: int = 0
    training: bool = True
    initializer_args: InitializerArgs = field(default_factory=InitializerArgs)
    eval_initializer_args: InitializerArgs = field(default_factory=InitializerArgs)
    caching: bool = False
    init_capacity: int | None = None
    score_strategy: Scores = Scores.TIMESTAMP
    bucket_capacity: int = 128
    safe_check_mode: Check = Check.IGNORE
    index_type: torch.dtype | None = None
    admit_strategy: Any = None
    admission_counter: KVCounter | None = None


@dataclass
class NewOptions(OldOptions):
    dist_type: str = "continuous"


@dataclass
class OldSharding(ParameterSharding):  # type: ignore[misc]
    customized_compute_kernel: str | None = None
    dist_type: str = "continuous"
    dynamicemb_options: Any = None


@dataclass
class NewSharding(ParameterSharding):  # type: ignore[misc]
    dynamicemb_options: Any = None


class Optimizer:
    """Of the kernel."""

    first = 0.0

    def set_initial_optim_states(self, value: float) -> None:
        self.first = value


class OldTables(nn.Module):
    """The kernel: what it reads is all ones. It dumps `content` (a file's name -> bytes), and remembers what it is to load."""

    def __init__(self, pooling: Pooling, dims: list[int], names: tuple[str, ...] = ("t",)) -> None:
        super().__init__()
        self.table_names, self.optimizer = list(names), Optimizer()
        self.content: dict[str, bytes] = {}
        self.about: dict[str, Any] = {}
        self.loaded: dict[str, bytes] = {}
        self.pooling_mode, self.dims, self.feature_num = pooling, dims, len(dims)
        self.total_D, self.output_dtype = sum(dims), torch.float32

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        CALLS.append(("forward", {"indices": indices, "offsets": offsets, "weights": per_sample_weights}))
        rows = len(indices) if self.pooling_mode is Pooling.NONE else (len(offsets) - 1) // self.feature_num
        return torch.ones(rows, self.dims[0] if self.pooling_mode is Pooling.NONE else self.total_D)

    def prefetch(self, indices: Tensor, offsets: Tensor) -> None:
        CALLS.append(("prefetch", {"indices": indices}))

    def flush(self) -> str:
        return "flushed"

    def dump(self, save_dir: str, optim: bool = False, counter: bool = False, table_names: list[str] | None = None) -> None:
        CALLS.append(("dump", {"optim": optim, "counter": counter, "table_names": table_names}))
        for name, content in self.content.items():
            (Path(save_dir) / name).write_bytes(content)
        (Path(save_dir) / "t_opt_args.json").write_text(json.dumps(self.about))

    def load(self, save_dir: str, optim: bool = False, counter: bool = False, table_names: list[str] | None = None) -> None:
        CALLS.append(("load", {"optim": optim, "counter": counter, "table_names": table_names}))
        self.loaded = {file.name: file.read_bytes() for file in sorted(Path(save_dir).iterdir())}


class NewTables(OldTables):
    def forward(self, indices: Tensor, offsets: Tensor, frequency_counters: Tensor | None = None, pooling_weights: Tensor | None = None) -> Tensor:
        return super().forward(indices, offsets, pooling_weights)


class Sharded:
    """Stands for both sharded collections."""

    def __init__(self, **named: Any) -> None:
        CALLS.append((type(self).__name__, named))


class ShardedBags(Sharded):
    pass


class ShardedSteps(Sharded):
    pass


@contextmanager
def fake_package(*, new: bool = True) -> Iterator[None]:
    """Let `import dynamicemb` find it; afterwards all is as before.

    Args:
        new: of the release that weighs bags; else of one before.
    """
    CALLS.clear()
    before = {name: sys.modules.pop(name) for name in MODULES if name in sys.modules}
    for name, module in _modules(new).items():
        sys.modules[name] = module
    try:
        yield
    finally:
        for name in MODULES:
            sys.modules.pop(name, None)
        sys.modules.update(before)
        CALLS.clear()


def _modules(new: bool) -> dict[str, ModuleType]:
    def dump_new(path: str, model: object, counter: bool = False) -> None:
        """Only looked at."""

    def dump_old(path: str, model: object) -> None:
        """Likewise."""

    content: dict[str, dict[str, Any]] = {
        "dynamicemb": {
            "DynamicEmbInitializerMode": Mode,
            "DynamicEmbInitializerArgs": InitializerArgs,
            "DynamicEmbScoreStrategy": Scores,
            "DynamicEmbCheckMode": Check,
            "KVCounter": KVCounter,
            "FrequencyAdmissionStrategy": NewStrategy if new else OldStrategy,
            "DynamicEmbTableOptions": NewOptions if new else OldOptions,
            "DynamicEmbDump": dump_new if new else dump_old,
            "DynamicEmbLoad": dump_new if new else dump_old,
        },
        "dynamicemb.planner": {"DynamicEmbParameterSharding": NewSharding if new else OldSharding},
        "dynamicemb.shard": {"ShardedDynamicEmbeddingBagCollection": ShardedBags, "ShardedDynamicEmbeddingCollection": ShardedSteps},
        "dynamicemb.batched_dynamicemb_tables": {"BatchedDynamicEmbeddingTablesV2": NewTables if new else OldTables},
        **({"dynamicemb.key_ownership": {}} if new else {}),
    }
    modules: dict[str, ModuleType] = {}
    for name, members in content.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None, is_package=name == "dynamicemb")
        module.__path__ = []
        module.__dict__.update(members)
        modules[name] = module
    return modules
