"""Steps on torch tensors in a GPU's memory, on torch's current stream, eager and in torch's own graphs.

Skipped where this build has no CUDA part, where torch is absent, and where there is no GPU that kerf's kernels run on.
"""

from __future__ import annotations

import numpy as np
import pytest

import kerf

torch = pytest.importorskip("torch", reason="torch is not installed here")
if "cuda" not in kerf.env()["backends"]:
    pytest.skip("there is no GPU that this build has kernels for", allow_module_level=True)

E, H, K = 16, 256, 4
TOKENS = [1, 2, 3, 8]


@pytest.fixture(scope="module")
def device_runtime(checkpoint):
    return kerf.Runtime.build(checkpoint, layers=[0, 1], backend="cuda")


@pytest.fixture(scope="module")
def host_runtime(checkpoint):
    return kerf.Runtime.build(checkpoint, layers=[0, 1])


def made(tokens: int, kind: str = "nvfp4", seed: int = 1):
    return kerf.decode_inputs(seed, tokens, kind, experts=E, hidden=H, top_k=K)


def on_gpu(inputs):
    return {name: torch.from_dlpack(array).cuda() for name, array in inputs.items()}


def bits(array) -> np.ndarray:
    if isinstance(array, torch.Tensor):
        array = array.view(torch.uint16).cpu().numpy()
    return np.asarray(array)


@pytest.mark.parametrize("tokens", TOKENS)
def test_a_step_has_the_hosts_bits(device_runtime, host_runtime, tokens: int) -> None:
    wanted = bits(host_runtime.execute(1, **made(tokens)))
    inputs = on_gpu(made(tokens))
    got = device_runtime.execute(1, **inputs)
    assert isinstance(got, torch.Tensor) and got.is_cuda and got.dtype == torch.bfloat16
    assert np.array_equal(bits(got), wanted)
    out = torch.zeros(2, tokens, H, dtype=torch.bfloat16, device="cuda")
    assert device_runtime.execute(1, **inputs, out=out[1]) is not None
    assert np.array_equal(bits(out[1]), wanted) and not out[0].any()


def test_a_step_of_bf16_experts_is_close_to_the_hosts(device_runtime, host_runtime) -> None:
    wanted = torch.from_numpy(bits(host_runtime.execute(0, **made(3, "bf16")))).view(torch.bfloat16).float()
    got = device_runtime.execute(0, **on_gpu(made(3, "bf16"))).float().cpu()
    assert ((got - wanted).norm() / wanted.norm()).item() < 1e-2


def test_logits_are_routed_on_the_device(device_runtime, host_runtime) -> None:
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(3, E, generator=generator)
    x = torch.randn(3, H, generator=generator).to(torch.bfloat16)
    wanted = bits(host_runtime.execute(1, x=x, logits=logits))
    assert np.array_equal(bits(device_runtime.execute(1, x=x.cuda(), logits=logits.cuda())), wanted)


def test_work_is_ordered_by_the_current_stream(device_runtime, host_runtime) -> None:
    wanted = bits(host_runtime.execute(1, **made(3)))
    inputs = on_gpu(made(3))
    late = torch.zeros_like(inputs["x"])
    out = torch.zeros(3, H, dtype=torch.bfloat16, device="cuda")
    step = device_runtime.bind(1, x=late, ids=inputs["ids"], weights=inputs["weights"], out=out)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)  # a tenth of a second: whoever does not wait reads zeros
        late.copy_(inputs["x"])
        step()
        copied = out.clone()
        begun = stream.query()
    assert not begun, "the call waited for the step"
    stream.synchronize()
    assert np.array_equal(bits(copied), wanted)


def test_a_captured_step_follows_its_inputs(device_runtime, host_runtime) -> None:
    inputs = on_gpu(made(2))
    out = torch.zeros(2, H, dtype=torch.bfloat16, device="cuda")
    step = device_runtime.bind(1, **inputs, out=out)
    assert step.on_device and step() is out
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for seed in (1, 2, 3):
        new = made(2, seed=seed)
        for name, array in on_gpu(new).items():
            inputs[name].copy_(array)
        graph.replay()
        torch.cuda.synchronize()
        assert np.array_equal(bits(out), bits(host_runtime.execute(1, **new))), seed


