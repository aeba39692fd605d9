"""The gRPC server: `inference.GRPCInferenceService` over one service."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from google.protobuf import json_format
from google.protobuf.message import DecodeError
from tritonclient.grpc import service_pb2 as pb

from emberline.errors import LaunchError, NotFoundError, RequestError
from emberline.serving.grpc.messages import decode_infer, encode_infer, read_map
from emberline.serving.model import LoadedModel
from emberline.serving.observe.context import CURRENT, MODEL_VERSION, REQUEST_ID, RequestContext, note_model, read_context
from emberline.serving.observe.observer import CANCELLED
from emberline.serving.protocol import describe
from emberline.serving.protocol.control import check_load_parameters, check_unload_parameters
from emberline.serving.protocol.status import describe_error
from emberline.serving.protocol.strict_json import quote
from emberline.serving.security.guard import OPEN_CALLS
from emberline.serving.security.tls import Certificates
from emberline.serving.security.tokens import Tokens
from emberline.serving.service import Service
from emberline.serving.sockets import bind_socket

_SERVICE = "inference.GRPCInferenceService"
_MAX_DETAILS = 2000
"""Characters of an error's text: it travels in a header, and clients take 8 KiB of those."""
Handler = Callable[[Any, Any], Awaitable[Any]]


def make_server(
    host: str, port: int, max_request_bytes: int, certificates: Certificates | None = None, *, shared: bool = False
) -> tuple[grpc.aio.Server, int]:
    """A server bound to its port, over TLS where it has certificates, not yet started, and that port; `shared` as in `bind_socket`.

    Raises:
        LaunchError: the port is taken, or the address is not this machine's.
    """
    options = [
        ("grpc.max_receive_message_length", max_request_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.so_reuseport", int(shared)),
    ]
    server = grpc.aio.server(options=options)
    # gRPC tells of a taken port on standard error and without the cause: a socket of our own finds out first.
    with bind_socket(host, port, "gRPC", shared=shared):
        pass
    where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    try:
        bound = server.add_insecure_port(where) if certificates is None else server.add_secure_port(where, certificates.grpc_credentials())
        return server, bound
    except RuntimeError as error:
        raise LaunchError(f"cannot listen on {where} for gRPC: {error}") from error


def add_service(server: grpc.aio.Server, service: Service, tokens: Tokens | None = None) -> None:
    """Register every call that the service answers; the others get UNIMPLEMENTED. With tokens, callers must show one of them."""
    methods = _server_methods(service) | _repository_methods(service) | _model_methods(service)
    handlers = {
        name: grpc.unary_unary_rpc_method_handler(
            _with_errors(service, name, _reading(f"{name}Request", handler), None if name in OPEN_CALLS else tokens),
            response_serializer=getattr(pb, f"{name}Response").SerializeToString,
        )
        for name, handler in methods.items()
    }
    handlers["ModelInfer"] = grpc.unary_unary_rpc_method_handler(_with_errors(service, "ModelInfer", _infer(service), tokens))  # bytes in, bytes out
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))


def _server_methods(service: Service) -> dict[str, Handler]:
    async def live(request: Any, context: Any) -> Any:
        return pb.ServerLiveResponse(live=True)

    async def ready(request: Any, context: Any) -> Any:
        return pb.ServerReadyResponse(ready=await service.is_ready())

    async def server_metadata(request: Any, context: Any) -> Any:
        return json_format.ParseDict(describe.server_metadata(), pb.ServerMetadataResponse())

    return {"ServerLive": live, "ServerReady": ready, "ServerMetadata": server_metadata}


