"""kerf's tensors as FlashInfer's routed NVFP4 op takes them.

``flashinfer.fused_moe.trtllm_fp4_block_scale_routed_moe`` reads the layout that kerf's experts have, byte for byte, so
that on a GPU with FP4 units the same (also resharded) weights serve that op. Nothing here imports FlashInfer, and nothing
is copied: arrays are handed over as they came. The op itself needs such a GPU; what is checked here is what its
documentation says of shapes, dtypes and order.

The signature is that of FlashInfer 0.6.12, the first whose ``topk_ids`` may be a pair of ids and weights; the releases from
there to 0.7.4 take the names that are given here, and what they added is optional. From 0.7.0 on the op warns where
``hidden_states_scale_layout`` is left out: the scales here are linear, ``SfLayout.layout_linear``.

Raises UnsupportedError for arrays that the op does not take, with name, got and wanted, and UsageError for what is no array,
no experts, or no arguments of the op.
"""

from __future__ import annotations

import sys
from typing import Any

from kerf import _kerf, errors
from kerf._arrays import described
from kerf._bits import bits_of
from kerf.experts import Bf16Experts, Nvfp4Experts, Tensor

#: The op's routing metadata tensors, in its order.
METADATA = (
    "total_num_padded_tokens",
    "expanded_idx_to_permuted_idx",
    "permuted_idx_to_token_idx",
    "expert_weights",
    "expert_count_histogram",
    "num_tokens_per_expert",
    "cta_idx_xy_to_batch_idx",
    "cta_idx_xy_to_mn_limit",
    "num_non_exiting_ctas",
)

#: Activation of the op: gated SiLU.
SWIGLU = 3


#: SwiGLU's parameters, one for each local expert, or None.
_GATED = ("gemm1_alpha", "gemm1_beta", "gemm1_clamp_limit")

_NUMBERS = ("num_experts", "top_k", "intermediate_size", "local_expert_offset", "local_num_experts")


def _torch(name: str, array: Any, dtype: str | None = None) -> Any:
    """As a torch tensor where torch is there and the array is no tensor yet; bytes as that dtype."""
    torch = sys.modules.get("torch")
    if torch is None or array is None:
        return array
    given = array
    if not isinstance(array, torch.Tensor):
        try:
            bits = bits_of(array, False)
            array = torch.from_dlpack(array if bits is None else bits)
            if bits is not None:
                array = array.view(getattr(torch, _dtype(given)))
        except (TypeError, AttributeError, BufferError, RuntimeError) as error:
            raise errors.UsageError(f"{name} is {described(array)}, wanted an array that torch takes: {error}") from error
    if dtype is not None and array.dtype == torch.uint8:
        array = array.view(getattr(torch, dtype))
    return array


def _beside(weights: Any, scalars: Any) -> Any:
    """Scalars, which kerf has on the host, on the device of the weights, where the op reads them: a copy of n numbers."""
    return scalars.to(weights.device) if getattr(weights, "is_cuda", False) and not scalars.is_cuda else scalars


def _dtype(array: Any) -> str:
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")


def _sizes(name: str, array: Any, dtypes: tuple[str, ...], rank: int) -> tuple[int, ...]:
    """The shape of what is an array of that rank."""
    if getattr(array, "dtype", None) is None or getattr(array, "shape", None) is None:
        raise errors.UsageError(f"{name} is {described(array)}, wanted an array of {' or '.join(dtypes)}")
    shape = tuple(int(size) for size in array.shape)
    if len(shape) != rank:
        raise errors.UnsupportedError(
            f"{name} is {_dtype(array)} {list(shape)}, wanted {' or '.join(dtypes)} of {rank} dimensions"
        )
    return shape


def _contiguous(array: Any) -> bool:
    """A torch tensor or a numpy array in one piece; others are taken to be."""
    if hasattr(array, "is_contiguous"):
        return bool(array.is_contiguous())
    flags = getattr(array, "flags", None)
    return bool(getattr(flags, "c_contiguous", True))


def _check(name: str, array: Any, dtypes: tuple[str, ...], wanted: tuple[int, ...]) -> None:
    shape = _sizes(name, array, dtypes, len(wanted))
    if not _contiguous(array):
        raise errors.UnsupportedError(f"{name} is {_dtype(array)} {list(shape)} but not contiguous")
    if _dtype(array) not in dtypes or shape != wanted:
        raise errors.UnsupportedError(
            f"{name} is {_dtype(array)} {list(shape)}, wanted {' or '.join(dtypes)} {list(wanted)}"
        )


