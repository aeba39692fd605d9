"""How Triton serves models: what the generated configs say, in one place."""

from dataclasses import dataclass
from pathlib import Path

from emberline.errors import ConfigError
from emberline.serving.deltas.watcher import DEFAULT_PERIOD_S
from emberline.serving.limits import DEFAULT_LIMITS, RequestLimits, require_whole
from emberline.serving.lookup import LOOKUPS
from emberline.serving.program import FORMATS
from emberline.serving.tables import PRIVATE, growth_of, require_memory

CPU = "cpu"
EVERY_GPU = "cuda"
_MOST_S = 1_000_000


@dataclass(frozen=True, kw_only=True)
class TritonSettings:
    """What is the same for every model of a Triton repository.

    Args:
        device: where models run, as torch names it: `cpu`, `cuda` for every GPU that Triton sees, or `cuda:<number>` for one.
        instances: processes that serve a model, each with its own share of the requests; on GPUs, on each of them.
        num_threads: threads of torch's operators in each; None shares the CPUs that it may use among the model's processes on that machine.
        tables: where tables are, of `TABLE_MEMORIES`: each process has `private` ones of its own, and all share `mapped` ones.
        row_growth: by what share private ones on a CPU may be larger than their files, so that rows straddle fewer lines of the cache;
            None for the usual.
        delta_poll_s: seconds between two looks for new deltas, in each process; 0 never looks.
        max_merged_requests: most requests that are computed as one batch.
        max_waiting: requests that may wait for one model; where so many do, or as many as one process's share, some are refused as overload. 0 sets
            no limit. See `max_handed_over`.
        limits: how large one request may be.
        timeout_s: a request that has waited so long is refused and never computed; a shorter timeout of its own goes first. 0 sets none.
            `dynamic_batching` tells the price.
        model_control: whether callers may load and unload models, and with them Python code that they send along: for a server that only its owner
            can reach. Else Triton looks at its folder every second.
        by_feature: take `values.<feature>`, `lengths.<feature>` and the like too, beside the packed inputs.
        cache: where what comes from a URL is kept; None for the user's own cache.
        format: of the programs to run; None takes, of each model, the first that runs there.
        lookup: what looks rows up; None takes the first that works there.

    Raises:
        ConfigError: there is no such device, format or lookup, tables cannot be there or cannot grow so, or a number is too small.
    """

    device: str = CPU
    instances: int = 1
    num_threads: int | None = None
    tables: str = PRIVATE
    row_growth: float | None = None
    delta_poll_s: float = DEFAULT_PERIOD_S
    max_merged_requests: int = 64
    max_waiting: int = 512
    limits: RequestLimits = DEFAULT_LIMITS
    timeout_s: float = 0.0
    model_control: bool = False
    by_feature: bool = False
    cache: Path | None = None
    format: str | None = None
    lookup: str | None = None

    def __post_init__(self) -> None:
        """See `Raises`."""
        kind, _, number = self.device.partition(":")
        if self.device not in (CPU, EVERY_GPU) and not (kind == EVERY_GPU and number.isdecimal()):
            raise ConfigError(f"Triton runs models on cpu, cuda (every GPU) or cuda:<number>, not on {self.device!r}")
        require_memory(self.tables, "cuda" if self.on_gpu else "cpu")
        growth_of(self.row_growth, self.tables, "cuda" if self.on_gpu else "cpu")
        for name, least in (("instances", 1), ("num_threads", 1), ("max_merged_requests", 1), ("max_waiting", 0)):
            require_whole(f"TritonSettings: {name}", getattr(self, name), least, optional=name == "num_threads")
        for name in ("delta_poll_s", "timeout_s"):
            value = getattr(self, name)
            if not 0 <= value < _MOST_S:
                raise ConfigError(f"TritonSettings: {name} must be seconds from 0 on, below {_MOST_S:,}; found {value!r}")
        for name, known in (("format", FORMATS), ("lookup", LOOKUPS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise ConfigError(f"TritonSettings: {name} must be one of {', '.join(known)}; found {value!r}")

    @property
    def on_gpu(self) -> bool:
        """Whether models run on GPUs."""
        return self.device != CPU

    @property
    def instance_group(self) -> str:
        """The section of a config that says how many processes there are, and where."""
        if not self.on_gpu:
            return f"instance_group [ {{ count: {self.instances} kind: KIND_CPU }} ]"
        number = self.device.partition(":")[2]
        gpus = f" gpus: [ {int(number)} ]" if number else ""
        return f"instance_group [ {{ count: {self.instances} kind: KIND_GPU{gpus} }} ]"

    @property
    def dynamic_batching(self) -> str:
        """The section of a config that says what Triton merges, and how long a request may wait.

        With any rule of a queue, also one that never applies, Triton 2.51 hands nothing over to a process that is at work. A request that comes
        just before the one in front is done then wakes nobody: it waits for the next request, or half a second. So no rule is there unless asked for.
        """
        if not self.timeout_s:
            return "dynamic_batching { }"
        rules = [f"max_queue_size: {self.max_waiting}"] if self.max_waiting else []
        rules += ["timeout_action: REJECT", f"default_timeout_microseconds: {max(1, int(self.timeout_s * 1e6))}", "allow_timeout_override: true"]
        return f"dynamic_batching {{ default_queue_policy {{ {' '.join(rules)} }} }}"

    @property
    def max_handed_over(self) -> int:
        """Most requests that Triton hands over to a process at once: Triton's `max_batch_size`.

        A process is given all that waits, so one that is given as many as it may be knows that too much waits, and refuses half of them, or more
        where that goes on: the bound on what waits, without a rule of Triton's. With `timeout_s`, whose rule is there anyway, Triton itself refuses
        what is too much.
        """
        if not self.refuses_overload:
            return self.max_merged_requests
        return max(-(-self.max_waiting // self.instances), min(self.max_waiting, 2 * self.max_merged_requests))

    @property
    def refuses_overload(self) -> bool:
        """Whether processes refuse what is too much, not Triton."""
        return self.max_waiting > 0 and not self.timeout_s


DEFAULTS = TritonSettings()
"""On the CPU, one process for each model."""
