"""What callers get wrong is a UsageError that names the argument, what was got and what is wanted: no error of the
interpreter's own, and never "kerf's own fault"."""

from __future__ import annotations

import math
import types

import numpy as np
import pytest

import kerf
from kerf import expert_tp, flashinfer

from test_expert_tp import experts as tp_experts
from test_flashinfer import op_experts

E, H, K = 16, 256, 4


def weights(n: int = 2, i: int = 64, h: int = 128) -> dict[str, object]:
    """Arguments of kerf.convert."""
    zeros = lambda *s: np.zeros(s, np.uint8)  # noqa: E731
    ones = np.ones(n, np.float32)
    return dict(
        gate=zeros(n, i, h // 2), up=zeros(n, i, h // 2), down=zeros(n, h, i // 2),
        gate_sf=zeros(n, i, h // 16), up_sf=zeros(n, i, h // 16), down_sf=zeros(n, h, i // 16),
        gate_scale=ones, up_scale=ones, down_scale=ones, input_scale=1.0, intermediate_scale=1.0,
    )  # fmt: skip


CONVERT = [
    ({"first_expert": -1}, "first_expert is -1, wanted a whole number from 0 to"),
    ({"first_expert": 2**80}, f"first_expert is {2**80}, wanted a whole number"),
    ({"threads": -1}, "threads is -1, wanted a whole number from 0 to 1024"),
    ({"threads": 10**6}, "threads is 1000000, wanted"),
    ({"width": 32}, "width is 32, wanted a whole number from 64"),
    ({"width": 100}, "width is 100, wanted a multiple of 64, 64 or more"),
    ({"act": "fp8"}, "act is 'fp8', wanted nvfp4 or bf16"),
    ({"input_scale": -1.0}, "input_scale is -1, wanted a positive finite number"),
    ({"intermediate_scale": math.nan}, "intermediate_scale is nan, wanted a positive finite number"),
    ({"gate": None}, r"gate is None, wanted U8 \[\*, \*, \*\]"),
    ({"down_sf": None}, r"down_sf is None, wanted F8_E4M3"),
    ({"up_scale": None}, r"up_scale is None, wanted F32 \[2\]"),
    ({"up": "gate"}, "up is a str, which is no array"),
]


@pytest.mark.parametrize(("change", "words"), CONVERT)
def test_convert(change, words) -> None:
    kerf.convert(**weights())
    with pytest.raises(kerf.UsageError, match=words):
        kerf.convert(**{**weights(), **change})


@pytest.mark.parametrize(("change", "words"), [c for c in CONVERT if set(c[0]) <= {"first_expert", "threads", "width", "gate"}])
def test_convert_bf16(change, words) -> None:
    given = dict(gate=np.zeros((2, 64, 128), np.uint16), up=np.zeros((2, 64, 128), np.uint16), down=np.zeros((2, 128, 64), np.uint16))
    kerf.convert_bf16(**given)
    with pytest.raises(kerf.UsageError, match=words.replace("U8", "BF16 .*")):
        kerf.convert_bf16(**{**given, **change})


def test_what_is_no_number_is_a_type_error() -> None:
    """The rule: wrong values and arrays are kerf's to name; a wrong type of a keyword is the interpreter's."""
    for change in ({"first_expert": "x"}, {"threads": 1.5}, {"width": "64"}, {"act": 4}, {"input_scale": "1"}):
        with pytest.raises(TypeError):
            kerf.convert(**{**weights(), **change})
    assert kerf.convert(**{**weights(), "first_expert": np.int64(3)}).first_expert == 3


def test_quantising() -> None:
    x = np.ones((2, 32), np.float32)
    q = kerf.quantize_nvfp4(x)
    with pytest.raises(kerf.UsageError, match="x is None, wanted BF16"):
        kerf.quantize_nvfp4(None)
    for scale in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(kerf.UsageError, match=f"global_scale is {scale:g}, wanted a positive finite number"):
            kerf.quantize_nvfp4(x, scale)
    with pytest.raises(kerf.UsageError, match=r"recipe is 'best', wanted vllm, fast or exact"):
        kerf.quantize_nvfp4(x, recipe="best")
    for out in (q.codes, (q.codes,), 3):
        with pytest.raises(kerf.UsageError, match=r"out is .*, wanted \(codes, scales\)"):
            kerf.quantize_nvfp4(x, out=out)
    with pytest.raises(kerf.UsageError, match="codes is None, wanted U8"):
        kerf.dequantize_nvfp4(None, q.scales, 1.0)
    with pytest.raises(kerf.UsageError, match="global_scale is nan, wanted a finite number"):
        kerf.dequantize_nvfp4(q.codes, q.scales, math.nan)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (dict(n_group=-1), "-1 expert groups: wanted is 0"),
        (dict(topk_group=-1), "the best -1 of 0 expert groups"),
        (dict(experts=-4), "a router over -4 experts"),
        (dict(experts=2**70), f"experts is {2**70}, wanted a whole number"),
        (dict(top_k=9), "top 9 of 8 experts"),
        (dict(logit_multiplier=math.nan), "logit multiplier nan"),
        (dict(method="best"), "method is 'best', wanted one of softmax, renormalize"),
    ],
)
def test_routers(numbers, words) -> None:
    with pytest.raises(kerf.UsageError, match=words):
        kerf.Router(**{**dict(method="renormalize", experts=8, top_k=2), **numbers})


