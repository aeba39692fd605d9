"""Rows a second of feature encoding, against a plain loop over rows with the `xxhash` package, in the same run.

    python benchmarks/encoding.py [--quick] [--json PATH]

26 id features and 13 numbers, 4,096 rows a batch, from Arrow: ids as short texts, as 64-bit integers, and as several texts a row. Both sides make the
same ids, which is checked. The last line is one JSON row through `columns_from_rows` and `encode`. Ratios are above 1 where Emberline is faster.
"""

import argparse
import json
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from emberline.encoding import EncodedColumns, columns_from_arrow, columns_from_rows, encode
from emberline.schema import FeatureKind, FeatureSpec, HashEncoder, NumericEncoder

BATCH_ROWS = 4096
NUM_IDS, NUM_RAW = 26, 13
ROWS = 1_000_003
SEPARATOR = "\x1d"

IDS = [
    FeatureSpec(name=f"id_{n}", kind=FeatureKind.SPARSE, columns=(f"id_{n}",), encoder=HashEncoder(rows=ROWS), separator=SEPARATOR)
    for n in range(NUM_IDS)
]
RAW = [FeatureSpec(name=f"raw_{n}", kind=FeatureKind.DENSE, columns=(f"raw_{n}",), encoder=NumericEncoder(), value_dim=1) for n in range(NUM_RAW)]
FEATURES = [*IDS, *RAW]
Loop = Callable[[Any], tuple[list[list[int]], list[list[list[float]]]]]


def make_batch(kind: str) -> pa.RecordBatch:
    """4,096 rows; a tenth of the values of each column is missing."""
    source = np.random.default_rng(0)
    columns: dict[str, Any] = {}
    for number in range(NUM_IDS):
        values = source.integers(0, 10 ** source.integers(2, 10), BATCH_ROWS).tolist()
        missing = source.random(BATCH_ROWS) < 0.1
        cells: list[Any] = values
        if kind == "text":
            cells = [f"{value:x}" for value in values]
        elif kind == "several texts":
            cells = [SEPARATOR.join(f"{value + more:x}" for more in range(3)) for value in values]
        columns[f"id_{number}"] = pa.array(cells, mask=missing)
    for number in range(NUM_RAW):
        columns[f"raw_{number}"] = pa.array(source.normal(size=BATCH_ROWS), mask=source.random(BATCH_ROWS) < 0.1)
    return pa.record_batch(columns)


def encode_batch(batch: pa.RecordBatch) -> EncodedColumns:
    return encode(FEATURES, columns_from_arrow(FEATURES, batch))


def encode_in_a_loop(batch: pa.RecordBatch) -> tuple[list[list[int]], list[list[float]]]:
    """What a plain loop does: each cell to a Python value, hashed by the `xxhash` package, appended to its feature's list."""
    ids: list[list[int]] = [[] for _ in IDS]
    lengths: list[list[int]] = [[] for _ in IDS]
    numbers: list[list[float]] = [[] for _ in RAW]
    digest = xxhash.xxh64_intdigest
    columns = [batch.column(feature.columns[0]).to_pylist() for feature in FEATURES]
    for row in zip(*columns, strict=True):
        for feature, cell in enumerate(row[:NUM_IDS]):
            if cell is None:
                lengths[feature].append(0)
            elif isinstance(cell, str):
                pieces = cell.split(SEPARATOR)
                ids[feature].extend(digest(piece.encode()) % ROWS for piece in pieces)
                lengths[feature].append(len(pieces))
            else:
                ids[feature].append(digest(str(cell).encode()) % ROWS)
                lengths[feature].append(1)
        for feature, cell in enumerate(row[NUM_IDS:]):
            numbers[feature].append(0.0 if cell is None else cell)
    for feature in range(NUM_IDS):
        np.array(ids[feature], np.int64), np.array(lengths[feature], np.int32)
    return ids, [np.array(column, np.float32).tolist() for column in numbers]


def check(batch: pa.RecordBatch) -> None:
    """Both sides make the same ids and numbers."""
    encoded = encode_batch(batch)
    ids, numbers = encode_in_a_loop(batch)
    assert all(encoded.sparse[feature.name].values.tolist() == want for feature, want in zip(IDS, ids, strict=True))
    assert all(encoded.dense[feature.name][:, 0].tolist() == want for feature, want in zip(RAW, numbers, strict=True))


def seconds(call: Callable[[], object], repeats: int) -> float:
    """The fastest of several calls."""
    return min(timeit.repeat(call, number=1, repeat=repeats))


def main() -> None:
    parser = argparse.ArgumentParser(description="Rows a second of feature encoding, against a plain loop over rows.")
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument("--json", type=Path, help="write the ratios here")
    args = parser.parse_args()
    repeats = 3 if args.quick else 15
    ratios: dict[str, float] = {}
    print(f"{NUM_IDS} id and {NUM_RAW} raw features, {BATCH_ROWS} rows a batch, from Arrow; best of {repeats}, rows a second")
    print(f"{'ids':<16}{'emberline':>14}{'plain loop':>14}{'ratio':>8}")
    for kind in ("text", "integers", "several texts"):
        batch = make_batch(kind)
        check(batch)
        ours = BATCH_ROWS / seconds(lambda batch=batch: encode_batch(batch), repeats)  # type: ignore[misc]
        loop = BATCH_ROWS / seconds(lambda batch=batch: encode_in_a_loop(batch), repeats)  # type: ignore[misc]
        ratios[f"encoding_{kind.replace(' ', '_')}"] = ours / loop
        print(f"{kind:<16}{ours:>14,.0f}{loop:>14,.0f}{ours / loop:>8.1f}")
    row: dict[str, object] = {f"id_{n}": f"{n * 7919:x}" for n in range(NUM_IDS)} | {f"raw_{n}": n / 3 for n in range(NUM_RAW)}
    once = seconds(lambda: [encode(FEATURES, *columns_from_rows(FEATURES, [row])) for _ in range(20)], repeats * 5) / 20
    print(f"one JSON row, {NUM_IDS + NUM_RAW} features: {once * 1e6:,.0f} microseconds")
    if args.json:
        args.json.write_text(json.dumps({"ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
