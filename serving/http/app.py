"""The FastAPI app of the embedded server."""

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from emberline import __version__
from emberline.errors import ServingError
from emberline.serving.http import openapi
from emberline.serving.http.body import read_body
from emberline.serving.http.infer import HEADER_LENGTH, decode_infer, encode_infer
from emberline.serving.http.rows import decode_rows, encode_answers, lookup_names, predict_names
from emberline.serving.metrics import CONTENT_TYPE
from emberline.serving.model import LoadedModel
from emberline.serving.protocol import describe
from emberline.serving.protocol.status import describe_error
from emberline.serving.service import Service

_BIG_BODY_BYTES = 1 << 16
"""Bodies above this are parsed in a thread, so that a long one does not hold up the event loop."""

T = TypeVar("T")


def build_app(service: Service) -> FastAPI:
    """All routes over one service; `/docs` needs no outside host."""
    app = FastAPIOffline(redoc_url=None, title="Emberline", version=__version__, description=openapi.DESCRIPTION)
    app.add_exception_handler(ServingError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    app.add_exception_handler(Exception, _answer_error)
    # Routes are tried in order: the busiest come first.
    _add_infer(app, service)
    _add_rows(app, service)
    _add_health(app, service)
    _add_models(app, service)
    return app


def json_response(data: Any, status: int = 200) -> Response:
    """Plain data as a JSON answer."""
    return Response(orjson.dumps(data), status, media_type="application/json")


async def _answer_error(request: Request, error: Exception) -> Response:
    status, message = describe_error(error)
    response = json_response({"error": message}, status.http)
    if status.http == 413:
        response.headers["connection"] = "close"
    return response


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    return json_response({"error": f"{error.detail}: {request.method} {request.url.path}"}, error.status_code)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The caller left before its request was whole: no fault of ours, and nobody reads the answer."""
    return Response(status_code=499)


async def _parse(function: Callable[..., T], body: bytearray, *rest: Any) -> T:
    if len(body) > _BIG_BODY_BYTES:
        return await asyncio.to_thread(function, body, *rest)
    return function(body, *rest)


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/v2/health/live", tags=["health"], summary="Is the process alive?")
    async def live() -> Response:
        return json_response({"live": True})

    @app.get("/v2/health/ready", tags=["health"], summary="Does the server take requests? 503 while it stops.")
    async def ready() -> Response:
        return json_response({"ready": service.ready}, 200 if service.ready else 503)

    @app.get("/metrics", tags=["health"], summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(service.metrics.render(), headers={"content-type": CONTENT_TYPE})

    @app.get("/v2", tags=["models"], summary="Name, version and protocol extensions of this server")
    async def server() -> Response:
        return json_response(describe.server_metadata())


def _add_models(app: FastAPI, service: Service) -> None:
    repository = service.repository

    @app.post("/v2/repository/index", tags=["models"], summary="Every model, its version and state")
    async def index() -> Response:
        return json_response(describe.repository_index((model.name, model.version, service.ready) for model in repository))

    @app.get("/v2/models/stats", tags=["models"], summary="Counts and times of every model")
    async def all_statistics() -> Response:
        return json_response({"model_stats": [model.statistics_entry() for model in repository]})

    def add(path: str, summary: str, answer: Callable[[LoadedModel], Response]) -> None:
        async def newest(model: str) -> Response:
            return answer(repository.get(model))

        async def one_version(model: str, version: str) -> Response:
            return answer(repository.get(model, version))

        app.add_api_route("/v2/models/{model}" + path, newest, methods=["GET"], tags=["models"], summary=summary)
        app.add_api_route("/v2/models/{model}/versions/{version}" + path, one_version, methods=["GET"], tags=["models"], summary=summary)

    def ready(model: LoadedModel) -> Response:
        return json_response({"name": model.name, "version": str(model.version), "ready": service.ready}, 200 if service.ready else 503)

    add("", "Inputs and outputs", lambda model: json_response(describe.model_metadata(model.name, model.version, model.schema)))
    add(
        "/config",
        "Config, with the model's schema in its parameters",
        lambda model: json_response(describe.model_config(model.name, model.version, model.schema)),
    )
    add("/ready", "Is the model ready?", ready)
    add("/stats", "Counts and times", lambda model: json_response({"model_stats": [model.statistics_entry()]}))


def _add_infer(app: FastAPI, service: Service) -> None:
    async def infer(request: Request, model: str, version: str = "") -> Response:
        body = await read_body(request, service.settings.max_request_bytes)
        asked = await _parse(decode_infer, body, request.headers.get(HEADER_LENGTH), model, version)
        answer, header_length = encode_infer(await service.infer(asked.request, "http"), asked)
        if header_length is None:
            return Response(answer, media_type="application/json")
        return Response(answer, headers={HEADER_LENGTH: str(header_length)}, media_type="application/octet-stream")

    async def infer_newest(request: Request, model: str) -> Response:
        return await infer(request, model)

    extra = openapi.infer_body(service.repository)
    summary = "Answer packed tensors (KServe v2, JSON or with the binary extension)"
    app.add_api_route("/v2/models/{model}/infer", infer_newest, methods=["POST"], tags=["inference"], summary=summary, openapi_extra=extra)
    path = "/v2/models/{model}/versions/{version}/infer"
    app.add_api_route(path, infer, methods=["POST"], tags=["inference"], summary=summary, openapi_extra=extra)


def _add_rows(app: FastAPI, service: Service) -> None:
    def add(verb: str, summary: str, choose: Callable[[LoadedModel, tuple[str, ...] | None], dict[str, str]]) -> None:
        async def answer_rows(request: Request, model: str) -> Response:
            body = await read_body(request, service.settings.max_request_bytes)
            rows, outputs = await _parse(decode_rows, body)
            found, answers = await service.answer_rows(model, rows, lambda loaded: tuple(choose(loaded, outputs)), "http")
            return Response(encode_answers(found, answers, choose(found, outputs)), media_type="application/json")

        extra = openapi.rows_body(service.repository)
        path = "/v1/models/{model}:" + verb
        app.add_api_route(path, answer_rows, methods=["POST"], tags=["plain rows"], summary=summary, openapi_extra=extra, operation_id=verb)

    add("predict", "The model's outputs for rows of raw features", predict_names)
    add("lookup", "The embedding groups' tensors for rows of raw features", lookup_names)
