"""What `/openapi.json` says of answers: their statuses and forms, errors too."""

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI

from emberline.serving.metrics import CONTENT_TYPE

_ERROR = {"type": "object", "required": ["error"], "additionalProperties": False, "properties": {"error": {"type": "string"}}}
_STATUSES: Mapping[str, str] = {
    "400": "The request is malformed; the message names the feature, tensor or key.",
    "404": "There is no such model, version or path.",
    "413": "The request is over a limit; the message gives limit and size.",
    "429": "Too many requests wait already.",
    "500": "The server failed; its log says why.",
    "503": "The server or the model is being opened, or stops.",
    "504": "The request, or its answer, did not come in time.",
}
_BODY_ONLY = ("400", "413", "429", "504")
"""Answers to requests that have a body."""
_NO_TOKEN = "The request shows no token of this server's."


def _object(**properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "required": list(properties), "properties": dict(properties)}


_TEXT, _FLAG, _LIST = {"type": "string"}, {"type": "boolean"}, {"type": "array", "items": {"type": "object"}}
_ANSWERS: Mapping[str, dict[str, Any]] = {
    "/v2/health/live": _object(live=_FLAG),
    "/v2/health/ready": _object(ready=_FLAG),
    "/v2": _object(name=_TEXT, version=_TEXT, extensions={"type": "array", "items": _TEXT}),
    "/v2/models/stats": _object(model_stats=_LIST),
    "": _object(name=_TEXT, versions={"type": "array", "items": _TEXT}, inputs=_LIST, outputs=_LIST),
    "/config": _object(name=_TEXT, backend=_TEXT, input=_LIST, output=_LIST, parameters={"type": "object"}),
    "/ready": _object(name=_TEXT, version=_TEXT, ready=_FLAG),
    "/stats": _object(model_stats=_LIST),
    "/infer": _object(model_name=_TEXT, model_version=_TEXT, outputs=_LIST),
    "/v2/repository/index": {"type": "array", "items": _object(name=_TEXT, version=_TEXT, state=_TEXT, reason=_TEXT)},
}
"""By path, or by what follows a model and its version in it: what a right answer is."""
_BARE = ("/load", "/unload")
"""Paths whose right answers are empty."""


def tell_answers(app: FastAPI, *, wants_token: bool) -> None:
    """Have the app's description tell of every answer; FastAPI knows only that of its own checks, which are not used here."""
    plain = app.openapi

    def described() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _complete(plain(), wants_token)
        return app.openapi_schema

    app.openapi = described  # type: ignore[method-assign]


def _complete(description: dict[str, Any], wants_token: bool) -> dict[str, Any]:
    components: dict[str, Any] = {"schemas": {"Error": _ERROR}}
    description["components"] = components
    if wants_token:
        components["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            operation["responses"] = _responses(path, method)
            if wants_token and not path.startswith("/v2/health/"):
                operation["security"] = [{"token": []}]
                operation["responses"]["401"] = _json(_NO_TOKEN, {"$ref": "#/components/schemas/Error"})
    return description


def _responses(path: str, method: str) -> dict[str, Any]:
    tail = path.partition("{model}")[2].removeprefix("/versions/{version}") if "{model}" in path else path
    right: dict[str, Any]
    if path == "/metrics":
        right = {"description": "The metrics", "content": {CONTENT_TYPE: {"schema": _TEXT}}}
    elif tail in _BARE:
        right = {"description": "It is done"}
    else:
        right = _json("The answer", _ANSWERS.get(tail, {"type": "object"}))
    if tail == "/infer":
        right["content"]["application/octet-stream"] = {"schema": {"type": "string", "format": "binary"}}
    known = [status for status in _STATUSES if (method == "post" or status not in _BODY_ONLY) and ("{model}" in path or status != "404")]
    errors = {status: _json(_STATUSES[status], {"$ref": "#/components/schemas/Error"}) for status in known}
    if tail.endswith("/ready"):  # an answer too, and no error
        errors["503"] = _json("It is not ready", {"anyOf": [_ANSWERS[tail], {"$ref": "#/components/schemas/Error"}]})
    return {"200": right, **errors}


def _json(text: str, form: Mapping[str, Any]) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": form}}}