def test_a_bound_step_allocates_no_device_memory(device_runtime) -> None:
    inputs = on_gpu(made(2))
    step = device_runtime.bind(1, **inputs, out=torch.zeros(2, H, dtype=torch.bfloat16, device="cuda"))
    step()
    torch.cuda.synchronize()
    before = torch.cuda.mem_get_info()[0]
    for _ in range(100):
        step()
    torch.cuda.synchronize()
    assert torch.cuda.mem_get_info()[0] == before


def test_ranks_that_share_the_device(tmp_path) -> None:
    checkpoint = tmp_path / "c"  # halves of which are nodes of the sum over K: exact tails can be
    kerf.synth(checkpoint, model="qwen3-moe", experts=E, hidden=H, intermediate=1024, layers=2, top_k=K)
    wanted = {}
    for tail in ("fast", "exact"):
        wanted[tail] = kerf.run_ranks(
            2,
            lambda group: bits(
                kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True, tail=tail).execute(1, **made(3))
            ).copy(),
        )[0]

    def rank(group):
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True, backend="cuda", tail="exact")
        outs = {}
        for tail in ("fast", "exact"):
            outs[tail] = runtime.execute(1, **on_gpu(made(3)), tail=tail)
            torch.cuda.synchronize()
            runtime.warm_up()  # every rank waits for rank 0's stream
        return {tail: bits(out) for tail, out in outs.items()}

    for outs in kerf.run_ranks(2, rank):
        for tail in ("fast", "exact"):
            assert np.array_equal(outs[tail], wanted[tail]), tail


def test_an_engines_weights_on_the_device_are_used_in_place(checkpoint, host_runtime) -> None:
    stock = host_runtime.stock(1)
    names = ["w13", "w13_sf", "w2", "w2_sf", "g1_alphas", "g1_scale_c", "g2_alphas", "a1_gscale", "a2_gscale"]
    tensors = {name: torch.from_numpy(np.asarray(getattr(stock, name)).copy()) for name in names}
    for name in ("w13", "w13_sf", "w2", "w2_sf"):
        tensors[name] = tensors[name].cuda()
    experts = kerf.Nvfp4Experts(**tensors, first_expert=0)
    before = torch.cuda.mem_get_info()[0]
    runtime = kerf.Runtime.adopt([kerf.StockLayer(1, experts, top_k=K)], experts=E, top_k=K, backend="cuda")
    assert before - torch.cuda.mem_get_info()[0] < 64 << 20
    got = runtime.execute(1, **on_gpu(made(3)))
    assert np.array_equal(bits(got), bits(host_runtime.execute(1, **made(3))))


def test_what_does_not_fit_is_refused(device_runtime, host_runtime) -> None:
    inputs = on_gpu(made(3))
    with pytest.raises(kerf.UsageError, match="x is on device 2:0"):
        host_runtime.execute(1, **inputs)
    with pytest.raises(kerf.UsageError, match="wanted all of them in one"):
        device_runtime.execute(1, x=inputs["x"], ids=made(3)["ids"], weights=inputs["weights"])
    with pytest.raises(kerf.UsageError, match="9 tokens"):
        device_runtime.execute(1, **on_gpu(made(9)))
    with pytest.raises(kerf.UsageError, match="contiguous"):
        device_runtime.execute(1, x=inputs["x"].t().contiguous().t(), ids=inputs["ids"], weights=inputs["weights"])
    with pytest.raises(kerf.UsageError, match="mode is 'tp'"):
        device_runtime.execute(1, **inputs, mode="tp")
    with pytest.raises(kerf.UsageError, match="a is on device 2:0"):
        device_runtime.execute(
            1,
            a=torch.zeros(3, H // 2, dtype=torch.uint8, device="cuda"),
            a_sf=torch.zeros(3, H // 16, dtype=torch.uint8, device="cuda"),
            ids=inputs["ids"],
            weights=inputs["weights"],
        )