def test_router_arrays() -> None:
    router = kerf.Router("renormalize", experts=8, top_k=2)
    with pytest.raises(kerf.UsageError, match=r"logits is None, wanted F32 \[\*, 8\]"):
        router.select(None)
    with pytest.raises(kerf.UsageError, match=r"ids is I64 \[1, 2\], wanted I32 \[1, 2\]"):
        router.select(np.zeros((1, 8), np.float32), ids=np.zeros((1, 2), np.int64))
    with pytest.raises(TypeError):
        kerf.Router("renormalize", experts="8", top_k=2)


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ({"layer": -1}, kerf.UsageError, "layer is -1, wanted a whole number from 0"),
        ({"tokens": -1}, kerf.UsageError, "tokens is -1, wanted a whole number from 0"),
        ({"tokens": 2**62}, kerf.UsageError, f"tokens is {2**62}, wanted"),
        ({"hidden": 2**40}, kerf.UsageError, "hidden is 1099511627776, wanted"),
        ({"tokens": 2**29, "hidden": 2**29}, kerf.OutOfMemoryError, "inputs of 536870912 tokens take .* GiB"),
        ({"experts": 2**30, "tokens": 2**20, "kind": "bf16"}, kerf.OutOfMemoryError, "inputs of 1048576 tokens"),
        ({"top_k": 17}, kerf.UsageError, "top_k is 17, wanted a whole number from 1 to 16"),
        ({"seed": -1}, kerf.UsageError, "seed is -1, wanted a whole number from 0 to 2.64 - 1"),
        ({"seed": 2**64}, kerf.UsageError, "seed is 18446744073709551616"),
        ({"kind": "fp8"}, kerf.UsageError, "kind is 'fp8', wanted nvfp4 or bf16"),
    ],
)
def test_inputs(change, kind, words) -> None:
    given = dict(layer=1, tokens=2, kind="nvfp4", experts=E, hidden=H, top_k=K, seed=2**64 - 1)
    kerf.decode_inputs(**given)
    with pytest.raises(kind, match=words) as caught:
        kerf.decode_inputs(**{**given, **change})
    assert type(caught.value) is kind


