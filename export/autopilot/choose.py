"""Which type each table gets: the steps that harm least for each byte that they save come first.

For each table the candidates on the lower convex hull of (bytes, harm) are steps from wide to narrow; steps of all tables are taken in the order of
their price, harm for a byte, which falls never within a table. This is the classical relaxation of the multiple-choice knapsack (Sinha and Zoltners,
1979): what it gives is the best there is for the bytes that it takes, and at most one step away from the best for the budget. What the last step
saved beyond the budget is given back to the tables that gain most by it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from emberline.export.autopilot.options import Candidate

Options = Mapping[str, Sequence[Candidate]]
"""The candidates of each table, the first as it was trained."""


@dataclass(frozen=True)
class Step:
    """A table goes from one type to a narrower one.

    Args:
        table: its name.
        to: what it is stored as from then on.
        saves: bytes.
        harm: that it adds.
    """

    table: str
    to: Candidate
    saves: int
    harm: float


def ordered_steps(options: Options) -> list[Step]:
    """All steps worth taking, the cheapest for each byte first."""
    steps = [step for table, candidates in options.items() for step in _hull_steps(table, candidates)]
    return sorted(steps, key=lambda step: step.harm / step.saves)  # stable: a table's own steps stay in order


def after(options: Options, steps: Sequence[Step]) -> dict[str, Candidate]:
    """What each table is stored as once some steps are taken."""
    return {table: candidates[0] for table, candidates in options.items()} | {step.table: step.to for step in steps}


def total_bytes(chosen: Mapping[str, Candidate]) -> int:
    """Of all rows."""
    return sum(candidate.num_bytes for candidate in chosen.values())


def choose_for_budget(options: Options, budget: int) -> dict[str, Candidate] | None:
    """The types with which all rows take at most so many bytes; None where they can't."""
    steps, chosen = ordered_steps(options), after(options, ())
    taken = 0
    while total_bytes(chosen) > budget:
        if taken == len(steps):
            return None
        chosen[steps[taken].table] = steps[taken].to
        taken += 1
    return _widened(options, chosen, budget)


def _widened(options: Options, chosen: dict[str, Candidate], budget: int) -> dict[str, Candidate]:
    """Give bytes that are left to whom they help most, as long as there is somebody."""
    while True:
        left = budget - total_bytes(chosen)
        better = [
            (chosen[table].harm - candidate.harm, table, candidate)
            for table, candidates in options.items()
            for candidate in candidates
            if candidate.num_bytes - chosen[table].num_bytes <= left and candidate.harm < chosen[table].harm
        ]
        if not better:
            return chosen
        _, table, candidate = max(better, key=lambda one: one[0])
        chosen = {**chosen, table: candidate}


def _hull_steps(table: str, candidates: Sequence[Candidate]) -> list[Step]:
    """From the first candidate on, each time to the one that is cheapest for each byte from there; the narrowest of equals."""
    steps, now = list[Step](), candidates[0]
    while narrower := [one for one in candidates if one.num_bytes < now.num_bytes]:
        best = min(narrower, key=lambda one: (max(0.0, one.harm - now.harm) / (now.num_bytes - one.num_bytes), one.num_bytes))
        steps.append(Step(table, best, now.num_bytes - best.num_bytes, max(0.0, best.harm - now.harm)))
        now = best
    return steps
