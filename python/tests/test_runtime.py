"""The runtime: the bits of the command line, in every placement, and what a step must not do."""

from __future__ import annotations

import ctypes
import gc
import hashlib
import threading
import time
import tracemalloc

import numpy as np
import pytest

import kerf

E, H, K = 16, 256, 4
LAYERS = [0, 1, 2]


def outputs(runtime: kerf.Runtime, mode: str, tokens: int, tail: str | None = None) -> list[np.ndarray]:
    """Of all layers, on the inputs that `kerf decode` makes of seed 1."""
    runtime.router = kerf.Router("renormalize", experts=E, top_k=K)
    out = []
    for layer in LAYERS:
        kind = "bf16" if runtime.is_bf16(layer) else "nvfp4"
        inputs = kerf.decode_inputs(layer, tokens, kind, experts=E, hidden=H, top_k=K)
        out.append(np.array(runtime.execute(layer, **inputs, mode=mode, tail=tail)))
    return out


def digest(rows: list[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(r.tobytes() for r in rows)).hexdigest()


@pytest.mark.parametrize("tail", ["fast", "exact"])
@pytest.mark.parametrize(("ranks", "grid"), [(1, {}), (2, {}), (4, {}), (4, {"ep": 2, "tp": 2})])
def test_steps_have_the_programs_bits(run_program, checkpoint, tmp_path_factory, ranks, grid, tail) -> None:
    path = checkpoint
    if tail == "exact":  # wants slices that are nodes of the sum: 512 times a power of two
        path = tmp_path_factory.mktemp("wide") / "c"
        kerf.synth(path, model="qwen3-moe", experts=E, hidden=H, intermediate=2048, layers=3, top_k=K, bf16_layers=[0])
    words = ["--ranks", ranks, "--batch", "1,5", "--seconds", 0, "--tail", tail, "--json"]
    for name, value in grid.items():
        words += [f"--{name}", value]
    code, report, text = run_program("decode", path, *words)
    assert code == 0, text
    opened = kerf.Checkpoint.open(str(path))
    expert_tp = ranks > 1

    def rank(group: kerf.Group) -> dict[tuple[str, int], str]:
        runtime = kerf.Runtime.build(opened, group, expert_tp=expert_tp, tail=tail, **grid)
        runtime.warm_up()
        modes = ["ep", "tp"] if expert_tp else ["ep"]
        return {(mode, t): digest(outputs(runtime, mode, t)) for mode in modes for t in (1, 5)}

    wanted = {(s["mode"], s["batch"]): s["output_sha256"] for s in report["steps"]}
    for mine in kerf.run_ranks(ranks, rank):
        assert mine == wanted


def test_logits_are_routed_by_the_checkpoints_router(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint)
    assert runtime.router.experts == E and runtime.router.top_k == K
    inputs = kerf.decode_inputs(1, 5, "bf16", experts=E, hidden=H, top_k=K)
    ids, weights = runtime.router.select(inputs["logits"])
    routed = np.array(runtime.execute(1, x=inputs["x"], logits=inputs["logits"]))
    assert np.array_equal(routed, np.asarray(runtime.execute(1, x=inputs["x"], ids=ids, weights=weights)))
    # softmax over all, the four largest, renormalised: Qwen3-MoE's own rule.
    logits = np.asarray(inputs["logits"]).astype(np.float64)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    chosen = np.take_along_axis(p, np.asarray(ids).astype(np.int64), axis=1)
    np.testing.assert_allclose(np.asarray(weights), chosen / chosen.sum(axis=1, keepdims=True), rtol=1e-5)


def test_rows_map_and_tail_are_the_step(checkpoint) -> None:
    def rank(group: kerf.Group) -> None:
        runtime = kerf.Runtime.build(checkpoint, group, expert_tp=True)
        inputs = kerf.decode_inputs(2, 5, "nvfp4", experts=E, hidden=H, top_k=K)
        for mode in ("ep", "tp"):
            wanted = np.array(runtime.execute(2, **inputs, mode=mode))
            plan = runtime.plan(2, 5, mode=mode)
            assert plan is not None and plan.tokens == 5 and plan.mode == mode and plan.tactic[0] in (8, 16, 32, 64)
            planned = runtime.routed_experts(2, **inputs, plan=plan)
            rows, row_map = np.array(planned.rows), np.array(planned.map)
            served = row_map[row_map >= 0]
            out = np.zeros((5, H), np.uint16)
            assert runtime.tail(planned, out=out) is out
            assert np.array_equal(out, wanted)
            public = runtime.routed_experts(2, **inputs, mode=mode)
            assert np.array_equal(np.asarray(public.map), row_map)
            assert np.array_equal(np.asarray(public.rows)[served], rows[served])
            assert np.array_equal(np.asarray(public.weights), np.asarray(inputs["weights"]))
            assert np.array_equal(np.asarray(runtime.tail(public)), wanted)
            with pytest.raises(kerf.UsageError, match="the plan is for 5 tokens of layer 2"):
                few = kerf.decode_inputs(2, 4, "nvfp4", experts=E, hidden=H, top_k=K)
                runtime.routed_experts(2, **few, plan=plan)

    kerf.run_ranks(2, rank)


def test_rows_are_gone_with_the_next_step(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint)
    inputs = kerf.decode_inputs(1, 2, "nvfp4", experts=E, hidden=H, top_k=K)
    rows = runtime.routed_experts(1, **inputs)
    runtime.execute(1, **inputs)
    for use in (lambda: rows.rows, lambda: rows.map, lambda: runtime.tail(rows)):
        with pytest.raises(kerf.UsageError, match="a later step of this runtime has overwritten them"):
            use()


def test_the_bf16_op_routes_itself(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint)
    inputs = kerf.decode_inputs(0, 3, "bf16", experts=E, hidden=H, top_k=K)
    wanted = np.array(runtime.execute(0, **inputs))
    rows = runtime.routed_experts_bf16(0, inputs["x"], inputs["logits"])
    weights = np.asarray(rows.weights)
    assert np.array_equal(weights.view(np.uint32) & 0xFFFF, np.zeros_like(weights, np.uint32)), "not bfloat16 values"
    assert np.array_equal(np.asarray(runtime.tail(rows)), wanted)
    with pytest.raises(kerf.UnsupportedError, match="takes bf16 rows"):
        runtime.routed_experts(
            0,
            np.zeros((3, H // 2), np.uint8),
            np.zeros((3, H // 16), np.uint8),
            np.zeros((3, K), np.int32),
            np.zeros((3, K), np.float32),
        )


def test_quantised_rows_are_what_the_layer_makes_of_x(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    inputs = kerf.decode_inputs(1, 4, "nvfp4", experts=E, hidden=H, top_k=K)
    wanted = np.array(runtime.execute(1, **inputs))
    gs = np.float32(runtime.facts["layers"][0]["a1_gscale"])  # what values are multiplied by
    scale = np.float32(1) / gs
    assert np.float32(1) / scale == gs
    a = kerf.quantize_nvfp4(inputs["x"], float(scale))
    got = runtime.execute(1, a=a.codes, a_sf=a.scales, ids=inputs["ids"], weights=inputs["weights"])
    assert np.array_equal(np.asarray(got), wanted)


def test_an_engines_tensors_are_used_in_place(checkpoint, golden) -> None:
    arrays = {n: golden(f"op_{n}_conv") for n in ("w13", "w13_sf", "w2", "w2_sf")}
    arrays |= {n: golden(f"op_{n}") for n in ("g1_alphas", "g1_scale_c", "g2_alphas")}
    one = np.ones(1, np.float32)
    experts = kerf.Nvfp4Experts(**arrays, a1_gscale=one, a2_gscale=one, first_expert=0)
    runtime = kerf.Runtime.adopt([kerf.StockLayer(0, experts, top_k=2)], experts=4, top_k=2)
    assert runtime.facts["memory"]["stock"] == 0
    step = dict(a=golden("op_x_codes"), a_sf=golden("op_x_sf"), ids=golden("op_ids"), weights=golden("op_weights"))
    got = np.asarray(runtime.execute(0, **step)).view(np.uint16)
    values = (got.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    wanted = golden("op_out_tiny_op_f64")
    # Two roundings to bfloat16 (the rows, the output), each at most 2^-9 of a value, beside f64 without any.
    assert np.linalg.norm(values - wanted) / np.linalg.norm(wanted) < 2**-8
    experts.w2[:] = 0  # the engine's own memory: e2m1 zeros
    assert not (np.asarray(runtime.execute(0, **step)).view(np.uint16) & 0x7FFF).any()


def test_adopted_layers_reshard_to_the_bits_of_the_checkpoint(checkpoint) -> None:
    """The engine has what another runtime holds: slices of one rank are whole experts of the same values."""
    opened = kerf.Checkpoint.open(str(checkpoint))

    def rank(group: kerf.Group) -> tuple[bytes, bytes]:
        built = kerf.Runtime.build(opened, group, layers=[1], expert_tp=True)
        inputs = kerf.decode_inputs(1, 5, "nvfp4", experts=E, hidden=H, top_k=K)
        wanted = np.array(built.execute(1, **inputs)).tobytes()
        stock = built.stock(1)
        adopted = kerf.Runtime.adopt(
            [kerf.StockLayer(1, stock, top_k=K)], group, experts=E, top_k=K, expert_tp=True
        )
        for name in ("w13", "w13_sf", "w2", "w2_sf"):
            assert np.array_equal(np.asarray(getattr(adopted.sliced(1), name)), np.asarray(getattr(built.sliced(1), name)))
        return wanted, np.array(adopted.execute(1, **inputs)).tobytes()

    results = kerf.run_ranks(2, rank)
    assert all(mine == wanted == results[0][0] for wanted, mine in results)


def test_what_adopt_refuses_names_the_layer() -> None:
    with pytest.raises(kerf.UnsupportedError, match="layer 7: its experts are of the kind 'dict'"):
        kerf.Runtime.adopt([kerf.StockLayer(7, {}, top_k=2)], experts=4, top_k=2)
    with pytest.raises(kerf.UnsupportedError, match="layer 3: it has no experts kernel"):
        kerf.Runtime.adopt([kerf.StockLayer(3, None, top_k=2)], experts=4, top_k=2)
    with pytest.raises(kerf.UsageError, match="no layers to adopt"):
        kerf.Runtime.adopt([], experts=4, top_k=2)


def test_a_bound_step_allocates_nothing(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1], threads=1)
    runtime.warm_up()
    inputs = {n: np.array(a) for n, a in kerf.decode_inputs(1, 8, "nvfp4", experts=E, hidden=H, top_k=K).items()}
    wanted = runtime.execute(1, **inputs)
    out = np.zeros((8, H), np.uint16)
    step = runtime.bind(1, **inputs, out=out)
    assert step() is out and np.array_equal(out, wanted)
    first = inputs["x"].copy()
    inputs["x"][:] = 0
    step()
    assert not np.array_equal(out, wanted), "the arrays' values at the call count"
    inputs["x"][:] = first

    class Mallinfo2(ctypes.Structure):
        _fields_ = [(n, ctypes.c_size_t) for n in "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Mallinfo2
    for _ in range(3):
        step()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    before = tracemalloc.take_snapshot()
    heap = libc.mallinfo2().uordblks
    for _ in range(1000):
        step()
    grown = libc.mallinfo2().uordblks - heap
    tracemalloc.reset_peak()
    at_rest, _ = tracemalloc.get_traced_memory()
    step()
    now, peak = tracemalloc.get_traced_memory()
    differences = [d for d in tracemalloc.take_snapshot().compare_to(before, "filename") if "tracemalloc" not in str(d)]
    tracemalloc.stop()
    gc.enable()
    assert np.array_equal(out, wanted)
    assert peak - at_rest <= 64, "Python objects made in a step"
    assert grown < 4096, "bytes of the C heap that 1,000 steps kept"
    assert all(d.count_diff < 10 for d in differences if "test_runtime" in str(d))
    assert now - at_rest <= 64


def test_other_threads_go_on_during_a_step(tmp_path) -> None:
    """The reference backend on large experts: a long step. Meanwhile another thread of Python counts."""
    path = tmp_path / "c"
    kerf.synth(path, model="qwen3-moe", experts=8, hidden=1024, intermediate=512, layers=1, top_k=8, bf16_layers=[])
    runtime = kerf.Runtime.build(path, backend="reference", threads=1, max_tokens=32)
    inputs = kerf.decode_inputs(0, 32, "nvfp4", experts=8, hidden=1024, top_k=8)
    inside, done = threading.Event(), threading.Event()
    counted = 0

    def step() -> None:
        inside.set()
        runtime.execute(0, **inputs)
        done.set()

    thread = threading.Thread(target=step)
    begin = time.monotonic()
    thread.start()
    inside.wait()
    while not done.is_set():
        counted += 1
        time.sleep(0.001)
    thread.join()
    took = time.monotonic() - begin
    assert took > 0.05, "the step was too short to tell"
    # With the lock held for the whole step there would be a count or two.
    assert counted >= 10


def test_one_thread_at_a_time(tmp_path) -> None:
    path = tmp_path / "c"
    kerf.synth(path, model="qwen3-moe", experts=8, hidden=1024, intermediate=512, layers=1, top_k=8, bf16_layers=[])
    runtime = kerf.Runtime.build(path, backend="reference", threads=1, max_tokens=32)
    inputs = kerf.decode_inputs(0, 32, "nvfp4", experts=8, hidden=1024, top_k=8)
    thread = threading.Thread(target=lambda: runtime.execute(0, **inputs))
    thread.start()
    refused = None
    deadline = time.monotonic() + 5
    while thread.is_alive() and refused is None and time.monotonic() < deadline:
        try:
            runtime.plan(0, 1)
            few = kerf.decode_inputs(0, 0, "nvfp4", experts=8, hidden=1024, top_k=8)
            runtime.execute(0, **few)
        except kerf.UsageError as error:
            refused = str(error)
    thread.join()
    assert refused is not None and "another thread is inside" in refused


def test_refill_changes_the_layer_and_comes_back(checkpoint, tmp_path) -> None:
    other = tmp_path / "other"
    kerf.synth(other, model="qwen3-moe", experts=E, hidden=H, intermediate=256, layers=3, top_k=K, bf16_layers=[0], seed=2)

    def rank(group: kerf.Group) -> None:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        inputs = kerf.decode_inputs(1, 3, "nvfp4", experts=E, hidden=H, top_k=K)
        before = np.array(runtime.execute(1, **inputs))
        report = runtime.refill(other, 1)
        assert report["bytes"] > 0 and report["rel_l2"] < 0.01
        assert not np.array_equal(np.asarray(runtime.execute(1, **inputs)), before)
        runtime.refill(checkpoint, 1)
        assert np.array_equal(np.asarray(runtime.execute(1, **inputs)), before)

    kerf.run_ranks(2, rank)


def test_the_block_around_the_experts(run_program, checkpoint) -> None:
    words = ["--batch", 3, "--layers", "1", "--seconds", 0, "--block", "qwen3-moe", "--json"]
    code, report, text = run_program("decode", checkpoint, *words)
    assert code == 0, text
    runtime = kerf.Runtime.build(checkpoint, layers=[1], block="qwen3-moe")
    x = kerf.decode_inputs(1, 3, "nvfp4", experts=E, hidden=H, top_k=K)["x"]
    got = hashlib.sha256(np.asarray(runtime.execute_block(1, x)).tobytes()).hexdigest()
    assert got == report["steps"][0]["output_sha256"]


def test_all_reduce_is_a_step_where_it_was_asked_for(checkpoint) -> None:
    def rank(group: kerf.Group) -> None:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], all_reduce_width=64, all_reduce_tps=[2])
        runtime.warm_up()
        # 1.0 and 1.0, 2.0 and 1.0: exact in bfloat16.
        x = np.full((2, 64), 0x3F80 if group.rank == 0 else 0x3F80, np.uint16)
        x[1] = 0x4000 if group.rank == 0 else 0x3F80
        got = np.asarray(runtime.all_reduce(x))
        assert (got[0] == 0x4000).all() and (got[1] == 0x4040).all()
        assert runtime.all_reduce(x, out=x) is x and (x == got).all()

    kerf.run_ranks(2, rank)
    alone = kerf.Runtime.build(checkpoint, layers=[1])
    with pytest.raises(kerf.UnsupportedError):
        alone.all_reduce(np.zeros((1, 64), np.uint16))


def test_an_engines_all_reduce_is_called(checkpoint) -> None:
    meeting = threading.Barrier(2)
    board: dict[int, np.ndarray] = {}

    def rank(group: kerf.Group) -> None:
        def sums(mine, to) -> None:
            board[group.rank] = np.array(mine)
            meeting.wait()
            a, b = ((board[r].astype(np.uint32) << 16).view(np.float32) for r in (0, 1))
            total = (np.float32(0) + a + b).view(np.uint32).astype(np.uint64)
            rounded = (total + 0x7FFF + ((total >> 16) & 1)) >> 16
            np.asarray(to)[:] = rounded.astype(np.uint16)
            meeting.wait()

        runtime = kerf.Runtime.build(
            checkpoint, group, layers=[1], all_reduce_width=64, all_reduce_tps=[2], all_reduce_backend="trtllm-fp32",
            all_reduce=("trtllm-fp32", sums),
        )  # fmt: skip
        runtime.warm_up()  # compares its bits with its order
        got = np.asarray(runtime.all_reduce(np.full((1, 64), 0x3F80, np.uint16)))
        assert (got == 0x4000).all()

    kerf.run_ranks(2, rank)
