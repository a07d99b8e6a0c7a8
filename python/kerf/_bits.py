"""Arrays whose dtype their own library cannot hand over: their bits can be."""

from __future__ import annotations

import sys
from typing import Any

_bits = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e8m0fnu": "uint8",
    "float4_e2m1fn_x2": "uint8",
}


def bits_of(array: Any, writes: bool) -> Any:
    """A view of the array's bits as unsigned integers, or None where that is not known to be possible."""
    dtype = getattr(array, "dtype", None)
    if dtype is None or not hasattr(array, "view"):
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        if array.requires_grad and not writes:
            array = array.detach()
        name = str(array.dtype).removeprefix("torch.")
        if name not in _bits:
            return array
        try:
            return array.view(getattr(torch, _bits[name]))
        except RuntimeError:  # a tensor without memory of its own, as sparse ones are
            return None
    name = getattr(dtype, "name", "")
    return array.view(_bits[name]) if name in _bits else None
