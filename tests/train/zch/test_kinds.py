"""Why hash-based maps are refused: the reason that the message gives."""

import pytest
import torch
from torchrec.modules.hash_mc_modules import HashZchManagedCollisionModule
from torchrec.sparse.jagged_tensor import JaggedTensor


def test_the_kernel_of_hash_based_maps_admits_nothing_on_a_cpu() -> None:
    module = HashZchManagedCollisionModule(zch_size=16, device=torch.device("cpu"), total_num_buckets=4)
    ids = {"t": JaggedTensor(values=torch.tensor([1, 2]), lengths=torch.tensor([2]))}
    with pytest.raises(RuntimeError, match="Expected readonly to be true"):
        module(ids)
    module.eval()
    assert module(ids)["t"].values().numel() == 2
