"""Lookups and the engine on a CUDA device: `benchmarks/gpu.sh [--keep]`; sizes are meant for 5 minutes on one.

Bandwidth of lookups, by the fused kernel, plain torch, and fbgemm where it is installed, is what a batch must move at least (rows, ids, offsets and
sums) over the time of it, as a share of what a plain copy on the same device moves. Every case's answers are compared with the CPU's first. Then how
many raw ids a second are found in a map, what a request to an engine takes, and, where Triton is installed, one to its Python backend.

`--cpu-smoke` does the same at tiny sizes on a CPU, kernels by Triton's interpreter: it shows that this file works, and nothing about speed.
"""

import argparse
import importlib.util
import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "src"))  # a plain checkout, nothing installed

from benchmarks._gpu_work import FBGEMM, FUSED, PLAIN, Case, check, copy_bandwidth, make_bags, make_blocks, make_forms, make_tables, seconds
from benchmarks._serving_model import ANSWER, FEATURES, NAME, Data, write_model
from emberline.errors import EmberlineError
from emberline.serving import Engine, PackedRequest
from emberline.serving.lookup import Bags
from emberline.serving.remap import FallbackRows, build_index

ROOT = Path(__file__).parents[1]
DIMS, DTYPES, BAGS = (16, 64, 128), ("fp32", "fp16", "int8", "int4"), (1, 20)
REQUEST_ROWS = (1, 100, 1000, 4096)
SIZES = {"rows": 500_000, "tables": 4, "num_ids": 1 << 22, "copy": 1 << 30, "map_ids": 4_000_000, "asked": 1 << 20, "model_rows": 100_000}
TINY = {"rows": 64, "tables": 1, "num_ids": 20, "copy": 1 << 16, "map_ids": 200, "asked": 32, "model_rows": 20}


def lookups(device: torch.device, cases: Sequence[Case], copied: float, repeats: int) -> Iterator[str]:
    """The table of lookups, line by line."""
    yield "| dim | type | ids | a bag | fused, µs | share of copy | torch, µs | share | fused over torch | fbgemm, µs | fused over fbgemm |"
    yield "|---|---|---|---|---|---|---|---|---|---|---|"
    left_out: dict[str, str] = {}
    for case in cases:
        blocks = make_blocks(case)
        tables = make_tables(case, blocks, device)
        forms, bags = make_forms(case, tables, device, left_out), make_bags(case, device, 7)
        check(case, blocks, bags, {name: form(bags) for name, form in forms.items()})
        batches = [bags] + [make_bags(case, device, seed) for seed in range(8, 10)]
        took = {name: _seconds_of(form, batches, device, repeats) for name, form in forms.items()}
        shares = {name: f"{case.moved_bytes / one / copied:.2f}" for name, one in took.items()}
        micros = {name: f"{one * 1e6:.0f}" for name, one in took.items()}
        faster = {name: f"{took[name] / took[FUSED]:.2f}" for name in took if FUSED in took}
        ours, plain, peer = FUSED, PLAIN, FBGEMM
        cells = [micros.get(ours), shares.get(ours), micros.get(plain), shares.get(plain), faster.get(plain), micros.get(peer), faster.get(peer)]
        yield f"{case} " + " | ".join(cell or "" for cell in cells) + " |"
    for name, reason in left_out.items():
        yield f"\nLeft out, {name}: {reason}"


def _seconds_of(form: Callable[[Bags], Tensor], batches: Sequence[Bags], device: torch.device, repeats: int) -> float:
    """Of a batch; another each time, as what was just read is still in the cache."""
    turns = cycle(batches)
    return seconds(lambda: form(next(turns)), device, repeats)


def maps(device: torch.device, sizes: dict[str, int], repeats: int) -> Iterator[str]:
    """How many raw ids a second are found."""
    count, draw = sizes["map_ids"], np.random.default_rng(3)
    raw_ids = torch.from_numpy(np.unique(draw.integers(-(2**63), 2**63 - 1, count)))
    fallback = FallbackRows(torch.tensor([-(2**63)], device=device), torch.tensor([raw_ids.numel()], device=device))
    index = build_index(raw_ids, torch.arange(raw_ids.numel()), fallback, num_rows=raw_ids.numel() + 1, device=device)
    places = torch.from_numpy(draw.integers(0, raw_ids.numel(), sizes["asked"]))
    asked = raw_ids[places].to(device)
    rows, known = index(asked)
    assert torch.equal(rows.cpu(), places), "the map gives other rows"
    assert bool(known.all()), "the map does not know its own ids"
    took = seconds(lambda: index(asked), device, repeats)
    yield f"{raw_ids.numel():,} ids, {asked.numel():,} asked for, by torch operators: {asked.numel() / took / 1e6:,.0f} million ids a second."


def engines(device: torch.device, sizes: dict[str, int], repeats: int, row_counts: Sequence[int]) -> Iterator[str]:
    """What requests to an engine take: 26 static and 2 ZCH tables of dim 16, one id each, lookups as the answer."""
    with tempfile.TemporaryDirectory() as folder:
        data = Data(write_model(Path(folder), sizes["model_rows"]))
        yield "| lookups by | rows | best, µs | median, µs | rows/s |\n|---|---|---|---|---|"
        for name in (PLAIN, FUSED):
            try:
                engine = Engine.open(Path(folder) / NAME, device=str(device), lookup=name)
            except EmberlineError as error:
                yield f"\nLeft out, {name}: {error}\n"
                continue
            for num_rows in row_counts:
                ids = data.draw(num_rows, np.random.default_rng(num_rows))
                request = PackedRequest(ids.reshape(-1), np.ones(ids.size, np.int32))
                found = engine.lookup(request)[ANSWER.removeprefix("lookup.")]
                np.testing.assert_array_equal(found.cpu().numpy(), data.answer(ids))
                best, median = _request_times(engine, request, repeats)
                yield f"| {name} | {num_rows} | {best * 1e6:.0f} | {median * 1e6:.0f} | {num_rows / median:,.0f} |"
        yield ""
        yield from python_backend(Path(folder), data, device, repeats)


