"""The FastAPI app of the embedded server."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from emberline import __version__
from emberline.errors import ServingError
from emberline.serving.canary.http import add_canary
from emberline.serving.console.page import add_console, console_paths
from emberline.serving.http import openapi
from emberline.serving.http.body import read_body
from emberline.serving.http.control import add_control
from emberline.serving.http.openapi_answers import tell_answers
from emberline.serving.http.replies import HEADER_LENGTH, VERBS, Reply, error_reply, json_reply, reply_infer, reply_rows
from emberline.serving.metrics import CONTENT_TYPE
from emberline.serving.model import LoadedModel
from emberline.serving.observe.context import CURRENT, MODEL_VERSION, REQUEST_ID, RequestContext, note_model, read_context
from emberline.serving.observe.observer import CANCELLED, Observer
from emberline.serving.protocol import describe
from emberline.serving.protocol.strict_json import quote
from emberline.serving.security.guard import OPEN_PATHS, TokenGuard
from emberline.serving.security.tokens import Tokens
from emberline.serving.service import Service


def build_app(service: Service, tokens: Tokens | None = None) -> FastAPI:
    """All routes over one service; `/docs` needs no outside host. With tokens, callers must show one of them."""
    app = FastAPIOffline(redoc_url=None, title="Emberline", version=__version__, description=openapi.DESCRIPTION)
    app.add_exception_handler(ServingError, _answer_error)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(ClientDisconnect, _answer_nobody)
    if tokens is not None:
        app.add_middleware(TokenGuard, tokens=tokens, open_paths=(*OPEN_PATHS, *console_paths()))
    app.add_middleware(_Requests, observer=service.observer)
    # Routes are tried in order: the busiest come first.
    _add_infer(app, service)
    _add_rows(app, service)
    _add_health(app, service)
    _add_models(app, service)
    add_control(app, service)
    add_canary(app, service)
    add_console(app, service.settings)
    tell_answers(app, wants_token=tokens is not None)
    return app


class _Requests:
    """Names each request, and answers what is a fault of ours and logs it once: Starlette's own handler would raise it again, for the server to log
    it too.
    """

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self._app, self._observer = app, observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context, started = read_context([(name.decode("latin-1"), value) for name, value in scope["headers"]]), False
        context.call = f"{scope['method']} {scope['raw_path'].decode('ascii', 'backslashreplace')}"
        CURRENT.set(context)

        async def watch(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_fields_of(context)]
                if not context.call.endswith("/ready"):  # whose 503 is an answer
                    self._observer.finished(context, "http", message["status"])
            started = True
            await send(message)

        try:
            await self._app(scope, receive, watch)
        except Exception as error:
            if started:
                raise
            await _response(error_reply(error))(scope, receive, watch)


def _fields_of(context: RequestContext) -> list[tuple[bytes, bytes]]:
    """What an answer's head tells of the request, and of the model that answered, where one did."""
    version = [(MODEL_VERSION.encode(), b"%d" % context.version)] if context.version else []
    return [(REQUEST_ID.encode(), context.id.encode()), *version]


def _response(reply: Reply) -> Response:
    headers = {} if reply.header_length is None else {HEADER_LENGTH: str(reply.header_length)}
    if reply.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(reply.body, reply.status, headers=headers, media_type=reply.media_type)


def _json(data: Any, status: int = 200) -> Response:
    return _response(json_reply(data, status))


async def _answer_error(request: Request, error: Exception) -> Response:
    response = _response(error_reply(error))
    if response.status_code == 413:
        response.headers["connection"] = "close"
    return response


async def _answer_http_error(request: Request, error: Exception) -> Response:
    """What the router itself refuses: no such path, or not with this method."""
    assert isinstance(error, HTTPException)
    return _json({"error": f"{error.detail}: {request.method} {quote(request.url.path)}"}, error.status_code)


async def _answer_nobody(request: Request, error: Exception) -> Response:
    """The caller left before its request was whole, or before it was answered: no fault of ours, and nobody reads the answer."""
    return Response(status_code=CANCELLED)


