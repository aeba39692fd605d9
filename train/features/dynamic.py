"""Dynamic tables, which grow with their ids: what a config says of one, checked and completed."""

import math
from collections.abc import Iterator

from emberline.schema import INT64_MAX
from emberline.train.dynamic.options import (
    DEFAULT_BUCKET_CAPACITY,
    DEFAULT_COUNTER_BUCKET_CAPACITY,
    ZEROS,
    DynamicEmbOptions,
    FrequencyAdmission,
    Initializer,
    InitializerMode,
    ScoreStrategy,
)
from emberline.train.features.configs import (
    DynamicEmbConfig,
    DynamicEmbFrequencyAdmissionConfig,
    DynamicEmbInitializerConfig,
    HashOrVocabularyConfig,
)
from emberline.train.features.sentences import prefixed, unknown_name

_NORMALS = (InitializerMode.NORMAL, InitializerMode.TRUNCATED_NORMAL)
_BOUNDED = (InitializerMode.UNIFORM, InitializerMode.TRUNCATED_NORMAL)
_MODES_OF = {"mean": _NORMALS, "std_dev": _NORMALS, "lower": _BOUNDED, "upper": _BOUNDED, "value": (InitializerMode.CONSTANT,)}
MOST_ROWS = 1 << 40
"""Of all ranks together; the bytes of more, of whatever width, may be no number that PyTorch can hold."""
TRUNCATED_AT = 2.0
"""Standard deviations from the mean where TRUNCATED_NORMAL ends if nothing is said."""
_FARTHEST = 6.0
"""Standard deviations from the mean beyond which as good as nothing of a normal distribution is left."""


def dynamic_problems(config: HashOrVocabularyConfig) -> list[str]:
    """What is wrong with the `dynamicemb` of a feature, one sentence each."""
    growth, dim = config.dynamicemb, max(config.embedding_dim, 1)
    assert growth is not None
    found = [*_capacity(growth.max_capacity), *_option_problems(growth)]
    defaults = DynamicEmbConfig(max_capacity=max(growth.max_capacity, 1))
    for name, mode in (("initializer_args", InitializerMode.UNIFORM), ("eval_initializer_args", InitializerMode.CONSTANT)):
        found += [prefixed(name, text) for text in _initializer_problems(getattr(growth, name), mode, dim, defaults.max_capacity)]
    if growth.admission_strategy is not None:
        texts = _admission_problems(growth.admission_strategy, dim, defaults.max_capacity)
        found += [prefixed("frequency_admission_strategy", text) for text in texts]
    if config.init_fn is not None:
        found.append("init_fn is set beside it, and begins no vector of a table that grows; use initializer_args")
    return [prefixed("dynamicemb", text) for text in found]


def dynamic_options(config: DynamicEmbConfig, dim: int) -> DynamicEmbOptions:
    """The options of a config without problems.

    Args:
        config: of one table.
        dim: of the feature's vectors.
    """
    admission = config.admission_strategy
    return DynamicEmbOptions(
        max_capacity=config.max_capacity,
        init_capacity_per_rank=config.init_capacity_per_rank,
        initializer=_initializer(config.initializer_args, InitializerMode.UNIFORM, dim, config.max_capacity),
        eval_initializer=_initializer(config.eval_initializer_args, InitializerMode.CONSTANT, dim, config.max_capacity),
        score_strategy=ScoreStrategy(config.score_strategy),
        admission=None if admission is None else _admission(admission, dim, config.max_capacity),
        cache_load_factor=config.cache_load_factor,
        bucket_capacity=config.bucket_capacity or DEFAULT_BUCKET_CAPACITY,
        init_table=config.init_table,
    )


def initializer_text(initializer: Initializer) -> str:
    """An initialiser as a config has it: `UNIFORM lower -0.1, upper 0.1`."""
    numbers = [f"{name} {getattr(initializer, name):g}" for name, modes in _MODES_OF.items() if initializer.mode in modes]
    return f"{initializer.mode} {', '.join(numbers)}"


def option_texts(options: DynamicEmbOptions | None) -> dict[str, str]:
    """What all readers of one table must agree on, under the names that a config uses; of None, that there is none."""
    if options is None:
        return {"dynamicemb": "none"}
    admission = options.admission
    return {
        "dynamicemb": "set",
        "dynamicemb max_capacity": f"{options.max_capacity}",
        "dynamicemb initializer_args": initializer_text(options.initializer),
        "dynamicemb eval_initializer_args": initializer_text(options.eval_initializer),
        "dynamicemb score_strategy": options.score_strategy,
        "dynamicemb cache_load_factor": f"{options.cache_load_factor}",
        "dynamicemb init_capacity_per_rank": f"{options.init_capacity_per_rank}",
        "dynamicemb bucket_capacity": f"{options.bucket_capacity}",
        "dynamicemb init_table": options.init_table or "none",
        "dynamicemb frequency_admission_strategy": "none" if admission is None else _admission_text(admission),
    }