def test_a_probe_again(checkpoint) -> None:
    def rank(group: kerf.Group) -> list[str]:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        said = []
        for words in ({"tokens": -1}, {"tokens": 10**6}, {"tokens": 0}, {"seed": -1}, {"limit": math.nan}, {"limit": -1.0}):
            with pytest.raises(kerf.UsageError) as caught:
                expert_tp.probe(runtime, 1, **words)
            said.append(str(caught.value))
        assert expert_tp.probe(runtime, 1, tokens=3) > 0
        return said

    for said in kerf.run_ranks(2, rank):
        assert said == [
            "tokens is -1, wanted a whole number from 1 to 65536",
            "tokens is 1000000, wanted a whole number from 1 to 65536",
            "tokens is 0, wanted a whole number from 1 to 65536",
            "seed is -1, wanted a whole number from 0 to 2^64 - 1",
            "limit is nan, wanted a number of at least 0",
            "limit is -1, wanted a number of at least 0",
        ]


def test_experts_to_cut(golden) -> None:
    stock = tp_experts(golden)
    for count in (-8, 0, 2**62, 2**70):
        with pytest.raises(kerf.UsageError, match=f"num_experts is {count}, wanted a whole number from 1 to"):
            expert_tp.final_shapes(stock, 2, count)
    for part in (-1, 2):
        with pytest.raises(kerf.UsageError, match=f"part is {part}, wanted 0 to 1"):
            expert_tp.cut(stock, 2, part)
    with pytest.raises(kerf.UsageError, match="rank is 2, wanted a whole number from 0 to 1"):
        expert_tp.misplaced(stock, 2, 2, 4)
    with pytest.raises(kerf.UsageError, match="ranks is 0, wanted a whole number from 1 to"):
        expert_tp.misplaced(stock, 0, 0, 4)
    with pytest.raises(kerf.UsageError, match="w13 is None"):
        expert_tp.final_shapes(None, 2, 4)


def test_attributes_of_a_wrong_type(golden) -> None:
    stock = tp_experts(golden)._replace(first_expert="x")
    words = "first_expert is 'x', wanted a whole number from"
    assert words in (expert_tp.unsupported(stock, 2) or "")
    with pytest.raises(kerf.UsageError, match=words):
        expert_tp.cut(stock, 2, 0)
    with pytest.raises(kerf.UsageError, match=words):
        kerf.Runtime.adopt([kerf.StockLayer(0, op_experts(golden)._replace(first_expert="x"), top_k=2)], experts=4, top_k=2)
    without = types.SimpleNamespace(**{k: v for k, v in tp_experts(golden)._asdict().items() if k != "first_expert"})
    with pytest.raises(kerf.UsageError, match="first_expert is None, wanted a whole number"):
        expert_tp.cut(without, 2, 0)
    for wrong in ({"index": "x"}, {"top_k": None}, {"finalises": "no"}, {"norm": kerf.RouteNorm(eps="x")}):
        layer = {"index": 0, "experts": op_experts(golden), "top_k": 2, **wrong}
        with pytest.raises(kerf.UsageError):
            kerf.Runtime.adopt([kerf.StockLayer(**layer)], experts=4, top_k=2)


@pytest.mark.parametrize(
    ("layer", "tensors", "words"),
    [
        ({"index": -1}, {}, "a layer's index is -1, wanted 0 or more"),
        ({"limit_gate": np.array([1, 1, math.nan, 1], np.float32)}, {}, "layer 0: limit_gate of expert 2 is nan"),
        ({"norm": kerf.RouteNorm(eps=math.nan)}, {}, "layer 0: the norm's eps is nan"),
        ({"norm": kerf.RouteNorm(eps=-1)}, {}, "layer 0: the norm's eps is -1"),
        ({}, {"a1_gscale": np.zeros(1, np.float32)}, "layer 0: a1_gscale is 0, wanted a positive finite number"),
        ({}, {"a2_gscale": -np.ones(1, np.float32)}, "layer 0: a2_gscale is -1"),
        ({}, {"g1_alphas": np.array([1, math.nan, 1, 1], np.float32)}, "layer 0: g1_alphas of expert 1 is nan"),
    ],
)
def test_numbers_of_an_engine(golden, layer, tensors, words) -> None:
    one = np.ones(1, np.float32)
    experts = op_experts(golden)._replace(**{"a1_gscale": one, "a2_gscale": one, **tensors})
    with pytest.raises(kerf.UsageError, match=words):
        kerf.Runtime.adopt([kerf.StockLayer(**{"index": 0, "experts": experts, "top_k": 2, **layer})], experts=4, top_k=2)