def _weights(name: str, experts: Any) -> dict[str, Any]:
    """The op's arguments that are the experts' own: weights, scales, scalars, width, which experts they are."""
    if isinstance(experts, Bf16Experts):
        raise errors.UnsupportedError(f"{name} are BF16 experts, wanted NVFP4 ones: the op's weights are FP4")
    for attribute in Nvfp4Experts._fields:
        if not hasattr(experts, attribute):
            raise errors.UsageError(f"{name} is {described(experts)}, without {attribute}: wanted kerf.Nvfp4Experts")
    n, rows, _ = _sizes("gemm1_weights", experts.w13, ("uint8",), 3)
    scalars = {
        "output1_scale_scalar": experts.g1_scale_c,
        "output1_scale_gate_scalar": experts.g1_alphas,
        "output2_scale_scalar": experts.g2_alphas,
    }
    weights = _torch("gemm1_weights", experts.w13)
    return {
        "gemm1_weights": weights,
        "gemm1_weights_scale": _torch("gemm1_weights_scale", experts.w13_sf, "float8_e4m3fn"),
        "gemm2_weights": _torch("gemm2_weights", experts.w2),
        "gemm2_weights_scale": _torch("gemm2_weights_scale", experts.w2_sf, "float8_e4m3fn"),
        **{name: _beside(weights, _torch(name, array)) for name, array in scalars.items()},
        "intermediate_size": rows // 2,
        "local_expert_offset": experts.first_expert,
        "local_num_experts": n,
    }


