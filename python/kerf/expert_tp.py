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
    """Why ``stock`` cannot be cut ``tp`` ways, or None: dtype, shape or strides of one of the nine tensors by name,
    tp below 2, a slice that is no multiple of 64 (with the legal tp)."""
    return _kerf.tp_unsupported(stock, tp, uneven)


def final_shapes(stock: Nvfp4Experts, tp: int, num_experts: int) -> list[tuple[int, ...]]:
    """The shapes of a rank's slices: w13, w13_sf, w2, w2_sf."""
    return _kerf.tp_final_shapes(stock, tp, num_experts)


def cut(stock: Nvfp4Experts, tp: int, part: int, *, uneven: bool = False) -> Nvfp4Experts:
    """Slice ``part`` of ``tp`` of the experts here, copied: byte for byte what converting the slice would give.

    Raises UnsupportedError where ``unsupported`` has a reason."""
    return Nvfp4Experts(**_kerf.tp_cut(stock, tp, part, uneven))


def reshard(stock: Nvfp4Experts, group: Group, num_experts: int, *, uneven: bool = False) -> Nvfp4Experts:
    """Collective: this rank's slices of all ``num_experts`` experts, from every rank's whole ones.

    Whole experts lie linearly: rank r has experts r * E / ranks onwards. One exchange of bytes for each tensor kind;
    ``stock`` stays as it was. Raises on every rank with the lowest refusing rank's reason: UnsupportedError (what
    cannot be cut, other placements, global scales that differ in a bit), OutOfMemoryError.
    """
    return Nvfp4Experts(**_kerf.tp_reshard(stock, group, num_experts, uneven))


reshard_nvfp4 = reshard


def misplaced(stock: Nvfp4Experts, rank: int, ranks: int, num_experts: int) -> str | None:
    """Why these experts are not where linear placement has them, or None."""
    return _kerf.tp_misplaced(stock, rank, ranks, num_experts)


def check_global_scales(stock: Nvfp4Experts, group: Group) -> str | None:
    """Collective: the two ranks and values where a1_gscale or a2_gscale differ in a bit, or None."""
    return _kerf.tp_check_global_scales(stock, group)


def agree(group: Group, reason: str | None, what: str = "agreeing") -> str | None:
    """Collective: None where no rank has a reason; else, on every rank, the lowest refusing rank's."""
    return _kerf.tp_agree(group, reason, what)


def route_rows(rows: Tensor, permuted_idx: Tensor) -> tuple[Tensor, Tensor]:
    """rows [R, H] bf16 and the map [T, K] i32 -> every route's row [T*K, H] bf16 in route order, zeros where it is not
    on this rank; and which are, bool [T*K]."""
    return _kerf.tp_route_rows(rows, permuted_idx)


def probe_rel_l2(ep: Rows, tp: Rows, group: Group) -> float:
    """Collective: rel L2 of the TP rows, summed over ranks, against the EP rows; the same on every rank.

    ``ep`` and ``tp``: (rows, map) of the same step on whole and on sliced experts. ProbeError on every rank for a route
    that no rank, or not every rank, served."""
    return _kerf.tp_probe_rel_l2(*ep, *tp, group)


def probe(
    runtime: Runtime, layer: int, *, tokens: int = 8, seed: int = 20261023, limit: float = _kerf.probe_limit
) -> float:
    """Collective: the build's probe of one layer again. ProbeError on every rank above ``limit``."""
    return _kerf.tp_probe(runtime.resident, layer, tokens, seed, limit)
