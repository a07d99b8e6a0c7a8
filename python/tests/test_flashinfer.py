"""What FlashInfer's routed NVFP4 op is handed: names, order, dtypes, shapes, and the bytes of its own functions."""

from __future__ import annotations

import numpy as np
import pytest

import kerf
from kerf import expert_tp, flashinfer

# The op's parameters as its documentation has them, without those of a step and the output.
PARAMETERS = (
    "routing_bias gemm1_weights gemm1_weights_scale gemm1_bias gemm1_alpha gemm1_beta gemm1_clamp_limit gemm2_weights "
    "gemm2_weights_scale gemm2_bias output1_scale_scalar output1_scale_gate_scalar output2_scale_scalar num_experts "
    "top_k n_group topk_group intermediate_size local_expert_offset local_num_experts routed_scaling_factor "
    "routing_method_type do_finalize activation_type tune_max_num_tokens"
).split()


def op_experts(golden) -> kerf.Nvfp4Experts:
    """As kerf converts the vectors' logical weights."""
    w13, w13_sf = golden("op_w13"), golden("op_w13_sf")
    half = w13.shape[1] // 2
    ones = np.ones(4, np.float32)
    contiguous = np.ascontiguousarray
    got = kerf.convert(
        contiguous(w13[:, half:]),
        contiguous(w13[:, :half]),
        golden("op_w2"),
        gate_sf=contiguous(w13_sf[:, half:]),
        up_sf=contiguous(w13_sf[:, :half]),
        down_sf=golden("op_w2_sf"),
        gate_scale=ones,
        up_scale=ones,
        down_scale=ones,
        act="bf16",
    )
    return got._replace(**{name: golden(f"op_{name}") for name in ("g1_alphas", "g1_scale_c", "g2_alphas")})


def test_arguments_are_the_ops(golden) -> None:
    arguments = flashinfer.nvfp4_arguments(op_experts(golden), num_experts=4, top_k=2)
    assert list(arguments) == PARAMETERS
    wanted = {
        "gemm1_weights": golden("op_w13_conv"),
        "gemm1_weights_scale": golden("op_w13_sf_conv"),
        "gemm2_weights": golden("op_w2_conv"),
        "gemm2_weights_scale": golden("op_w2_sf_conv"),
        "output1_scale_scalar": golden("op_g1_scale_c"),
        "output1_scale_gate_scalar": golden("op_g1_alphas"),
        "output2_scale_scalar": golden("op_g2_alphas"),
    }
    for name, array in wanted.items():
        got = arguments[name]
        if hasattr(got, "numpy"):
            got = got.view(__import__("torch").uint8).numpy() if "scale" in name and got.dim() == 3 else got.numpy()
        assert np.array_equal(np.asarray(got), array), name
    assert arguments["intermediate_size"] == 128
    assert (arguments["local_expert_offset"], arguments["local_num_experts"]) == (0, 4)
    assert arguments["do_finalize"] is False and arguments["activation_type"] == 3


def test_slices_replace_weights_and_width(golden) -> None:
    stock = op_experts(golden)
    arguments = flashinfer.nvfp4_arguments(stock, num_experts=4, top_k=2)
    for part in (0, 1):
        cut = flashinfer.tp_arguments(arguments, expert_tp.cut(stock, 2, part), tune_max_num_tokens=64)
        assert list(cut) == PARAMETERS
        assert tuple(cut["gemm1_weights"].shape) == (4, 128, 128)
        assert tuple(cut["gemm1_weights_scale"].shape) == (4, 128, 16)
        assert tuple(cut["gemm2_weights"].shape) == (4, 256, 32)
        assert tuple(cut["gemm2_weights_scale"].shape) == (4, 256, 4)
        assert (cut["intermediate_size"], cut["local_expert_offset"], cut["local_num_experts"]) == (64, 0, 4)
        assert cut["tune_max_num_tokens"] == 64


