"""What a run begins with, when it does not begin with nothing: another run's model, vectors of any origin."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from emberline.errors import ConfigError
from emberline.train.checkpoint import store
from emberline.train.checkpoint.init_tables import VectorFile, check_vector_files, fill_tables, local_file
from emberline.train.checkpoint.run_state import Progress, RunTensors, read_progress, require_one_step
from emberline.train.checkpoint.warm_start import Chosen, WarmStart, choose_parts, take_parts
from emberline.train.config import PipelineConfig
from emberline.train.embedding import EmbeddingGroup
from emberline.train.models.build import create_embedding_group, features_of


@dataclass(frozen=True)
class Beginning:
    """What is asked for.

    Args:
        warm_start: the model of another run.
        vectors: of tables; they go over those of a warm start.
    """

    warm_start: WarmStart | None = None
    vectors: Sequence[VectorFile] = ()

    def unused(self) -> list[str]:
        """What to tell where a run goes on instead; sources may be gone by then."""
        sources = [f"--warm-start {self.warm_start.checkpoint}"] if self.warm_start is not None else []
        sources += [f"--init-table {file.table}={file.path}" for file in self.vectors]
        return [f"{source} is for a run that begins: this one goes on, and leaves it out" for source in sources]


@dataclass(frozen=True)
class Start:
    """What was looked at, and fits.

    Args:
        chosen: parts of another run's model, or None.
        vectors: of tables.
    """

    chosen: Chosen | None = None
    vectors: Sequence[VectorFile] = ()

    @property
    def progress(self) -> Progress | None:
        """Where to go on, if the run is to go on where another was.

        Raises:
            CheckpointError: it cannot be read.
        """
        if self.chosen is None or not self.chosen.with_progress:
            return None
        require_one_step(store.read_checkpoint(self.chosen.path))
        return read_progress(self.chosen.path)

    def apply(self, tensors: RunTensors) -> tuple[list[str], list[str]]:
        """Fill a run that was just built.

        Returns:
            lines for people, the same on all ranks; and what only this rank knows.

        Raises:
            CheckpointError: a file of the checkpoint cannot be read.
            DataError: a row of a file of vectors that cannot be taken; names both.
        """
        lines: list[str] = []
        notes: list[str] = []
        if self.chosen is not None:
            lines += self.chosen.lines()
            notes += take_parts(self.chosen, tensors)
        if self.vectors:
            fill_tables(self.vectors, tensors.sharded, tensors.model)
            lines += [f"table {file.table!r}: vectors from {file.path}" for file in self.vectors]
        return lines, notes


def prepare(begin: Beginning, config: PipelineConfig) -> Start:
    """Look at everything before anything is built; no process group is needed.

    Raises:
        CheckpointError: there is no such checkpoint, or it does not fit the model; names every part.
        ConfigError: a table or the name map is wrong.
        DataError: a file of vectors cannot be read, or has other columns.
    """
    group = create_embedding_group(config, features_of(config), torch.device("meta"))
    chosen = None if begin.warm_start is None else choose_parts(begin.warm_start, config)
    vectors = [*begin.vectors, *_of_config(begin, chosen, group)]
    if vectors:
        check_vector_files(vectors, group.tables)
    return Start(chosen, vectors)


def _of_config(begin: Beginning, chosen: Chosen | None, group: EmbeddingGroup) -> Iterator[VectorFile]:
    """The files that the config names, of tables that neither an option nor the other run fills; not of the wide table beside a feature's own.

    Raises:
        ConfigError: a file is named that is on no disk of this machine.
    """
    filled = {file.table for file in begin.vectors} | {part.removeprefix("tables/") for part in (chosen.sources if chosen is not None else ())}
    for table in group.registry.tables:
        options = getattr(table.constraints, "dynamicemb_options", None)
        if options is not None and options.init_table and table.name not in filled and not table.beside:
            try:
                yield VectorFile(table.name, local_file(options.init_table))
            except ValueError as error:
                raise ConfigError(f"feature {table.features[0]!r}: dynamicemb init_table: {error}") from error
