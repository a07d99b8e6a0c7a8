"""Steps on torch tensors in a GPU's memory, on torch's current stream, eager and in torch's own graphs.

Skipped where this build has no CUDA part, where torch is absent, and where there is no GPU that kerf's kernels run on.
"""

from __future__ import annotations

import subprocess
import sys
import threading

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


def follows(graph, inputs, out, host_runtime) -> None:
    """Replays have the host's bits of whatever a step's inputs are then."""
    for seed in (1, 2, 3):
        new = made(2, seed=seed)
        for name, array in on_gpu(new).items():
            inputs[name].copy_(array)
        graph.replay()
        torch.cuda.synchronize()
        assert np.array_equal(bits(out), bits(host_runtime.execute(1, **new))), seed


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
    follows(graph, inputs, out, host_runtime)


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


@pytest.mark.parametrize("planned", [True, False])
def test_a_step_in_halves_has_the_hosts_bits(device_runtime, host_runtime, planned: bool) -> None:
    inputs = on_gpu(made(3))
    plan = device_runtime.plan(1, 3) if planned else None
    rows = device_runtime.routed_experts(1, **inputs, plan=plan)
    assert rows.on_device and rows.shape == (3, H)
    values, where, weights = (torch.from_dlpack(a) for a in (rows.rows, rows.map, rows.weights))
    assert values.is_cuda and values.dtype == torch.bfloat16 and where.is_cuda and weights.is_cuda
    wanted = host_runtime.routed_experts(1, **made(3))
    wanted_rows, wanted_map = bits(wanted.rows), np.asarray(wanted.map)
    assert np.array_equal(weights.cpu().numpy(), np.asarray(wanted.weights))
    got_rows, got_map = bits(values), where.cpu().numpy()
    assert np.array_equal(got_rows[got_map.ravel()], wanted_rows[wanted_map.ravel()])
    ended = bits(host_runtime.tail(wanted)).copy()
    got = device_runtime.tail(rows)
    assert isinstance(got, torch.Tensor) and got.is_cuda
    assert np.array_equal(bits(got), ended)
    out = torch.zeros_like(got)
    assert device_runtime.tail(rows, out=out) is out
    assert np.array_equal(bits(out), ended)
    with pytest.raises(kerf.UsageError, match="out"):
        device_runtime.tail(rows, out=np.zeros((3, H), np.uint16))
    device_runtime.execute(1, **inputs)
    with pytest.raises(kerf.UsageError, match="later step"):
        device_runtime.tail(rows)


def test_bf16_experts_in_halves(device_runtime) -> None:
    inputs = on_gpu(made(3, "bf16"))
    whole = device_runtime.execute(0, **inputs)
    rows = device_runtime.routed_experts_bf16(0, inputs["x"], inputs["logits"])
    assert torch.equal(device_runtime.tail(rows), whole)


def test_quantised_rows_that_the_caller_gives(device_runtime, host_runtime) -> None:
    inputs = on_gpu(made(3))
    wanted = bits(host_runtime.execute(1, **made(3)))
    scale = host_runtime.facts["layers"][1]["input_scale"]
    made_of = kerf.quantize_nvfp4(made(3)["x"], scale)
    a, a_sf = (torch.from_dlpack(t).view(torch.uint8).cuda() for t in (made_of.codes, made_of.scales))
    routes = dict(ids=inputs["ids"], weights=inputs["weights"])
    assert np.array_equal(bits(device_runtime.execute(1, a=a, a_sf=a_sf, **routes, out=torch.empty_like(inputs["x"]))), wanted)
    assert np.array_equal(bits(device_runtime.execute(1, a=a, a_sf=a_sf.view(torch.float8_e4m3fn), **routes,
                                                      out=torch.empty_like(inputs["x"]))), wanted)
    rows = device_runtime.routed_experts(1, a, a_sf, **routes)
    assert np.array_equal(bits(device_runtime.tail(rows, out=torch.empty_like(inputs["x"]))), wanted)
    with pytest.raises(kerf.UnsupportedError, match="bf16 rows"):
        device_runtime.execute(0, a=a, a_sf=a_sf, **routes, out=torch.empty_like(inputs["x"]))


