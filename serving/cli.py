"""The commands `emberline serve`, `predict` and `lookup`."""

import argparse
import asyncio
import importlib.util
import json
import shlex
import signal
from collections.abc import Sequence
from pathlib import Path

from emberline.errors import ConfigError, MissingDependencyError
from emberline.serving.ask import Question, answer_file
from emberline.serving.live.aside import end_process
from emberline.serving.log import start_logging
from emberline.serving.lookup import LOOKUPS
from emberline.serving.observe.settings import configure_observe, observe_of, refuse_observe
from emberline.serving.program import FORMATS
from emberline.serving.row_layout import DEFAULT_GROWTH
from emberline.serving.security.access import access_of, configure_access
from emberline.serving.security.settings import configure_security, refuse_security, security_of
from emberline.serving.settings import MIB, ServerSettings
from emberline.serving.sockets import url_of
from emberline.serving.tables import MAPPED, TABLE_MEMORIES
from emberline.storage import Place, to_place

_DEFAULTS = ServerSettings()
_TRITON_METRICS_PORT = 8002


def configure_serve(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline serve`."""
    parser.add_argument(
        "models",
        type=to_place,
        help="folder of models, <name>/<version>/..., or its URL; of each the newest version is served, unless it was rolled back",
    )
    parser.add_argument("--backend", choices=("embedded", "triton"), default="embedded", help="the server to run (default: %(default)s)")
    parser.add_argument("--host", default=_DEFAULTS.host, help="address to listen on (default: %(default)s: this machine only)")
    parser.add_argument("--http-port", type=_port, default=_DEFAULTS.http_port, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--grpc-port", type=_port, default=_DEFAULTS.grpc_port, help="0 takes a free one (default: %(default)s)")
    parser.add_argument("--metrics-port", type=_port, help=f"triton: {_TRITON_METRICS_PORT} unless given; embedded: one more port for /metrics")
    parser.add_argument(
        "--threads", type=_count, help="threads that compute one batch (default: the CPUs that it may use; with Triton shared by a model's processes)"
    )
    parser.add_argument("--workers", type=_count, help="embedded: processes that serve, on the same ports (default: 1)")
    parser.add_argument(
        "--tables",
        choices=TABLE_MEMORIES,
        help="where tables are: in memory of each process, on huge pages; mapped, shared by all; or on disk, slow "
        f"(default: {_DEFAULTS.tables}, and {MAPPED} with --workers above 1)",
    )
    parser.add_argument(
        "--row-growth",
        type=_share,
        help="by what share private tables on a CPU may be larger than their files, so that rows straddle fewer lines of the cache; 0: not at all "
        f"(default: {DEFAULT_GROWTH})",
    )
    parser.add_argument("--max-request-mib", type=_count, help=f"embedded: largest request (default: {_DEFAULTS.max_request_bytes // MIB})")
    parser.add_argument("--max-request-rows", type=_count, default=_DEFAULTS.max_request_rows, help="rows of a request (default: %(default)s)")
    parser.add_argument("--max-request-ids", type=_count, default=_DEFAULTS.max_request_ids, help="ids of a request (default: %(default)s)")
    parser.add_argument(
        "--max-padded-steps",
        type=_count,
        default=_DEFAULTS.max_padded_steps,
        help="steps of a padded sequence in a request, once its rows are filled up to the longest (default: %(default)s)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
        help=f"seconds until a request is given up (default: {_DEFAULTS.timeout_s:g}); with Triton, that it may wait, at a price (default: any)",
    )
    parser.add_argument(
        "--delta-poll",
        type=_seconds_or_none,
        default=_DEFAULTS.delta_poll_s,
        help="seconds between two looks for new deltas of what is served; 0 never looks (default: %(default)g)",
    )
    parser.add_argument(
        "--version-poll",
        type=_seconds_or_none,
        default=_DEFAULTS.version_poll_s,
        help="seconds between two looks for new versions, rollbacks and new models; 0 never looks (default: %(default)g)",
    )
    parser.add_argument("--format", choices=FORMATS, help="programs to run, where models have several (default: the first of these that runs here)")
    parser.add_argument("--lookup", choices=LOOKUPS, help="what looks rows up (default: native where a C compiler is or was, else torch)")
    parser.add_argument("--device", help="triton: where models run: cpu, cuda (each GPU) or cuda:NUMBER (default: cpu)")
    parser.add_argument("--instances", type=_count, help="triton: processes for each model, on each of its devices (default: 1)")
    parser.add_argument("--max-waiting", type=_count, help="triton: requests that may wait for a model; more are refused (default: 512)")
    parser.add_argument("--by-feature", action="store_true", help="triton: take values.FEATURE, lengths.FEATURE and so on, beside the packed inputs")
    parser.add_argument(
        "--model-control",
        action=argparse.BooleanOptionalAction,
        help="let callers load and unload models, and with Triton send Python code along: only where nobody else can reach it "
        "(default: embedded, on loopback)",
    )
    configure_observe(parser)
    parser.add_argument("--cache", type=Path, metavar="DIR", help="where models from a URL are kept (default: ~/.cache/emberline/artifacts)")
    configure_security(parser)


def run_serve(args: argparse.Namespace) -> int:
    """Serve until SIGINT or SIGTERM; then finish what is in flight."""
    if args.backend == "triton":
        if args.workers is not None:
            raise ConfigError("--workers is for the embedded server; with --backend triton it is --instances")
        refuse_observe(args)
        refuse_security(args)
        return _serve_triton(args)
    for option in ("device", "instances", "by_feature", "max_waiting"):
        if getattr(args, option):
            raise ConfigError(f"--{option.replace('_', '-')} is for --backend triton; leave it out with the embedded server")
    observe = observe_of(args)
    start_logging(observe.log_format)
    settings = ServerSettings(
        host=args.host,
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        metrics_port=args.metrics_port,
        num_threads=args.threads,
        workers=args.workers or _DEFAULTS.workers,
        tables=args.tables or (MAPPED if (args.workers or 1) > 1 else _DEFAULTS.tables),
        row_growth=args.row_growth,
        max_request_bytes=_DEFAULTS.max_request_bytes if args.max_request_mib is None else args.max_request_mib * MIB,
        max_request_rows=args.max_request_rows,
        max_request_ids=args.max_request_ids,
        max_padded_steps=args.max_padded_steps,
        timeout_s=_DEFAULTS.timeout_s if args.timeout is None else args.timeout,
        delta_poll_s=args.delta_poll,
        version_poll_s=args.version_poll,
        observe=observe,
        cache=args.cache,
        format=args.format,
        lookup=args.lookup,
        model_control=args.model_control,
        security=security_of(args),
    )
    return _serve_embedded(args.models, settings) if settings.workers == 1 else _serve_workers(args.models, settings)


def configure_predict(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline predict`."""
    _configure_ask(parser, "an output to ask for; may be given several times (default: all)")


def run_predict(args: argparse.Namespace) -> int:
    """Print the model's outputs for each row."""
    return answer_file(_question(args, lookup=False), args.input, args.output)


def configure_lookup(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline lookup`."""
    _configure_ask(parser, "a feature group to ask for; may be given several times (default: all)")


def run_lookup(args: argparse.Namespace) -> int:
    """Print the embedding groups' tensors for each row."""
    return answer_file(_question(args, lookup=True), args.input, args.output)


def _configure_ask(parser: argparse.ArgumentParser, names_help: str) -> None:
    place = parser.add_mutually_exclusive_group(required=True)
    place.add_argument("--url", help="http://host:port or grpc://host:port, of the embedded server or of Triton; https and grpcs over TLS")
    place.add_argument("--models", type=Path, metavar="DIR", help="no server: open the model from this folder of models, and answer in this process")
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--version", default="", help="a version of it (default: the newest)")
    parser.add_argument("--input", required=True, help="file with one JSON object of columns and values a line; - reads standard input")
    parser.add_argument(
        "--users",
        action="store_true",
        help='each line of the input is a user with candidates: {"user": {COLUMN: VALUE}, "rows": [{COLUMN: VALUE}, ...]}; '
        'its answer is {"rows": [...]}. For models whose features have sides (user:column, item:column)',
    )
    parser.add_argument("--output", default="-", help="file to write, one JSON object a line (default: standard output)")
    parser.add_argument("--only", metavar="NAME", action="append", help=names_help)
    parser.add_argument("--explain", action="store_true", help="add to each line how its row was read: ids, which of them are known, and numbers")
    parser.add_argument("--timeout", type=seconds, default=10.0, help="seconds for each request to a server, with its retries (default: %(default)g)")
    configure_access(parser)
    parser.add_argument("--batch-rows", type=_count, default=1024, help="rows in each request (default: %(default)s)")


def _question(args: argparse.Namespace, *, lookup: bool) -> Question:
    return Question(
        url=args.url if args.models is None else args.models.absolute().as_uri(),
        model=args.model,
        version=args.version,
        users=args.users,
        names=args.only,
        lookup=lookup,
        explain=args.explain,
        timeout_s=args.timeout,
        batch_rows=args.batch_rows,
        access=access_of(args),
    )


def _serve_triton(args: argparse.Namespace) -> int:
    if args.max_request_mib is not None:
        raise ConfigError("--max-request-mib is for the embedded server; leave it out with --backend triton")
    from emberline.serving.limits import RequestLimits
    from emberline.serving.triton.launcher import serve_triton
    from emberline.serving.triton.settings import DEFAULTS, TritonSettings

    settings = TritonSettings(
        device=args.device or DEFAULTS.device,
        instances=args.instances or DEFAULTS.instances,
        num_threads=args.threads,
        tables=args.tables or _DEFAULTS.tables,
        row_growth=args.row_growth,
        delta_poll_s=args.delta_poll,
        limits=RequestLimits(rows=args.max_request_rows, ids=args.max_request_ids, padded_steps=args.max_padded_steps),
        max_waiting=args.max_waiting or DEFAULTS.max_waiting,
        timeout_s=args.timeout or DEFAULTS.timeout_s,
        model_control=bool(args.model_control),
        by_feature=args.by_feature,
        cache=args.cache,
        format=args.format,
        lookup=args.lookup,
    )
    return serve_triton(
        args.models,
        host=args.host,
        http_port=args.http_port,
        grpc_port=args.grpc_port,
        metrics_port=_TRITON_METRICS_PORT if args.metrics_port is None else args.metrics_port,
        settings=settings,
        version_poll_s=args.version_poll,
    )


def _serve_embedded(models: Place, settings: ServerSettings) -> int:
    try:
        import uvloop

        from emberline.serving.http.openapi import example_row
        from emberline.serving.server import Running, run_server
    except ImportError as error:
        raise MissingDependencyError(f"the embedded server needs the package {error.name!r}: `pip install 'emberline[serve]'`") from error

    def announce(running: Running) -> None:
        loaded = [
            (model.name, model.version, model.engine.delta, json.dumps({"rows": [example_row(model.schema)]}, ensure_ascii=False))
            for model in running.service.repository
        ]
        _announce(loaded, running.http_url, running.grpc_url, running.metrics_url, settings)

    async def serve() -> None:
        await run_server(models, settings, announce, _stop_on_signals())

    uvloop.run(serve())
    print("Stopped.", flush=True)
    return end_process(0)


def _serve_workers(models: Place, settings: ServerSettings) -> int:
    if importlib.util.find_spec("uvloop") is None:
        raise MissingDependencyError("the embedded server needs the package 'uvloop': `pip install 'emberline[serve]'`")
    from emberline.serving.workers.supervisor import Supervisor, Up

    def announce(up: Up) -> None:
        loaded = [(model["name"], model["version"], model["delta"], model["example"]) for model in up.models]
        http_url = url_of(settings.security.scheme("http"), settings.host, up.http_port)
        metrics_url = f"{http_url}/metrics" if up.metrics_port is None else f"{url_of('http', settings.host, up.metrics_port)}/metrics"
        _announce(loaded, http_url, url_of(settings.security.scheme("grpc"), settings.host, up.grpc_port), metrics_url, settings)

    async def serve() -> None:
        await Supervisor(models, settings).run(announce, _stop_on_signals())

    asyncio.run(serve())
    print("Stopped.", flush=True)
    return 0


def _stop_on_signals() -> asyncio.Event:
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


def _announce(models: Sequence[tuple[str, int, int, str]], http_url: str, grpc_url: str, metrics_url: str, settings: ServerSettings) -> None:
    """Say what is served: names, versions, deltas and bodies of example requests; and where."""
    lines = [f"Emberline serves {len(models)} model{'s' if len(models) > 1 else ''}:"]
    lines += [f"  {name}, version {version}" + (f", delta {delta}" if delta else "") for name, version, delta, _ in models]
    lines += [
        f"HTTP     {http_url}  (to look at it and try it by hand: open {http_url}/ in a browser)",
        f"gRPC     {grpc_url}",
        f"metrics  {metrics_url}",
        "Ask it:",
    ]
    shown = ' -H "Authorization: Bearer $TOKEN"' if settings.security.token_file else ""
    for name, _, _, body in models:
        lines.append(f"  curl -s{shown} {http_url}/v1/models/{name}:predict -d {shlex.quote(body)}")
    print("\n".join([*lines, "Stop it with Ctrl-C."]), flush=True)


def _port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 65536):
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535")
    return int(text)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return int(text)


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no share: a number from 0 on")
    return value


def seconds(text: str) -> float:
    """A time above 0, as typed.

    Raises:
        ArgumentTypeError: it is none.
    """
    value = _seconds_or_none(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0")
    return value


def _seconds_or_none(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value
