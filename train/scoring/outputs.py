"""What a model answers to the rows of data files, as parquet files: key columns and outputs.

    OUTPUT/part-00000.parquet ...    one a rank that had rows
    OUTPUT/_scores.json              checkpoint, step, number of rows, outputs

The folder is there whole or not at all: it is filled under another name and renamed.
"""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from torch import Tensor

from emberline.errors import ConfigError, DataError
from emberline.schema import OutputSpec
from emberline.train.data.paths import Paths
from emberline.train.job_folder import check_unused
from emberline.train.job_log import ProgressBar, Speed
from emberline.train.scoring.model import Scorer
from emberline.train.scoring.rows import RowStream
from emberline.train.sharding.process_group import Ranks

SUMMARY_NAME = "_scores.json"
_ROW_GROUP_ROWS = 1 << 16
_TELL_EVERY = 100


def write_outputs(
    scorer: Scorer, paths: Paths, output: Path, *, keep: Sequence[str] = (), outputs: Sequence[str] = (), batch_size: int | None = None
) -> int:
    """Score all rows. On several ranks all call it together.

    Args:
        scorer: the model.
        paths: files, folders, patterns, of the format that the config says.
        output: a new or empty folder.
        keep: columns of the data that go along: keys, labels.
        outputs: of the model; none: all.
        batch_size: rows that are scored together; None: as the config evaluates.

    Returns:
        how many rows there were, over all ranks.

    Raises:
        ConfigError: the model has no such output, a column's name is an output's too, or the folder is not empty.
        DataError: rows that cannot be read; names file, row and column.
    """
    specs = _chosen(scorer.model.outputs, outputs)
    twice = [name for place, name in enumerate(keep) if name in {spec.name for spec in specs} or name in keep[:place]]
    if twice:
        raise ConfigError(f"column {twice[0]!r} would be there twice: it is kept, and {'kept again' if keep.count(twice[0]) > 1 else 'an output'}")
    data = scorer.config.data
    stream = RowStream(data, scorer.features, paths, batch_size or data.eval_batch_size or data.batch_size, keep, scorer.ranks)
    with _new_folder(output, scorer.ranks) as draft:
        rows = _score(scorer, stream, specs, draft / f"part-{scorer.ranks.rank:05}.parquet")
        (total,) = scorer.ranks.sum([rows])
        if scorer.ranks.is_first:
            summary = {"checkpoint": str(scorer.path), "step": scorer.step, "rows": int(total), "outputs": [spec.name for spec in specs]}
            (draft / SUMMARY_NAME).write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    return int(total)


def _score(scorer: Scorer, stream: RowStream, specs: Sequence[OutputSpec], path: Path) -> int:
    """Score this rank's rows; ranks that share tables look rows up together, also when one has none left."""
    ranks, done, steps = scorer.ranks, 0, 0
    bar, speed = ProgressBar("rows scored", stream.num_rows if ranks.world_size == 1 else None, quiet=not ranks.is_first, unit="row"), Speed()
    batches, writer = iter(stream), None
    try:
        while True:
            rows = next(batches, None)
            if scorer.is_sharded and not any(ranks.gather([rows is not None])[:, 0]):
                break
            if rows is None and not scorer.is_sharded:
                break
            answers = scorer.answers(stream.no_rows() if rows is None else rows.batch)
            if rows is not None:
                table = _table(rows.kept, answers, specs)
                writer = writer or pq.ParquetWriter(path, table.schema)
                writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
                done += table.num_rows
                speed.add(table.num_rows)
                bar.advance(table.num_rows)
            steps += 1
            if steps % _TELL_EVERY == 0:
                bar.tell(rows_per_s=f"{speed.take():,.0f}")
    except OSError as error:
        raise DataError(f"{path} cannot be written: {error}") from error
    finally:
        bar.close()
        if writer is not None:
            writer.close()
    return done


def _chosen(known: Sequence[OutputSpec], names: Sequence[str]) -> list[OutputSpec]:
    by_name = {spec.name: spec for spec in known}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise ConfigError(f"the model has no output {unknown[0]!r}; its outputs are {', '.join(by_name)}")
    return [by_name[name] for name in dict.fromkeys(names)] or list(known)


def _table(kept: Any, answers: Mapping[str, Tensor], specs: Sequence[OutputSpec]) -> Any:
    """Kept columns and outputs side by side: float32, or lists of as many float32 as an output is wide."""
    columns = {name: kept.column(name) for name in kept.schema.names}
    for spec in specs:
        values = pa.array(answers[spec.name].contiguous().view(-1).numpy())
        columns[spec.name] = pa.FixedSizeListArray.from_arrays(values, spec.width) if spec.width else values
    return pa.table(columns)


@contextmanager
def _new_folder(output: Path, ranks: Ranks) -> Iterator[Path]:
    """A folder to fill that becomes `output` at the end, or vanishes on an error."""
    draft = output.with_name(f".{output.name}.draft")
    check_unused(output)
    try:
        if ranks.is_first:
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(parents=True)
        ranks.of_first([0.0])
        yield draft
        ranks.of_first([0.0])
        if ranks.is_first:
            if output.exists():
                output.rmdir()
            draft.rename(output)
        ranks.of_first([0.0])
    except OSError as error:
        raise ConfigError(f"{output} cannot be written: {error}") from error
    finally:
        if ranks.is_first:
            shutil.rmtree(draft, ignore_errors=True)
