"""Where ids go, against the operator that sends them."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from emberline.train.zch import owner_of

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
    assert owner_of(tensor, shards).tolist() == bucketized(tensor, shards)


def test_no_ids() -> None:
    assert owner_of(torch.zeros(0, dtype=torch.int64), 3).tolist() == []
