"""Encoders of values that are computed from several raw columns."""

from collections.abc import Sequence

from emberline.encoding.expression import parse_expression
from emberline.schema import BoundaryEncoder, Combiner, CrossEncoder, Encoder, ExprEncoder, LookupEncoder, MatchEncoder, NumericEncoder, ValueEncoder
from emberline.train.features.common import Source, attempt
from emberline.train.features.expression import read_expression
from emberline.train.features.family_configs import ExprFeatureConfig, LookupFeatureConfig, MatchFeatureConfig
from emberline.train.features.inputs import ALL_KEYS
from emberline.train.features.sentences import Absence, unknown_name

_COMBINERS = ("sum", "mean", "min", "max", "count")


def computed(
    config: LookupFeatureConfig | MatchFeatureConfig, inner: Encoder | None, value_dim: int, where: Source, problems: list[str]
) -> Encoder | None:
    """The encoder that looks a value up and gives it to `inner`; None where that is None.

    Args:
        config: the feature's.
        inner: from a value to an id or a number.
        value_dim: values a row or step.
        where: what the feature reads.
        problems: gets what is wrong.
    """
    _check_inputs(config, ("nested_map", "pkey", "skey") if isinstance(config, MatchFeatureConfig) else ("map", "key"), problems)
    if inner is None:
        return None
    assert not isinstance(inner, CrossEncoder | ExprEncoder | LookupEncoder | MatchEncoder), inner
    _check_kind(config, inner, problems)
    combiner = _combiner(config, inner, value_dim, problems)
    if isinstance(config, MatchFeatureConfig):
        return MatchEncoder(
            inner=inner,
            combiner=combiner,
            any_outer=config.pkey == ALL_KEYS,
            any_inner=config.skey == ALL_KEYS,
            with_outer=config.show_pkey,
            with_inner=config.show_skey,
        )
    return LookupEncoder(
        inner=inner,
        combiner=combiner,
        with_key=config.need_key,
        map_separator=where.separator,
        value_separator=config.value_separator,
    )


def expression_encoder(config: ExprFeatureConfig, inner: BoundaryEncoder | NumericEncoder, problems: list[str]) -> ExprEncoder:
    """The encoder that computes a number and gives it to `inner`."""
    found = len(problems)
    _check_inputs(config, ("expression", "variables"), problems)
    read = [attempt([], read_expression, text) for text in config.variables]
    names = tuple(pair[1] for pair in read if pair)
    if len(problems) == found and len(names) == len(read):
        attempt(problems, parse_expression, config.expression, names)
    return ExprEncoder(expression=config.expression, variables=names, inner=inner, fill_missing=config.fill_missing)


def _check_inputs(config: LookupFeatureConfig | MatchFeatureConfig | ExprFeatureConfig, names: Sequence[str], problems: list[str]) -> None:
    problems += [Absence(f"{name} is missing: raw values are computed from it") for name in names if not getattr(config, name)]


def _is_number(inner: ValueEncoder) -> bool:
    return isinstance(inner, BoundaryEncoder | NumericEncoder)


def _check_kind(config: LookupFeatureConfig | MatchFeatureConfig, inner: ValueEncoder, problems: list[str]) -> None:
    """Settings of words and ids do not go with numbers, and the other way round."""
    if isinstance(config, LookupFeatureConfig):
        for_ids = {"need_discrete": config.need_discrete, "need_key": config.need_key}
    else:
        for_ids = {"need_discrete": config.need_discrete, "show_pkey": config.show_pkey, "show_skey": config.show_skey}
    if not _is_number(inner):
        if config.normalizer is not None:
            problems.append("normalizer is for numbers, and these are ids; use boundaries, or take it out")
        return
    problems += [
        f"{name} is for ids, and these are numbers; take it out, or set a source of rows other than boundaries"
        for name, is_set in for_ids.items()
        if is_set
    ]


def _combiner(config: LookupFeatureConfig | MatchFeatureConfig, inner: ValueEncoder, value_dim: int, problems: list[str]) -> Combiner:
    """How several found numbers become one: by their sum, where the config says nothing and one is wanted."""
    given = config.combiner.lower() if isinstance(config, LookupFeatureConfig) else ""
    if given and given not in _COMBINERS:
        problems.append(unknown_name("combiner", given, _COMBINERS))
        return Combiner.NONE
    if given and not _is_number(inner):
        problems.append(f"combiner {given} is for numbers, and these are ids; take it out, or use boundaries")
    if given and value_dim != 1:
        problems.append(f"combiner {given} makes one number, and value_dim is {value_dim}; take one of them out")
    if given:
        return Combiner(given)
    return Combiner.SUM if _is_number(inner) and value_dim == 1 else Combiner.NONE
