"""The gate before publishing: what the artifact answers must be what the trained model answers.

The built folder is opened by the same engine that will serve it. Model and engine get the same encoded rows; each group tensor and each
output is compared. Nothing is published where one differs, is NaN, or where the engine answers an id that training refuses.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from emberline.errors import EmberlineError, ParityError, RequestError
from emberline.export.answers import WantedAnswers, model_answers
from emberline.export.cases import Case, single_id
from emberline.export.tiling import tiled_cases
from emberline.program_inputs import TILED
from emberline.schema import FeatureSpec, ModelSchema, TableKind
from emberline.serving.encoded import pack_encoded
from emberline.serving.engine import Engine
from emberline.serving.golden import allowed, row_scale
from emberline.serving.program_choice import TILED_ROLES, load_full
from emberline.serving.request import PackedRequest
from emberline.train.models import RecModel


@dataclass
class ParityReport:
    """What was compared and how far apart it was.

    Args:
        format: of the programs.
        bounds: the largest difference that was let pass, of `group` tensors and of `output`s, as a share of the numbers involved; where there are
            programs for tiled requests, also of `tiled_group` tensors and of `tiled_output`s.
        rows: rows compared, by kind: `real`, `made`, and `tiled`, which are of these too, but as rows of tiled requests.
        cases: rows of each made case by name.
        refused: ids that both training and serving refuse, tried.
        refused_unknown: requests with ids that own no row, which the artifact refuses as it was told to; they were compared without those ids.
        differences: the largest absolute difference by answer: `output.<name>` and `group.<name>`, of tiled requests `tiled_output.<name>` and so on.
    """

    format: str
    bounds: dict[str, float]
    rows: dict[str, int] = field(default_factory=lambda: {"real": 0, "made": 0, "tiled": 0})
    cases: dict[str, int] = field(default_factory=dict)
    refused: int = 0
    refused_unknown: int = 0
    differences: dict[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data, for the manifest."""
        return {
            "bound": max(self.bounds.values()),
            "real_rows": self.rows["real"],
            "made_rows": self.rows["made"],
            "tiled_rows": self.rows["tiled"],
            "cases": self.cases,
            "refused_ids": self.refused,
            "refused_unknown": self.refused_unknown,
            "max_abs_difference": self.differences,
        }

    def of_format(self) -> dict[str, Any]:
        """The part that other formats of the same programs may have otherwise, as plain JSON data."""
        return {"bounds": self.bounds, "max_abs_difference": self.differences}

    def to_lines(self) -> list[str]:
        """The report for a terminal."""
        made = f"{self.rows['made']} made rows in {len(self.cases)} cases"
        tiled = f", {self.rows['tiled']} rows in tiled requests" if self.rows["tiled"] else ""
        lines = [f"parity ({self.format}): {self.rows['real']} real rows, {made}{tiled}, {self.refused} ids that both sides refuse"]
        if self.refused_unknown:
            lines.append(f"  {self.refused_unknown} requests with unknown ids are refused as they should be, and compared without these ids")
        lines += [f"  {name:<24} largest difference {value:.3g}" for name, value in self.differences.items()]
        return lines


