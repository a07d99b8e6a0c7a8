"""The CUDA stream that a library works on now, as that library says it; and its arrays' copies on the host."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

_CUDA = 2  # DLPack's number


def on_cuda(array: Any) -> bool:
    """Whether the array lies in a CUDA device's memory."""
    device = getattr(array, "__dlpack_device__", None)
    if device is None:
        return False
    try:
        return int(device()[0]) == _CUDA
    except (BufferError, RuntimeError, ValueError, TypeError):  # a tensor without memory: refused by name where it is taken
        return False


def stream_source(array: Any) -> Callable[[], int]:
    """Asked at each step: the handle of the current stream of the array's library; the default stream of one that kerf
    does not know."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        device = array.device
        return lambda: int(torch.cuda.current_stream(device).cuda_stream)
    cupy = sys.modules.get("cupy")
    if cupy is not None and isinstance(array, cupy.ndarray):
        return lambda: int(cupy.cuda.get_current_stream().ptr)
    return lambda: 0


def to_host(array: Any) -> Any:
    """A copy in the host's memory, of what is there when the current stream has come here; what lies there already as it
    is."""
    if not on_cuda(array):
        return array
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return array.detach().cpu()
    return array.get()


def from_host(rows: Any, out: Any) -> None:
    """Copies a kerf.Array of the host's into an array on a device."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(out, torch.Tensor):
        out.copy_(torch.from_dlpack(rows))
    else:
        import numpy

        out.set(numpy.asarray(rows).view(out.dtype))
