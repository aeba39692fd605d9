"""Two processes, each with other tables: they take the same decisions, and learn what one process would."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.train.jobs import Job
from tests.train.optim.small_model import STEPS, Plain, make_small
from tests.train.rank_runs import run_forked

CONFIG = """
sparse_optimizer { sgd_optimizer { lr: 0.1 } }
dense_optimizer { sgd_optimizer { lr: 0.05 momentum: 0 } exponential_decay_learning_rate { decay_size: 1 decay_factor: 0.5 } }
grad_scaler { init_scale: 8 } grad_clipping { clipping_type: "norm" max_gradient: 0.1 } ema { decay: 0.5 }
"""


def test_ranks_agree_and_learn_what_one_process_would(tmp_path: Path) -> None:
    run_forked(tmp_path, [Job(2, [str(Path(__file__).with_name("small_model.py")), str(tmp_path), CONFIG])])
    first, second = (load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2))
    for name in set(first) & set(second):
        assert torch.equal(first[name], second[name]), name
    assert first["scaler/scale"].item() == 4.0  # rank 1 had a bad step
    plain = Plain(make_small(CONFIG))
    average = {name: parameter.detach().clone() for name, parameter in plain.dense.items()}
    for seed in [seed for seed in range(STEPS) if seed != 1]:
        gradients = plain.gradients(seed)
        norm = torch.cat([gradients[name].flatten() for name in plain.dense]).norm()
        for name, parameter in plain.dense.items():
            parameter.data -= 0.05 * 0.5**seed * gradients[name] * min(1.0, 0.1 / norm.item())
            average[name] = (average[name] + parameter.detach()) / 2
        for table in ("a", "b"):
            plain.tables[table].data -= 0.1 * gradients[table]
    expected = {**plain.tables, **plain.dense, **{f"ema/{name}": value for name, value in average.items()}}
    found = {**first, **second}
    assert set(found) == {*expected, "scaler/scale", "scaler/steps_since_growth"}
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value.detach(), atol=1e-5, rtol=1e-5)


GLOBAL = """
sparse_optimizer { sgd_optimizer { lr: 0.1 } } dense_optimizer { sgd_optimizer { lr: 0.05 momentum: 0 } }
grad_clipping { clipping_type: "norm" max_gradient: 0.1 enable_global_grad_clip: true }
"""


@pytest.mark.parametrize("form", ["owned", "spread"])
def test_ranks_find_the_norm_of_the_whole_model(tmp_path: Path, form: str) -> None:
    run_forked(tmp_path, [Job(2, [str(Path(__file__).with_name("small_model.py")), str(tmp_path), GLOBAL, form])])
    first, second = (load_file(tmp_path / f"rank-{rank}.safetensors") for rank in range(2))
    plain = Plain(make_small(GLOBAL))
    for seed in range(STEPS):
        gradients = plain.gradients(seed)
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm().item()
        assert norm > 0.1
        for name, value in {**plain.dense, "a": plain.tables["a"], "b": plain.tables["b"]}.items():
            value.data -= (0.1 if name in plain.tables else 0.05) * gradients[name] * 0.1 / norm
    if form == "spread":
        assert torch.equal(first["b"], second["b"])
        first["a"] = torch.cat([first["a"], second.pop("a")])
    for name, value in {**plain.tables, **plain.dense}.items():
        torch.testing.assert_close({**second, **first}[name].double(), value.detach(), atol=1e-5, rtol=1e-5)