async def _while_there(request: Request, answer: Coroutine[Any, Any, Reply]) -> Response:
    """The reply, unless the caller leaves first: then the request is not computed any more.

    Raises:
        ClientDisconnect: it left.
    """
    answering, leaving = asyncio.create_task(answer), asyncio.create_task(_leaves(request))
    try:
        await asyncio.wait({answering, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not answering.done():
            raise ClientDisconnect
        return _response(answering.result())
    finally:
        leaving.cancel()
        answering.cancel()


async def _leaves(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_health(app: FastAPI, service: Service) -> None:
    @app.get("/v2/health/live", tags=["health"], summary="Is the process alive?")
    async def live() -> Response:
        return _json({"live": True})

    @app.get("/v2/health/ready", tags=["health"], summary="Does every model answer? 503 while the server stops.")
    async def ready() -> Response:
        is_ready = await service.is_ready()
        return _json({"ready": is_ready}, 200 if is_ready else 503)

    @app.get("/metrics", tags=["health"], summary="Prometheus metrics")
    async def metrics() -> Response:
        return Response(await service.metrics_text(), headers={"content-type": CONTENT_TYPE})

    @app.get("/v2", tags=["models"], summary="Name, version and protocol extensions of this server")
    async def server() -> Response:
        return _json(describe.server_metadata())


def _add_models(app: FastAPI, service: Service) -> None:
    repository = service.repository

    @app.get("/v2/models/stats", tags=["models"], summary="Counts and times of every model")
    async def all_statistics() -> Response:
        return _json({"model_stats": await service.statistics([model.name for model in repository])})

    def add(
        path: str,
        summary: str,
        answer: Callable[[LoadedModel], Coroutine[Any, Any, Response]],
        find: Callable[[str, str], LoadedModel] = repository.get,
    ) -> None:
        async def one_version(model: str, version: str) -> Response:
            found = find(model, version)
            note_model(found.name, found.version)
            return await answer(found)

        async def newest(model: str) -> Response:
            return await one_version(model, "")

        app.add_api_route("/v2/models/{model}" + path, newest, methods=["GET"], tags=["models"], summary=summary)
        app.add_api_route("/v2/models/{model}/versions/{version}" + path, one_version, methods=["GET"], tags=["models"], summary=summary)

    async def metadata(model: LoadedModel) -> Response:
        return _json(describe.model_metadata(model.name, model.version, model.schema))

    async def config(model: LoadedModel) -> Response:
        return _json(describe.model_config(model.name, model.version, model.schema))

    async def ready(model: LoadedModel) -> Response:
        is_ready = await service.is_ready(model)
        return _json({"name": model.name, "version": str(model.version), "ready": is_ready}, 200 if is_ready else 503)

    async def statistics(model: LoadedModel) -> Response:
        return _json({"model_stats": await service.statistics([model.name])})

    add("", "Inputs and outputs", metadata, repository.asked)
    add("/config", "Config, with the model's schema in its parameters", config, repository.asked)
    add("/ready", "Does the model answer?", ready)
    add("/stats", "Counts and times", statistics)


def _add_infer(app: FastAPI, service: Service) -> None:
    async def infer(request: Request, model: str, version: str = "") -> Response:
        body = await read_body(request, service.settings.max_request_bytes, service.settings.timeout_s)
        return await _while_there(request, reply_infer(service, body, request.headers.get(HEADER_LENGTH), model, version))

    async def infer_newest(request: Request, model: str) -> Response:
        return await infer(request, model)

    extra = openapi.infer_body(service.repository)
    summary = "Answer packed tensors (KServe v2, JSON or with the binary extension)"
    app.add_api_route("/v2/models/{model}/infer", infer_newest, methods=["POST"], tags=["inference"], summary=summary, openapi_extra=extra)
    path = "/v2/models/{model}/versions/{version}/infer"
    app.add_api_route(path, infer, methods=["POST"], tags=["inference"], summary=summary, openapi_extra=extra)


def _add_rows(app: FastAPI, service: Service) -> None:
    async def answer_rows(request: Request, model: str, verb: str) -> Response:
        body = await read_body(request, service.settings.max_request_bytes, service.settings.timeout_s)
        return await _while_there(request, reply_rows(service, body, model, verb))

    summaries = {
        "predict": "The model's outputs for rows of raw features",
        "lookup": "The embedding groups' tensors for rows of raw features",
    }
    extra = openapi.rows_body(service.repository)
    for verb in VERBS:
        app.add_api_route(
            "/v1/models/{model}:" + verb,
            _with_verb(answer_rows, verb),
            methods=["POST"],
            tags=["plain rows"],
            summary=summaries[verb],
            openapi_extra=extra,
            operation_id=verb,
        )


def _with_verb(answer: Callable[[Request, str, str], Coroutine[Any, Any, Response]], verb: str) -> Callable[[Request, str], Any]:
    async def answer_verb(request: Request, model: str) -> Response:
        return await answer(request, model, verb)

    return answer_verb
