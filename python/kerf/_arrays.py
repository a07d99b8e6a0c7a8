"""Results of the caller's own kind: a torch tensor, a numpy array, otherwise a kerf.Array."""

from __future__ import annotations

import sys
from typing import Any

from kerf import _kerf

#: What numpy has instead of dtypes that it lacks: their bits.
_bits = {"bfloat16": "uint16", "float8_e4m3fn": "uint8"}


def empty_like(array: Any, shape: tuple[int, ...], dtype: str = "bfloat16") -> Any:
    """A new array of ``array``'s kind, its contents undefined; ``dtype`` as kerf.empty calls it.

    Of a numpy array that is ml_dtypes' bfloat16, bfloat16 is that dtype; of other ones, the bits as uint16.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(array, torch.Tensor):
        return torch.empty(shape, dtype=getattr(torch, dtype), device=array.device)
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(array, numpy.ndarray):
        return numpy.empty(shape, array.dtype if array.dtype.name == dtype else _bits.get(dtype, dtype))
    return _kerf.empty(list(shape), dtype)


def described(thing: Any) -> str:
    """What somebody gave, for a text: a dtype and shape where it has them, else its type and value, cut."""
    if thing is None:
        return "None"
    dtype, shape = getattr(thing, "dtype", None), getattr(thing, "shape", None)
    if dtype is not None and shape is not None:
        return f"{str(dtype).removeprefix('torch.')} {list(shape)}"
    words = repr(thing)
    return f"a {type(thing).__name__}, {words if len(words) <= 60 else words[:57] + '...'}"
