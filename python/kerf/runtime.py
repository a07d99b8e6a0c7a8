"""The runtime of a stack of layers on one rank: build, warm_up, then step by step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kerf import _kerf, _streams, errors
from kerf._arrays import described
from kerf._arrays import empty_like as _empty_like
from kerf._kerf import Checkpoint, Group, Router, Step, StepPlan, Unfinalized
from kerf.commands import Path
from kerf.experts import Bf16Experts, Nvfp4Experts, Tensor

#: An engine's own all-reduce: its backend's name, and ``sum(mine, to)`` on bfloat16 arrays, collective. The arrays are
#: lent for the call: what is kept longer is to be copied.
AllReduce = tuple[str, Callable[[Any, Any], None]]


@dataclass(frozen=True)
class RouteNorm:
    """An RMSNorm of each route's row, after the experts."""

    gain: Tensor | None = None  #: bfloat16 [H], the effective gain
    eps: float = 1e-8
    gain_before_norm: bool = True


@dataclass(frozen=True)
class StockLayer:
    """One layer as an engine holds it on this rank: E / ranks whole experts, converted, linearly placed.

    The tensors are used in place: no copy is made, and the runtime keeps them alive. ``alpha``, ``beta``,
    ``limit_gate``, ``limit_up``: float32 [n], SwiGLU's parameters on raw accumulators. ``finalises``,
    ``captures_routes``: what an engine's op may do that kerf's does not; such layers are refused.
    """

    index: int
    experts: Nvfp4Experts | Bf16Experts | Any
    top_k: int
    act: str = "nvfp4"
    alpha: Tensor | None = None
    beta: Tensor | None = None
    limit_gate: Tensor | None = None
    limit_up: Tensor | None = None
    norm: RouteNorm | None = None
    finalises: bool = False
    captures_routes: bool = False


def _stream_of(array: Any) -> int:
    """The handle of the stream that work on the array goes to now; 0 for arrays of the host's."""
    return _streams.stream_source(array)() if _streams.on_cuda(array) else 0


def _copied(rows: Any, out: Any) -> Any:
    """`out`, on a device, with the rows of the host's array."""
    _streams.from_host(rows, out)
    return out