def _repository_methods(service: Service) -> dict[str, Handler]:
    def check_name(request: Any) -> None:
        if request.repository_name:
            raise NotFoundError(f"there is no repository {quote(request.repository_name)}; this server has one, without a name")

    async def index(request: Any, context: Any) -> Any:
        check_name(request)
        states = await asyncio.to_thread(service.repository.states)
        models = describe.repository_index(states, service.taking_requests, only_ready=request.ready)
        return json_format.ParseDict({"models": models}, pb.RepositoryIndexResponse())

    async def load(request: Any, context: Any) -> Any:
        check_name(request)
        check_load_parameters(read_map(request.parameters))
        await service.load_model(request.model_name)
        return pb.RepositoryModelLoadResponse()

    async def unload(request: Any, context: Any) -> Any:
        check_name(request)
        check_unload_parameters(read_map(request.parameters))
        await service.unload_model(request.model_name)
        return pb.RepositoryModelUnloadResponse()

    return {"RepositoryIndex": index, "RepositoryModelLoad": load, "RepositoryModelUnload": unload}


def _model_methods(service: Service) -> dict[str, Handler]:
    repository = service.repository

    def get(request: Any) -> LoadedModel:
        model = repository.get(request.name, request.version)
        note_model(model.name, model.version)
        return model

    async def ready(request: Any, context: Any) -> Any:
        return pb.ModelReadyResponse(ready=await service.is_ready(get(request)))

    async def metadata(request: Any, context: Any) -> Any:
        model = get(request)
        return json_format.ParseDict(describe.model_metadata(model.name, model.version, model.schema), pb.ModelMetadataResponse())

    async def config(request: Any, context: Any) -> Any:
        model = get(request)
        return json_format.ParseDict({"config": describe.model_config(model.name, model.version, model.schema)}, pb.ModelConfigResponse())

    async def statistics(request: Any, context: Any) -> Any:
        models = [get(request)] if request.name else list(repository)
        entries = await service.statistics([model.name for model in models])
        # The message has no place for what is told of deltas and ids.
        stats = [{name: value for name, value in entry.items() if name not in ("delta", "table_ids")} for entry in entries]
        return json_format.ParseDict({"model_stats": stats}, pb.ModelStatisticsResponse())

    return {"ModelReady": ready, "ModelMetadata": metadata, "ModelConfig": config, "ModelStatistics": statistics}


def _infer(service: Service) -> Handler:
    async def infer(body: bytes, context: Any) -> bytes:
        return encode_infer(await service.infer(decode_infer(body, context.time_remaining()), "grpc", len(body)))

    return infer


def _reading(kind: str, handler: Handler) -> Handler:
    """The handler for a message's bytes: gRPC itself would tell a caller whose message is none of a fault of ours, and log it with its trace."""
    read = getattr(pb, kind).FromString

    async def answer(body: bytes, context: Any) -> Any:
        try:
            request = read(body)
        except DecodeError:
            raise RequestError(f"the message is no {kind}") from None
        return await handler(request, context)

    return answer


def _with_errors(service: Service, name: str, handler: Handler, tokens: Tokens | None) -> Handler:
    async def answer(request: Any, context: Any) -> Any:
        known = read_context(context.invocation_metadata())
        known.call = name
        CURRENT.set(known)
        try:
            if tokens is not None:
                tokens.check(known.authorization)
            found = await handler(request, context)
        except asyncio.CancelledError:
            service.observer.finished(known, "grpc", CANCELLED)
            raise
        except Exception as error:  # noqa: BLE001 - one place turns every error into a status
            status, message = describe_error(error)
            service.observer.finished(known, "grpc", status.http)
            await context.send_initial_metadata(_told(known))
            await context.abort(grpc.StatusCode[status.grpc], message[:_MAX_DETAILS])
        service.observer.finished(known, "grpc", 200)
        await context.send_initial_metadata(_told(known))
        return found

    return answer


def _told(context: RequestContext) -> list[tuple[str, str]]:
    """What the caller is told of a request beside its answer: its id, and the version of the model that answered, where one did."""
    version = [(MODEL_VERSION, str(context.version))] if context.version else []
    return [(REQUEST_ID, context.id), *version]
