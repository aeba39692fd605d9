"""How fast `emberline export` writes a table, against a plain copy of the same bytes on the same disk, in the same run.

    python benchmarks/export.py [--quick] [--json PATH] [--mib N] [--rounds N] [--folder DIR]

One fp32 table of dim 64 in a checkpoint as two ranks write it. The export is the whole of it: the checkpoint compared with its manifest, the model
built, rows checked, hashed and written, programs, the parity gate, everything flushed to the disk, and renamed; only Python's imports are not
timed. The copy is `cp` of the checkpoint's tensors, flushed to the disk. Each is done with the checkpoint in the system's file cache, and with
the checkpoint dropped from it, taking turns; the best round counts. `export_vs_copy` is the export's speed over the copy's, the lesser of the two;
1 would be as fast as the disk. Peak memory is that of a process that exports and does nothing else.
"""

import argparse
import json
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # as a file, Python looks for modules beside it only

from emberline.export.export import export_model
from emberline.train.checkpoint import names, store
from emberline.train.checkpoint.chunks import MAX_PIECE_BYTES, Chunk, Chunks
from emberline.train.checkpoint.run_state import Progress, package_versions
from emberline.train.checkpoint.tensors import save_tensors
from emberline.train.config import parse_config
from emberline.train.models import build_model
from emberline.train.models.build import features_of

DIM = 64
MIB = 1 << 20
WARM, COLD = "in the file cache", "dropped from it"
CONFIG = """
data_config { fg_mode: FG_NORMAL label_fields: "label" }
feature_configs { id_feature { feature_name: "item" expression: "item:item" embedding_dim: DIM num_buckets: ROWS } }
feature_configs { id_feature { feature_name: "user" expression: "user:user" embedding_dim: DIM num_buckets: 1000 } }
model_config {
  feature_groups { group_name: "wide" group_type: WIDE feature_names: "user" }
  feature_groups { group_name: "deep" group_type: DEEP feature_names: "item" feature_names: "user" }
  feature_groups { group_name: "fm" group_type: DEEP feature_names: "item" feature_names: "user" }
  deepfm { deep { hidden_units: [64, 32] } }
}
"""
PEAK = """
import sys
from pathlib import Path
from emberline.export.export import export_model

def peak():
    return next(int(line.split()[1]) * 1024 for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))

print(peak())
export_model(sys.argv[1], sys.argv[2], "peak")
print(peak())
"""


def write_checkpoint(run: Path, table_bytes: int) -> Path:
    """A checkpoint whose largest table has this size. Its pieces are the same random rows, so that nobody needs memory for all of them."""
    rows, piece_rows = table_bytes // (4 * DIM), MAX_PIECE_BYTES // (4 * DIM)
    text = CONFIG.replace("ROWS", str(rows)).replace("DIM", str(DIM))
    config = parse_config(text)
    model = build_model(config, features_of(config), torch.device("meta"))
    piece = torch.randn(piece_rows, DIM, generator=torch.Generator().manual_seed(0))
    tensors = {name: torch.zeros(tensor.shape, dtype=tensor.dtype) for name, tensor in names.table_tensors(model).items() if "item" not in name}
    chunks = [Chunk((first, 0), piece[: rows - first]) for first in range(0, rows, piece_rows)]
    with store.write_checkpoint(run, 1, package_versions()) as draft:
        folder = draft / store.TENSORS_NAME
        save_tensors(folder, {"tables/item_emb/weight": Chunks((rows, DIM), torch.float32, chunks), **tensors, **names.dense_tensors(model)})
        (draft / store.CONFIG_NAME).write_text(text)
        (draft / store.SCHEMA_NAME).write_text(json.dumps(model.schema().to_dict()))
        (draft / store.STATE_NAME).write_text(json.dumps(asdict(Progress(step=1))))
    return store.step_path(run, 1)


