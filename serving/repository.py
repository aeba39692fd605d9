"""The models of the embedded server, loaded from a folder `<models>/<name>/<version>/`: of each model the version that is served."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from emberline.cpus import usable_cpus
from emberline.errors import ArtifactError, EmberlineError, NotFoundError, ServingError
from emberline.manifest import MANIFEST_NAME
from emberline.serving.artifact import load_manifest
from emberline.serving.engine import Engine
from emberline.serving.fetch import find_stored, find_stored_models, stored_version
from emberline.serving.live.identity import Identity
from emberline.serving.live.reasons import refusal_of
from emberline.serving.metrics import Metrics
from emberline.serving.model import LoadedModel
from emberline.serving.model_state import ModelState
from emberline.serving.protocol.strict_json import quote
from emberline.serving.settings import ServerSettings
from emberline.serving.versions import list_versions, served_version
from emberline.serving.warm_up import usual_sizes
from emberline.storage import Place, Storage, is_url

_log = logging.getLogger(__name__)


class Repository:
    """Models by name. `put`, `remove`, `get` and the iteration belong to the server's event loop; the rest may block, and runs in any thread.

    Args:
        models: names differ.
        models_dir: where they lie.
        settings: how models are opened.
        metrics: where they are shown.
    """

    def __init__(self, models: list[LoadedModel], models_dir: Place, settings: ServerSettings, metrics: Metrics) -> None:
        self._models = {model.name: model for model in models}
        self._reasons: dict[str, str] = {}
        self._unloaded: set[str] = set()
        self._models_dir, self._settings, self._metrics = models_dir, settings, metrics
        for model in models:
            model.show()

    @classmethod
    def open(cls, models_dir: Place, settings: ServerSettings, metrics: Metrics, versions: Mapping[str, int] | None = None) -> Self:
        """Load the version that is served of every model in a folder; a single model's folder or artifact will do too, and a URL of any.

        Args:
            models_dir: the folder.
            settings: how models are opened.
            metrics: where they are shown.
            versions: which models to serve, and of each the version; None for all there are.

        Raises:
            ArtifactError: the folder is missing or holds no model, two models have one name, or an artifact is damaged: the message names it.
        """
        engines: dict[str, Engine] = {}
        for path in find_artifacts(models_dir) if versions is None else find_versions(models_dir, versions):
            engine = _open_engine(path, models_dir, settings)
            if engine.name in engines:
                other = engines[engine.name].artifact.root
                raise ArtifactError(f"{path} and {other} both hold a model named {engine.name!r}; keep one of them, or export under another name")
            engines[engine.name] = engine
        return cls([LoadedModel(engine, settings, metrics) for engine in engines.values()], models_dir, settings, metrics)

    def __iter__(self) -> Iterator[LoadedModel]:
        """The models, by name."""
        return iter([self._models[name] for name in sorted(self._models)])

    def get(self, name: str, version: str = "") -> LoadedModel:
        """The model of that name; an empty version means the newest.

        Raises:
            NotFoundError: there is none; the message lists those there are.
        """
        model = self._models.get(name)
        if model is None:
            raise NotFoundError(f"there is no model {quote(name)}; this server has {', '.join(sorted(self._models)) or 'none'}")
        if version not in ("", str(model.version)):
            raise NotFoundError(f"model {quote(name)} has no version {quote(version)} here; this server has version {model.version}")
        return model

    @property
    def models_dir(self) -> Place:
        """Where the models lie."""
        return self._models_dir

    def find(self, name: str) -> LoadedModel | None:
        """The model of that name, where it is served."""
        return self._models.get(name)

    def served(self) -> dict[str, Identity]:
        """What is served, by model."""
        return {name: model.identity for name, model in self._models.items()}

    @property
    def unloaded(self) -> Collection[str]:
        """Models that were removed, and not put back since."""
        return self._unloaded

    def load(self, name: str) -> LoadedModel:
        """Open the version of a model that is to be served now, beside the one that is, if any. Blocks.

        Raises:
            NotFoundError: the folder has no such model.
            ServingError: it cannot be opened; the log tells why.
        """
        path: Place | None = None
        try:
            path = find_artifact(self._models_dir, name)
            if path is None:
                raise NotFoundError(f"there is no model {quote(name)} to load")
            return self._open(path)
        except ServingError:
            raise
        except EmberlineError as error:
            _log.error("model %s cannot be loaded: %s", name, error)
            self._reasons[name] = refusal_of(error, path or self._models_dir, self._models_dir, self._settings.cache)
            raise ServingError(f"model {quote(name)} cannot be loaded; the server's log says why") from None

    def load_version(self, name: str, version: int) -> LoadedModel:
        """Open a version of a model beside what is served. Blocks.

        Raises:
            ArtifactError: it is not there, cannot be opened, or is another model's; the message has paths in it.
            EmberlineError: the same, for other reasons.
        """
        path = find_version_of(self._models_dir, name, version)
        if path is None:
            raise ArtifactError(f"model {quote(name)} has no version {version} in the models folder")
        model = self._open(path)
        if (model.name, model.version) != (name, version):
            model.close()
            raise ArtifactError(f"{path}: the manifest tells of {model.name!r} version {model.version}, not of {name!r} version {version}")
        return model

    def _open(self, path: Place) -> LoadedModel:
        return LoadedModel(_open_engine(path, self._models_dir, self._settings), self._settings, self._metrics)

    def put(self, model: LoadedModel) -> LoadedModel | None:
        """Serve a model from now on; returns the one in whose place it is, which is to be closed."""
        old, self._models[model.name] = self._models.get(model.name), model
        self._reasons.pop(model.name, None)
        self._unloaded.discard(model.name)
        model.show()
        return old

    def tell(self, name: str, reason: str) -> None:
        """Say in `states` from now on why a model's version that is to be served is not; empty: it is."""
        if reason:
            self._reasons[name] = reason
        elif name not in self._unloaded:
            self._reasons.pop(name, None)

    def remove(self, name: str) -> LoadedModel:
        """Serve a model no more; returns it, which is to be closed.

        Raises:
            NotFoundError: it is not there.
        """
        model = self.get(name)
        del self._models[name]
        self._unloaded.add(name)
        self._reasons[name] = "unloaded"
        self._metrics.remove_model(name)
        return model

    def states(self) -> list[ModelState]:
        """Every model of the folder, by name, whether it is served or not. Blocks."""
        loaded, reasons = dict(self._models), dict(self._reasons)
        names = {*loaded, *reasons, *list_names(self._models_dir)}
        found = []
        for name in sorted(names):
            version = str(loaded[name].version) if name in loaded else ""
            found.append(ModelState(name, version, reasons.get(name, "" if version else "not loaded")))
        return found

    def close(self) -> None:
        """Answer what waits and stop every model's thread."""
        for model in self:
            model.close()