def _admission_text(admission: FrequencyAdmission) -> str:
    counter = f"counter_capacity {admission.counter_capacity}, counter_bucket_capacity {admission.counter_bucket_capacity}"
    return f"threshold {admission.threshold}, {counter}, {initializer_text(admission.initializer)}"


def _initializer(config: DynamicEmbInitializerConfig | None, mode: InitializerMode, dim: int, capacity: int) -> Initializer:
    """A complete initialiser; `mode` is what the place has by default."""
    if config is None:
        config = DynamicEmbInitializerConfig()
    mode = InitializerMode(config.mode) if config.mode else mode
    mean = config.mean or 0.0
    std_dev = 1.0 / math.sqrt(dim) if config.std_dev is None else config.std_dev
    normal = mode is InitializerMode.TRUNCATED_NORMAL
    center, reach = (mean, TRUNCATED_AT * std_dev) if normal else (0.0, 1.0 / math.sqrt(capacity))
    if mode is InitializerMode.CONSTANT:
        return Initializer(mode=mode, value=config.value or 0.0)
    if mode is InitializerMode.NORMAL:
        return Initializer(mode=mode, mean=mean, std_dev=std_dev)
    lower = center - reach if config.lower is None else config.lower
    upper = center + reach if config.upper is None else config.upper
    return (
        Initializer(mode=mode, mean=mean, std_dev=std_dev, lower=lower, upper=upper) if normal else Initializer(mode=mode, lower=lower, upper=upper)
    )


def _admission(config: DynamicEmbFrequencyAdmissionConfig, dim: int, capacity: int) -> FrequencyAdmission:
    return FrequencyAdmission(
        threshold=config.threshold,
        initializer=_initializer(config.initializer_args, ZEROS.mode, dim, capacity),
        counter_capacity=config.counter_capacity or capacity,
        counter_bucket_capacity=config.counter_bucket_capacity or DEFAULT_COUNTER_BUCKET_CAPACITY,
    )


def _option_problems(config: DynamicEmbConfig) -> Iterator[str]:
    if config.score_strategy not in set(ScoreStrategy):
        yield unknown_name("score_strategy", config.score_strategy, map(str, ScoreStrategy))
    ratio, first = config.cache_load_factor, config.init_capacity_per_rank
    if ratio is not None and not 0.0 < ratio <= 1.0:
        yield f"cache_load_factor must be above 0 and at most 1, found {ratio}"
    if first is not None:
        yield from _count("init_capacity_per_rank", first)
        if first > config.max_capacity >= 1:
            yield f"init_capacity_per_rank {first} is more than max_capacity {config.max_capacity}"
    if config.bucket_capacity is not None:
        yield from _count("bucket_capacity", config.bucket_capacity)


def _admission_problems(config: DynamicEmbFrequencyAdmissionConfig, dim: int, capacity: int) -> Iterator[str]:
    yield from _count("threshold", config.threshold)
    for name in ("counter_capacity", "counter_bucket_capacity"):
        value = getattr(config, name)
        if value is not None:
            yield from _count(name, value)
    for text in _initializer_problems(config.initializer_args, InitializerMode.CONSTANT, dim, capacity):
        yield prefixed("initializer_args", text)


def _initializer_problems(config: DynamicEmbInitializerConfig | None, mode: InitializerMode, dim: int, capacity: int) -> Iterator[str]:
    if config is None:
        return
    if config.mode and config.mode not in set(InitializerMode):
        yield unknown_name("mode", config.mode, map(str, InitializerMode))
        return
    mode = InitializerMode(config.mode) if config.mode else mode
    strange = [name for name, modes in _MODES_OF.items() if getattr(config, name) is not None and mode not in modes]
    yield from (f"{name} is for {' and '.join(_MODES_OF[name])}, and the mode is {mode}" for name in strange)
    wrong = [name for name in _MODES_OF if (value := getattr(config, name)) is not None and not math.isfinite(value)]
    yield from (f"{name} must be a finite number, found {getattr(config, name)}" for name in wrong)
    if not (strange or wrong):
        yield from _range_problems(_initializer(config, mode, dim, capacity))


def _range_problems(found: Initializer) -> Iterator[str]:
    if found.mode in _NORMALS and not found.std_dev > 0.0:
        yield f"std_dev must be above 0, found {found.std_dev}"
    elif found.mode in _BOUNDED and not found.lower < found.upper:
        yield f"lower must be below upper, found {found.lower:g} and {found.upper:g}"
    elif found.mode is InitializerMode.TRUNCATED_NORMAL:
        nearest = min(max(found.mean, found.lower), found.upper)
        if abs(nearest - found.mean) > _FARTHEST * found.std_dev:
            yield f"{found.lower:g} to {found.upper:g} is more than {_FARTHEST:g} times std_dev {found.std_dev:g} away from the mean, {found.mean:g}"


def _capacity(rows: int) -> list[str]:
    return [] if 1 <= rows <= MOST_ROWS else [f"max_capacity must be at least 1 and at most {MOST_ROWS}, found {rows}"]


def _count(name: str, value: int) -> list[str]:
    return [] if 1 <= value <= INT64_MAX else [f"{name} must be at least 1 and below 2^63, found {value}"]
