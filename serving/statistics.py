"""What a served model has done so far."""

from dataclasses import dataclass
from typing import Any


@dataclass(slots=True)
class Statistics:
    """Counts and nanoseconds since the model was loaded, under the meanings of the v2 statistics extension."""

    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    compute_ns: int = 0
    execution_count: int = 0
    queue_count: int = 0
    last_inference_ms: int = 0

    def to_dict(self, name: str, version: int) -> dict[str, Any]:
        """One entry of `model_stats`."""
        return {
            "name": name,
            "version": str(version),
            "last_inference": self.last_inference_ms,
            "inference_count": self.success_count,
            "execution_count": self.execution_count,
            "inference_stats": {
                "success": {"count": self.success_count, "ns": self.success_ns},
                "fail": {"count": self.fail_count, "ns": self.fail_ns},
                "queue": {"count": self.queue_count, "ns": self.queue_ns},
                "compute_infer": {"count": self.execution_count, "ns": self.compute_ns},
            },
        }
