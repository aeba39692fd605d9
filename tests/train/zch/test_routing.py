"""Where ids go, against the operator that sends them."""

from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.train.zch import BY_RANGE, MIXED, owner_of
from emberline.train.zch.routing import mix, unmix

IDS = st.one_of(st.integers(-(2**63), 2**63 - 1), st.integers(-9, 9), st.sampled_from([2**62 - 1, 2**62, 2**62 + 1, -(2**63), 2**63 - 1]))


def bucketized(ids: Tensor, shards: int) -> list[int]:
    """TorchRec's exchange of ids: the shard of each."""
    size = (2**63 - 1 + shards - 1) // shards
    lengths, _, _, _, permute = torch.ops.fbgemm.block_bucketize_sparse_features(
        torch.tensor([len(ids)]),
        ids,
        bucketize_pos=False,
        sequence=True,
        block_sizes=torch.tensor([size]),
        total_num_blocks=torch.tensor([shards]),
        my_size=shards,
        weights=None,
        keep_orig_idx=True,
    )
    owners: list[int] = torch.repeat_interleave(torch.arange(shards), lengths.long())[permute.long()].tolist()
    return owners


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(IDS, min_size=1, max_size=40), shards=st.integers(1, 9))
def test_ids_go_where_torchrec_sends_them(ids: list[int], shards: int) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    assert owner_of(tensor, shards, BY_RANGE).tolist() == bucketized(tensor, shards)
    assert owner_of(tensor, shards, MIXED).tolist() == bucketized(mix(tensor), shards)
    assert owner_of(tensor.numpy(), shards, MIXED).tolist() == bucketized(mix(tensor), shards)


def test_no_ids() -> None:
    assert owner_of(torch.zeros(0, dtype=torch.int64), 3, MIXED).tolist() == []


@settings(max_examples=200, deadline=None)
@given(ids=st.lists(IDS, min_size=1, max_size=40))
def test_mixing_can_be_undone_and_keeps_sign_and_the_mark_of_free_rows(ids: list[int]) -> None:
    tensor = torch.tensor(ids, dtype=torch.int64)
    mixed = mix(tensor)
    assert unmix(mixed).tolist() == ids == mix(unmix(tensor)).tolist()
    assert mixed.lt(0).tolist() == [one < 0 for one in ids]
    assert mix(torch.tensor([2**63 - 1, 5])).tolist()[0] == 2**63 - 1
    assert mix(tensor.numpy()).tolist() == mixed.tolist()


def test_mixing_is_what_it_was_by_whole_numbers() -> None:
    """Checkpoints and artifacts depend on these numbers: computed here without overflow."""
    low = 2**63 - 1

    def by_hand(one: int) -> int:
        z = (one & low) ^ low
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & low
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & low
        return ((z ^ (z >> 31)) ^ low) - (2**63 if one < 0 else 0)

    ids = [0, 1, 2, 499, 10**9, 2**62, 2**63 - 2, 2**63 - 1, -1, -5, -(2**63)]
    assert mix(torch.tensor(ids)).tolist() == [by_hand(one) for one in ids]
    assert mix(torch.tensor([0, 1, -5])).tolist() == [2708867903416574274, 4598122871705174232, -7689210121619363061]


@pytest.mark.parametrize("ids", [range(20_000), range(0, 20_000_000, 1000), range(-20_000, 0), [one << 40 for one in range(20_000)]])
@pytest.mark.parametrize("shards", [2, 3, 4, 8])
def test_small_and_regular_ids_spread_evenly(ids: Sequence[int], shards: int) -> None:
    """Within five standard deviations of a fair draw."""
    counts = torch.bincount(owner_of(torch.tensor(list(ids)), shards, MIXED), minlength=shards)
    fair = 20_000 / shards
    assert (counts - fair).abs().max().item() < 5 * (fair * (1 - 1 / shards)) ** 0.5
    assert int(owner_of(torch.tensor(list(range(20_000))), shards, BY_RANGE).max()) == 0
