"""The command `emberline loadtest`."""

import argparse
import asyncio
import json
import math
import signal
from pathlib import Path

from emberline.errors import ConfigError, DataError, MissingDependencyError
from emberline.serving.cli import seconds
from emberline.serving.client import AsyncClient
from emberline.serving.loadtest.arrivals import PATTERNS
from emberline.serving.loadtest.load_test import CALLERS, GRPC_CONNECTIONS, HTTP_CONNECTIONS, Load, run_load, to_stderr
from emberline.serving.loadtest.report import Report
from emberline.serving.loadtest.requests import FORMS, made_rows, prepare, read_rows
from emberline.serving.loadtest.senders import Prepared
from emberline.serving.loadtest.tally import Tally
from emberline.serving.security.access import access_of, configure_access

INTERRUPTED, BROKEN = 130, 1
_SCHEMES = ("http", "https", "grpc", "grpcs")
_MOST_PER_S = 1e6


def configure_loadtest(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline loadtest`."""
    parser.add_argument(
        "--url", required=True, help="http://host:port or grpc://host:port, of the embedded server or of Triton; https and grpcs over TLS"
    )
    parser.add_argument("--model", required=True, help="the model's name")
    parser.add_argument("--version", default="", help="a version of it (default: the newest)")
    parser.add_argument(
        "--rate",
        type=_rates,
        required=True,
        help="requests a second, whatever the answers do; 100,200,400 tries several in turn; max: as many as --connections callers get answered",
    )
    parser.add_argument("--duration", type=seconds, default=10.0, help="seconds at each rate (default: %(default)g)")
    parser.add_argument("--warm-up", type=_from_zero, default=1.0, help="seconds before, at the first rate, that do not count (default: %(default)g)")
    parser.add_argument("--arrivals", choices=PATTERNS, default=PATTERNS[0], help="when requests are due (default: %(default)s)")
    parser.add_argument(
        "--connections",
        type=_count,
        help=f"at max: callers (default: {CALLERS}); at a rate: connections, at most (HTTP; default: {HTTP_CONNECTIONS}), or taken in turns "
        f"(gRPC; default: {GRPC_CONNECTIONS})",
    )
    parser.add_argument(
        "--form", choices=FORMS, default=FORMS[0], help="over HTTP: KServe tensors in binary or JSON, or plain rows (default: %(default)s)"
    )
    parser.add_argument("--rows", type=_count, default=1, help="rows of each request (default: %(default)s)")
    parser.add_argument(
        "--input", type=Path, metavar="FILE", help="rows to send, a JSON object of columns and values a line (default: made from the schema)"
    )
    parser.add_argument("--unknown-share", type=_share, help="of made raw ids and words, the share that no model has seen (default: 0.05)")
    parser.add_argument("--seed", type=_number, default=0, help="of made rows and arrivals (default: %(default)s)")
    parser.add_argument(
        "--only",
        metavar="NAME",
        action="append",
        default=[],
        help="an answer to ask for, lookup.GROUP for a group's; several times (default: outputs)",
    )
    parser.add_argument(
        "--timeout", type=seconds, default=10.0, help="seconds until a request is given up, from when it was due (default: %(default)g)"
    )
    configure_access(parser)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures here")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw latencies over time and their histogram")
    parser.add_argument(
        "--max-p99", type=_milliseconds, metavar="MS", help="exit with 1 where 99 of 100 requests took longer; one that failed took longer than any"
    )
    parser.add_argument("--max-errors", type=_share, metavar="SHARE", help="exit with 1 where a larger share of requests failed, such as 0.001")


def run_loadtest(args: argparse.Namespace) -> int:
    """Make the load, and tell what came of it; status 1 where a limit is broken."""
    if args.url.partition("://")[0] not in _SCHEMES:
        raise ConfigError(f"--url {args.url!r} must be http://host:port, https, grpc or grpcs")
    if args.input is not None and args.unknown_share is not None:
        raise ConfigError("--unknown-share is for rows that are made; leave it out with --input")
    for path in (args.json, args.png):
        if path is not None and not path.parent.is_dir():
            raise ConfigError(f"{path} cannot be written: there is no folder {path.parent}")
    if args.png is not None:
        _need_pillow()
    load = Load(
        url=args.url,
        rates=args.rate,
        duration_s=args.duration,
        warm_up_s=args.warm_up,
        pattern=args.arrivals,
        connections=args.connections,
        timeout_s=args.timeout,
        seed=args.seed,
        access=access_of(args),
    )
    steps: list[Tally] = []
    is_interrupted = asyncio.run(_run(args, load, steps))
    report = Report(
        settings=_settings(args),
        steps=steps,
        max_p99_s=None if args.max_p99 is None else args.max_p99 / 1e3,
        max_errors=args.max_errors,
        is_interrupted=is_interrupted,
    )
    print(report.to_text(), flush=True)
    _write(args, report)
    return INTERRUPTED if is_interrupted else BROKEN if report.broken() else 0


async def _run(args: argparse.Namespace, load: Load, steps: list[Tally]) -> bool:
    """Whether it was stopped by Ctrl-C, or SIGTERM."""
    requests = await _requests(args, load)
    to_stderr(
        f"{args.url}, model {args.model}: {len(requests):,} different requests of {args.rows:,} rows; Ctrl-C ends it and tells what was measured"
    )
    running = asyncio.create_task(run_load(load, requests, steps, to_stderr))
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        stopped.set()
        running.cancel()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop)
    try:
        await running
    except asyncio.CancelledError:
        if not stopped.is_set():
            raise
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)
    return stopped.is_set()


async def _requests(args: argparse.Namespace, load: Load) -> list[Prepared]:
    access = load.access
    async with AsyncClient(
        load.url, args.model, version=args.version, timeout_s=load.timeout_s, token=access.token, ca=access.ca, cert=access.cert, key=access.key
    ) as client:
        schema = await client.schema()
    if args.input is None:
        rows = made_rows(schema, args.rows, unknown_share=0.05 if args.unknown_share is None else args.unknown_share, seed=load.seed)
    else:
        rows = read_rows(schema, args.input, args.rows)
    return prepare(schema, rows, args.rows, url=load.url, model=args.model, version=args.version, form=args.form, only=args.only)


def _settings(args: argparse.Namespace) -> dict[str, object]:
    names = ("url", "model", "version", "form", "rows", "duration", "warm_up", "arrivals", "connections", "seed", "timeout", "max_p99", "max_errors")
    return {name: getattr(args, name) for name in names} | {"input": None if args.input is None else str(args.input)}


def _write(args: argparse.Namespace, report: Report) -> None:
    try:
        if args.json is not None:
            args.json.write_text(json.dumps(report.to_dict(), indent=1) + "\n")
        if args.png is not None:
            from emberline.serving.loadtest.chart import write_chart

            write_chart(report.steps, f"{args.url}, {args.model}, rows of a request: {args.rows:,}", args.png)
    except OSError as error:
        raise DataError(f"{error.filename} cannot be written: {error.strerror}") from error


def _need_pillow() -> None:
    from importlib.util import find_spec

    if find_spec("PIL") is None:
        raise MissingDependencyError("--png needs pillow: `pip install pillow`")


def _rates(text: str) -> tuple[float | None, ...]:
    if text == "max":
        return (None,)
    return tuple(_rate(one) for one in text.split(","))


def _rate(text: str) -> float:
    value = _parsed(text)
    if not 0 < value <= _MOST_PER_S:
        raise argparse.ArgumentTypeError(f"{text!r} is no rate: a number of requests a second up to {_MOST_PER_S:,.0f}, several with commas, or max")
    return value


def _from_zero(text: str) -> float:
    value = _parsed(text)
    if not 0 <= value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value


def _milliseconds(text: str) -> float:
    value = _parsed(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of milliseconds above 0")
    return value


def _share(text: str) -> float:
    value = _parsed(text)
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: a number from 0 to 1")
    return value


def _count(text: str) -> int:
    value = _number(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number above 0")
    return value


def _number(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 0 on")
    return int(text)


def _parsed(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