def test_what_the_op_would_not_take_is_refused(golden) -> None:
    stock = op_experts(golden)
    with pytest.raises(kerf.UnsupportedError, match=r"output2_scale_scalar is float32 \[3\], wanted float32 \[4\]"):
        flashinfer.nvfp4_arguments(stock._replace(g2_alphas=np.ones(3, np.float32)), num_experts=4, top_k=2)
    with pytest.raises(kerf.UnsupportedError, match=r"gemm2_weights is uint8 \[4, 256, 32\], wanted uint8 \[4, 256, 64\]"):
        flashinfer.nvfp4_arguments(stock._replace(w2=np.zeros((4, 256, 32), np.uint8)), num_experts=4, top_k=2)
    with pytest.raises(kerf.UnsupportedError, match="local experts 2 to 6 of 4"):
        flashinfer.nvfp4_arguments(stock._replace(first_expert=2), num_experts=4, top_k=2)
    with pytest.raises(kerf.UnsupportedError, match=r"topk_ids is int64 \[5, 2\], wanted int32 \[5, 2\]"):
        flashinfer.step_arguments(
            golden("op_x_codes"), golden("op_x_sf"), golden("op_ids").astype(np.int64), golden("op_weights"), top_k=2
        )


def test_what_is_not_in_one_piece_is_refused(golden) -> None:
    stock = op_experts(golden)
    strided = np.zeros((*stock.w2.shape[:2], 2 * stock.w2.shape[2]), np.uint8)[:, :, ::2]
    arguments = flashinfer.nvfp4_arguments(stock, num_experts=4, top_k=2)
    for call in (
        lambda: flashinfer.nvfp4_arguments(stock._replace(w2=strided), num_experts=4, top_k=2),
        lambda: flashinfer.check_arguments({**arguments, "gemm2_weights": strided}),
    ):
        with pytest.raises(kerf.UnsupportedError, match=r"gemm2_weights is uint8 \[4, 256, 64\] but not contiguous"):
            call()


def test_a_steps_arguments(golden) -> None:
    got = flashinfer.step_arguments(
        golden("op_x_codes"), golden("op_x_sf"), golden("op_ids"), golden("op_weights"), top_k=2
    )
    assert list(got) == ["topk_ids", "hidden_states", "hidden_states_scale"]
    assert tuple(got["topk_ids"][1].shape) == (5, 2)


@pytest.mark.parametrize(("case", "offset", "local"), [("tiny_op", 0, 4), ("tiny_op_ep", 2, 2)])
def test_metadata_is_what_the_ops_routing_kernels_write(golden, case, offset, local) -> None:
    ids = golden(f"route_{case}_ids")
    weights = np.random.default_rng(1).random(ids.shape, np.float32)
    nine = flashinfer.routing_metadata(
        ids, weights, num_experts=4, tile=8, local_expert_offset=offset, local_num_experts=local
    )
    assert len(nine) == len(flashinfer.METADATA) == 9
    by_name = dict(zip(flashinfer.METADATA, (np.asarray(t) for t in nine)))
    for name in (
        "total_num_padded_tokens",
        "expanded_idx_to_permuted_idx",
        "permuted_idx_to_token_idx",
        "cta_idx_xy_to_batch_idx",
        "cta_idx_xy_to_mn_limit",
        "num_non_exiting_ctas",
        "num_tokens_per_expert",
    ):
        wanted = golden(f"route_{case}_{name}")
        written = wanted != -2  # entries that no kernel writes
        assert by_name[name].dtype == np.int32
        assert by_name[name].shape == wanted.shape, name
        assert np.array_equal(by_name[name][written], wanted[written]), name
    assert np.array_equal(by_name["expert_weights"], weights)
    assert by_name["expert_count_histogram"].size >= 2 * 4


def test_unfinalized_rows_come_in_the_ops_order(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    inputs = kerf.decode_inputs(1, 3, "nvfp4", experts=16, hidden=256, top_k=4)
    rows = runtime.routed_experts(1, **inputs)
    got = flashinfer.unfinalized(rows)
    assert tuple(got[0].shape)[1] == 256 and tuple(got[1].shape) == (3, 4) and tuple(got[2].shape) == (3, 4)
