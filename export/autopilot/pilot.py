"""From a goal to the number type of each table."""

import math
from collections.abc import Callable, Mapping, Sequence

from emberline.errors import ExportError, QualityError
from emberline.export.autopilot.choose import Options, after, choose_for_budget, ordered_steps, total_bytes
from emberline.export.autopilot.measure import Measurer
from emberline.export.autopilot.options import Candidate, Goal, index_bytes
from emberline.export.autopilot.report import TypeChoice
from emberline.export.evaluation import EvaluationPlan
from emberline.export.quality import is_auc
from emberline.export.row_source import RowSource
from emberline.schema import TableSpec
from emberline.serving.quantized import stored_bytes
from emberline.train.checkpoint import Trained

_PROBES = 6
"""Choices that are measured in one pass over the data."""


def choose_types(
    trained: Trained,
    tables: Sequence[TableSpec],
    rows: RowSource,
    evaluation: EvaluationPlan,
    goal: Goal,
    fixed: Mapping[str, str],
    tell: Callable[[str], None],
) -> TypeChoice:
    """The number types with which a model does its best within a goal.

    Args:
        trained: the model, which reads its tables by `rows`.
        tables: all of them, with as many rows as `rows` has.
        rows: of the tables.
        evaluation: data to measure on; without any, errors of rows are all that counts.
        goal: what to hold to. With a budget the types harm least within it, and `max_auc_drop` is looked at once the artifact is there; without one
            tables become as narrow as `max_auc_drop` allows.
        fixed: types of tables that are not to be chosen.
        tell: takes a line for each part of the work.

    Raises:
        CheckpointError: a table cannot be read.
        DataError: a row of the data cannot be read.
        ExportError: even with the narrowest types there is more than the budget.
        QualityError: an AUC is not defined on the data.
    """
    measurer, free = Measurer(trained, rows, evaluation), [spec for spec in tables if spec.name not in fixed]
    tell(f"measuring what narrower number types of {len(free)} tables cost")
    measured, options = measurer.candidates(free)
    index = index_bytes(list(tables))
    kept = {spec.name: stored_bytes(spec.rows, spec.dim, fixed[spec.name]) for spec in tables if spec.name in fixed}
    drop = next_drop = None
    if goal.memory_budget is not None:
        chosen = choose_for_budget(options, goal.memory_budget - index - sum(kept.values()))
        if chosen is None:
            raise ExportError(_too_much(goal.memory_budget, index, kept, options))
    else:
        assert goal.max_auc_drop is not None
        chosen, drop, next_drop = _narrowest(measurer, options, fixed, goal.max_auc_drop, tell)
    return TypeChoice(
        goal=goal,
        rows=measured,
        without_data=evaluation.missing,
        index_bytes=index,
        fixed=kept,
        options=options,
        chosen=chosen,
        auc_drop=drop,
        next_drop=next_drop,
    )


def _narrowest(
    measurer: Measurer, options: Options, fixed: Mapping[str, str], most: float, tell: Callable[[str], None]
) -> tuple[dict[str, Candidate], float | None, float | None]:
    """As many steps as an AUC allows: those that were measured are halved, or better, by each pass over the data."""
    steps = ordered_steps(options)
    good, bad = 0, len(steps) + 1
    drops: dict[int, float] = {}
    while bad - good > 1:
        probes = sorted({good + max(1, (bad - good) * place // (_PROBES + 1)) for place in range(1, _PROBES + 1)} - {good, bad})
        tell(f"measuring the AUC with {', '.join(str(probe) for probe in probes)} of {len(steps)} steps to narrower types")
        rows, metrics = measurer.metrics([_types(after(options, steps[:probe])) | dict(fixed) for probe in probes])
        if not rows:
            raise QualityError("--max-auc-drop needs an AUC, and there is none: the data have no rows")
        drops |= {probe: _drop(metrics[0], found) for probe, found in zip(probes, metrics[1:], strict=True)}
        failed = [probe for probe in probes if drops[probe] > most]
        bad = min([bad, *failed])
        good = max([good, *(probe for probe in probes if probe < bad)])
    return after(options, steps[:good]), drops.get(good), drops.get(bad)


def _drop(before: Mapping[str, float], found: Mapping[str, float]) -> float:
    """The largest drop of an AUC."""
    drops = [before[name] - found[name] for name in before if is_auc(name)]
    if any(map(math.isnan, drops)):
        raise QualityError("an AUC is not defined on the data: its labels are of one kind only; give others with --parity-rows")
    return max(drops)


def _types(chosen: Mapping[str, Candidate]) -> dict[str, str]:
    return {table: candidate.type for table, candidate in chosen.items()}


def _too_much(budget: int, index: int, kept: Mapping[str, int], options: Options) -> str:
    least = total_bytes(after(options, ordered_steps(options)))
    parts = (
        [f"rows {least:,}"]
        + [f"the index of raw ids {index:,}"] * bool(index)
        + [f"tables that --quantize names {sum(kept.values()):,}"] * bool(kept)
    )
    told = f"--memory-budget is {budget:,} bytes, but the narrowest types take {index + sum(kept.values()) + least:,}: {', '.join(parts)}"
    return f"{told}; smaller tables or fewer dimensions must be trained"
