"""The routes of a canary: `/v1/models/<name>:canary`, `:promote` and `:drop`."""

from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from emberline.errors import RequestError
from emberline.serving.http.body import read_body
from emberline.serving.protocol.strict_json import parse_object, quote
from emberline.serving.service import Service

_KEYS = ("version", "share", "seed")
DEFAULT_SHARE = 0.1


def add_canary(app: FastAPI, service: Service) -> None:
    """Add them to an app."""

    async def read(request: Request, known: tuple[str, ...]) -> dict[str, Any]:
        body = await read_body(request, service.settings.max_request_bytes, service.settings.timeout_s)
        message = parse_object(body) if body.strip() else {}
        for key in message:
            if key not in known:
                raise RequestError(f"there is no key {quote(key)}; there is {', '.join(known) or 'none'}")
        return dict(message)

    @app.post("/v1/models/{model}:canary", tags=["canary"], summary="Try a version beside the one that is served: ask it a share of the requests too")
    async def start(request: Request, model: str) -> Response:
        version, share, seed = read_start(await read(request, _KEYS))
        await service.start_canary(model, version, share=share, seed=seed)
        return _json(await service.canary_report(model))

    @app.get("/v1/models/{model}:canary", tags=["canary"], summary="What was found of the version that is tried")
    async def report(model: str) -> Response:
        return _json(await service.canary_report(model))

    @app.post("/v1/models/{model}:promote", tags=["canary"], summary="Serve the version that is tried from now on")
    async def promote(request: Request, model: str) -> Response:
        await read(request, ())
        await service.promote_canary(model)
        return _json({"model": model, "version": service.repository.get(model).version})

    @app.post("/v1/models/{model}:drop", tags=["canary"], summary="Try the version no longer")
    async def drop(request: Request, model: str) -> Response:
        await read(request, ())
        await service.drop_canary(model)
        return _json({"model": model, "version": service.repository.get(model).version})


def read_start(message: dict[str, Any]) -> tuple[int, float, int]:
    """Version, share and seed of what begins a canary.

    Raises:
        RequestError: one is missing or wrong.
    """
    version, share, seed = message.get("version"), message.get("share", DEFAULT_SHARE), message.get("seed", 0)
    if type(version) is not int or version < 0:
        raise RequestError("version must be the number of a version of the model")
    if type(share) not in (int, float) or not 0 < share <= 1:
        raise RequestError("share must be a number over 0 and at most 1")
    if type(seed) is not int or seed < 0:
        raise RequestError("seed must be a whole number, 0 or more")
    return version, float(share), seed


def _json(message: dict[str, Any]) -> Response:
    return Response(orjson.dumps(message), media_type="application/json")