@pytest.mark.parametrize(
    ("layer", "words"),
    [
        ({"index": "first"}, "index is 'first', wanted a whole number"),
        ({"top_k": 2.5}, r"top_k is 2\.5, wanted a whole number"),
        ({"act": 4}, "act is 4, wanted nvfp4 or bf16"),
        ({"finalises": "no"}, "finalises is 'no', wanted True or False"),
        ({"captures_routes": None}, "captures_routes is None, wanted True or False"),
        ({"norm": kerf.RouteNorm(eps="small")}, "eps is 'small', wanted a number"),
        ({"norm": kerf.RouteNorm(gain_before_norm=1)}, "gain_before_norm is 1, wanted True or False"),
        ({"norm": "none"}, "eps is None, wanted a number"),
    ],
)
def test_a_layers_words_of_a_wrong_type(golden, layer, words) -> None:
    stock = kerf.StockLayer(**{"index": 0, "experts": op_experts(golden), "top_k": 2, **layer})
    with pytest.raises(kerf.UsageError, match=words):
        kerf.Runtime.adopt([stock], experts=4, top_k=2)


def test_maps_that_do_not_fit() -> None:
    rows = np.zeros((3, 4), np.uint16)
    for row in (3, -2):
        with pytest.raises(kerf.UsageError, match=f"permuted_idx names row {row} for token 1 route 0, there are 3 rows"):
            expert_tp.route_rows(rows, np.array([[0, 1], [row, -1]], np.int32))
    with pytest.raises(kerf.UsageError, match=r"permuted_idx is I32 \[2, 0\]"):
        expert_tp.route_rows(rows, np.zeros((2, 0), np.int32))
    with pytest.raises(kerf.UsageError, match="rows is None, wanted BF16"):
        expert_tp.route_rows(None, np.zeros((2, 1), np.int32))


def test_steps_that_are_not_one_are_told_of_on_every_rank() -> None:
    said: list[str] = []

    def rank(group: kerf.Group) -> None:
        rows, row_map = np.zeros((4, 8), np.uint16), np.array([[0, 1]], np.int32)
        other = np.array([[0, 1], [2, 3]], np.int32)
        try:
            expert_tp.probe_rel_l2((rows, row_map), (rows, other if group.rank == 1 else row_map), group)
        except kerf.Error as error:
            said.append(str(error))
            raise

    with pytest.raises(kerf.UsageError, match="rank 1: ep has T 1, K 2, H 8 and tp T 2, K 2, H 8, wanted the same step of both"):
        kerf.run_ranks(2, rank)
    assert len(said) == 2 and said[0] == said[1]


