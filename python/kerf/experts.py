"""Experts as tensors: quantising, and the converted layout."""

from __future__ import annotations

from typing import Any, NamedTuple

from kerf import _arrays, _kerf, errors

#: Whatever DLPack or the buffer protocol hands over: numpy, torch, kerf.Array, ...
Tensor = Any


class Nvfp4Experts(NamedTuple):
    """One rank's NVFP4 experts of one layer in the converted layout: whole ones, or slices, which look alike.

    n experts of input and output width H and intermediate width I; docs/layout.md has the bytes.
    """

    w13: Tensor  #: uint8 [n, 2I, H/2], two codes a byte
    w13_sf: Tensor  #: e4m3 (or uint8) [n, 2I, H/16], 128x4 interleaved
    w2: Tensor  #: uint8 [n, H, I/2]
    w2_sf: Tensor  #: e4m3 (or uint8) [n, H, I/16], 128x4 interleaved
    g1_alphas: Tensor  #: float32 [n]
    g1_scale_c: Tensor  #: float32 [n]
    g2_alphas: Tensor  #: float32 [n]
    a1_gscale: Tensor  #: float32 [1], 1 / input scale
    a2_gscale: Tensor  #: float32 [1], 1 / scale of the intermediate
    first_expert: int  #: the model's number of the first expert here

    @property
    def num_experts(self) -> int:
        """n."""
        return int(self.w13.shape[0])

    @property
    def intermediate(self) -> int:
        """I, or a slice's width."""
        return int(self.w13.shape[1]) // 2

    @property
    def hidden(self) -> int:
        """H."""
        return int(self.w13.shape[2]) * 2


class Bf16Experts(NamedTuple):
    """One rank's BF16 experts of one layer in the converted layout."""

    w13: Tensor  #: bfloat16 (or its bits as uint16) [n, H/64, 2I, 64]
    w2: Tensor  #: bfloat16 [n, I/64, H, 64]
    first_expert: int


class Nvfp4Tensor(NamedTuple):
    """A quantised tensor [..., K]: value = code * scale * global_scale."""

    codes: Tensor  #: uint8 [..., K/2], e2m1, the low nibble first
    scales: Tensor  #: e4m3 [..., K/16]
    global_scale: float  #: weight_scale_2 (or input_scale) of checkpoints


def quantize_nvfp4(
    x: Tensor,
    global_scale: float | None = None,
    *,
    recipe: str = "vllm",
    out: tuple[Tensor, Tensor] | None = None,
) -> Nvfp4Tensor:
    """Quantises bfloat16 or float32 values [..., K], K a multiple of 16, in blocks of 16.

    ``global_scale``: what a value is multiplied by in the end; left out, max|x| / 2688, the least that reaches all
    values. ``recipe``: "vllm", "fast" or "exact" (docs/formats.md). ``out``: (codes, scales) to write to, uint8
    [..., K/2] and e4m3 [..., K/16]; left out, new arrays of x's kind.

    Raises UsageError for other dtypes and sizes, a scale that is not positive and finite, and for values that are not
    finite where no scale is given.
    """
    if out is None:
        codes = scales = None
    elif isinstance(out, (tuple, list)) and len(out) == 2:
        codes, scales = out
    else:
        raise errors.UsageError(f"out is {_arrays.described(out)}, wanted (codes, scales)")
    return Nvfp4Tensor(*_kerf.quantize(x, global_scale, recipe, codes, scales))


def dequantize_nvfp4(codes: Tensor, scales: Tensor, global_scale: float, *, out: Tensor | None = None) -> Tensor:
    """float32 [..., K] from uint8 codes [..., K/2], e4m3 scales [..., K/16] (not interleaved) and a global scale.

    Into ``out``, or a new array of the codes' kind. Raises UsageError for other dtypes and shapes, K that is no multiple
    of 16, and a global scale that is not finite.
    """
    return _kerf.dequantize(codes, scales, global_scale, out)


def convert(
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    gate_sf: Tensor,
    up_sf: Tensor,
    down_sf: Tensor,
    gate_scale: Tensor,
    up_scale: Tensor,
    down_scale: Tensor,
    input_scale: float | None = None,
    intermediate_scale: float | None = None,
    first_expert: int = 0,
    act: str = "nvfp4",
    width: int | None = None,
    threads: int = 0,
) -> Nvfp4Experts:
    """Experts of a checkpoint into the converted layout; codes and scales are moved, never recomputed.

    gate, up uint8 [n, I, H/2], down uint8 [n, H, I/2]; their block scales e4m3 [n, I, H/16] and [n, H, I/16]; their
    global scales (weight_scale_2) float32 [n]. ``input_scale``, ``intermediate_scale``: the largest input scale of gate
    and up, and of down, over ALL experts of the layer, not only those here. ``act``: what the experts will be given,
    "nvfp4" (quantised rows, W4A4) or "bf16" (W4A16: no input scales). ``width``: a multiple of 64 above I to pad to
    with zeros. ``first_expert``: the model's number of the first expert here. ``threads``: workers (0: the cores that there
    are). The tensors that come of it are kerf.Array, in memory of their own.

    Raises UnsupportedError unless H % 128 == 0 and I % 64 == 0; CheckpointError for global scales that combine to nothing
    usable; UsageError for other dtypes and shapes, input scales that are not positive and finite, and numbers out of
    range; OutOfMemoryError.
    """
    return Nvfp4Experts(
        **_kerf.convert_nvfp4(
            gate,
            up,
            down,
            gate_sf,
            up_sf,
            down_sf,
            gate_scale,
            up_scale,
            down_scale,
            input_scale,
            intermediate_scale,
            first_expert,
            act,
            width,
            threads,
        )
    )


def convert_bf16(
    gate: Tensor,
    up: Tensor,
    down: Tensor,
    *,
    first_expert: int = 0,
    width: int | None = None,
    threads: int = 0,
) -> Bf16Experts:
    """The same of BF16 experts: gate, up bfloat16 [n, I, H], down bfloat16 [n, H, I].

    ``width``, ``first_expert``, ``threads``: as in ``convert``. Raises UnsupportedError unless H % 64 == 0 and
    I % 64 == 0; UsageError for other dtypes and shapes and for numbers out of range; OutOfMemoryError.
    """
    return Bf16Experts(**_kerf.convert_bf16(gate, up, down, first_expert, width, threads))
