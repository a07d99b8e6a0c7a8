"""Results are of the caller's own kind: numpy arrays for numpy arrays, else kerf.Array (torch's: test_torch.py)."""

from __future__ import annotations

import numpy as np
import pytest

import kerf
from kerf import expert_tp


def kerfs(array: np.ndarray, dtype: str) -> kerf.Array:
    out = kerf.empty(list(array.shape), dtype)
    np.asarray(out)[:] = array
    return out


X = np.random.default_rng(5).standard_normal((3, 64)).astype(np.float32)


def test_quantised_tensors() -> None:
    q = kerf.quantize_nvfp4(X)
    assert type(q.codes) is np.ndarray and q.codes.dtype == np.uint8 and q.codes.shape == (3, 32)
    assert type(q.scales) is np.ndarray and q.scales.dtype == np.uint8 and q.scales.shape == (3, 4)
    mine = kerf.quantize_nvfp4(kerfs(X, "float32"))
    assert (mine.codes.dtype, mine.scales.dtype) == ("uint8", "float8_e4m3fn")
    assert np.array_equal(np.asarray(mine.codes), q.codes) and np.array_equal(np.asarray(mine.scales), q.scales)
    assert q.codes.any() and isinstance(kerf.quantize_nvfp4(memoryview(X)).codes, kerf.Array)

    back = kerf.dequantize_nvfp4(q.codes, q.scales, q.global_scale)
    assert type(back) is np.ndarray and back.dtype == np.float32 and back.shape == X.shape
    again = kerf.dequantize_nvfp4(mine.codes, mine.scales, mine.global_scale)
    assert isinstance(again, kerf.Array) and np.array_equal(np.asarray(again), back)
    out = np.zeros_like(X)
    assert kerf.dequantize_nvfp4(q.codes, q.scales, q.global_scale, out=out) is out and np.array_equal(out, back)


def test_ml_dtypes_rows() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    rows = X.astype(ml_dtypes.bfloat16)
    got, _ = expert_tp.route_rows(rows, np.array([[2, -1]], np.int32))
    assert got.dtype == ml_dtypes.bfloat16 and np.array_equal(got[0], rows[2]) and not got[1].any()
    assert kerf.quantize_nvfp4(rows).scales.dtype == np.uint8


def test_selected_experts() -> None:
    logits = X[:, :16].copy()
    router = kerf.Router("renormalize", experts=16, top_k=4)
    ids, weights = router.select(logits)
    assert type(ids) is np.ndarray and ids.dtype == np.int32 and ids.shape == (3, 4)
    assert type(weights) is np.ndarray and weights.dtype == np.float32 and weights.shape == (3, 4)
    assert np.array_equal(ids[:, 0], logits.argmax(1)) and np.allclose(weights.sum(1), 1)
    mine = router.select(kerfs(logits, "float32"))
    assert all(isinstance(array, kerf.Array) for array in mine)
    assert np.array_equal(np.asarray(mine[0]), ids) and np.array_equal(np.asarray(mine[1]), weights)
    to = np.zeros((3, 4), np.int32), np.zeros((3, 4), np.float32)
    got = router.select(logits, ids=to[0], weights=to[1])
    assert got[0] is to[0] and got[1] is to[1] and np.array_equal(to[0], ids)


def test_a_runtimes_router_is_a_router(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    runtime.router = kerf.Router("renormalize", experts=16, top_k=4)
    assert isinstance(runtime.router, kerf.Router)
    assert type(runtime.router.select(X[:, :16].copy())[0]) is np.ndarray


def test_rows_of_routes() -> None:
    rows = np.arange(8, dtype=np.uint16).reshape(2, 4)
    row_map = np.array([[1, -1]], np.int32)
    got, local = expert_tp.route_rows(rows, row_map)
    assert type(got) is np.ndarray and got.dtype == np.uint16 and got.tolist() == [[4, 5, 6, 7], [0, 0, 0, 0]]
    assert type(local) is np.ndarray and local.dtype == np.bool_ and local.tolist() == [True, False]
    mine, here = expert_tp.route_rows(kerfs(rows, "bfloat16"), row_map)
    assert isinstance(mine, kerf.Array) and mine.dtype == "bfloat16" and isinstance(here, kerf.Array)
    assert np.array_equal(np.asarray(mine), got) and np.asarray(here).tolist() == [True, False]


class OnlyDlpack:
    """An array that says nothing but what DLPack asks."""

    def __init__(self, array) -> None:
        self.array = array

    def __dlpack__(self, **words):
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_a_result_is_nobodys_buffer(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    results = []
    for seed in (1, 2):
        inputs = kerf.decode_inputs(1, 2, "nvfp4", experts=16, hidden=256, top_k=4, seed=seed)
        wanted = runtime.execute(1, **inputs).tobytes()
        results.append((runtime.execute(1, **{**inputs, "x": OnlyDlpack(inputs["x"])}), wanted))
    assert results[0][1] != results[1][1]
    for got, wanted in results:
        assert got.tobytes() == wanted


def test_rows_quantised_with_the_layers_scale_have_the_steps_bits(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    inputs = kerf.decode_inputs(1, 3, "nvfp4", experts=16, hidden=256, top_k=4)
    facts = runtime.facts["layers"][0]
    a, a_sf, _ = kerf.quantize_nvfp4(inputs["x"], facts["input_scale"])
    assert abs(facts["input_scale"] * facts["a1_gscale"] - 1) < 1e-6
    routes = dict(ids=inputs["ids"], weights=inputs["weights"])
    assert runtime.execute(1, a=a, a_sf=a_sf, **routes).tobytes() == runtime.execute(1, **inputs).tobytes()
