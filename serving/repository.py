"""The models of the embedded server, loaded from a folder `<models>/<name>/<version>/`: of each model the version that is served."""

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

from emberline.cpus import usable_cpus
from emberline.errors import ArtifactError, EmberlineError, NotFoundError, ServingError
from emberline.serving.engine import Engine
from emberline.serving.fetch import default_cache
from emberline.serving.finding import find_artifact, find_artifacts, find_version_of, find_versions, list_names, older_versions
from emberline.serving.live.cached import remove_old
from emberline.serving.live.identity import Identity
from emberline.serving.live.reasons import refusal_of, what_is
from emberline.serving.metrics import Metrics
from emberline.serving.model import LoadedModel
from emberline.serving.model_state import ModelState
from emberline.serving.protocol.strict_json import quote
from emberline.serving.settings import ServerSettings
from emberline.serving.warm_up import usual_sizes
from emberline.storage import Place, is_url

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
        self.candidates: dict[str, LoadedModel] = {}
        """Versions that are tried beside those that are served."""
        self._models_dir, self._settings, self._metrics = models_dir, settings, metrics
        for model in models:
            model.show()

    @classmethod
    def open(cls, models_dir: Place, settings: ServerSettings, metrics: Metrics, versions: Mapping[str, int] | None = None) -> Self:
        """Load the version that is served of every model in a folder; a single model's folder or artifact will do too, and a URL of any.

        Where the newest version of a model cannot be opened, the newest one that can is served, and `states` tells why, unless `served.json` names
        the one that cannot, or `versions` does.

        Args:
            models_dir: the folder.
            settings: how models are opened.
            metrics: where they are shown.
            versions: which models to serve, and of each the version; None for all there are.

        Raises:
            ArtifactError: the folder is missing or holds no model, two models have one name, or no artifact of a model opens: the message names the
                first that does not.
        """
        engines: dict[str, Engine] = {}
        reasons: dict[str, str] = {}
        for path in find_artifacts(models_dir) if versions is None else find_versions(models_dir, versions):
            engine, reason = _open_one_of([path, *(older_versions(path) if versions is None else ())], models_dir, settings)
            if engine.name in engines:
                other = engines[engine.name].artifact.root
                raise ArtifactError(f"{path} and {other} both hold a model named {engine.name!r}; keep one of them, or export under another name")
            engines[engine.name] = engine
            reasons[engine.name] = reason
        found = cls([LoadedModel(engine, settings, metrics) for engine in engines.values()], models_dir, settings, metrics)
        for name, reason in reasons.items():
            found.tell(name, reason)
            found.forget_old(name)
        return found

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

    def asked(self, name: str, version: str = "") -> LoadedModel:
        """As `get`, or the candidate where its version is named.

        Raises:
            NotFoundError: there is no such model or version.
        """
        candidate = self.candidates.get(name) if version else None
        return candidate if candidate is not None and version == str(candidate.version) else self.get(name, version)

    @property
    def cache(self) -> Path | None:
        """Where what comes from a URL is kept; None for the default."""
        return self._settings.cache

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

    def reason(self, name: str) -> str:
        """What was told last of a model; empty where nothing was."""
        return self._reasons.get(name, "")

    def forget_old(self, name: str) -> None:
        """Of a model that comes from a URL, remove versions from the cache that are not served any more, but for one to roll back to. Blocks."""
        model = self._models.get(name)
        if is_url(self._models_dir) and model is not None:
            remove_old(self._settings.cache or default_cache(), name, [model.engine.artifact.root])

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
        for model in (*self, *self.candidates.values()):  # what mirrors to a candidate ends with what is served
            model.close()


def _open_one_of(paths: Sequence[Place], models_dir: Place, settings: ServerSettings) -> tuple[Engine, str]:
    """The first of some versions of a model that opens, and why the first of all does not, if so.

    Raises:
        EmberlineError: none does: that of the first.
    """
    errors: list[EmberlineError] = []
    for path in paths:
        try:
            engine = _open_engine(path, models_dir, settings)
        except EmberlineError as error:
            errors.append(error)
            continue
        if not errors:
            return engine, ""
        for problem in errors:
            _log.error("%s", problem)
        _log.error("model %s: %s cannot be served; version %d is served in its place", engine.name, what_is(paths[0]), engine.version)
        return engine, refusal_of(errors[0], paths[0], models_dir, settings.cache)
    raise errors[0]


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
