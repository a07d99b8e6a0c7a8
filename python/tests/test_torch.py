"""torch tensors in and out, torch.distributed's process groups, and a model of transformers with kerf's experts.

Where torch is absent these are skipped: it is too large for every run. docs/python.md keeps what they printed.
"""

from __future__ import annotations

import pathlib
import subprocess
import sys

import numpy as np
import pytest

import kerf

torch = pytest.importorskip("torch", reason="torch is not installed here")

E, H, K, T = 16, 256, 4, 3
EXAMPLES = pathlib.Path(__file__).resolve().parents[1] / "examples"


@pytest.fixture(scope="module")
def runtime(checkpoint):
    return kerf.Runtime.build(checkpoint, layers=[1])


@pytest.fixture
def inputs():
    made = kerf.decode_inputs(1, T, "nvfp4", experts=E, hidden=H, top_k=K)
    return {name: torch.from_dlpack(array) for name, array in made.items()}


def test_tensors_go_in_and_out_as_what_they_are(runtime, inputs) -> None:
    assert inputs["x"].dtype == torch.bfloat16
    wanted = np.asarray(runtime.execute(1, **kerf.decode_inputs(1, T, "nvfp4", experts=E, hidden=H, top_k=K)))
    got = runtime.execute(1, **inputs)
    assert isinstance(got, torch.Tensor) and got.dtype == torch.bfloat16
    assert np.array_equal(got.view(torch.uint16).numpy(), wanted)
    out = torch.zeros(2, T, H, dtype=torch.bfloat16)
    assert runtime.execute(1, **inputs, out=out[1]).data_ptr() == out[1].data_ptr()
    assert torch.equal(out[1], got) and not out[0].any()
    inputs["x"].requires_grad_()
    assert torch.equal(runtime.execute(1, **inputs), got)


