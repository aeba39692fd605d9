"""The models of the embedded server, loaded from a folder `<models>/<name>/<version>/`: of each model the version that is served."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Self

from emberline.errors import ArtifactError, NotFoundError
from emberline.manifest import MANIFEST_NAME
from emberline.serving.engine import Engine
from emberline.serving.fetch import find_stored_models
from emberline.serving.metrics import Metrics
from emberline.serving.model import LoadedModel
from emberline.serving.protocol.strict_json import quote
from emberline.serving.settings import ServerSettings
from emberline.serving.versions import served_version
from emberline.storage import Place, Storage, is_url


class Repository:
    """Models by name.

    Args:
        models: at least one; names differ.
    """

    def __init__(self, models: list[LoadedModel]) -> None:
        self._models = {model.name: model for model in models}

    @classmethod
    def open(cls, models_dir: Place, settings: ServerSettings, metrics: Metrics) -> Self:
        """Load the version that is served of every model in a folder; a single model's folder or artifact will do too, and a URL of any.

        Raises:
            ArtifactError: the folder is missing or holds no model, two models have one name, or an artifact is damaged: the message names it.
        """
        engines: dict[str, Engine] = {}
        for path in find_artifacts(models_dir):
            engine = Engine.open(path, num_threads=settings.num_threads, cache=settings.cache, format=settings.format)
            _check_place(path, models_dir, engine)
            if engine.name in engines:
                other = engines[engine.name].artifact.root
                raise ArtifactError(f"{path} and {other} both hold a model named {engine.name!r}; keep one of them, or export under another name")
            engines[engine.name] = engine
        return cls([LoadedModel(engine, settings, metrics) for engine in engines.values()])

    def __iter__(self) -> Iterator[LoadedModel]:
        """The models, by name."""
        return iter(self._models[name] for name in sorted(self._models))

    def get(self, name: str, version: str = "") -> LoadedModel:
        """The model of that name; an empty version means the newest.

        Raises:
            NotFoundError: there is none; the message lists those there are.
        """
        model = self._models.get(name)
        if model is None:
            raise NotFoundError(f"there is no model {quote(name)}; this server has {', '.join(sorted(self._models))}")
        if version not in ("", str(model.version)):
            raise NotFoundError(f"model {quote(name)} has no version {quote(version)} here; this server has version {model.version}")
        return model

    def close(self) -> None:
        """Answer what waits and stop every model's thread."""
        for model in self:
            model.close()


def _check_place(path: Place, models_dir: Place, engine: Engine) -> None:
    """In a folder of models, an artifact lies where its manifest says: Triton goes by the folder, and both must serve one name."""
    folder, *names = path.rsplit("/", 2) if is_url(path) else (str(Path(path).parent.parent), Path(path).parent.name, Path(path).name)
    if folder == (models_dir.rstrip("/") if is_url(models_dir) else str(Path(models_dir))) and names != [engine.name, str(engine.version)]:
        raise ArtifactError(f"{path}: the manifest tells of {engine.name!r} version {engine.version}, not of this folder")


def find_artifacts(models_dir: Place) -> Sequence[Place]:
    """The artifact that is served of each model in a folder, or the URL of each where that is a URL.

    Raises:
        ArtifactError: there is none, a model's folder has version folders but none that is complete, or its `served.json` names none.
    """
    if is_url(models_dir):
        return find_stored_models(Storage.of(models_dir))
    models_dir = Path(models_dir)
    if not models_dir.is_dir():
        raise ArtifactError(f"{models_dir}: there is no such folder; `emberline export --output {models_dir} ...` makes one")
    if (models_dir / MANIFEST_NAME).is_file():
        return [models_dir]
    if (version := served_version(models_dir)) is not None:
        return [models_dir / str(version)]
    found = []
    for folder in sorted(path for path in models_dir.iterdir() if path.is_dir() and not path.name.startswith(".")):
        if (version := served_version(folder)) is not None:
            found.append(folder / str(version))
        elif any(path.name.isdigit() for path in folder.iterdir() if path.is_dir()):
            raise ArtifactError(f"{folder}: none of its versions is complete: no {MANIFEST_NAME} in any; export or copy it again, or remove it")
    if not found:
        raise ArtifactError(f"{models_dir}: no models here; `emberline export --output {models_dir} ...` writes <name>/<version>/{MANIFEST_NAME}")
    return found
