"""Expert TP on tensors that a caller holds."""

from __future__ import annotations

import numpy as np
import pytest

import kerf
from kerf import expert_tp

KINDS = ("w13", "w13_sf", "w2", "w2_sf")


def experts(golden, case: str = "layout_e2_h256_i256", first: int = 0, one: float = 1.0) -> kerf.Nvfp4Experts:
    """Two experts in the layout that FlashInfer's own functions make."""
    arrays = {kind: golden(f"{case}_{kind}_conv") for kind in KINDS}
    n = arrays["w13"].shape[0]
    scalars = {name: np.arange(1, n + 1, dtype=np.float32) + first for name in ("g1_alphas", "g1_scale_c", "g2_alphas")}
    scale = np.full(1, one, np.float32)
    return kerf.Nvfp4Experts(**arrays, **scalars, a1_gscale=scale, a2_gscale=scale, first_expert=first)


def test_a_slice_is_what_converting_it_gives(golden) -> None:
    """The theorem, with the slice converted by itself."""
    case = "layout_e2_h256_i256"
    w13, w13_sf, w2, w2_sf = (golden(f"{case}_{kind}") for kind in KINDS)
    for tp, part in ((2, 0), (2, 1), (4, 3)):
        s = 256 // tp
        rows = slice(part * s, (part + 1) * s)
        up, gate = w13[:, :256][:, rows], w13[:, 256:][:, rows]
        up_sf, gate_sf = w13_sf[:, :256][:, rows], w13_sf[:, 256:][:, rows]
        contiguous = np.ascontiguousarray
        ones = np.ones(2, np.float32)
        wanted = kerf.convert(
            contiguous(gate),
            contiguous(up),
            contiguous(w2[:, :, part * s // 2 : (part + 1) * s // 2]),
            gate_sf=contiguous(gate_sf),
            up_sf=contiguous(up_sf),
            down_sf=contiguous(w2_sf[:, :, part * s // 16 : (part + 1) * s // 16]),
            gate_scale=ones,
            up_scale=ones,
            down_scale=ones,
            act="bf16",
        )
        got = expert_tp.cut(experts(golden), tp, part)
        for kind in KINDS:
            assert np.array_equal(np.asarray(getattr(got, kind)), np.asarray(getattr(wanted, kind))), (tp, part, kind)


def test_reshard_gives_every_rank_its_slice_of_all_experts(golden) -> None:
    def rank(group: kerf.Group) -> kerf.Nvfp4Experts:
        stock = experts(golden, first=2 * group.rank)
        return expert_tp.reshard(stock, group, 4)

    for part, got in enumerate(kerf.run_ranks(2, rank)):
        assert expert_tp.final_shapes(experts(golden), 2, 4) == [
            tuple(np.asarray(getattr(got, kind)).shape) for kind in KINDS
        ]
        assert (got.num_experts, got.intermediate, got.first_expert) == (4, 128, 0)
        half = expert_tp.cut(experts(golden), 2, part)
        for kind in KINDS:
            array = np.asarray(getattr(got, kind))
            assert np.array_equal(array[:2], np.asarray(getattr(half, kind)))
            assert np.array_equal(array[2:], np.asarray(getattr(half, kind)))
        assert np.array_equal(np.asarray(got.g1_alphas), np.array([1, 2, 3, 4], np.float32))


@pytest.mark.parametrize(
    ("change", "tp", "words"),
    [
        ({}, 1, "1"),
        ({}, 3, "legal tp: 1, 2, 4"),
        ({}, 8, "legal tp: 1, 2, 4"),
        ({"w13_sf": np.zeros((2, 512, 15), np.uint8)}, 2, r"w13_sf.*\[2, 512, 15\].*\[2, 512, 16\]"),
        ({"g2_alphas": np.zeros(2, np.float64)}, 2, "g2_alphas.*F64.*F32"),
        ({"w2": np.zeros((2, 256, 256), np.uint8)[:, :, ::2]}, 2, "w2.*not contiguous"),
        ({"a1_gscale": None}, 2, "a1_gscale is None"),
    ],
)
def test_unsupported_says_what_is_wrong(golden, change, tp, words) -> None:
    import re

    assert expert_tp.unsupported(experts(golden), 2) is None
    reason = expert_tp.unsupported(experts(golden)._replace(**change), tp)
    assert reason is not None and re.search(words, reason), reason


def test_what_one_rank_refuses_all_refuse(golden) -> None:
    caught: list[str] = []

    def rank(group: kerf.Group) -> None:
        stock = experts(golden, first=2 * group.rank)
        if group.rank == 1:
            stock = stock._replace(w2=np.zeros((2, 256, 256), np.uint8)[:, :, ::2])
        try:
            expert_tp.reshard(stock, group, 4)
        except kerf.Error as error:
            caught.append(str(error))
            raise

    with pytest.raises(kerf.UsageError, match="rank 1: w2 is .* not contiguous"):
        kerf.run_ranks(2, rank)
    assert len(caught) == 2 and caught[0] == caught[1]


def test_placement_and_global_scales_are_compared(golden) -> None:
    assert expert_tp.misplaced(experts(golden, first=2), 1, 2, 4) is None
    assert "rank 0" in (expert_tp.misplaced(experts(golden, first=2), 0, 2, 4) or "")

    def rank(group: kerf.Group) -> tuple[str | None, str | None]:
        stock = experts(golden, one=1.0 if group.rank == 0 else float(np.nextafter(np.float32(1), np.float32(2))))
        return expert_tp.check_global_scales(stock, group), expert_tp.agree(group, "no" if group.rank == 1 else None)

    for reason, agreed in kerf.run_ranks(2, rank):
        assert reason is not None and "a1_gscale" in reason
        assert agreed == "rank 1: no"


def test_route_rows_are_zero_where_they_are_elsewhere() -> None:
    rows = np.arange(8, dtype=np.uint16).reshape(2, 4)
    rows[0] = 0x7FC0  # NaN in a row that the map does not name
    got, local = expert_tp.route_rows(rows, np.array([[1, -1]], np.int32))
    assert np.array_equal(np.asarray(got), [[4, 5, 6, 7], [0, 0, 0, 0]])
    assert np.asarray(local).tolist() == [True, False]


def test_the_probe_is_the_relative_distance(checkpoint) -> None:
    def rank(group: kerf.Group) -> tuple[float, float, float]:
        runtime = kerf.Runtime.build(checkpoint, group, layers=[1], expert_tp=True)
        inputs = kerf.decode_inputs(1, 8, "nvfp4", experts=16, hidden=256, top_k=4)
        sides = []
        for mode in ("ep", "tp"):
            rows = runtime.routed_experts(1, **inputs, mode=mode)
            sides.append((np.array(rows.rows), np.array(rows.map)))
        own = expert_tp.probe_rel_l2(sides[0], sides[1], group)
        return own, expert_tp.probe(runtime, 1), runtime.facts["probe_rel_l2"][1]

    (own, again, built), other = kerf.run_ranks(2, rank)
    assert (own, again, built) == other
    assert again == built and 0 < built < 0.01
    assert 0 < own < 0.01