def _request_times(engine: Engine, request: PackedRequest, repeats: int) -> tuple[float, float]:
    times = []
    for _ in range(repeats * 10 if repeats > 1 else 1):
        start = time.perf_counter()
        for answer in engine.lookup(request).values():
            answer.cpu()
        times.append(time.perf_counter() - start)
    return min(times), sorted(times)[len(times) // 2]


def python_backend(models: Path, data: Data, device: torch.device, repeats: int) -> Iterator[str]:
    """What a request to Triton's Python backend takes, with the model on the GPU."""
    missing = [name for name in ("tritonclient", "grpc") if importlib.util.find_spec(name) is None]
    if shutil.which("tritonserver") is None and importlib.util.find_spec("pytriton") is None:
        missing.append("tritonserver")
    if missing or device.type != "cuda":
        yield f"Python backend of Triton: not measured, {'; '.join(f'no {name} here' for name in missing) or 'this is no GPU'}."
        return
    from tritonclient import grpc

    from emberline.serving.triton.launcher import TritonServer
    from emberline.serving.triton.settings import TritonSettings

    yield "| Triton, Python backend, gRPC | best, µs | median, µs |\n|---|---|---|"
    with TritonServer(models, settings=TritonSettings(device=str(device)), ready_timeout_s=120) as server:
        client = grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}")
        for num_rows in (1, 100):
            ids = data.draw(num_rows, np.random.default_rng(num_rows))
            inputs = []
            for name, values in (("ids", ids.reshape(1, -1)), ("lengths", np.ones((1, ids.size), np.int32))):
                inputs.append(grpc.InferInput(name, values.shape, "INT64" if values.dtype == np.int64 else "INT32"))
                inputs[-1].set_data_from_numpy(values)
            times = []
            for _ in range(repeats * 10):
                start = time.perf_counter()
                found = client.infer(NAME, inputs)
                times.append(time.perf_counter() - start)
            np.testing.assert_array_equal(found.as_numpy(ANSWER)[0], data.answer(ids))
            yield f"| {num_rows} rows of {len(FEATURES)} features | {min(times) * 1e6:.0f} | {sorted(times)[len(times) // 2] * 1e6:.0f} |"
        client.close()


def report(device: torch.device, *, smoke: bool) -> Iterator[str]:
    """All of it, as Markdown, line by line."""
    sizes, repeats = (TINY, 1) if smoke else (SIZES, 10)
    what = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()}, by the interpreter: no figure means anything"
    triton = importlib.util.find_spec("triton")
    yield f"# benchmarks/gpu.sh, {datetime.now(UTC):%Y-%m-%d}\n"
    yield f"{what}. Python {platform.python_version()}, torch {torch.__version__}, {'with' if triton else 'without'} the package triton.\n"
    copied = copy_bandwidth(device, sizes["copy"], repeats)
    yield f"A copy of {sizes['copy'] >> 20} MiB on the device reads and writes {copied / 1e9:,.0f} GB/s.\n\n## Lookups\n"
    chosen = [("fp32", 16, False, 1), ("int8", 16, True, 4)] if smoke else _all_cases()
    cases = [
        Case(dim=dim, dtype=dtype, skewed=skewed, ids_per_bag=bag, **{name: sizes[name] for name in ("rows", "tables", "num_ids")})
        for dtype, dim, skewed, bag in chosen
    ]
    yield f"{sizes['tables']} tables of {sizes['rows']:,} rows, {sizes['num_ids']:,} ids a batch, sums. A share is of the copy's bytes a second.\n"
    yield from lookups(device, cases, copied, repeats)
    yield "\n## Maps of raw ids\n"
    yield from maps(device, sizes, repeats)
    yield "\n## Engine\n"
    yield from engines(device, sizes, repeats, (2,) if smoke else REQUEST_ROWS)


def _all_cases() -> list[tuple[str, int, bool, int]]:
    return [(dtype, dim, skewed, bag) for dtype in DTYPES for dim in DIMS for skewed in (False, True) for bag in BAGS]


def main() -> None:
    parser = argparse.ArgumentParser(description="Lookups and the engine on a CUDA device.")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/<date>-gpu.md too")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny sizes on a CPU, kernels by Triton's interpreter where it is installed")
    args = parser.parse_args()
    if args.cpu_smoke and importlib.util.find_spec("triton") and os.environ.get("TRITON_INTERPRET") != "1":
        os.execve(sys.executable, [sys.executable, __file__, *sys.argv[1:]], os.environ | {"TRITON_INTERPRET": "1"})
    if not args.cpu_smoke and not torch.cuda.is_available():
        sys.exit("there is no CUDA device that torch sees; --cpu-smoke shows that this file works")
    lines = []
    for line in report(torch.device("cpu" if args.cpu_smoke else args.device), smoke=args.cpu_smoke):
        print(line, flush=True)
        lines.append(line)
    if args.keep:
        target = ROOT / "benchmarks" / "results" / f"{datetime.now(UTC):%Y-%m-%d}-gpu.md"
        target.write_text("\n".join(lines) + "\n")
        print(f"\nkept in {target}")


if __name__ == "__main__":
    main()