def test_flashinfers_arguments(golden) -> None:
    stock = op_experts(golden)
    arguments = flashinfer.nvfp4_arguments(stock, num_experts=4, top_k=2)
    with pytest.raises(kerf.UsageError, match="experts is a dict, .*, without w13: wanted kerf.Nvfp4Experts"):
        flashinfer.nvfp4_arguments({}, num_experts=4, top_k=2)
    with pytest.raises(kerf.UsageError, match="slices is None, without w13"):
        flashinfer.tp_arguments(arguments, None)
    bf16 = kerf.convert_bf16(np.zeros((1, 64, 64), np.uint16), np.zeros((1, 64, 64), np.uint16), np.zeros((1, 64, 64), np.uint16))
    with pytest.raises(kerf.UnsupportedError, match="experts are BF16 experts, wanted NVFP4 ones"):
        flashinfer.nvfp4_arguments(bf16, num_experts=1, top_k=1)
    for missing in ("gemm2_weights", "local_num_experts", "top_k"):
        with pytest.raises(kerf.UsageError, match=f"arguments has no {missing}"):
            flashinfer.check_arguments({k: v for k, v in arguments.items() if k != missing})
    with pytest.raises(kerf.UsageError, match="top_k is 5, wanted 1 to 4"):
        flashinfer.nvfp4_arguments(stock, num_experts=4, top_k=5)
    with pytest.raises(kerf.UsageError, match="num_experts is a str, 'x', wanted a whole number"):
        flashinfer.nvfp4_arguments(stock, num_experts="x", top_k=2)
    with pytest.raises(kerf.UsageError, match="output2_scale_scalar is None, wanted an array of float32"):
        flashinfer.nvfp4_arguments(stock._replace(g2_alphas=None), num_experts=4, top_k=2)
    with pytest.raises(kerf.UnsupportedError, match=r"gemm1_alpha is float32 \[3\], wanted float32 \[4\]"):
        flashinfer.nvfp4_arguments(stock, num_experts=4, top_k=2, gemm1_alpha=np.ones(3, np.float32))
    with pytest.raises(kerf.UnsupportedError, match=r"gemm1_weights is uint8 \[4, 2\], wanted uint8 of 3 dimensions"):
        flashinfer.nvfp4_arguments(stock._replace(w13=np.zeros((4, 2), np.uint8)), num_experts=4, top_k=2)
    with pytest.raises(kerf.UsageError, match="hidden_states is None, wanted an array of uint8"):
        flashinfer.step_arguments(None, golden("op_x_sf"), golden("op_ids"), golden("op_weights"), top_k=2)
    with pytest.raises(kerf.UsageError, match="rows is a tuple, .*, wanted kerf.Unfinalized"):
        flashinfer.unfinalized((1, 2, 3))


def test_routing_metadata() -> None:
    ids, weights = np.zeros((2, 2), np.int32), np.ones((2, 2), np.float32)
    given = dict(ids=ids, weights=weights, num_experts=4, tile=8)
    flashinfer.routing_metadata(**given)
    for change, words in [
        ({"ids": None}, r"ids is None, wanted I32"),
        ({"ids": np.zeros((2, 0), np.int32), "weights": np.zeros((2, 0), np.float32)}, r"ids is I32 \[2, 0\]"),
        ({"num_experts": 0}, "num_experts is 0, wanted"),
        ({"local_expert_offset": 4}, "local_expert_offset is 4, wanted a whole number from 0 to 3"),
        ({"local_expert_offset": 2, "local_num_experts": 3}, "local_num_experts is 3, wanted a whole number from 0 to 2"),
        ({"local_num_experts": -1}, "local_num_experts is -1"),
        ({"tile": 0}, "tile is 0, wanted"),
        ({"tile": 2**40}, f"tile is {2**40}, wanted"),
    ]:
        with pytest.raises(kerf.UsageError, match=words):
            flashinfer.routing_metadata(**{**given, **change})


def test_a_step_that_does_not_fit_its_words(checkpoint) -> None:
    runtime = kerf.Runtime.build(checkpoint, layers=[1], all_reduce_width=64, all_reduce_tps=[1])
    inputs = kerf.decode_inputs(1, 2, "nvfp4", experts=16, hidden=256, top_k=4)
    with pytest.raises(kerf.UsageError, match="a_sf goes with a"):
        runtime.execute(1, **inputs, a_sf=np.zeros((2, 16), np.uint8))
    with pytest.raises(kerf.UsageError, match="out wanted"):
        runtime.bind(1, **inputs, out=None)
    with pytest.raises(kerf.UsageError, match="rows is None"):
        runtime.tail(None)
    with pytest.raises(kerf.UsageError, match="x is None"):
        runtime.all_reduce(None)
    with pytest.raises(kerf.UsageError, match="layer is 2, the source's index 1"):
        runtime.refill(kerf.StockLayer(1, runtime.stock(1), top_k=4), 2)
