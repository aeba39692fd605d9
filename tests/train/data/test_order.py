"""Orders and draws that come of their place alone."""

from pathlib import Path

from emberline.train.data.order import fragment_order, negatives_generator, window_order
from emberline.train.data.position import DataPosition
from emberline.train.data.source import Fragment


def test_orders_are_permutations_that_seed_epoch_and_window_decide() -> None:
    fragments = [Fragment(Path("a"), index) for index in range(20)]
    assert sorted(part.index for part in fragment_order(fragments, 1, 2)) == list(range(20))
    assert fragment_order(fragments, 1, 2) == fragment_order(fragments, 1, 2) != fragment_order(fragments, 1, 3)
    orders = {(seed, epoch, window): window_order(50, seed, epoch, window).tolist() for seed in (1, 2) for epoch in (0, 1) for window in (0, 1)}
    assert all(sorted(order) == list(range(50)) for order in orders.values())
    assert len({tuple(order) for order in orders.values()}) == 8


def test_each_place_draws_numbers_of_its_own() -> None:
    places = [(seed, DataPosition(epoch, rows), rank) for seed in (0, 2**63 - 1) for epoch in (0, 1) for rows in (0, 1, 2**40) for rank in (0, 1)]
    drawn = [tuple(negatives_generator(*place).integers(2**62, size=4).tolist()) for place in places]
    assert drawn == [tuple(negatives_generator(*place).integers(2**62, size=4).tolist()) for place in places]
    assert len({number for numbers in drawn for number in numbers}) == 4 * len(places)
