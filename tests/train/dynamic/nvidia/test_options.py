"""Every option, number for number."""

from dataclasses import replace

import pytest
import torch
from torchrec import optim

from emberline.errors import ConfigError
from emberline.train.dynamic.nvidia.options import LearnedTable, initializer_args, table_options
from emberline.train.dynamic.nvidia.package import find_package
from emberline.train.dynamic.options import DynamicEmbOptions, FrequencyAdmission, Initializer, InitializerMode, ScoreStrategy
from tests.train.dynamic.fake_nvidia import Check, InitializerArgs, Mode, NewOptions, NewStrategy, OldOptions, OldStrategy, Scores, fake_package

UNIFORM = Initializer(mode=InitializerMode.UNIFORM, lower=-0.25, upper=0.5)
OPTIONS = DynamicEmbOptions(
    max_capacity=1000,
    init_capacity_per_rank=130,
    initializer=UNIFORM,
    eval_initializer=Initializer(mode=InitializerMode.CONSTANT, value=0.125),
    score_strategy=ScoreStrategy.LFU,
    admission=FrequencyAdmission(threshold=3, counter_capacity=101, counter_bucket_capacity=512, initializer=UNIFORM),
    bucket_capacity=64,
    caching=True,
    local_hbm_for_values=4096,
)
TABLE = LearnedTable("users", 12, torch.float32, optim.Adam, OPTIONS, 4)


def test_every_option() -> None:
    with fake_package():
        options = table_options(find_package(), TABLE)
    assert isinstance(options, NewOptions)
    assert isinstance(options.admit_strategy, NewStrategy)
    strategy, counter = options.admit_strategy, options.admit_strategy.counter
    assert counter is not None
    options.admit_strategy = None
    assert options == NewOptions(
        embedding_dtype=torch.float32,
        dim=12,
        max_capacity=256,  # 250 of 1000 on each of 4 ranks, in buckets of 64
        local_hbm_for_values=4096,
        training=True,
        initializer_args=InitializerArgs(Mode.UNIFORM, 0.0, 1.0, -0.25, 0.5, 0.0),
        eval_initializer_args=InitializerArgs(Mode.CONSTANT, 0.0, 1.0, -1.0, 1.0, 0.125),
        caching=True,
        init_capacity=192,
        score_strategy=Scores.LFU,
        bucket_capacity=64,
        safe_check_mode=Check.ERROR,
        index_type=torch.int64,
        admit_strategy=None,
        admission_counter=None,
        dist_type="roundrobin",
    )
    assert (strategy.threshold, strategy.initializer_args) == (3, InitializerArgs(Mode.UNIFORM, 0.0, 1.0, -0.25, 0.5, 0.0))
    assert (counter.capacity, counter.bucket_capacity, counter.key_type) == (32, 512, torch.int64)  # 26 of 101, in sixteens


def test_an_older_release_has_the_counter_in_the_options() -> None:
    with fake_package(new=False):
        options = table_options(find_package(), TABLE)
    assert type(options) is OldOptions
    assert isinstance(options.admit_strategy, OldStrategy)
    assert options.admit_strategy.threshold == 3
    assert options.admission_counter is not None
    assert options.admission_counter.capacity == 32


def test_what_is_not_asked_is_left_to_the_kernel() -> None:
    plain = DynamicEmbOptions(max_capacity=5, initializer=UNIFORM)
    with fake_package():
        options = table_options(find_package(), LearnedTable("t", 4, torch.float16, None, plain, 1))
    assert (options.init_capacity, options.admit_strategy, options.training, options.caching) == (None, None, False, False)
    assert options.max_capacity == 128
    assert options.bucket_capacity == 128
    assert options.local_hbm_for_values == 128 * 16  # all rows: 8 bytes each, in sixteens
    assert options.eval_initializer_args == InitializerArgs(Mode.CONSTANT, 0.0, 1.0, -1.0, 1.0, 0.0)


@pytest.mark.parametrize("strategy", list(ScoreStrategy))
def test_strategies_by_name(strategy: ScoreStrategy) -> None:
    with fake_package():
        options = table_options(find_package(), replace(TABLE, options=replace(OPTIONS, score_strategy=strategy)))
    assert options.score_strategy is Scores[strategy.name]


@pytest.mark.parametrize("mode", list(InitializerMode))
def test_initialisers_have_their_bounds(mode: InitializerMode) -> None:
    with fake_package():
        found = initializer_args(find_package(), Initializer(mode=mode, mean=0.5, std_dev=2.0, lower=-3.0, upper=4.0, value=7.0))
    assert found == InitializerArgs(Mode[mode.name], 0.5, 2.0, -3.0, 4.0, 7.0)


@pytest.mark.parametrize(
    ("optimizer", "dtype", "numbers"),
    [
        (torch.optim.SGD, torch.float32, 0),
        (optim.SGD, torch.float32, 0),
        (optim.Adagrad, torch.float32, 12),
        (optim.RowWiseAdagrad, torch.float32, 4),
        (optim.RowWiseAdagrad, torch.bfloat16, 8),
        (optim.Adam, torch.float16, 24),
    ],
)
def test_bytes_of_rows(optimizer: type[torch.optim.Optimizer], dtype: torch.dtype, numbers: int) -> None:
    table = replace(TABLE, optimizer=optimizer, dtype=dtype)
    assert table.state_width == numbers
    row = -(-(12 + numbers) * dtype.itemsize // 16) * 16
    assert table.value_bytes == 256 * row


def test_what_it_cannot_do_is_refused() -> None:
    with fake_package():
        package = find_package()
        with pytest.raises(ConfigError, match="table 'users': NVIDIA's kernel knows Adagrad, Adam, RowWiseAdagrad, SGD, not LAMB; use one"):
            table_options(package, replace(TABLE, optimizer=optim.LAMB, options=replace(OPTIONS, local_hbm_for_values=None)))
        with pytest.raises(ConfigError, match="eval_initializer_args of NVIDIA's kernel are a constant, not UNIFORM"):
            table_options(package, replace(TABLE, options=replace(OPTIONS, eval_initializer=UNIFORM)))
        for buckets in (0, 8, 100):
            with pytest.raises(ConfigError, match=f"bucket_capacity of NVIDIA's kernel is a multiple of 16, not {buckets}"):
                table_options(package, replace(TABLE, options=replace(OPTIONS, bucket_capacity=buckets)))
        with pytest.raises(ConfigError, match=r"tables of FP32, FP16 and BF16, not torch\.int8"):
            table_options(package, replace(TABLE, dtype=torch.int8))