class Runtime:
    """The routed experts of a stack of layers on one rank of a group.

    Every call is collective unless it says otherwise: all ranks make the same calls in the same order, with inputs of
    the same shapes. One thread at a time is inside a runtime. The interpreter's lock is released meanwhile.

    Steps take arrays of the host's memory by DLPack or the buffer protocol, without a copy: contiguous, and read-only
    ones too. bfloat16 may come as its bits (uint16), e4m3 as uint8. T tokens, K routes a token, E experts, H wide:

    ===========  =================  =============================================================
    x            bfloat16 [T, H]    rows; or, for experts that are given quantised rows,
    a            uint8 [T, H/2]     e2m1 codes, and
    a_sf         e4m3 [T, H/16]     their scales, not interleaved
    ids          int32 [T, K]       the routes' experts, -1: not routed; and
    weights      float32 [T, K]     their weights; or
    logits       float32 [T, E]     router logits, from which ``router`` selects, with
    bias         float32 [E]        the selection's bias (left out: the checkpoint's)
    out          bfloat16 [T, H]    where the output goes
    ===========  =================  =============================================================

    What does not fit raises UsageError with the argument's name, got and wanted, before any collective.

    With ``backend="cuda"`` the experts are on the current CUDA device, and ``execute``, ``bind``, ``routed_experts``,
    ``tail`` and ``all_reduce`` take arrays that lie there (all of a step's), without a copy: the work is enqueued on the
    caller's current stream (torch's or cupy's; else the default stream), each rank on its own, and not waited for. Steps
    of a runtime share buffers: on several streams the caller orders them.
    Several ranks: threads of one process. Where ranks are processes, the sums over them are the host's: ``execute`` and
    ``all_reduce`` (and ``execute_block`` anywhere, since blocks are the host's) copy a device's arrays to the host and the
    result back, and wait; ``bind`` and ``routed_experts`` take the host's arrays alone.
    """

    def __init__(self, resident: _kerf.Runtime) -> None:
        """Use ``build`` or ``adopt``."""
        self.resident = resident
        self._hidden = {layer["layer"]: layer["hidden"] for layer in resident.facts()["layers"]}

    @classmethod
    def build(
        cls,
        checkpoint: Checkpoint | Path,
        group: Group | None = None,
        *,
        layers: Iterable[int] = (),
        expert_tp: bool = False,
        ep: int | None = None,
        tp: int | None = None,
        act: str = "nvfp4",
        backend: str = "cpu",
        tail: str = "fast",
        block: str = "none",
        max_tokens: int = 8,
        threads: int = 0,
        uneven: bool = False,
        pad: bool = False,
        probe_limit: float = _kerf.probe_limit,
        all_reduce_width: int = 0,
        all_reduce_backend: str = "auto",
        all_reduce_tps: Sequence[int] = (16,),
        all_reduce: AllReduce | None = None,
        log: Callable[[str, str], None] | None = None,
        progress: Callable[[str, int, int], None] | None = None,
    ) -> Runtime:
        """Loads a checkpoint's experts; with ``expert_tp`` reshards and probes them; plans.

        ``group``: this rank's (left out: one rank). ``layers``: indices, all with routed experts where none are named.
        ``ep``, ``tp``: a grid of rows of ranks. ``act``: what NVFP4 experts are given, "nvfp4" (W4A4) or "bf16"
        (W4A16). ``tail``: "fast", or "exact" (the same bits in every placement). ``block``: "qwen3-moe" or "muse-spark",
        what ``execute_block`` runs around the experts. ``max_tokens``: a step's most tokens. ``threads``: workers of
        this rank (0: its share of the cores). ``uneven``, ``pad``: what may be done about a width that does not fit.
        ``all_reduce_width``: the model's width, where ``all_reduce`` is to be a step of its own at the numbers of ranks
        ``all_reduce_tps``; ``all_reduce``: the engine's own.
        ``log(level, line)`` and ``progress(stage, done, of)`` are called on rank 0. What they raise is raised here: at once
        if it is ``progress``, at the end if it is ``log``, which is called no more then; the other ranks raise UsageError.

        Raises on every rank alike CheckpointError, UnsupportedError, OutOfMemoryError (with the sum, before anything is
        loaded), ProbeError, PeerError, UsageError.
        """

        def prepare() -> tuple[Checkpoint, dict[str, Any]]:
            words = dict(
                layers=list(layers),
                expert_tp=expert_tp,
                ep=ep,
                tp=tp,
                act=act,
                backend=backend,
                tail=tail,
                block=block,
                max_tokens=max_tokens,
                threads=threads,
                uneven=uneven,
                pad=pad,
                probe_limit=probe_limit,
                all_reduce_width=all_reduce_width,
                all_reduce_backend=all_reduce_backend,
                all_reduce_tps=list(all_reduce_tps),
            )
            return _opened(checkpoint), words

        return cls(_kerf.Runtime.build(_rank_of(group), prepare, log, progress, all_reduce))

    @classmethod
    def adopt(
        cls,
        layers: Sequence[StockLayer],
        group: Group | None = None,
        *,
        experts: int,
        top_k: int,
        expert_tp: bool = False,
        ep: int | None = None,
        tp: int | None = None,
        backend: str = "cpu",
        tail: str = "fast",
        max_tokens: int = 8,
        threads: int = 0,
        uneven: bool = False,
        probe_limit: float = _kerf.probe_limit,
        all_reduce_width: int = 0,
        all_reduce_backend: str = "auto",
        all_reduce_tps: Sequence[int] = (16,),
        all_reduce: AllReduce | None = None,
        log: Callable[[str, str], None] | None = None,
    ) -> Runtime:
        """The same over an engine's resident layers, without a checkpoint: its tensors are used where they lie.

        ``experts``: E of the model; ``top_k``: K. Steps with logits want ``router`` to be set. Raises on every rank
        alike UnsupportedError and UsageError, each naming its layers.
        """

        def prepare() -> tuple[list[StockLayer], int, int, dict[str, Any]]:
            words = dict(
                expert_tp=expert_tp,
                ep=ep,
                tp=tp,
                backend=backend,
                tail=tail,
                max_tokens=max_tokens,
                threads=threads,
                uneven=uneven,
                probe_limit=probe_limit,
                all_reduce_width=all_reduce_width,
                all_reduce_backend=all_reduce_backend,
                all_reduce_tps=list(all_reduce_tps),
            )
            return list(layers), experts, top_k, words

        return cls(_kerf.Runtime.adopt(_rank_of(group), prepare, log, all_reduce))

    def _copies(self, array: Any) -> bool:
        """Whether an array on a device goes by way of the host: its experts are there, its steps cannot be."""
        return self.resident.on_device and not self.resident.has_device_steps and _streams.on_cuda(array)

    @property
    def facts(self) -> dict[str, Any]:
        """Local: ``layers`` (kind, sizes, slice), ``memory`` in bytes, ``startup`` in seconds, ``tactic``,
        ``probe_rel_l2`` by layer, ``max_tokens``."""
        return self.resident.facts()

    @property
    def router(self) -> Router:
        """Local: what logits are routed by, the checkpoint's until another is set. UnsupportedError with the reason
        where none computes the checkpoint's, UsageError where none was given."""
        return self.resident.router

    @router.setter
    def router(self, router: Router) -> None:
        self.resident.router = router

    def is_expert_tp(self, layer: int) -> bool:
        """Local: whether the layer has sliced experts here."""
        return any(f["layer"] == layer and f["expert_tp"] for f in self.facts["layers"])

    def is_bf16(self, layer: int) -> bool:
        """Local: whether the layer's experts are BF16."""
        return any(f["layer"] == layer and f["kind"] == "bf16" for f in self.facts["layers"])

    def sliced(self, layer: int) -> Nvfp4Experts:
        """Local: this rank's slices of the layer, in place."""
        return Nvfp4Experts(**self.resident.sliced(layer))

    def stock(self, layer: int) -> Nvfp4Experts | Bf16Experts:
        """Local: this rank's whole experts of the layer, in place."""
        tensors = self.resident.stock(layer)
        return Nvfp4Experts(**tensors) if "w13_sf" in tensors else Bf16Experts(**tensors)

    def warm_up(self) -> None:
        """Runs every layer in every mode once, with routes that reach every rank."""
        self.resident.warm_up()

    def plan(self, layer: int, tokens: int, *, mode: str | None = None) -> StepPlan | None:
        """Local: the tactic of such a step, or None where no body is prepared for it (the public op runs)."""
        return self.resident.plan(layer, tokens, mode)

    def execute(
        self,
        layer: int,
        *,
        x: Tensor | None = None,
        a: Tensor | None = None,
        a_sf: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        logits: Tensor | None = None,
        bias: Tensor | None = None,
        mode: str | None = None,
        tail: str | None = None,
        out: Tensor | None = None,
    ) -> Any:
        """One layer's step: [T, H] bfloat16, the same bits on every rank.

        Into ``out``, or a new array of the rows' kind (torch tensor, numpy array, else kerf.Array). ``mode``: "ep" or
        "tp" (left out: "tp" where this runtime is expert TP). ``tail``: other than what was built for.

        Raises UsageError for arrays that do not fit, more tokens than ``max_tokens``, an id outside [-1, E), a layer,
        mode or tail that is not here; UnsupportedError for quantised rows of a layer that takes bfloat16 ones; PeerError
        where a rank does not come; DeviceError.
        """
        rows = x if x is not None else a
        if out is None:
            shape: tuple[int, ...] = getattr(rows, "shape", ())
            if len(shape) == 2 and layer in self._hidden:
                out = _empty_like(rows, (shape[0], self._hidden[layer]))
        if self._copies(rows):
            given = dict(x=x, a=a, a_sf=a_sf, ids=ids, weights=weights, logits=logits, bias=bias)
            arrays = {name: _streams.to_host(array) for name, array in given.items()}
            return _copied(self.resident.execute(layer, **arrays, mode=mode, tail=tail, out=None), out)
        stream = _stream_of(rows)
        return self.resident.execute(layer, x, a, a_sf, ids, weights, logits, bias, mode, tail, out, stream)

    def bind(
        self,
        layer: int,
        *,
        x: Tensor | None = None,
        a: Tensor | None = None,
        a_sf: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        logits: Tensor | None = None,
        bias: Tensor | None = None,
        mode: str | None = None,
        tail: str | None = None,
        out: Tensor,
    ) -> Step:
        """Local: a step on these very arrays. Calling it runs ``execute`` on what they hold then, and allocates
        nothing. It keeps the arrays alive. On a device it is enqueued on the stream that is current when it is called,
        which may be under capture: a CUDA graph takes the step as its own. Raises what ``execute`` raises of its
        arguments; what a call raises is about ids and ranks."""
        rows = x if x is not None else a
        source = _streams.stream_source(rows) if _streams.on_cuda(rows) else None
        return self.resident.bind(layer, x, a, a_sf, ids, weights, logits, bias, mode, tail, out, source)

    def execute_unprepared(
        self,
        layer: int,
        *,
        x: Tensor | None = None,
        a: Tensor | None = None,
        a_sf: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        logits: Tensor | None = None,
        bias: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Any:
        """A step of more tokens than ``max_tokens``, on whole experts, in buffers made for it alone: [T, H] bfloat16.

        Into ``out`` or a new array of the rows' kind, in the host's memory. Raises what ``execute`` raises, UsageError
        for a layer without whole experts or too many tokens, OutOfMemoryError.
        """
        if out is None:
            rows = x if x is not None else a
            shape: tuple[int, ...] = getattr(rows, "shape", ())
            if len(shape) == 2 and layer in self._hidden and not _streams.on_cuda(rows):
                out = _empty_like(rows, (shape[0], self._hidden[layer]))
        return self.resident.execute_unprepared(layer, x, a, a_sf, ids, weights, logits, bias, out)

    def execute_block(
        self,
        layer: int,
        x: Tensor,
        *,
        mode: str | None = None,
        tail: str | None = None,
        out: Tensor | None = None,
    ) -> Any:
        """The step with the block around it: x [T, D] bfloat16, D the model's width -> [T, D] bfloat16.

        Raises UsageError for a runtime without ``block`` and for arrays that do not fit;
        else what ``execute`` raises.
        """
        if out is None and len(getattr(x, "shape", ())) == 2:
            out = _empty_like(x, (x.shape[0], x.shape[1]))
        if self.resident.on_device and _streams.on_cuda(x):
            return _copied(self.resident.execute_block(layer, _streams.to_host(x), mode, tail, None), out)
        return self.resident.execute_block(layer, x, mode, tail, out)

    def routed_experts(
        self,
        layer: int,
        a: Tensor | None = None,
        a_sf: Tensor | None = None,
        ids: Tensor | None = None,
        weights: Tensor | None = None,
        *,
        x: Tensor | None = None,
        logits: Tensor | None = None,
        bias: Tensor | None = None,
        plan: StepPlan | None = None,
        mode: str | None = None,
        tail: str | None = None,
    ) -> Unfinalized:
        """Local: this rank's rows before the tail, in the runtime's buffers.

        With ``plan`` (of ``plan()``, for this layer and T) the op's body runs from metadata written here; without it the
        public op. Both give the same bits. Slices' rows are K-partials: right only after the sum over ranks. Of arrays
        on a CUDA device the rows lie there, too, behind what the current stream has.

        Raises what ``execute`` raises of arguments, and UsageError for a plan of another layer, mode or T.
        """
        stream = _stream_of(x if x is not None else a)
        return self.resident.routed_experts(layer, x, a, a_sf, ids, weights, logits, bias, plan, mode, tail, stream)

    def routed_experts_bf16(
        self, layer: int, x: Tensor, router_logits: Tensor, *, bias: Tensor | None = None
    ) -> Unfinalized:
        """Local: the same on bfloat16 rows [T, H] and router logits [T, E]: the op routes itself, and a BF16 layer's
        weights are rounded to bfloat16."""
        return self.routed_experts(layer, x=x, logits=router_logits, bias=bias)

    def tail(self, rows: Unfinalized, *, out: Tensor | None = None) -> Any:
        """From every rank's unfinalised rows to [T, H] bfloat16: sums over ranks, norm, weights, the sum over K.

        Without ``out`` the result is in the runtime's own buffer, until the next step; of rows on a CUDA device, a new
        array of the kind that the step's rows had. Raises UsageError for rows of another runtime, rows that a later step
        has overwritten, and an ``out`` that does not fit; PeerError where a rank does not come.
        """
        if not isinstance(rows, Unfinalized):
            raise errors.UsageError(f"rows is {described(rows)}, wanted kerf.Unfinalized")
        if not rows.on_device:
            return self.resident.tail(rows, out)
        if out is None:
            out = _empty_like(rows.given, rows.shape)
        return self.resident.tail(rows, out, _stream_of(rows.given))

    def all_reduce(self, x: Tensor, *, out: Tensor | None = None) -> Any:
        """The sum over ranks of bfloat16 [b, model width], b at most ``max_tokens``; ``out`` may be ``x``.

        On a CUDA device the ranks' values are added up there, in the same order (the model's width a multiple of 8), or
        the engine's own ``all_reduce`` is called with arrays that lie there. Raises UnsupportedError, with the numbers of
        ranks that have this step, where this one has not; UsageError for another width or more rows; PeerError.
        """
        if out is None and len(getattr(x, "shape", ())) == 2:
            out = _empty_like(x, (x.shape[0], x.shape[1]))
        if self._copies(x) and not self.resident.has_engine_sum:
            return _copied(self.resident.all_reduce(_streams.to_host(x), None), out)
        return self.resident.all_reduce(x, out, _stream_of(x))

    def refill(
        self, source: StockLayer | Checkpoint | Path, layer: int | None = None
    ) -> dict[str, Any]:
        """New weights for one layer, between steps, at the addresses of the old ones: all ranks have them or none.

        ``source``: a checkpoint of the same model (then ``layer`` says which), or an engine's layer. Returns ``layer``,
        ``bytes``, ``rel_l2`` of the probe (None: nothing is sliced) and seconds. Raises, with the old weights in place,
        UsageError for another model, kind or width, CheckpointError, ProbeError, OutOfMemoryError, PeerError; TypeError
        for a checkpoint without ``layer``.
        """

        def prepare() -> tuple[int | None, StockLayer | Checkpoint]:
            if isinstance(source, StockLayer):
                if layer is not None and layer != source.index:
                    raise errors.UsageError(f"layer is {layer}, the source's index {source.index}")
                return None, source
            if layer is None:
                raise TypeError("refill from a checkpoint wants a layer")
            return layer, _opened(source)

        return self.resident.refill(prepare)


def _opened(checkpoint: Checkpoint | Path) -> Checkpoint:
    return checkpoint if isinstance(checkpoint, Checkpoint) else Checkpoint.open(checkpoint)


def _rank_of(group: Group | None) -> Group:
    return _kerf.local_groups(1, 60.0)[0] if group is None else group
