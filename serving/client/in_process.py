"""The models of a folder, answered in this process: what a client asks whose URL is `file:///folder`."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt

from emberline.errors import NotFoundError, ServingError
from emberline.serving.engine import Engine
from emberline.serving.finding import find_artifact
from emberline.serving.protocol.strict_json import quote
from emberline.serving.request import PackedRequest
from emberline.serving.triton.config import SCHEMA_PARAMETER
from emberline.serving.versions import list_versions

Arrays = dict[str, npt.NDArray[Any]]


class InProcessTransport:
    """Opens a model with the first call that names it, in memory of this process, and answers until it is closed. Time limits do not hold here.

    Args:
        models_dir: `<models>/<name>/<version>/`, or one model's folder or artifact, as the servers take it.
    """

    def __init__(self, models_dir: Path) -> None:
        self._models_dir = models_dir
        self._engines: dict[tuple[str, str], Engine] = {}
        self._opening = asyncio.Lock()

    async def parameters(self, model: str, version: str, timeout_s: float) -> Mapping[str, str]:
        """The model's schema, under the name that a server's config has it.

        Raises:
            NotFoundError: the folder has no such model or version.
            ArtifactError: it cannot be opened.
        """
        return {SCHEMA_PARAMETER: json.dumps((await self._engine(model, version)).schema.to_dict())}

    async def infer(self, model: str, version: str, inputs: Mapping[str, npt.NDArray[Any]], outputs: Sequence[str], timeout_s: float) -> Arrays:
        """The named outputs.

        Raises:
            ServingError: the request is refused.
        """
        engine = await self._engine(model, version)
        (answer,) = await asyncio.to_thread(engine.predict_many, [PackedRequest(**inputs)], [tuple(outputs)])
        if isinstance(answer, ServingError):
            raise type(answer)(str(answer)) from None  # as from a server: its row is one of this request, which may be a part of what was asked
        return {name: answer[name].numpy() for name in outputs}

    async def close(self) -> None:
        """Let go of the models."""
        self._engines.clear()

    async def _engine(self, model: str, version: str) -> Engine:
        async with self._opening:
            if (model, version) not in self._engines:
                self._engines[model, version] = await asyncio.to_thread(self._open, model, version)
            return self._engines[model, version]

    def _open(self, model: str, version: str) -> Engine:
        found = find_artifact(self._models_dir, model) if self._models_dir.is_dir() else None
        if found is None:
            raise NotFoundError(f"there is no model {quote(model)} in {self._models_dir}")
        path = Path(found)
        if version and version != path.name:
            if version not in map(str, list_versions(path.parent)):
                raise NotFoundError(f"model {quote(model)} has no version {quote(version)} in {path.parent}")
            path = path.parent / version
        return Engine.open(path)