def copy(checkpoint: Path, folder: Path) -> None:
    """`cp` of the tensors, flushed to the disk."""
    target = folder / "copy"
    subprocess.run(["cp", "-r", "--reflink=never", str(checkpoint / store.TENSORS_NAME), str(target)], check=True)
    for path in target.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())


def export(checkpoint: Path, folder: Path) -> None:
    """The whole export."""
    export_model(checkpoint, folder / "models", "bench")


def prepare(checkpoint: Path, state: str) -> None:
    """Bring the checkpoint's files into the system's cache, or drop them from it."""
    os.sync()
    for path in (checkpoint / store.TENSORS_NAME).iterdir():
        with path.open("rb") as stream:
            if state == COLD:
                os.posix_fadvise(stream.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            else:
                while stream.read(16 * MIB):
                    pass


def measure(checkpoint: Path, folder: Path, rounds: int) -> dict[tuple[str, str], float]:
    """Seconds of the best round of each, by name and state of the cache; all take turns."""
    forms: dict[str, Callable[[Path, Path], None]] = {"copy": copy, "export": export}
    best = {(name, state): float("inf") for state in (WARM, COLD) for name in forms}
    for turn in range(rounds):
        for state in (WARM, COLD):
            for name, work in forms.items():
                own = folder / "work"
                own.mkdir()
                prepare(checkpoint, state)
                start = time.perf_counter()
                work(checkpoint, own)
                seconds = time.perf_counter() - start
                best[name, state] = min(best[name, state], seconds)
                print(f"  round {turn + 1}, {name}, checkpoint {state}: {seconds:.2f} s", flush=True)
                shutil.rmtree(own)
    return best


def peak_memory(checkpoint: Path, folder: Path) -> tuple[int, int]:
    """Peak memory of a process that exports: after its imports, and at the end; bytes."""
    done = subprocess.run([sys.executable, "-c", PEAK, str(checkpoint), str(folder / "peak")], capture_output=True, text=True, check=True)
    start, end = map(int, done.stdout.split())
    return start, end


def main() -> None:
    parser = argparse.ArgumentParser(description="Speed of an export, against that of a copy of the same bytes.")
    parser.add_argument("--quick", action="store_true", help="a table of 512 MiB, one round")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    parser.add_argument("--mib", type=int, help="size of the table; default: 2048")
    parser.add_argument("--rounds", type=int, help="how often each is done; default: 3")
    parser.add_argument("--folder", type=Path, help="where to write; default: the system's folder for temporary files")
    args = parser.parse_args()
    size, rounds = args.mib or (512 if args.quick else 2048), args.rounds or (1 if args.quick else 3)
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # what counts has threads of its own, and torch's wait for each other where others are at work
    print(f"a table of {size:,} MiB, {rounds} round{'s' * (rounds > 1)}")
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        folder = Path(name)
        export(write_checkpoint(folder / "small", MIB), folder / "small")  # what is loaded on first use
        checkpoint = write_checkpoint(folder / "run", size * MIB)
        best = measure(checkpoint, folder, rounds)
        start, end = peak_memory(checkpoint, folder)
    print(f"\n{'checkpoint':<20}{'copy, MiB/s':>14}{'export, MiB/s':>16}{'ratio':>8}")
    ratios = {state: best["copy", state] / best["export", state] for state in (WARM, COLD)}
    for state, ratio in ratios.items():
        print(f"{state:<20}{size / best['copy', state]:>14,.0f}{size / best['export', state]:>16,.0f}{ratio:>8.2f}")
    print(f"peak memory of an export: {end / MIB:,.0f} MiB, {(end - start) / MIB:,.0f} of them after its imports")
    found = {"export_vs_copy": min(ratios.values())}
    print("; ".join(f"{name} {ratio:.2f}" for name, ratio in found.items()))
    if args.json:
        args.json.write_text(json.dumps({"ratios": found}, indent=1))


if __name__ == "__main__":
    main()