def test_halves_are_captured_on_the_current_stream(device_runtime, host_runtime) -> None:
    inputs = on_gpu(made(2))
    out = torch.zeros(2, H, dtype=torch.bfloat16, device="cuda")
    device_runtime.tail(device_runtime.routed_experts(1, **inputs), out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        device_runtime.tail(device_runtime.routed_experts(1, **inputs), out=out)
    follows(graph, inputs, out, host_runtime)


def test_ranks_on_streams_of_their_own(checkpoint) -> None:
    wanted = kerf.run_ranks(2, lambda g: bits(kerf.Runtime.build(checkpoint, g, layers=[1]).execute(1, **made(3))).copy())[0]

    def rank(group):
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], backend="cuda")
        inputs = on_gpu(made(3))
        torch.cuda.synchronize()
        outs = []
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(5):
                late = torch.zeros_like(inputs["x"])
                torch.cuda._sleep(20_000_000 * (1 + group.rank))  # whoever does not wait reads zeros
                late.copy_(inputs["x"])
                routes = dict(ids=inputs["ids"], weights=inputs["weights"])
                outs.append(bits(runtime.execute(1, x=late, **routes).clone()))
                outs.append(bits(runtime.tail(runtime.routed_experts(1, x=late, **routes)).clone()))
        return outs

    for outs in kerf.run_ranks(2, rank):
        for out in outs:
            assert np.array_equal(out, wanted)


def test_sums_over_ranks_on_the_device(checkpoint) -> None:
    values = np.random.default_rng(1).standard_normal((2, 3, 72)).astype(np.float32)

    def rank(group, backend, engine=None):
        runtime = kerf.Runtime.build(
            checkpoint, group, layers=[1], backend=backend, all_reduce_width=72, all_reduce_tps=[2], all_reduce=engine
        )
        mine = torch.from_numpy(values[group.rank]).to(torch.bfloat16)
        if backend == "cuda":
            mine = mine.cuda()
        summed = runtime.all_reduce(mine)
        assert summed.device == mine.device
        in_place = mine.clone()
        assert runtime.all_reduce(in_place, out=in_place) is in_place
        assert torch.equal(in_place, summed)
        return bits(summed)

    wanted = kerf.run_ranks(2, lambda group: rank(group, "cpu"))
    got = kerf.run_ranks(2, lambda group: rank(group, "cuda"))
    assert all(np.array_equal(sum, wanted[0]) for sum in wanted + got)

    meeting = threading.Barrier(2)
    lent: dict[int, torch.Tensor] = {}

    def engine(mine, to) -> None:
        """An engine's own sum, on arrays where they lie."""
        first = torch.from_dlpack(mine)
        lent[threading.get_ident()] = first
        meeting.wait()
        total = sum(t.float() for t in lent.values()).to(torch.bfloat16)
        torch.cuda.synchronize()
        meeting.wait()
        lent.pop(threading.get_ident())
        torch.from_dlpack(to).copy_(total)

    got = kerf.run_ranks(2, lambda group: rank(group, "cuda", ("one-shot", engine)))
    assert all(np.array_equal(sum, wanted[0]) for sum in got)


def test_tensors_of_a_runtime_lie_where_its_experts_do(checkpoint, device_runtime, host_runtime) -> None:
    mine, hosts = device_runtime.stock(1), host_runtime.stock(1)
    for name in ("w13", "w13_sf", "w2", "w2_sf"):
        array = getattr(mine, name)
        assert array.__dlpack_device__() == (2, torch.cuda.current_device()), name
        assert "CUDA device" in repr(array)
        assert array.tobytes() == getattr(hosts, name).tobytes(), name
        with pytest.raises((BufferError, TypeError, RuntimeError)):
            memoryview(array)
    assert torch.from_dlpack(mine.w13).is_cuda
    arguments = kerf.flashinfer.nvfp4_arguments(mine, num_experts=E, top_k=K)
    tensors = [a for a in arguments.values() if isinstance(a, torch.Tensor)]
    assert len(tensors) >= 7 and all(t.is_cuda for t in tensors)
    assert arguments["gemm2_weights_scale"].dtype == torch.float8_e4m3fn
    again = kerf.Runtime.adopt([kerf.StockLayer(1, mine, top_k=K)], experts=E, top_k=K, backend="cuda")
    assert np.array_equal(bits(again.execute(1, **on_gpu(made(3)))), bits(host_runtime.execute(1, **made(3))))


def test_refilled_experts_on_the_device(checkpoint, tmp_path) -> None:
    other = tmp_path / "other"
    kerf.synth(other, model="qwen3-moe", experts=E, hidden=H, intermediate=256, layers=3, top_k=K, bf16_layers=[0], seed=2)
    runtime = kerf.Runtime.build(checkpoint, layers=[1], backend="cuda")
    inputs = on_gpu(made(3))
    out = torch.zeros(3, H, dtype=torch.bfloat16, device="cuda")
    before = runtime.execute(1, **inputs)
    runtime.refill(other, 1)
    wanted = bits(kerf.Runtime.build(other, layers=[1]).execute(1, **made(3)))
    runtime.tail(runtime.routed_experts(1, **inputs), out=out)
    assert np.array_equal(bits(out), wanted) and not torch.equal(out, before)


