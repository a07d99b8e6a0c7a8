"""kerf's tensors as FlashInfer's routed NVFP4 op takes them.

``flashinfer.fused_moe.trtllm_fp4_block_scale_routed_moe`` reads the layout that kerf's experts have, byte for byte, so
that on a GPU with FP4 units the same (also resharded) weights serve that op. Nothing here imports FlashInfer, and nothing
is copied: arrays are handed over as they came. The op itself needs such a GPU; what is checked here is what its
documentation says of shapes, dtypes and order.
"""

from __future__ import annotations

import sys
from typing import Any

from kerf import _kerf, errors
from kerf.experts import Nvfp4Experts, Tensor

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


def _torch(array: Any, dtype: str | None = None) -> Any:
    """As a torch tensor where torch is there and the array is no tensor yet; e4m3 bytes as that dtype."""
    torch = sys.modules.get("torch")
    if torch is None:
        return array
    if not isinstance(array, torch.Tensor):
        array = torch.from_dlpack(array)
    if dtype is not None and array.dtype != getattr(torch, dtype):
        array = array.view(getattr(torch, dtype))
    return array


def _dtype(array: Any) -> str:
    return str(getattr(array, "dtype", type(array).__name__)).removeprefix("torch.")


def _check(name: str, array: Any, dtypes: tuple[str, ...], shape: tuple[int, ...]) -> None:
    if _dtype(array) not in dtypes or tuple(array.shape) != shape:
        raise errors.UnsupportedError(
            f"{name} is {_dtype(array)} {list(array.shape)}, wanted {' or '.join(dtypes)} {list(shape)}"
        )


def check_arguments(arguments: dict[str, Any]) -> None:
    """Raises UnsupportedError, with name, got and wanted, unless the arguments are what the op documents: n local experts,
    H = 2 * the last size of gemm1_weights, I = intermediate_size.

    gemm1_weights uint8 [n, 2I, H/2], its scale e4m3 [n, 2I, H/16]; gemm2_weights uint8 [n, H, I/2], its scale e4m3
    [n, H, I/16]; the three scalar vectors float32 [n].
    """
    n, rows, half = (int(size) for size in arguments["gemm1_weights"].shape)
    inter, hidden = int(arguments["intermediate_size"]), 2 * half
    codes, scales = ("uint8",), ("float8_e4m3fn", "uint8")
    _check("gemm1_weights", arguments["gemm1_weights"], codes, (n, 2 * inter, half))
    _check("gemm1_weights_scale", arguments["gemm1_weights_scale"], scales, (n, rows, hidden // 16))
    _check("gemm2_weights", arguments["gemm2_weights"], codes, (n, hidden, inter // 2))
    _check("gemm2_weights_scale", arguments["gemm2_weights_scale"], scales, (n, hidden, inter // 16))
    for name in ("output1_scale_scalar", "output1_scale_gate_scalar", "output2_scale_scalar"):
        _check(name, arguments[name], ("float32",), (n,))
    offset, local, experts = (arguments[k] for k in ("local_expert_offset", "local_num_experts", "num_experts"))
    if local != n or offset < 0 or offset + local > experts:
        raise errors.UnsupportedError(
            f"local experts {offset} to {offset + local} of {experts}, with weights of {n}: wanted those of the weights"
        )


def nvfp4_arguments(
    experts: Nvfp4Experts,
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
    (with the intermediate's own scale) output1_scale_scalar. Raises UnsupportedError as ``check_arguments``.
    """
    arguments = dict(
        routing_bias=None,
        gemm1_weights=_torch(experts.w13),
        gemm1_weights_scale=_torch(experts.w13_sf, "float8_e4m3fn"),
        gemm1_bias=None,
        gemm1_alpha=gemm1_alpha,
        gemm1_beta=gemm1_beta,
        gemm1_clamp_limit=gemm1_clamp_limit,
        gemm2_weights=_torch(experts.w2),
        gemm2_weights_scale=_torch(experts.w2_sf, "float8_e4m3fn"),
        gemm2_bias=None,
        output1_scale_scalar=_torch(experts.g1_scale_c),
        output1_scale_gate_scalar=_torch(experts.g1_alphas),
        output2_scale_scalar=_torch(experts.g2_alphas),
        num_experts=num_experts,
        top_k=top_k,
        n_group=0,
        topk_group=0,
        intermediate_size=experts.intermediate,
        local_expert_offset=experts.first_expert,
        local_num_experts=experts.num_experts,
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
    """``arguments`` on the layer's slices: weights, scales, scalars, width, all experts local, offset 0."""
    out = {
        **arguments,
        "gemm1_weights": _torch(slices.w13),
        "gemm1_weights_scale": _torch(slices.w13_sf, "float8_e4m3fn"),
        "gemm2_weights": _torch(slices.w2),
        "gemm2_weights_scale": _torch(slices.w2_sf, "float8_e4m3fn"),
        "output1_scale_scalar": _torch(slices.g1_scale_c),
        "output1_scale_gate_scalar": _torch(slices.g1_alphas),
        "output2_scale_scalar": _torch(slices.g2_alphas),
        "intermediate_size": slices.intermediate,
        "local_expert_offset": slices.first_expert,
        "local_num_experts": slices.num_experts,
    }
    if tune_max_num_tokens is not None:
        out["tune_max_num_tokens"] = tune_max_num_tokens
    check_arguments(out)
    return out


def step_arguments(a: Tensor, a_sf: Tensor, ids: Tensor, weights: Tensor, *, top_k: int) -> dict[str, Any]:
    """A step's arguments: ids int32 and weights float32 (or bfloat16) [T, K] as a pair, codes uint8 [T, H/2], scales e4m3
    [T, H/16], linear. Raises UnsupportedError for others."""
    a, a_sf = _torch(a), _torch(a_sf, "float8_e4m3fn")
    ids, weights = _torch(ids), _torch(weights)
    tokens, half = (int(size) for size in a.shape)
    _check("hidden_states", a, ("uint8",), (tokens, half))
    _check("hidden_states_scale", a_sf, ("float8_e4m3fn", "uint8"), (tokens, half // 8))
    _check("topk_ids", ids, ("int32",), (tokens, top_k))
    _check("topk_weights", weights, ("float32", "bfloat16"), (tokens, top_k))
    return dict(topk_ids=(ids, weights), hidden_states=a, hidden_states_scale=a_sf)


def routing_metadata(
    ids: Tensor, weights: Tensor, *, num_experts: int, tile: int, local_expert_offset: int = 0, local_num_experts: int = 0
) -> list[Any]:
    """The nine routing metadata tensors of a step in the op's order (METADATA), for a tile of ``tile`` token rows.

    ids int32 [T, K], -1: not routed; weights float32 [T, K]. ``local_num_experts`` 0: all. int32 vectors, the weights
    float32 [T, K]; entries that the step does not need are -1 (those of padding rows among them). UsageError for an id
    outside the model, with token and slot.
    """
    local = local_num_experts or num_experts - local_expert_offset
    nine = _kerf.routing_metadata(ids, weights, num_experts, local_expert_offset, local, tile)
    return [_torch(nine[name]) for name in METADATA]


def unfinalized(rows: _kerf.Unfinalized) -> tuple[Any, Any, Any]:
    """(gemm2 rows, weights, expanded_idx_to_permuted_idx), the order in which the op returns them without finalize."""
    return _torch(rows.rows), _torch(rows.weights), _torch(rows.map)
