"""The ranks that tables are planned for: how many, how they stand on machines, what each can hold, and how fast bytes move.

Sizes are in bytes, bandwidths in GB/s, 10^9 bytes a second, of one rank.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

from torchrec.distributed.planner.types import HardwareConfig, KernelConfig, Topology, TopologyFactory, TrainerConfig

from emberline.errors import ConfigError
from emberline.train.sharding.sizes import size_text

DEVICES = ("cpu", "cuda")
COLUMN_MULTIPLES = {"cpu": 1, "cuda": 4}
"""Columns of a shard come in multiples of this: our kernels know any width, fbgemm's on a GPU those of whole 16 bytes."""
_GB_PER_S = 1e6
"""GB/s in TorchRec's unit, bytes a millisecond."""


@dataclass(frozen=True, kw_only=True)
class Bandwidths:
    """How fast bytes move, in GB/s.

    Args:
        hbm: of a GPU's memory; of no meaning on CPUs.
        ddr: of the host's memory.
        hbm_to_ddr: between both.
        intra_node: between ranks of one machine.
        inter_node: between ranks of two machines.
        sources: where each comes from: `given`, `measured`, `of` a GPU by its name; those that are missing are assumed.
    """

    hbm: float
    ddr: float
    hbm_to_ddr: float
    intra_node: float
    inter_node: float
    sources: Mapping[str, str] = field(default_factory=dict)

    def known(self, values: Mapping[str, float | None], source: str) -> "Bandwidths":
        """With those of `values` that are not None instead, from `source`."""
        found = {name: value for name, value in values.items() if value is not None}
        return replace(self, **found, sources={**self.sources, **dict.fromkeys(found, source)})

    def as_dict(self) -> dict[str, float]:
        """The numbers by name."""
        return {name: getattr(self, name) for name in BANDWIDTH_NAMES}


BANDWIDTH_NAMES = tuple(part.name for part in fields(Bandwidths) if part.name != "sources")
ASSUMED = {
    "cuda": Bandwidths(hbm=2000.0, ddr=100.0, hbm_to_ddr=25.0, intra_node=300.0, inter_node=25.0),
    "cpu": Bandwidths(hbm=1.0, ddr=20.0, hbm_to_ddr=1.0, intra_node=2.0, inter_node=1.0),
}
"""What is assumed where nothing else is known: a GPU of 2020 with PCIe 4, NVLink and a 200 Gbit/s network; two cores with gloo over TCP."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """The ranks of a job, all alike.

    Args:
        device: what holds the tables: `cpu` or `cuda`.
        world_size: ranks in all.
        local_world_size: ranks of each machine.
        hbm: memory of each rank's GPU; 0 on CPUs.
        ddr: each rank's share of its host's memory.
        ssd: each rank's disk for `key_value` tables.
        bandwidths: None: what is assumed for the device.

    Raises:
        ConfigError: numbers that no cluster has; names all of them.
    """

    device: str
    world_size: int
    local_world_size: int
    hbm: int = 0
    ddr: int
    ssd: int = 0
    bandwidths: Bandwidths | None = None

    def __post_init__(self) -> None:
        problems = []
        if self.device not in DEVICES:
            problems.append(f"device must be one of {', '.join(DEVICES)}, found {self.device!r}")
        if self.world_size < 1:
            problems.append(f"world_size must be at least 1, found {self.world_size}")
        if self.local_world_size < 1 or self.world_size % max(self.local_world_size, 1):
            problems.append(
                f"local_world_size must divide world_size {self.world_size}, found {self.local_world_size}: all machines have alike many ranks"
            )
        if self.device == "cuda" and self.hbm < 1:
            problems.append(f"hbm must be above 0 on GPUs, found {self.hbm}")
        problems += [f"{name} must be 0 or more, found {size}" for name, size in (("ddr", self.ddr), ("ssd", self.ssd)) if size < 0]
        if problems:
            raise ConfigError([f"hardware: {text}" for text in problems])

    @property
    def speeds(self) -> Bandwidths:
        """The bandwidths, assumed where none are given."""
        return self.bandwidths or ASSUMED[self.device]

    @property
    def num_nodes(self) -> int:
        """Machines."""
        return self.world_size // self.local_world_size

    @property
    def table_memory(self) -> int:
        """The memory that tables live in by default: a GPU's on GPUs, else the host's."""
        return self.hbm if self.device == "cuda" else self.ddr

    def lines(self) -> tuple[str, str]:
        """For a terminal: the ranks with their memory, and the bandwidths with where they come from."""
        memory = {"hbm": self.hbm, "ddr": self.ddr, "ssd": self.ssd}
        shown = [f"{size_text(size)} {name}" for name, size in memory.items() if size or name == "ddr"]
        ranks = f"{self.world_size} {self.device} rank{'s' * (self.world_size > 1)}, {self.local_world_size} a machine"
        speeds, on_gpu = self.speeds, self.device == "cuda"
        numbers = [
            f"{name} {speed:g} ({speeds.sources.get(name, 'assumed')})" for name, speed in speeds.as_dict().items() if on_gpu or "hbm" not in name
        ]
        return f"{ranks}, each with {', '.join(shown)}", f"GB/s: {', '.join(numbers)}"

    def topology(self) -> Topology:
        """As TorchRec's planner wants it."""
        speeds = {name: speed * _GB_PER_S for name, speed in self.speeds.as_dict().items()}
        return TopologyFactory.create_topology(
            TrainerConfig(world_size=self.world_size, local_world_size=self.local_world_size),
            HardwareConfig(
                hbm_cap_bytes=self.hbm if self.device == "cuda" else None,
                ddr_cap_bytes=self.ddr,
                ssd_cap_bytes=self.ssd,
                intra_host_bw=speeds["intra_node"],
                inter_host_bw=speeds["inter_node"],
                hbm_mem_bw=speeds["hbm"],
                ddr_mem_bw=speeds["ddr"],
                hbm_to_ddr_mem_bw=speeds["hbm_to_ddr"],
            ),
            KernelConfig(compute_device=self.device, use_hardware_based_bandwidth=True),
        )


def with_measured(hardware: Hardware, values: Mapping[str, float]) -> Hardware:
    """The same ranks with measured bandwidths where none were given."""
    speeds = hardware.speeds
    open_names = {name: value for name, value in values.items() if speeds.sources.get(name) != "given"}
    return replace(hardware, bandwidths=speeds.known(open_names, "measured"))
