"""Metrics against slow float64 oracles."""

import itertools
import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emberline.train import metrics
from emberline.train.metrics import Auc, BinaryMetrics, ClassMetrics, RecallMetrics


def pairwise_auc(scores: npt.NDArray[np.float32], labels: npt.NDArray[np.float32]) -> float:
    """Every pair of a positive and a negative, one by one."""
    ranks = [
        (1.0 if positive > negative else 0.5 if positive == negative else 0.0)
        for positive in scores[labels == 1].tolist()
        for negative in scores[labels == 0].tolist()
    ]
    return sum(ranks) / len(ranks) if ranks else math.nan


ROWS = st.lists(st.tuples(st.sampled_from([-3.5, -1.0, -0.0, 0.0, 0.25, 7.0, 1e30]), st.integers(0, 1)), max_size=40)


@settings(deadline=None)
@given(rows=ROWS, cuts=st.lists(st.integers(0, 40), max_size=4))
def test_auc_equals_all_pairs_however_batches_are_cut(rows: list[tuple[float, int]], cuts: list[int]) -> None:
    scores = np.array([score for score, _ in rows], np.float32)
    labels = np.array([label for _, label in rows], np.float32)
    first, second = Auc(), Auc()
    for index, (part, truth) in enumerate(zip(np.split(scores, sorted(cuts)), np.split(labels, sorted(cuts)), strict=True)):
        (first if index % 2 else second).update(part, truth)
    first.merge_state(second.state())
    np.testing.assert_allclose(first.compute(), pairwise_auc(scores, labels), rtol=1e-12, equal_nan=True)
    assert first.compute() == pytest.approx(first.compute(), nan_ok=True)


def test_auc_compacts_without_losing_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "_MERGE_AT", 16)
    generator = np.random.default_rng(5)
    scores = generator.integers(0, 9, 300).astype(np.float32)
    labels = generator.integers(0, 2, 300).astype(np.float32)
    auc = Auc()
    for start in range(0, 300, 7):
        auc.update(scores[start : start + 7], labels[start : start + 7])
    assert auc.compute() == pytest.approx(pairwise_auc(scores, labels), rel=1e-12)


def test_auc_of_one_class_or_nan_is_nan() -> None:
    for labels in ([1, 1], [0, 0], []):
        auc = Auc()
        auc.update(np.arange(len(labels), dtype=np.float32), np.array(labels, np.float32))
        assert math.isnan(auc.compute())
    auc = Auc()
    auc.update(np.array([np.nan, 1.0], np.float32), np.array([1, 0], np.float32))
    assert math.isnan(auc.compute())
    assert math.isnan(Auc().compute())


def test_auc_of_a_soft_label_counts_for_both_classes() -> None:
    auc = Auc()
    auc.update(np.array([1.0, 0.0], np.float32), np.array([1.0, 0.25], np.float32))
    # Positive weight 1 at 1.0 and 0.25 at 0.0; negative weight 0.75 at 0.0.
    assert auc.compute() == pytest.approx((1 * 0.75 + 0.25 * 0.75 / 2) / (1.25 * 0.75))


@settings(deadline=None)
@given(rows=st.lists(st.tuples(st.floats(-80, 80, width=32), st.integers(0, 1)), min_size=1, max_size=30))
def test_log_loss_equals_the_plain_formula(rows: list[tuple[float, int]]) -> None:
    logits = np.array([logit for logit, _ in rows], np.float32)
    labels = np.array([label for _, label in rows], np.float32)
    both = BinaryMetrics()
    both.update(logits[:3], labels[:3])
    other = BinaryMetrics()
    other.update(logits[3:], labels[3:])
    both.merge_state(other.state())
    expected = [math.log1p(math.exp(-z if y else z)) if (-z if y else z) < 700 else -z for z, y in zip(logits.tolist(), labels.tolist(), strict=True)]
    numbers = both.compute()
    assert numbers["log_loss"] == pytest.approx(sum(expected) / len(expected), rel=1e-12)
    assert numbers["rows"] == len(rows)


def test_log_loss_of_infinite_logits() -> None:
    right = BinaryMetrics()
    right.update(np.array([np.inf, -np.inf], np.float32), np.array([1, 0], np.float32))
    assert right.compute()["log_loss"] == 0.0
    wrong = BinaryMetrics()
    wrong.update(np.array([np.inf], np.float32), np.array([0], np.float32))
    assert wrong.compute()["log_loss"] == math.inf
    assert math.isnan(BinaryMetrics().compute()["log_loss"])


def test_class_metrics() -> None:
    logits = np.array([[0.0, 2.0, -1.0], [5.0, 5.0, 0.0], [1000.0, 0.0, 0.0]], np.float32)
    classes = np.array([1, 1, 0], np.float32)
    half, rest = ClassMetrics(), ClassMetrics()
    half.update(logits[:1], classes[:1])
    rest.update(logits[1:], classes[1:])
    half.merge_state(rest.state())
    loss = [math.log(math.exp(0) + math.exp(2) + math.exp(-1)) - 2, math.log(2 * math.exp(5) + 1) - 5, 0.0]
    assert half.compute() == {"accuracy": pytest.approx(2 / 3), "log_loss": pytest.approx(sum(loss) / 3), "rows": 3}
    assert math.isnan(ClassMetrics().compute()["accuracy"])


SCORES = st.lists(st.lists(st.sampled_from([-1.0, 0.0, 0.5, 2.0]), min_size=4, max_size=4), min_size=1, max_size=12)


@settings(deadline=None)
@given(rows=SCORES, cut=st.integers(0, 12), data=st.data())
def test_recall_is_the_mean_over_all_orders_of_ties(rows: list[list[float]], cut: int, data: st.DataObject) -> None:
    places = data.draw(st.lists(st.integers(0, 3), min_size=len(rows), max_size=len(rows)))
    first, second = RecallMetrics((1, 3)), RecallMetrics((1, 3))
    for metric, part in ((first, slice(0, cut)), (second, slice(cut, None))):
        metric.update(np.array(rows[part], np.float32).reshape(-1, 4), np.array(places[part], np.int64))
    first.merge_state(second.state())
    found = first.compute()
    for k in (1, 3):
        shares = []
        for row, place in zip(rows, places, strict=True):
            orders = list(itertools.permutations(range(4)))
            hits = [sorted(order, key=lambda one: -row[one]).index(place) < k for order in orders]
            shares.append(sum(hits) / len(orders))
        assert found[f"recall_at_{k}"] == pytest.approx(sum(shares) / len(rows))
    losses = [math.log(math.fsum(math.exp(score) for score in row)) - row[place] for row, place in zip(rows, places, strict=True)]
    assert found["log_loss"] == pytest.approx(sum(losses) / len(rows))
    assert found["rows"] == len(rows)


def test_recall_of_nothing_and_of_nan() -> None:
    metric = RecallMetrics((1,))
    assert math.isnan(metric.compute()["recall_at_1"])
    metric.update(np.zeros((0, 5), np.float32), np.zeros(0, np.int64))
    assert metric.compute()["rows"] == 0
    metric.update(np.array([[0.0, np.nan]], np.float32), np.array([0]))
    assert math.isnan(metric.compute()["recall_at_1"])
