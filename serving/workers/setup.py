"""What a worker is told to serve."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from emberline.serving.observe.settings import ObserveSettings
from emberline.serving.security.settings import SecuritySettings
from emberline.serving.settings import ServerSettings
from emberline.storage import Place


@dataclass(frozen=True)
class Setup:
    """One worker's models and settings.

    Args:
        models: see `Repository.open`.
        settings: of the worker: its ports are those that all workers share.
        versions: see `Repository.open`.
    """

    models: Place
    settings: ServerSettings
    versions: Mapping[str, int] | None

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        settings = asdict(self.settings)
        settings["security"] = self.settings.security.to_dict()
        settings["observe"] = self.settings.observe.to_dict()
        settings["cache"] = None if self.settings.cache is None else str(self.settings.cache)
        versions = None if self.versions is None else dict(self.versions)
        return {"models": str(self.models), "settings": settings, "versions": versions}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """From what `to_dict` gave."""
        settings = dict(data["settings"])
        settings["security"] = SecuritySettings.from_dict(settings["security"])
        settings["observe"] = ObserveSettings.from_dict(settings["observe"])
        if settings["cache"] is not None:
            settings["cache"] = Path(settings["cache"])
        return cls(data["models"], ServerSettings(**settings), data["versions"])
