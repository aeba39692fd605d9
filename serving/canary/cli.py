"""The `emberline canary` command: tries a version on a running server, tells what was found, and promotes or drops it."""

import argparse
import http.client
import json
import sys
from contextlib import closing
from functools import partial
from typing import Any
from urllib.parse import quote, urlsplit

from emberline.errors import RequestError, ServingError, UnavailableError
from emberline.serving.cli import seconds
from emberline.serving.protocol.status import error_for_http
from emberline.serving.security.access import Access, access_of, configure_access

_OPTIONS = ("version", "share", "seed")


def configure_canary(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline canary`."""
    parser.add_argument("action", choices=("start", "report", "promote", "drop"), help="what to do")
    parser.add_argument("--url", required=True, help="http://host:port or https://host:port, of an embedded server of one process")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--version", type=int, help="start: the version to try, which is in the models folder")
    parser.add_argument("--share", type=float, help="start: of the requests that it is asked too, over 0 and at most 1 (default: 0.1)")
    parser.add_argument("--seed", type=int, help="start: of the choice of requests (default: 0)")
    parser.add_argument("--json", action="store_true", help="start, report: print JSON, with the rows that moved most")
    parser.add_argument("--timeout", type=seconds, default=600.0, help="seconds, as a version may take to open (default: %(default)g)")
    configure_access(parser)


def run_canary(args: argparse.Namespace) -> int:
    """Ask the server, and print what it says.

    Raises:
        RequestError: an option does not go with the action, or the server refuses it.
        ServingError: there was no answer.
    """
    given = {name: getattr(args, name) for name in _OPTIONS if getattr(args, name) is not None}
    if args.action != "start" and given:
        raise RequestError(f"--{next(iter(given))} goes with `emberline canary start` only")
    if args.action == "start" and "version" not in given:
        raise RequestError("say which version is to be tried: --version K")
    if args.json and args.action in ("promote", "drop"):
        raise RequestError("--json goes with `emberline canary start` and `report` only")
    verb = args.action if args.action in ("promote", "drop") else "canary"
    body = None if args.action == "report" else json.dumps(given)
    found = _ask(args.url, f"/v1/models/{quote(args.model, safe='')}:{verb}", body, args.timeout, access_of(args))
    if args.action in ("promote", "drop"):
        print(f"{args.model}: version {found['version']} is served")
    elif args.json:
        print(json.dumps(found, indent=2))
    else:
        sys.stdout.write(as_text(found))
    return 0


def as_text(report: dict[str, Any]) -> str:
    """A report as tables for people."""
    counts = ", ".join(f"{count} {name}" for name, count in report["requests"].items())
    lines = [f"{report['model']}: version {report['candidate']} beside {report['version']}, share {report['share']:g}", f"requests: {counts}"]
    if report["last_error"]:
        lines.append(f"last error: {report['last_error']}")
    if (mean := report["candidate_seconds"]["mean"]) is not None:
        lines.append(f"candidate: {1000 * mean:.3g} ms a request, {1000 * report['candidate_seconds']['max']:.3g} ms at most")
    if report["outputs"]:
        lines += ["", f"{'output':<24} {'max diff':>12} {'mean diff':>12} {'mean cosine':>12}"]
    for name, one in report["outputs"].items():
        lines.append(f"{name:<24} {one['max_difference']:>12.6g} {one['mean_difference']:>12.6g} {_number(one['mean_cosine']):>12}")
    if report["unknown_ids"]:
        lines += ["", f"{'table':<24} {'ids':>12} {'unknown':>12} {'of candidate':>12}"]
    for table, one in report["unknown_ids"].items():
        lines.append(f"{table:<24} {one['asked']:>12} {_number(one['served']):>12} {_number(one['candidate']):>12}")
    if report["moved_most"]:
        lines += ["", "rows that moved most"]
    for one in report["moved_most"]:
        lines.append(f"{_number(one['difference']):>12}  request {one['request_id']}, row {one['row']}: {json.dumps(one['ids'])}")
    return "\n".join(lines) + "\n"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"


def _ask(url: str, path: str, body: str | None, timeout_s: float, access: Access) -> dict[str, Any]:
    """The JSON answer to a POST, or, without a body, to a GET."""
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = 0
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0:
        raise RequestError(f"the URL {url!r} must be http://host:port or https://host:port")
    access.check(url, is_private=parts.scheme == "https")
    connect = partial(http.client.HTTPSConnection, context=access.context()) if parts.scheme == "https" else http.client.HTTPConnection
    try:
        with closing(connect(parts.hostname, port, timeout=timeout_s)) as connection:
            connection.request("GET" if body is None else "POST", parts.path.rstrip("/") + path, body, access.headers)
            answer = connection.getresponse()
            text = answer.read()
        found = json.loads(text)
        if answer.status != 200:
            raise error_for_http(answer.status, str(found["error"]))
    except (OSError, http.client.HTTPException) as error:
        raise UnavailableError(f"cannot reach {url}: {error}") from None
    except (LookupError, TypeError, ValueError):
        raise ServingError(f"{url} does not answer as a server of Emberline's models does") from None
    return dict(found)
