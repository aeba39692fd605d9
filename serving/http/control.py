"""The model repository extension: what models there are, and loading and unloading them."""

import asyncio
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response

from emberline.errors import RequestError
from emberline.serving.http.body import read_body
from emberline.serving.protocol import describe
from emberline.serving.protocol.control import check_load_parameters, check_unload_parameters
from emberline.serving.protocol.strict_json import json_type, parse_object, quote
from emberline.serving.service import Service


def add_control(app: FastAPI, service: Service) -> None:
    """The routes under `/v2/repository`."""

    async def read(request: Request, known: str) -> Any:
        """The value of the only key that a request's body may have; None without it, or without a body."""
        body = await read_body(request, service.settings.max_request_bytes, service.settings.timeout_s)
        message = parse_object(body) if body.strip() else {}
        for key in message:
            if key != known:
                raise RequestError(f"there is no key {quote(key)}; there is {known}")
        return message.get(known)

    async def read_parameters(request: Request) -> dict[str, Any]:
        found = await read(request, "parameters")
        if not isinstance(found, dict | None):
            raise RequestError(f"parameters must be an object, not {json_type(found)}")
        return found or {}

    @app.post("/v2/repository/index", tags=["repository"], summary="Every model, its version and state")
    async def index(request: Request) -> Response:
        only_ready = await read(request, "ready")
        if not isinstance(only_ready, bool | None):
            raise RequestError("ready must be true or false")
        states = await asyncio.to_thread(service.repository.states)
        models = describe.repository_index(states, service.taking_requests, only_ready=bool(only_ready))
        return Response(orjson.dumps(models), media_type="application/json")

    @app.post("/v2/repository/models/{model}/load", tags=["repository"], summary="Load a model, or the version of it that is to be served now")
    async def load(request: Request, model: str) -> Response:
        check_load_parameters(await read_parameters(request))
        await service.load_model(model)
        return Response()

    @app.post("/v2/repository/models/{model}/unload", tags=["repository"], summary="Serve a model no more")
    async def unload(request: Request, model: str) -> Response:
        check_unload_parameters(await read_parameters(request))
        await service.unload_model(model)
        return Response()
