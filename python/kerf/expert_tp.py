"""Expert tensor parallelism out of whole experts that are resident: cut, exchanged, compared.

Every check is made on every rank and agreed on before any rank raises.
"""

from __future__ import annotations

from kerf import _kerf
from kerf._kerf import Group
from kerf.experts import Nvfp4Experts, Tensor
from kerf.runtime import Runtime

#: The documents' names for one rank's whole experts, and for its slices.
StockNvfp4 = Nvfp4Experts
TpExperts = Nvfp4Experts

Rows = tuple[Tensor, Tensor]


def unsupported(stock: Nvfp4Experts, tp: int, *, uneven: bool = False) -> str | None:
    """Local: why ``stock`` cannot be cut ``tp`` ways, or None: dtype, shape or strides of one of the nine tensors by name,
    tp below 2, a slice that is no multiple of 64 (with the legal tp). Raises nothing of kerf's."""
    return _kerf.tp_unsupported(stock, tp, uneven)


def final_shapes(stock: Nvfp4Experts, tp: int, num_experts: int) -> list[tuple[int, ...]]:
    """Local: the shapes of a rank's slices of ``num_experts`` experts: w13 [n, 2I/tp, H/2], w13_sf [n, 2I/tp, H/16],
    w2 [n, H, I/tp/2], w2_sf [n, H, I/tp/16].

    Raises UnsupportedError where experts of such a size cannot be cut so, UsageError for tensors that are none and numbers
    out of range."""
    shapes: list[tuple[int, ...]] = _kerf.tp_final_shapes(stock, tp, num_experts)
    return shapes


def cut(stock: Nvfp4Experts, tp: int, part: int, *, uneven: bool = False) -> Nvfp4Experts:
    """Local: slice ``part`` of ``tp`` of the experts here, copied to kerf.Array: byte for byte what converting the slice
    would give.

    Raises UnsupportedError where ``unsupported`` has a reason, UsageError for a part that there is not and tensors that
    are none, OutOfMemoryError."""
    return Nvfp4Experts(**_kerf.tp_cut(stock, tp, part, uneven))


def reshard(stock: Nvfp4Experts, group: Group, num_experts: int, *, uneven: bool = False) -> Nvfp4Experts:
    """Collective: this rank's slices of all ``num_experts`` experts, from every rank's whole ones: kerf.Array.

    Whole experts lie linearly: rank r has experts r * E / ranks onwards. One exchange of bytes for each tensor kind;
    ``stock`` stays as it was. Raises on every rank with the lowest refusing rank's reason: UnsupportedError (what
    cannot be cut, other placements, global scales that differ in a bit), UsageError (tensors that are none, or not
    contiguous), OutOfMemoryError; PeerError.
    """
    return Nvfp4Experts(**_kerf.tp_reshard(stock, group, num_experts, uneven))


reshard_nvfp4 = reshard


def misplaced(stock: Nvfp4Experts, rank: int, ranks: int, num_experts: int) -> str | None:
    """Local: why these experts are not where linear placement has them, or None. Raises UsageError for numbers out of
    range and tensors that are none."""
    return _kerf.tp_misplaced(stock, rank, ranks, num_experts)


def check_global_scales(stock: Nvfp4Experts, group: Group) -> str | None:
    """Collective: the two ranks and values where a1_gscale or a2_gscale differ in a bit, or None. Raises UsageError on every
    rank for tensors that are none, PeerError."""
    return _kerf.tp_check_global_scales(stock, group)


def agree(group: Group, reason: str | None, what: str = "agreeing") -> str | None:
    """Collective: None where no rank has a reason; else, on every rank, the lowest refusing rank's. Raises PeerError."""
    return _kerf.tp_agree(group, reason, what)


def route_rows(rows: Tensor, permuted_idx: Tensor) -> tuple[Tensor, Tensor]:
    """Local: rows bfloat16 [R, H] and the map int32 [T, K] (-1: not on this rank) -> every route's row, bfloat16 [T*K, H], in
    route order, zeros where it is not on this rank; and which are, bool [T*K]: new arrays of the rows' kind.

    Raises UsageError for other dtypes and shapes and for a map that names rows which there are not."""
    in_order: tuple[Tensor, Tensor] = _kerf.tp_route_rows(rows, permuted_idx)
    return in_order


def probe_rel_l2(ep: Rows, tp: Rows, group: Group) -> float:
    """Collective: rel L2 of the TP rows, summed over ranks, against the EP rows; the same on every rank.

    ``ep`` and ``tp``: (rows bfloat16 [R, H], map int32 [T, K]) of the same step on whole and on sliced experts. Raises on
    every rank ProbeError for a route that no rank, or not every rank, served; UsageError for arrays that do not fit, or are
    of two steps; UnsupportedError where ranks' T, K or H differ; PeerError."""
    return _kerf.tp_probe_rel_l2(*ep, *tp, group)


def probe(
    runtime: Runtime, layer: int, *, tokens: int = 8, seed: int = 20261023, limit: float = _kerf.probe_limit
) -> float:
    """Collective: the build's probe of one layer again: rel L2 of its slices against its whole experts, the same on every
    rank. ``tokens``: 1 to 65536, more where so few would leave a rank without a route.

    Raises ProbeError on every rank above ``limit``, UsageError for a layer that has not both and numbers out of range,
    OutOfMemoryError, PeerError."""
    return _kerf.tp_probe(runtime.resident, layer, tokens, seed, limit)