def _open_engine(path: Place, models_dir: Place, settings: ServerSettings) -> Engine:
    engine = Engine.open(
        path,
        num_threads=settings.num_threads or usable_cpus(),
        cache=settings.cache,
        format=settings.format,
        lookup=settings.lookup,
        tables=settings.tables,
        row_growth=settings.row_growth,
        warm_up=usual_sizes(settings.max_batch_rows),
    )
    _check_place(path, models_dir, engine)
    return engine


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
    if (single := _single(models_dir)) is not None:
        return [single]
    found = []
    for folder in _model_folders(models_dir).values():
        if (version := served_version(folder)) is not None:
            found.append(folder / str(version))
        elif any(path.name.isdigit() for path in folder.iterdir() if path.is_dir()):
            raise ArtifactError(f"{folder}: none of its versions is complete: no {MANIFEST_NAME} in any; export or copy it again, or remove it")
    if not found:
        raise ArtifactError(f"{models_dir}: no models here; `emberline export --output {models_dir} ...` writes <name>/<version>/{MANIFEST_NAME}")
    return found


def find_versions(models_dir: Place, versions: Mapping[str, int]) -> Sequence[Place]:
    """The artifacts of some versions of some models; of a model without that version, the one that is to be served.

    Raises:
        ArtifactError: there is no such model.
    """
    found: list[Place] = []
    for name, version in versions.items():
        path = find_version_of(models_dir, name, version) or find_artifact(models_dir, name)
        if path is None:
            raise ArtifactError(f"{models_dir}: there is no model {name!r} any more")
        found.append(path)
    return found


def find_version_of(models_dir: Place, name: str, version: int) -> Place | None:
    """The artifact of a version of a model; None where there is none. Of one model's folder or artifact, the name is left to who opens it."""
    if is_url(models_dir):
        storage = Storage.of(models_dir)
        if storage.has(MANIFEST_NAME):
            return storage.url
        if not storage.numbers():
            if name.startswith(".") or name not in storage.names():
                return None
            storage = storage.child(name)
        return storage.child(str(version)).url if storage.has(f"{version}/{MANIFEST_NAME}") else None
    root = Path(models_dir)
    if (root / MANIFEST_NAME).is_file():
        return root
    folder = root if list_versions(root) else _model_folders(root).get(name)
    return folder / str(version) if folder is not None and version in list_versions(folder) else None


def find_artifact(models_dir: Place, name: str) -> Place | None:
    """As `find_artifacts`, the one of a model; None where there is no such model. The name is looked for among those there are: it is no path.

    Raises:
        ArtifactError: its `served.json` names no version that is there.
    """
    if is_url(models_dir):
        return _stored_artifact(Storage.of(models_dir), name)
    if (single := _single(Path(models_dir))) is not None:
        return single if load_manifest(single).name == name else None
    folder = _model_folders(Path(models_dir)).get(name)
    version = None if folder is None else served_version(folder)
    return None if folder is None or version is None else folder / str(version)


def _stored_artifact(storage: Storage, name: str) -> Place | None:
    if storage.has(MANIFEST_NAME) or stored_version(storage) is not None:
        single = find_stored(storage)
        return single.url if single.url.rstrip("/").split("/")[-2] == name else None
    if name.startswith(".") or name not in storage.names():
        return None
    version = stored_version(storage.child(name))
    return None if version is None else storage.child(name).child(str(version)).url


def list_names(models_dir: Place) -> list[str]:
    """The names of the models in a folder that have a complete version; none where it cannot be read, or is a single model's."""
    try:
        if is_url(models_dir):
            storage = Storage.of(models_dir)
            if storage.has(MANIFEST_NAME) or stored_version(storage) is not None:
                return []
            return [name for name in storage.names() if not name.startswith(".") and storage.child(name).numbers()]
        if _single(Path(models_dir)) is not None:
            return []
        return [name for name, folder in _model_folders(Path(models_dir)).items() if list_versions(folder)]
    except (EmberlineError, OSError) as error:
        _log.error("the models folder cannot be read: %s", error)
        return []


def _single(models_dir: Path) -> Path | None:
    """The artifact that is served where the folder is one's, or a model's."""
    if (models_dir / MANIFEST_NAME).is_file():
        return models_dir
    version = served_version(models_dir)
    return None if version is None else models_dir / str(version)


def _model_folders(models_dir: Path) -> dict[str, Path]:
    """The folders that may be models', by name."""
    return {path.name: path for path in sorted(models_dir.iterdir()) if path.is_dir() and not path.name.startswith(".")}
