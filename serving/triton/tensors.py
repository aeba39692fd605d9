"""Triton's tensors and responses, to and from ours. Inside Triton's Python process only, as `backend` is."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton_python_backend_utils as pb_utils
from torch.utils.dlpack import from_dlpack

from emberline.serving.device_request import DeviceRequest

_ON_DEVICE = frozenset(field.name for field in fields(DeviceRequest))


def device_request(tensors: Sequence[Any]) -> DeviceRequest | None:
    """A request of these inputs where they are, if all of them are on a GPU, and it takes no others; None for any other."""
    if any(tensor.is_cpu() for tensor in tensors):
        return None
    given = {tensor.name(): tensor for tensor in tensors}
    if not {"ids", "lengths"} <= given.keys() <= _ON_DEVICE:
        return None
    return DeviceRequest(**{name: from_dlpack(tensor.to_dlpack()) for name, tensor in given.items()})


def host_array(tensor: Any) -> npt.NDArray[Any]:
    """A Triton tensor's values in host memory: a view where they are there already, else a copy by DLPack.

    [1, n] is given on as [n], which the engine reads by its shortest way; any other shape as it is, to be refused by name.
    """
    array: npt.NDArray[Any] = tensor.as_numpy() if tensor.is_cpu() else from_dlpack(tensor.to_dlpack()).cpu().numpy()
    return array[0] if array.ndim == 2 and len(array) == 1 else array


def given_tensor(name: str, answer: torch.Tensor, *, as_item: bool = False) -> Any:
    """An answer as Triton's tensor: where it is on a GPU it stays there, unless it holds nothing, which Triton takes from the host only.

    Args:
        name: of the output.
        answer: of any shape.
        as_item: give it a leading 1, as one item of Triton's batch.
    """
    whole = answer.contiguous()
    if answer.is_cpu or answer.numel() == 0:
        array = whole.cpu().numpy()
        return pb_utils.Tensor(name, array[None] if as_item else array)
    return pb_utils.Tensor.from_dlpack(name, whole.unsqueeze(0) if as_item else whole)


def sent_early(requests: Sequence[Any], responses: Sequence[Any]) -> list[None]:
    """Send the responses; what is to be returned in their place."""
    for request, response in zip(requests, responses, strict=True):
        request.get_response_sender().send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    return [None] * len(responses)


def check_runtime() -> None:
    """Let Triton's tensor class make numpy arrays, as it does with a request's inputs, and compare.

    Triton's Python backend is built against numpy 1. With numpy 2 it reads a wrong item size: inputs come as their first value repeated,
    and answers go out with status 200 and no data.

    Raises:
        TritonModelException: an array does not come back as it was.
    """
    for want in (
        torch.arange(1, 7).view(1, 6),
        torch.arange(1, 7, dtype=torch.int32).view(1, 6),
        torch.arange(1, 7, dtype=torch.float32).view(1, 2, 3),
    ):
        found = pb_utils.Tensor.from_dlpack("probe", want).as_numpy()
        if not np.array_equal(found, want.numpy()):
            raise pb_utils.TritonModelException(
                f"Triton's Python backend and numpy {np.__version__} do not work together: {want.tolist()} came back as {np.asarray(found).tolist()}."
                " Install numpy below 2 in the Python environment that Triton uses"
            )