class ParityGate:
    """Compares one trained model with one opened artifact, case by case.

    Args:
        model: unsharded, in eval mode.
        engine: the built artifact, opened.
        wanted: what the artifact must answer.
        bound: the largest difference that is let pass; by default that of the engine's programs. It is a share of the size of the numbers involved,
            as `allowed` and `row_scale` say.
    """

    def __init__(self, model: RecModel, engine: Engine, wanted: WantedAnswers, bound: float | None = None) -> None:
        assert not model.training
        self._wanted = wanted
        self._model = model
        self._engine = engine
        self.is_tiled = any(role in TILED_ROLES for role, _ in engine.artifact.programs)
        kinds = [f"{prefix}{kind}" for prefix in ("", TILED)[: 1 + self.is_tiled] for kind in ("group", "output")]
        bounds = {kind: engine.bound(f"{kind}s") if bound is None else bound for kind in kinds}
        self.report = ParityReport(engine.format, bounds)
        self._full = load_full(engine.artifact, engine.device, engine.format)

    def compare(self, case: Case, request: PackedRequest | None = None, kind: str = "made") -> None:
        """Ask both sides and compare every answer.

        Args:
            case: what the model gets.
            request: what the engine gets; by default the same columns, packed.
            kind: of the rows: `real` where they came from data, else `made`, or, where the request is tiled, `tiled`.

        Raises:
            ParityError: an answer differs; the message names it, the feature where it is a lookup's, and the case.
        """
        schema, encoded = self._engine.schema, case.encoded
        if request is None:
            request = pack_encoded(schema, encoded)
        if refused := self._wanted.refused(encoded):
            self._require_refused_unknown(case, request, refused)
            encoded, request = self._wanted.without_refused(encoded, request)
        outputs, groups = self._wanted(encoded)
        try:
            found_groups, found_outputs = self._engine.lookup(request), self._engine.predict(request)
        except RequestError as error:
            raise ParityError(f"case {case.name!r}: the trained model answers, but the artifact refuses: {error}") from error
        prefix = TILED if kind == "tiled" else ""
        for name, wanted in groups.items():
            self._require_close(f"{prefix}group.{name}", found_groups[name], wanted, case)
        scale = row_scale(groups.values(), encoded.num_rows)
        for name, wanted in outputs.items():
            self._require_close(f"{prefix}output.{name}", found_outputs[name], wanted, case, scale)
        if self._full is not None:
            found_full = self._full(self._engine.full_inputs(request))
            for name, wanted in outputs.items():
                self._require_close(f"output.{name}", found_full[name], wanted, case, scale, by=" of the full program")
        self.report.rows[kind] += encoded.num_rows
        if kind == "made":
            self.report.cases[case.name] = encoded.num_rows

    def compare_tiled(self, case: Case) -> None:
        """Ask for rows of a case as rows of users, without ids that are to be refused, and compare every answer.

        Raises:
            ParityError: as `compare`.
        """
        for tiled in tiled_cases(self._engine.schema, Case(case.name, self._wanted.answerable(case.encoded))):
            self.compare(tiled.untiled, tiled.request, "tiled")

    def compare_refusals(self) -> None:
        """Ask for rows that static tables do not have: -1, the first past the end, and a very large one.

        Raises:
            ParityError: the artifact answers where training refuses, or does not read the out-of-vocabulary row where there is one.
        """
        schema = self._engine.schema
        for feature, rows in _static_features(schema):
            for bad in (-1, rows, 2**40):
                request = pack_encoded(schema, single_id(schema, feature, bad))
                oov_row = getattr(feature.encoder, "oov_row", None)
                if oov_row is not None:
                    self.compare(Case(f"out-of-vocabulary id of {feature.name}", single_id(schema, feature, oov_row)), request)
                    continue
                self._require_refused(feature, rows, bad, request)

    def _require_refused(self, feature: FeatureSpec, rows: int, bad: int, request: PackedRequest) -> None:
        asked: dict[str, Callable[[], object]] = {
            "the trained model": lambda: model_answers(self._model, self._engine.schema, single_id(self._engine.schema, feature, bad)),
            "the artifact": lambda: self._engine.lookup(request),
        }
        for who, ask in asked.items():
            try:
                ask()
            except EmberlineError:
                continue
            raise ParityError(f"feature {feature.name!r}: {who} answers id {bad}, though its table has {rows} rows and no row for unknown ids")
        self.report.refused += 1

    def _require_refused_unknown(self, case: Case, request: PackedRequest, refused: Mapping[str, int]) -> None:
        """The artifact must refuse the request, and name the first feature and row at fault."""
        name = next(feature.name for feature in self._engine.schema.sparse_features if feature.name in refused)
        for ask in (self._engine.lookup, self._engine.predict):
            try:
                ask(request)
            except RequestError as error:
                if (error.feature, error.row) == (name, refused[name]):
                    continue
                raise ParityError(f"case {case.name!r}: unknown ids of {name!r} are to be refused in row {refused[name]}, but: {error}") from error
            raise ParityError(f"case {case.name!r}: feature {name!r}: the artifact answers an unknown id, though it is to refuse them")
        self.report.refused_unknown += 1

    def _require_close(self, name: str, found: Tensor, wanted: Tensor, case: Case, scale: Tensor | None = None, by: str = "") -> None:
        if found.shape != wanted.shape:
            raise ParityError(f"{_title(name)}{by}: the artifact gives {list(found.shape)}, the model {list(wanted.shape)} (case {case.name!r})")
        gap, bound = (found - wanted).abs(), self.report.bounds[name.partition(".")[0]]
        bad = ~(gap <= allowed(wanted, bound, scale))
        if bool(bad.any()):
            row, *rest = (int(index) for index in bad.nonzero()[0])
            is_group = name.removeprefix(TILED).startswith("group.")
            place = self._column_name(name, rest[-1]) if rest and is_group else ""
            pair = f"{found[row, *rest].item():.9g}, the trained model {wanted[row, *rest].item():.9g}"
            raise ParityError(
                f"{_title(name)}{by}{place} differs in {int(bad.sum())} of {bad.numel()} numbers (case {case.name!r}): "
                f"at row {row} the artifact gives {pair}; the bound is {bound:g}"
            )
        if gap.numel():
            self.report.differences[name] = max(self.report.differences.get(name, 0.0), gap.max().item())
        else:
            self.report.differences.setdefault(name, 0.0)

    def _column_name(self, name: str, column: int) -> str:
        """Which feature, and which table, a column of a group tensor comes from."""
        group = name.removeprefix(TILED).removeprefix("group.")
        for feature, dim in self._model.embedding_group.group_feature_dims(group).items():
            if column < dim:
                tables = [lookup.table for lookup in self._engine.schema.reads if lookup.feature == feature]
                return f", feature {feature!r}" + (f" (table {', '.join(tables)})" if tables else "")
            column -= dim
        raise AssertionError(name)


