"""Losses and metrics of tasks against loops in float64."""

import math
from typing import Any

import pytest
import torch

from emberline.errors import DataError
from emberline.train.config import BinaryCrossEntropyConfig, L2LossConfig
from emberline.train.models.tasks import LogitTask, MatchTask, compute_metrics, total_loss

BCE = (BinaryCrossEntropyConfig(),)


def towers(rows: int, negatives: int = 0, seed: int = 0, shared: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {
        "user_tower_emb": torch.randn(rows, 4, generator=generator),
        "item_tower_emb": torch.randn(rows * (1 + negatives) + shared, 4, generator=generator),
    }


def expected_scores(task: MatchTask, outputs: dict[str, torch.Tensor], maths: Any) -> list[list[float]]:
    users, items = outputs["user_tower_emb"].tolist(), outputs["item_tower_emb"].tolist()
    rows = len(users)
    each = len(items) // rows - 1
    found = []
    for row, user in enumerate(users):
        candidates = items[:rows] if task.in_batch else [items[row]]
        candidates = candidates + (items[rows:] if task.shared else items[rows + row * each : rows + (row + 1) * each])
        found.append([maths.dot(user, item) / task.temperature for item in candidates])
    return found


@pytest.mark.parametrize(
    ("in_batch", "negatives", "shared"),
    [(True, 0, 0), (True, 3, 0), (False, 1, 0), (False, 3, 0), (True, 0, 1), (True, 0, 7), (False, 0, 1), (False, 0, 5), (False, 0, 7)],
)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_match_loss_and_recall(maths: Any, in_batch: bool, negatives: int, shared: int, weighted: bool, smoothing: float) -> None:
    task = MatchTask(label="click", temperature=0.5, in_batch=in_batch, shared=bool(shared), label_smoothing=smoothing, top_ks=(1, 2))
    outputs, labels = towers(5, negatives, shared=shared), torch.tensor([1, 0, 1, 1, 0])
    weights = torch.tensor([0.5, 9.0, 2.0, 0.0, 1.0]) if weighted else None
    scores, places = task.scores(outputs)
    wanted = expected_scores(task, outputs, maths)
    assert scores.tolist() == [pytest.approx(row, abs=1e-5) for row in wanted]
    assert places.tolist() == (list(range(5)) if in_batch else [0] * 5)
    total, share, losses, hits = 0.0, 0.0, [], {1: 0, 2: 0}
    for row, line in enumerate(wanted):
        if labels[row] != 1:
            continue
        place = row if in_batch else 0
        logs = [math.log(one) for one in maths.softmax(line)]
        losses.append(-logs[place])
        loss = (1 - smoothing) * -logs[place] + smoothing * -math.fsum(logs) / len(logs)
        weight = 1.0 if weights is None else weights[row].item()
        total, share = total + weight * loss, share + weight
        for k in hits:
            hits[k] += sorted(line, reverse=True).index(line[place]) < k
    assert task.loss(outputs, labels, weights).item() == pytest.approx(total / share, rel=1e-5)
    metrics = task.create_metrics()
    task.measure(metrics, outputs, labels)
    found = metrics.compute()
    assert found == pytest.approx({"recall_at_1": hits[1] / 3, "recall_at_2": hits[2] / 3, "log_loss": sum(losses) / 3, "rows": 3}, rel=1e-5)


def test_rows_without_a_match_give_no_loss() -> None:
    task, outputs = MatchTask(label="click"), towers(3)
    outputs["user_tower_emb"].requires_grad_()
    loss = task.loss(outputs, torch.zeros(3, dtype=torch.int64), None)
    torch.autograd.backward(loss)
    assert loss.item() == 0.0
    assert outputs["user_tower_emb"].grad is not None
    assert not outputs["user_tower_emb"].grad.any()


@pytest.mark.parametrize("in_batch", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_batch_without_rows_has_no_loss(in_batch: bool, shared: bool) -> None:
    task = MatchTask(label="click", in_batch=in_batch, shared=shared)
    outputs = {name: part.requires_grad_() for name, part in towers(0).items()}
    scores, places = task.scores(outputs)
    assert (len(scores), len(places)) == (0, 0)
    loss = task.loss(outputs, torch.zeros(0, dtype=torch.int64), None, total=3.0)
    torch.autograd.backward(loss)
    assert loss.item() == 0.0


@pytest.mark.parametrize(
    ("task", "rows", "items", "message"),
    [
        (MatchTask(in_batch=False), 3, 3, "the batch has no sampled negatives"),
        (MatchTask(in_batch=False, shared=True), 3, 3, "the batch has no sampled negatives, .* negative_columns or negative_sampler"),
        (MatchTask(shared=True), 3, 2, "2 items do not belong to 3 rows"),
        (MatchTask(), 3, 4, "4 items do not belong to 3 rows"),
        (MatchTask(), 3, 2, "2 items do not belong to 3 rows"),
    ],
)
def test_batches_that_can_not_be_compared(task: MatchTask, rows: int, items: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        task.scores({"user_tower_emb": torch.zeros(rows, 2), "item_tower_emb": torch.zeros(items, 2)})


@pytest.mark.parametrize("label", [0.5, 2.0, -1.0, math.nan])
def test_labels_of_matches_are_yes_or_no(label: float) -> None:
    with pytest.raises(DataError, match="label 'click' must be 0 or 1, found"):
        MatchTask(label="click").check(torch.tensor([1.0, label]))


def test_total_loss_weighs_the_tasks() -> None:
    tasks = (
        LogitTask(losses=BCE, label="click", name="ctr", weight=3.0),
        LogitTask(losses=(L2LossConfig(),), label="spent", name="spend", weight=0.5),
    )
    outputs = {"logits_ctr": torch.tensor([2.0, -1.0]), "probs_ctr": torch.zeros(2), "y_spend": torch.tensor([1.0, 4.0])}
    labels = {"click": torch.tensor([1, 0]), "spent": torch.tensor([2.0, 2.0])}
    first = (math.log1p(math.exp(-2)) + math.log1p(math.exp(-1))) / 2
    assert total_loss(tasks, outputs, labels, None).item() == pytest.approx(3 * first + 0.5 * (1 + 4) / 2, rel=1e-6)
    metrics = [task.create_metrics() for task in tasks]
    for task, found in zip(tasks, metrics, strict=True):
        task.measure(found, outputs, labels[task.label])
    assert compute_metrics(tasks, metrics) == pytest.approx(
        {"auc_ctr": 1.0, "log_loss_ctr": first, "rows_ctr": 2, "mean_squared_error_spend": 2.5, "rows_spend": 2}
    )


def test_one_task_without_a_weight_is_its_loss_bit_for_bit() -> None:
    from emberline.train.models.loss import compute_loss

    logits, labels = torch.randn(64), torch.randint(0, 2, (64,))
    task = LogitTask(losses=BCE, label="y")
    one, other = logits.clone().requires_grad_(), logits.clone().requires_grad_()
    loss, plain = total_loss((task,), task.outputs({"logits": one}), {"y": labels}, None), compute_loss(BCE, other, labels, None)
    torch.autograd.backward([loss, plain])
    assert torch.equal(loss, plain)
    assert one.grad is not None
    assert other.grad is not None
    assert torch.equal(one.grad, other.grad)