def test_float8_scales_are_taken(runtime, inputs) -> None:
    scale = runtime.facts["layers"][0]["input_scale"]
    codes = torch.empty(T, H // 2, dtype=torch.uint8)
    scales = torch.empty(T, H // 16, dtype=torch.float8_e4m3fn)
    a = kerf.quantize_nvfp4(inputs["x"], scale, out=(codes, scales))
    assert a.scales is scales
    got = runtime.execute(1, a=codes, a_sf=scales, ids=inputs["ids"], weights=inputs["weights"])
    as_bytes = runtime.execute(
        1, a=codes, a_sf=scales.view(torch.uint8), ids=inputs["ids"], weights=inputs["weights"]
    )
    assert torch.equal(got, as_bytes) and got.any()


def test_refusals_name_got_and_wanted(runtime, inputs) -> None:
    with pytest.raises(kerf.UsageError, match=r"ids is I64 \[3, 4\], wanted I32 \[3, 4\]"):
        runtime.execute(1, **{**inputs, "ids": inputs["ids"].long()})
    with pytest.raises(kerf.UsageError, match="x is BF16 .* but not contiguous"):
        runtime.execute(1, **{**inputs, "x": torch.zeros(T, 2 * H, dtype=torch.bfloat16)[:, ::2]})
    with pytest.raises(kerf.UsageError, match="x is F16"):
        runtime.execute(1, **{**inputs, "x": inputs["x"].half()})


def test_tensors_that_are_not_in_memory_as_they_read_are_refused(runtime, inputs) -> None:
    x = inputs["x"].float()
    for odd, words in (
        (torch._neg_view(x), "negated when they are read"),
        (x.to_sparse(), "not handed over"),
        (x.to("meta"), "not handed over"),
    ):
        with pytest.raises(kerf.UsageError, match=f"x is .*{words}"):
            kerf.quantize_nvfp4(odd)
        with pytest.raises(kerf.UsageError, match=f"x is .*{words}"):
            runtime.execute(1, **{**inputs, "x": odd.bfloat16() if words != "negated when they are read" else odd})
    got = kerf.quantize_nvfp4(torch._neg_view(x).resolve_neg())
    assert torch.equal(got.codes, kerf.quantize_nvfp4(-x).codes)


def test_a_copy_is_the_callers(runtime) -> None:
    array = runtime.stock(1).w13
    copy = torch.from_dlpack(array, copy=True)
    copy.zero_()
    assert any(array.tobytes())


def test_tensors_of_an_engine_are_used_in_place(golden) -> None:
    arrays = {n: torch.from_numpy(golden(f"op_{n}_conv")) for n in ("w13", "w13_sf", "w2", "w2_sf")}
    arrays = {n: t.view(torch.float8_e4m3fn) if n.endswith("_sf") else t for n, t in arrays.items()}
    arrays |= {n: torch.from_numpy(golden(f"op_{n}")) for n in ("g1_alphas", "g1_scale_c", "g2_alphas")}
    one = torch.ones(1)
    experts = kerf.Nvfp4Experts(**arrays, a1_gscale=one, a2_gscale=one, first_expert=0)
    runtime = kerf.Runtime.adopt([kerf.StockLayer(0, experts, top_k=2)], experts=4, top_k=2)
    step = {
        "a": torch.from_numpy(golden("op_x_codes")),
        "a_sf": torch.from_numpy(golden("op_x_sf")).view(torch.float8_e4m3fn),
        "ids": torch.from_numpy(golden("op_ids")),
        "weights": torch.from_numpy(golden("op_weights")),
    }
    got = runtime.execute(0, **step).double()
    wanted = torch.from_numpy(golden("op_out_tiny_op_f64"))
    assert torch.linalg.norm(got - wanted) / torch.linalg.norm(wanted) < 2**-8
    experts.w2.zero_()
    assert not runtime.execute(0, **step).any()


def test_flashinfer_is_handed_tensors(golden) -> None:
    from kerf import flashinfer

    arrays = {n: golden(f"op_{n}_conv") for n in ("w13", "w13_sf", "w2", "w2_sf")}
    arrays |= {n: golden(f"op_{n}") for n in ("g1_alphas", "g1_scale_c", "g2_alphas")}
    one = np.ones(1, np.float32)
    experts = kerf.Nvfp4Experts(**arrays, a1_gscale=one, a2_gscale=one, first_expert=0)
    arguments = flashinfer.nvfp4_arguments(experts, num_experts=4, top_k=2)
    assert arguments["gemm1_weights"].dtype == torch.uint8
    assert arguments["gemm1_weights_scale"].dtype == torch.float8_e4m3fn
    assert arguments["gemm1_weights"].data_ptr() == arrays["w13"].__array_interface__["data"][0]
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed here")
    typed = experts._replace(w13_sf=arrays["w13_sf"].view(ml_dtypes.float8_e4m3fn))
    scales = flashinfer.nvfp4_arguments(typed, num_experts=4, top_k=2)["gemm1_weights_scale"]
    assert scales.dtype == torch.float8_e4m3fn and torch.equal(scales.view(torch.uint8), torch.from_numpy(arrays["w13_sf"]))


RANK = """
import sys
import numpy as np
import torch
import torch.distributed as dist
import kerf

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meet", rank=int(sys.argv[3]), world_size=int(sys.argv[4]))
group = kerf.Group.from_torch(rank_order=sys.argv[5] == "ours")
assert (group.rank, group.size) == (dist.get_rank(), dist.get_world_size())
assert group.ordered == (sys.argv[5] == "ours"), group
grid = dict(ep=2, tp=2) if group.size == 4 else {}
runtime = kerf.Runtime.build(sys.argv[1], group, layers=[1], expert_tp=True, threads=1, **grid)
runtime.warm_up()
for mode in ("ep", "tp"):
    inputs = kerf.decode_inputs(1, 5, "nvfp4", experts=16, hidden=256, top_k=4)
    rows = np.asarray(runtime.execute(1, **inputs, mode=mode))
    np.save(f"{sys.argv[2]}/{mode}{group.rank}.npy", rows)
dist.destroy_process_group()
"""


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("sums", ["ours", "gloo"])
def test_a_process_group_of_torchs(checkpoint, tmp_path, ranks, sums) -> None:
    words = [sys.executable, "-c", RANK, str(checkpoint), str(tmp_path)]
    processes = [
        subprocess.Popen([*words, str(r), str(ranks), sums], stderr=subprocess.PIPE, text=True) for r in range(ranks)
    ]
    for process in processes:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors
    grid = dict(ep=2, tp=2) if ranks == 4 else {}

    def rank(group: kerf.Group) -> dict[str, np.ndarray]:
        own = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True, **grid)
        inputs = kerf.decode_inputs(1, 5, "nvfp4", experts=E, hidden=H, top_k=K)
        return {mode: np.array(own.execute(1, **inputs, mode=mode)) for mode in ("ep", "tp")}

    wanted = kerf.run_ranks(ranks, rank)[0]
    for mode, rows in wanted.items():
        values = (rows.astype(np.uint32) << 16).view(np.float32)
        for r in range(ranks):
            got = np.load(tmp_path / f"{mode}{r}.npy")
            if sums == "ours":  # the bits of every other group
                assert np.array_equal(got, rows)
            else:
                near = (got.astype(np.uint32) << 16).view(np.float32)
                assert np.linalg.norm(near - values) / np.linalg.norm(values) < 2**-6


BROKEN = """
import os
import sys
import torch.distributed as dist
import kerf

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}/meet", rank=int(sys.argv[3]), world_size=2)
group = kerf.Group.from_torch()
group.barrier()
if group.rank == 1:
    os._exit(0)
try:
    kerf.Runtime.build(sys.argv[1], group, layers=[1])
except kerf.GroupFailed as error:
    assert "rank 0: the engine's all_gather failed" in str(error), error
    print(type(error.__cause__).__name__, isinstance(error.__cause__, RuntimeError))
os._exit(3)
"""


def test_the_cause_of_a_process_groups_failure_is_torchs_own(checkpoint, tmp_path) -> None:
    words = [sys.executable, "-c", BROKEN, str(checkpoint), str(tmp_path)]
    processes = [subprocess.Popen([*words, str(r)], stdout=subprocess.PIPE, text=True) for r in range(2)]
    said = [process.communicate(timeout=180)[0] for process in processes]
    assert [process.returncode for process in processes] == [3, 0]
    assert said[0].split()[1:] == ["True"], said


def test_what_a_process_group_fails_at_is_told(checkpoint) -> None:
    with pytest.raises(RuntimeError, match="init_process_group"):
        kerf.Group.from_torch()


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_qwen3_moe_model_with_kerfs_experts(ranks) -> None:
    pytest.importorskip("transformers", reason="transformers is not installed here")
    sys.path.insert(0, str(EXAMPLES))
    try:
        import qwen3_moe
    finally:
        sys.path.pop(0)
    results = qwen3_moe.run(ranks, tokens=64, seed=1)
    # A layer's rows on the same input: kerf rounds each route's row to bfloat16, and for W4A16 what lies between the
    # GEMMs, where the reference keeps float32: a few times 2^-9. With W4A4 a value may fall to the other side of a code's
    # boundary, too. Logits have four layers, and routers, to carry that on.
    for name, most in (("W4A16", 0.05), ("W4A4", 0.2)):
        rel, same, layer = results[name]
        assert layer < 0.01, results
        assert rel < most and same > 0.7, results
    assert results["quantisation"][0] > results["W4A4"][0] > results["W4A16"][0]