RANK = """
import sys
import numpy as np
import torch
import torch.distributed as dist
import kerf

checkpoint, folder, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
torch.cuda.set_device(rank % torch.cuda.device_count())
kind = "nccl" if torch.cuda.device_count() > 1 else "gloo"
dist.init_process_group(kind, init_method=f"file://{folder}/meet", rank=rank, world_size=2)
group = kerf.Group.from_torch()
runtime = kerf.Runtime.build(
    checkpoint, group, layers=[1], expert_tp=True, backend="cuda", all_reduce_width=72, all_reduce_tps=[2]
)
runtime.warm_up()
inputs = kerf.decode_inputs(1, 5, "nvfp4", experts=16, hidden=256, top_k=4)
inputs = {name: torch.from_dlpack(array).cuda() for name, array in inputs.items()}
for mode in ("ep", "tp"):
    rows = runtime.execute(1, **inputs, mode=mode)
    assert rows.is_cuda and rows.device.index == torch.cuda.current_device(), rows.device
    np.save(f"{folder}/{mode}{rank}.npy", rows.view(torch.uint16).cpu().numpy())
ones = torch.full((2, 72), 1.0 + rank, dtype=torch.bfloat16, device="cuda")
assert bool((runtime.all_reduce(ones) == 3).all())
try:
    runtime.routed_experts(1, **inputs)
    raise SystemExit("rows on the device of a rank that is a process")
except kerf.UsageError:
    pass
print(kind)
dist.destroy_process_group()
"""


def test_a_process_group_of_torchs_with_experts_on_the_device(checkpoint, tmp_path) -> None:
    words = [sys.executable, "-c", RANK, str(checkpoint), str(tmp_path)]
    processes = [subprocess.Popen([*words, str(r)], stderr=subprocess.PIPE, text=True) for r in range(2)]
    for process in processes:
        _, errors = process.communicate(timeout=180)
        assert process.returncode == 0, errors

    def rank(group: kerf.Group) -> dict[str, np.ndarray]:
        own = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        return {mode: np.array(own.execute(1, **made(5), mode=mode)) for mode in ("ep", "tp")}

    for mode, rows in kerf.run_ranks(2, rank)[0].items():
        for r in range(2):
            assert np.array_equal(np.load(tmp_path / f"{mode}{r}.npy"), rows), (mode, r)


def test_experts_are_cut_where_they_lie(checkpoint) -> None:
    def rank(group, backend):
        stock = kerf.Runtime.build(checkpoint, group, layers=[1], backend=backend).stock(1)
        assert kerf.expert_tp.unsupported(stock, 2) is None
        slices = kerf.expert_tp.reshard(stock, group, E)
        part = kerf.expert_tp.cut(stock, 2, 1)
        where = {name: getattr(slices, name).__dlpack_device__()[0] for name in ("w13", "w13_sf", "w2", "w2_sf", "g1_alphas")}
        bytes_of = [[getattr(e, name).tobytes() for name in e._fields[:9]] for e in (slices, part)]
        again = kerf.expert_tp.reshard(kerf.Nvfp4Experts(*stock), group, E)  # of arrays, as an engine's would be
        assert again.w13.tobytes() == slices.w13.tobytes()
        return where, bytes_of

    wanted = kerf.run_ranks(2, lambda group: rank(group, "cpu"))
    got = kerf.run_ranks(2, lambda group: rank(group, "cuda"))
    for mine, hosts in zip(got, wanted):
        assert mine[0] == {"w13": 2, "w13_sf": 2, "w2": 2, "w2_sf": 2, "g1_alphas": 1}
        assert mine[1] == hosts[1]


def test_a_block_on_rows_of_the_device(tmp_path) -> None:
    checkpoint = tmp_path / "c"
    kerf.synth(checkpoint, model="qwen3-moe", experts=E, hidden=H, intermediate=256, layers=1, top_k=K)
    x = torch.randn(3, H, generator=torch.Generator().manual_seed(3)).to(torch.bfloat16)
    wanted = kerf.Runtime.build(checkpoint, block="qwen3-moe").execute_block(0, x)
    got = kerf.Runtime.build(checkpoint, block="qwen3-moe", backend="cuda").execute_block(0, x.cuda())
    assert got.is_cuda and torch.equal(got.cpu(), wanted)


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
