"""The plain form: rows of `{column: value}` in, lists of numbers out."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from emberline.errors import RequestError
from emberline.serving.engine import KNOWN, LOOKUP_PREFIX
from emberline.serving.explained import explain_request
from emberline.serving.model import Answers, LoadedModel
from emberline.serving.protocol.messages import check_names
from emberline.serving.protocol.strict_json import json_type, parse_object, quote
from emberline.serving.protocol.tensors import Buffer
from emberline.serving.tiled_rows import TiledRows

_KEYS = ("rows", "users", "outputs", "explain")


@dataclass(frozen=True, slots=True)
class PlainRequest:
    """What a plain request asks.

    Args:
        rows: `{column: value}` each, or users with such rows.
        outputs: the names wanted; None for all.
        explain: whether it wants to know how its rows were read.
    """

    rows: list[dict[str, Any]] | TiledRows
    outputs: tuple[str, ...] | None
    explain: bool


def decode_rows(body: Buffer) -> PlainRequest:
    """A plain request.

    Integers of any size are exact here; the encoder decides which a feature takes. With `users`, `rows` has an array of rows for each of them.

    Raises:
        RequestError: the body is malformed; the message names the key or row.
    """
    message = parse_object(body)
    for key in message:
        if key not in _KEYS:
            raise RequestError(f'there is no key {quote(key)}; send {{"rows": [{{column: value}}, ...], "outputs": [names]}}')
    outputs, explain = message.get("outputs"), message.get("explain", False)
    if not isinstance(explain, bool):
        raise RequestError(f"explain must be true or false, not {json_type(explain)}")
    rows: list[dict[str, Any]] | TiledRows
    if "users" not in message:
        rows = _objects("rows", message.get("rows"), "row")
    else:
        users, lists = _objects("users", message["users"], "user"), message.get("rows")
        if not isinstance(lists, list) or not all(isinstance(own, list) for own in lists):
            raise RequestError("rows, beside users, must be an array that has an array of rows for each user")
        rows = TiledRows(users, [_objects("rows", own, f"user {number}: row") for number, own in enumerate(lists)])
    if outputs is None:
        return PlainRequest(rows, None, explain)
    if not isinstance(outputs, list) or not outputs or not all(isinstance(name, str) for name in outputs):
        raise RequestError("outputs must be an array of at least one name, or be left out")
    return PlainRequest(rows, check_names("the output", outputs), explain)


def _objects(key: str, found: object, what: str) -> list[dict[str, Any]]:
    """An array of objects of columns and values."""
    if not isinstance(found, list):
        raise RequestError(f"{key} must be an array of objects, one for each {what.rpartition(' ')[2]}, not {json_type(found)}")
    for number, entry in enumerate(found):
        if not isinstance(entry, dict):
            raise RequestError(f"{what} {number} must be an object of columns and values, not {json_type(entry)}")
    return found


def predict_names(model: LoadedModel, outputs: tuple[str, ...] | None) -> dict[str, str]:
    """Answers to compute, and under which names a `:predict` shows them."""
    known = [output.name for output in model.schema.outputs]
    return {name: name for name in _choose("output", outputs, known)}


def lookup_names(model: LoadedModel, groups: tuple[str, ...] | None) -> dict[str, str]:
    """Answers to compute, and under which names a `:lookup` shows them: a group's own name."""
    known = [group.name for group in model.schema.groups]
    return {LOOKUP_PREFIX + name: name for name in _choose("group", groups, known)}


def _choose(what: str, asked: tuple[str, ...] | None, known: list[str]) -> tuple[str, ...]:
    for name in asked or ():
        if name not in known:
            raise RequestError(f"the model has no {what} {quote(name)}; it has {', '.join(known) or 'none'}")
    return tuple(known) if asked is None else asked


def explain_answers(model: LoadedModel, rows: list[dict[str, Any]] | TiledRows, answers: Answers) -> dict[str, Any]:
    """How the rows were read; see `explain_request`. The answers have `known` where the model has ids."""
    request = model.engine.encode_tiled(rows.users, rows.rows) if isinstance(rows, TiledRows) else model.engine.encode_rows(rows)
    return explain_request(model.schema, rows, request, answers[KNOWN].numpy(force=True) if KNOWN in answers else None)


def encode_answers(model: LoadedModel, answers: Answers, names: Mapping[str, str], explanation: Mapping[str, Any] | None = None) -> bytes:
    """`{"model": ..., "version": ..., "outputs": {name: one entry for each row}}`; a number that is not finite is null.

    A sequence that is left without padding has one entry for each step of all rows. With an explanation, `explain` has it.
    """
    outputs = {shown: answers[name].cpu().contiguous().numpy() for name, shown in names.items()}
    told = {} if explanation is None else {"explain": explanation}
    return orjson.dumps({"model": model.name, "version": str(model.version), "outputs": outputs, **told}, option=orjson.OPT_SERIALIZE_NUMPY)
