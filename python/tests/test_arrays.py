"""Arrays in and out: which are taken, in whose memory, and what refusals say."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import kerf
from kerf import expert_tp

from test_expert_tp import experts

E, H, K, T = 16, 256, 4, 3


@pytest.fixture(scope="module")
def runtime(checkpoint):
    return kerf.Runtime.build(checkpoint, layers=[1])


@pytest.fixture
def inputs():
    made = kerf.decode_inputs(1, T, "nvfp4", experts=E, hidden=H, top_k=K)
    return {name: np.array(array) for name, array in made.items()}


def test_numpy_and_kerf_arrays_and_memoryviews_are_alike(runtime, inputs) -> None:
    wanted = runtime.execute(1, **inputs)
    assert isinstance(wanted, np.ndarray) and wanted.dtype == np.uint16 and wanted.shape == (T, H)
    assert wanted.any()
    made = kerf.decode_inputs(1, T, "nvfp4", experts=E, hidden=H, top_k=K)
    mine = runtime.execute(1, **made)
    assert isinstance(mine, kerf.Array) and mine.dtype == "bfloat16"
    assert np.array_equal(np.asarray(mine), wanted)
    views = {name: memoryview(array) for name, array in inputs.items()}
    assert np.array_equal(np.asarray(runtime.execute(1, **views)), wanted)


def test_ml_dtypes_are_taken_and_given(runtime, inputs) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    wanted = runtime.execute(1, **inputs)
    x = inputs["x"].view(ml_dtypes.bfloat16)
    got = runtime.execute(1, x=x, ids=inputs["ids"], weights=inputs["weights"])
    assert got.dtype == ml_dtypes.bfloat16
    assert np.array_equal(got.view(np.uint16), wanted)
    out = np.zeros((T, H), ml_dtypes.bfloat16)
    assert runtime.execute(1, x=x, ids=inputs["ids"], weights=inputs["weights"], out=out) is out
    assert np.array_equal(out.view(np.uint16), wanted)


def test_out_is_written_where_it_lies(runtime, inputs) -> None:
    wanted = runtime.execute(1, **inputs)
    stack = np.full((3, T, H), 0x7FC0, np.uint16)
    out = stack[1]
    assert runtime.execute(1, **inputs, out=out) is out
    assert np.array_equal(stack[1], wanted)
    assert (stack[0] == 0x7FC0).all() and (stack[2] == 0x7FC0).all()


def test_read_only_inputs_are_taken_and_read_only_outputs_refused(runtime, inputs) -> None:
    wanted = runtime.execute(1, **inputs)
    for array in inputs.values():
        array.flags.writeable = False
    assert np.array_equal(runtime.execute(1, **inputs), wanted)
    out = np.zeros((T, H), np.uint16)
    out.flags.writeable = False
    with pytest.raises(kerf.UsageError, match="out is read-only, and is to be written"):
        runtime.execute(1, **inputs, out=out)
    assert not out.any()


@pytest.mark.parametrize(
    ("name", "array", "words"),
    [
        ("x", np.zeros((T, H), np.float32), r"x is F32 \[3, 256\], wanted BF16 \(or its bits as U16\) \[\*, 256\]"),
        ("x", np.zeros((T, H + 1), np.uint16), r"x is U16 \[3, 257\], wanted BF16 .* \[\*, 256\]"),
        ("x", np.zeros((1, T, H), np.uint16), r"x is U16 \[1, 3, 256\], wanted"),
        ("x", np.zeros((T, 2 * H), np.uint16)[:, ::2], r"x is U16 \[3, 256\] but not contiguous, wanted"),
        ("ids", np.zeros((T, K), np.int64), r"ids is I64 \[3, 4\], wanted I32 \[3, 4\]"),
        ("ids", np.zeros((T + 1, K), np.int32), r"ids is I32 \[4, 4\], wanted I32 \[3, 4\]"),
        ("weights", np.zeros((T, K), np.float64), r"weights is F64 \[3, 4\], wanted F32 \[3, 4\]"),
        ("weights", None, r"weights is None, wanted F32 \[3, 4\]"),
        ("weights", [[1.0]], r"weights is a list, which is no array by DLPack or the buffer protocol"),
        ("out", np.zeros((T, H), np.float32), r"out is F32 \[3, 256\], wanted BF16 .* \[3, 256\]"),
        ("out", np.zeros((T + 1, H), np.uint16), r"out is U16 \[4, 256\], wanted BF16 .* \[3, 256\]"),
    ],
)
def test_refusals_name_the_argument_got_and_wanted(runtime, inputs, name, array, words) -> None:
    with pytest.raises(kerf.UsageError, match=words):
        runtime.execute(1, **{**inputs, name: array})


def test_what_would_be_ignored_is_refused(runtime, inputs) -> None:
    logits = np.zeros((T, E), np.float32)
    for more, words in [
        ({"bias": np.zeros(E, np.float32)}, "bias goes with logits"),
        ({"ids": None, "logits": logits}, "weights go with ids"),
        ({"mode": "tp"}, "mode is 'tp', but this runtime was built without expert_tp"),
    ]:
        with pytest.raises(kerf.UsageError, match=words):
            runtime.execute(1, **{**inputs, **more})


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("max_tokens", "8", "max_tokens is '8', which is no value for it"),
        ("act", None, "act is None"),
        ("ep", 2**63, "ep is 9223372036854775808"),
        ("ep", 0, "ep 0 does not divide 1 rank"),
        ("tp", -3, "tp -3 does not divide 1 rank|tp is -3"),
    ],
)
def test_words_of_a_build_that_do_not_fit_are_named(checkpoint, name, value, words) -> None:
    with pytest.raises(kerf.UsageError, match=words):
        kerf.Runtime.build(checkpoint, layers=[1], **{name: value})


def test_a_path_with_a_nul_is_no_path(checkpoint) -> None:
    with pytest.raises(kerf.CheckpointError, match="a name with a NUL in it"):
        kerf.Checkpoint.open(f"{checkpoint}\0junk")


class _Tensor(ctypes.Structure):
    """A DLManagedTensor without a deleter."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
    ]


