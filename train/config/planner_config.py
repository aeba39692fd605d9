"""The hardware that tables are planned for, as far as a config says."""

from dataclasses import dataclass

from emberline.train.config.ranges import above_zero, zero_or_more
from emberline.train.features.configs import EmbeddingConstraints


@dataclass(frozen=True, kw_only=True)
class TableConstraintsConfig(EmbeddingConstraints):
    """What the planner may choose for one table, whatever its features or those of all tables say.

    Args:
        table: its name.
    """

    table: str


@dataclass(frozen=True, kw_only=True)
class PlannerConfig:
    """How tables are planned. Bandwidths are in GB/s, 10^9 bytes a second, of one rank; None: an assumed value, or a measured one.

    Args:
        storage_reserve: share of each rank's memory that no table may have.
        sample_batches: batches of the training data over which ids a row are counted; 0: none; None: a job that has something to plan counts a few.
        hbm_bandwidth: of a GPU's memory.
        ddr_bandwidth: of the host's memory.
        hbm_to_ddr_bandwidth: between both.
        intra_node_bandwidth: between ranks of one machine.
        inter_node_bandwidth: between ranks of two machines.
        measure_bandwidths: whether those that are not given are measured.
        ssd_gib: disk of each rank for `key_value` tables, in GiB.
        dynamicemb_slowdown: how many times longer rows of a dynamic table take than those of a static one in the same memory; None: assumed, as
            the next ones.
        dynamicemb_caching_ratio: how near a CACHING table comes to the speed of the fast memory, 1, from that of the one behind it, 0.
        dynamicemb_hybrid_ratio: likewise a HYBRID one.
        disk_bandwidth: of the files behind the memory of CPUs.
    """

    storage_reserve: float = 0.15
    sample_batches: int | None = None
    hbm_bandwidth: float | None = None
    ddr_bandwidth: float | None = None
    hbm_to_ddr_bandwidth: float | None = None
    intra_node_bandwidth: float | None = None
    inter_node_bandwidth: float | None = None
    measure_bandwidths: bool = False
    ssd_gib: float = 0.0
    dynamicemb_slowdown: float | None = None
    dynamicemb_caching_ratio: float | None = None
    dynamicemb_hybrid_ratio: float | None = None
    disk_bandwidth: float | None = None

    @property
    def bandwidths(self) -> dict[str, float | None]:
        """The bandwidths, by their names without `_bandwidth`."""
        return {
            "hbm": self.hbm_bandwidth,
            "ddr": self.ddr_bandwidth,
            "hbm_to_ddr": self.hbm_to_ddr_bandwidth,
            "intra_node": self.intra_node_bandwidth,
            "inter_node": self.inter_node_bandwidth,
        }


def planner_problems(config: PlannerConfig) -> list[str]:
    """One sentence for each problem."""
    found = [] if 0.0 <= config.storage_reserve < 1.0 else [f"storage_reserve must be in [0, 1), found {config.storage_reserve}"]
    for name in ("dynamicemb_caching_ratio", "dynamicemb_hybrid_ratio"):
        ratio = getattr(config, name)
        found += [] if ratio is None or 0.0 <= ratio <= 1.0 else [f"{name} must be in [0, 1], found {ratio}"]
    speeds = (*(f"{name}_bandwidth" for name in config.bandwidths), "disk_bandwidth", "dynamicemb_slowdown")
    return found + above_zero(*speeds)(config) + zero_or_more("ssd_gib")(config)