def check_arguments(arguments: dict[str, Any]) -> None:
    """Whether the arguments are what the op documents: n local experts, H = 2 * the last size of gemm1_weights,
    I = intermediate_size.

    gemm1_weights uint8 [n, 2I, H/2], its scale e4m3 [n, 2I, H/16]; gemm2_weights uint8 [n, H, I/2], its scale e4m3
    [n, H, I/16]; the three scalar vectors float32 [n], and so gemm1_alpha, gemm1_beta and gemm1_clamp_limit, where they are
    given. Raises UnsupportedError, with name, got and wanted, for other arrays and other experts than those of the weights,
    UsageError for an argument that is missing, no array, or no number.
    """
    names = ("gemm1_weights", "gemm1_weights_scale", "gemm2_weights", "gemm2_weights_scale")
    scalars = ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar")
    for name in (*names, *scalars, *_NUMBERS):
        if name not in arguments:
            raise errors.UsageError(f"arguments has no {name}, wanted those that nvfp4_arguments gives")
    for name in _NUMBERS:
        if not hasattr(arguments[name], "__index__"):
            raise errors.UsageError(f"{name} is {described(arguments[name])}, wanted a whole number")
    codes, scales = ("uint8",), ("float8_e4m3fn", "uint8")
    n, rows, half = _sizes("gemm1_weights", arguments["gemm1_weights"], codes, 3)
    inter, hidden = int(arguments["intermediate_size"]), 2 * half
    _check("gemm1_weights", arguments["gemm1_weights"], codes, (n, 2 * inter, half))
    _check("gemm1_weights_scale", arguments["gemm1_weights_scale"], scales, (n, rows, hidden // 16))
    _check("gemm2_weights", arguments["gemm2_weights"], codes, (n, hidden, inter // 2))
    _check("gemm2_weights_scale", arguments["gemm2_weights_scale"], scales, (n, hidden, inter // 16))
    for name in scalars:
        _check(name, arguments[name], ("float32",), (n,))
    for name in _GATED:
        if arguments.get(name) is not None:
            _check(name, arguments[name], ("float32",), (n,))
    offset, local, experts = (arguments[k] for k in ("local_expert_offset", "local_num_experts", "num_experts"))
    if local != n or offset < 0 or offset + local > experts:
        raise errors.UnsupportedError(
            f"local experts {offset} to {offset + local} of {experts}, with weights of {n}: wanted those of the weights"
        )
    if not 1 <= arguments["top_k"] <= experts:
        raise errors.UsageError(f"top_k is {arguments['top_k']}, wanted 1 to {experts}")


def nvfp4_arguments(
    experts: Nvfp4Experts | Bf16Experts,
    *,
    num_experts: int,
    top_k: int,
    routing_method_type: int = 1,
    gemm1_alpha: Tensor | None = None,
    gemm1_beta: Tensor | None = None,
    gemm1_clamp_limit: Tensor | None = None,
    do_finalize: bool = False,
    tune_max_num_tokens: int = 8192,
) -> dict[str, Any]:
    """The layer's arguments of the op, by the op's names: whole experts (EP: offset and count are theirs) or slices.

    What a step adds is ``topk_ids``, ``hidden_states`` and ``hidden_states_scale``: see ``step_arguments``. Tensors become
    torch's, without a copy, where torch has been imported. The gate's scalar is output1_scale_gate_scalar, the up half's
    (with the intermediate's own scale) output1_scale_scalar. ``gemm1_alpha``, ``gemm1_beta``, ``gemm1_clamp_limit``: float32
    [n], of the experts here. Raises as ``check_arguments``; UnsupportedError for BF16 experts.
    """
    own = _weights("experts", experts)
    arguments = dict(
        routing_bias=None,
        gemm1_weights=own["gemm1_weights"],
        gemm1_weights_scale=own["gemm1_weights_scale"],
        gemm1_bias=None,
        gemm1_alpha=_torch("gemm1_alpha", gemm1_alpha),
        gemm1_beta=_torch("gemm1_beta", gemm1_beta),
        gemm1_clamp_limit=_torch("gemm1_clamp_limit", gemm1_clamp_limit),
        gemm2_weights=own["gemm2_weights"],
        gemm2_weights_scale=own["gemm2_weights_scale"],
        gemm2_bias=None,
        output1_scale_scalar=own["output1_scale_scalar"],
        output1_scale_gate_scalar=own["output1_scale_gate_scalar"],
        output2_scale_scalar=own["output2_scale_scalar"],
        num_experts=num_experts,
        top_k=top_k,
        n_group=0,
        topk_group=0,
        intermediate_size=own["intermediate_size"],
        local_expert_offset=own["local_expert_offset"],
        local_num_experts=own["local_num_experts"],
        routed_scaling_factor=None,
        routing_method_type=routing_method_type,
        do_finalize=do_finalize,
        activation_type=SWIGLU,
        tune_max_num_tokens=tune_max_num_tokens,
    )
    check_arguments(arguments)
    return arguments


def tp_arguments(
    arguments: dict[str, Any], slices: Nvfp4Experts, *, tune_max_num_tokens: int | None = None
) -> dict[str, Any]:
    """``arguments`` on the layer's slices: weights, scales, scalars, width, all experts local, offset 0.

    gemm1_alpha and the others of whole experts are of the experts that a rank had: where there are several ranks, put all
    experts' into ``arguments`` first. Raises as ``check_arguments``.
    """
    out = {**arguments, **_weights("slices", slices)}
    if tune_max_num_tokens is not None:
        out["tune_max_num_tokens"] = tune_max_num_tokens
    check_arguments(out)
    return out


def step_arguments(a: Tensor, a_sf: Tensor, ids: Tensor, weights: Tensor, *, top_k: int) -> dict[str, Any]:
    """A step's arguments: ids int32 and weights float32 (or bfloat16) [T, K] as a pair, codes uint8 [T, H/2], scales e4m3
    [T, H/16], linear. Raises UnsupportedError for other arrays, UsageError for what is none."""
    tokens, half = _sizes("hidden_states", a, ("uint8",), 2)
    a, a_sf = _torch("hidden_states", a), _torch("hidden_states_scale", a_sf, "float8_e4m3fn")
    ids, weights = _torch("topk_ids", ids), _torch("topk_weights", weights)
    _check("hidden_states", a, ("uint8",), (tokens, half))
    _check("hidden_states_scale", a_sf, ("float8_e4m3fn", "uint8"), (tokens, half // 8))
    _check("topk_ids", ids, ("int32",), (tokens, top_k))
    _check("topk_weights", weights, ("float32", "bfloat16"), (tokens, top_k))
    return dict(topk_ids=(ids, weights), hidden_states=a, hidden_states_scale=a_sf)


def routing_metadata(
    ids: Tensor, weights: Tensor, *, num_experts: int, tile: int, local_expert_offset: int = 0, local_num_experts: int = 0
) -> list[Any]:
    """The nine routing metadata tensors of a step in the op's order (METADATA), for a tile of ``tile`` token rows.

    ids int32 [T, K], -1: not routed; weights float32 [T, K]. ``local_num_experts`` 0: all from the offset on. int32 vectors,
    the weights float32 [T, K]; entries that the step does not need are -1 (those of padding rows among them): kerf.Array, or
    torch tensors where torch has been imported. Raises UsageError for an id outside the model, with token and slot, for other
    dtypes and shapes, and for experts that are not the model's.
    """
    nine = _kerf.routing_metadata(ids, weights, num_experts, local_expert_offset, local_num_experts, tile)
    return [_torch(name, nine[name]) for name in METADATA]


def unfinalized(rows: _kerf.Unfinalized) -> tuple[Any, Any, Any]:
    """(gemm2 rows [R, H], weights [T, K], expanded_idx_to_permuted_idx [T, K]), the order in which the op returns them
    without finalize. Raises UsageError for rows that a later step has overwritten, and for what are none."""
    if not isinstance(rows, _kerf.Unfinalized):
        raise errors.UsageError(f"rows is {described(rows)}, wanted kerf.Unfinalized")
    return _torch("rows", rows.rows), _torch("weights", rows.weights), _torch("map", rows.map)