class _Nowhere:
    """Hands out uint16 [T, H] at the null address."""

    def __init__(self) -> None:
        self.shape = (ctypes.c_int64 * 2)(T, H)
        self.tensor = _Tensor(device_type=1, ndim=2, code=1, bits=16, lanes=1, shape=self.shape)

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0

    def __dlpack__(self, **_: object) -> object:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.tensor), b"dltensor", None)


def test_an_array_at_no_address_is_refused(runtime, inputs) -> None:
    with pytest.raises(kerf.UsageError, match=r"x is U16 \[3, 256\] at no address, wanted BF16"):
        runtime.execute(1, **{**inputs, "x": _Nowhere()})


def test_an_id_outside_the_model_is_named(runtime, inputs) -> None:
    inputs["ids"][1, 2] = 99
    with pytest.raises(kerf.UsageError, match="token 1, slot 2.*99|99.*token 1, slot 2"):
        runtime.execute(1, **inputs)


def test_more_tokens_than_prepared_are_refused_with_both_numbers(runtime) -> None:
    made = kerf.decode_inputs(1, 9, "nvfp4", experts=E, hidden=H, top_k=K)
    with pytest.raises(kerf.UsageError, match="a step of 9 tokens, prepared for at most 8"):
        runtime.execute(1, **made)
    assert np.asarray(runtime.execute_unprepared(1, **made)).shape == (9, H)


def test_an_array_outlives_what_it_came_from(checkpoint, inputs) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1])
    rows = runtime.routed_experts(1, x=inputs["x"], ids=inputs["ids"], weights=inputs["weights"])
    view = np.asarray(rows.rows)
    before = view.copy()
    del runtime, rows
    assert np.array_equal(view, before)


def test_dlpack_goes_out_without_a_copy() -> None:
    array = kerf.empty([2, 3], "float32")
    view = np.from_dlpack(array)
    view[1, 2] = 5
    assert np.asarray(array)[1, 2] == 5
    assert array.__dlpack_device__() == (1, 0)
    assert view.__array_interface__["data"][0] == array.address


def test_nothing_of_no_tokens(runtime) -> None:
    made = kerf.decode_inputs(1, 0, "nvfp4", experts=E, hidden=H, top_k=K)
    assert np.asarray(runtime.execute(1, **made)).shape == (0, H)


def test_copies_may_be_written_to_and_originals_may_not(golden) -> None:
    array = expert_tp.cut(experts(golden), 2, 0).w13
    copy = np.from_dlpack(array, copy=True)
    before = array.tobytes()
    assert copy.tobytes() == before and copy.flags.writeable
    copy[...] = 0
    assert array.tobytes() == before and any(before)
    assert np.shares_memory(np.from_dlpack(array, copy=False), np.from_dlpack(array))


@pytest.mark.parametrize(
    ("shape", "dtype", "words"),
    [
        ([-1], "uint8", r"shape is \[-1\], wanted sizes from 0 on"),
        ([1] * 40, "uint8", "shape has 40 dimensions, wanted at most"),
        ([1], "int4", "dtype is 'int4', wanted one of bool, uint8"),
    ],
)
def test_no_array_is_made_of_nonsense(shape, dtype, words) -> None:
    with pytest.raises(kerf.UsageError, match=words):
        kerf.empty(shape, dtype)
    assert kerf.empty([0, 3], "float32").nbytes == 0