def run_gate(
    model: RecModel, engine: Engine, wanted: WantedAnswers, made: Iterable[Case], real: Iterable[tuple[Case, PackedRequest]]
) -> ParityReport:
    """Compare everything.

    Args:
        model: unsharded, in eval mode.
        engine: the built artifact, opened.
        wanted: what the artifact must answer.
        made: the odd requests.
        real: rows of data, encoded as training does, each with the request that the engine's own encoder makes of the raw rows.

    Raises:
        ParityError: an answer differs.
    """
    gate = ParityGate(model, engine, wanted)
    for case, request in real:
        gate.compare(case, request, "real")
        if gate.is_tiled:
            gate.compare_tiled(case)
    for case in made:
        gate.compare(case)
        if gate.is_tiled:
            gate.compare_tiled(case)
    gate.compare_refusals()
    return gate.report


def _title(name: str) -> str:
    kind, _, rest = name.partition(".")
    of = " of a tiled request" if kind.startswith(TILED) else ""
    return f"{'feature group' if kind.endswith('group') else 'output'} {rest!r}{of}"


def _static_features(schema: ModelSchema) -> list[tuple[FeatureSpec, int]]:
    """The sparse features whose ids are rows, and how many rows each may ask for."""
    tables = {table.name: table for table in schema.tables}
    found = []
    for feature in schema.sparse_features:
        rows = [
            tables[lookup.table].rows for lookup in schema.reads if lookup.feature == feature.name and tables[lookup.table].kind is TableKind.STATIC
        ]
        if rows:
            found.append((feature, min(rows)))
    return found
