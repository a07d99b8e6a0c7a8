"""The commands that report, as functions: each returns what the command line prints under ``--json``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, Union

from kerf import _kerf, errors

Path = Union[str, "os.PathLike[str]"]
Report = dict[str, Any]
#: Called with a level ("debug", "info" or "warning") and a line.
Log = Callable[[str, str], None]


def _words(options: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        if isinstance(value, (list, tuple, range)):
            value = ",".join(str(v) for v in value)
        words.append(os.fspath(value) if isinstance(value, os.PathLike) else str(value))
    return words


def run(arguments: Iterable[Path], log: Log | None = None) -> str:
    """Runs a command of the program in this process, as ``kerf ARGUMENTS`` would, and returns what it writes.

    Messages go to ``log``. Failures raise :class:`kerf.Error`; what was written before is its ``report``,
    where that is JSON. The interpreter's lock is released meanwhile.
    """
    text: str
    text, code, why = _kerf.run_command([os.fspath(a) for a in arguments], log)
    if code is None:
        return text
    error = errors.of_kind(code, why)
    error.written = text
    if text.startswith("{"):
        error.report = json.loads(text)
    raise error


def _report(command: str, *paths: Path, log: Log | None, **options: Any) -> Report:
    places = [os.fspath(p) for p in paths]
    # A path is never taken for an option.
    text = run([command, "--json", *_words(options), *(["--", *places] if places else [])], log)
    report: Report = json.loads(text)
    return report


def env() -> Report:
    """Versions, backends, groups, what this build lacks and why, ``KERF_*`` variables: ``kerf env --json``."""
    return _report("env", log=None)


def inspect(checkpoint: Path, *, headers: bool = False, log: Log | None = None) -> Report:
    """What a checkpoint (or an export) holds: dialect, shapes, scales, blocks of zeros, bytes, faults.

    ``headers``: headers and global scales alone, no block is read. Raises CheckpointError where it cannot be
    opened; faults that are found are in the report (``faults``, ``faults_total``).
    """
    return _report("inspect", checkpoint, log=log, headers=headers)


def verify(checkpoint: Path, *, source: Path | None = None, log: Log | None = None) -> Report:
    """Checks shapes and all scales, block scales included; of an export, digests and values.

    ``source``: of an export, the checkpoint that it was made of, which is read whole and compared.
    Raises CheckpointError where there are faults; its ``report`` lists them.
    """
    return _report("verify", checkpoint, log=log, source=source)


def plan(
    checkpoint: Path | None = None,
    *,
    ranks: int | None = None,
    ep: int | None = None,
    tp: int | None = None,
    experts: int | None = None,
    hidden: int | None = None,
    intermediate: int | None = None,
    layers: int | None = None,
    bf16_layers: Iterable[int] | str | None = None,
    top_k: int | None = None,
    batch: int = 8,
    act: str = "nvfp4",
    backend: str | None = None,
    device: str = "cpu",
    tail: str = "fast",
    uneven: bool = False,
    pad: bool = False,
    log: Log | None = None,
) -> Report:
    """Bytes that each rank will hold, EP and expert TP, by kind and by stage; which tp and ep are legal.

    Of a checkpoint, its config alone, or sizes: ``experts`` E, ``hidden`` H, ``intermediate`` I, ``top_k`` K.
    ``batch``: tokens of the largest step. Allocates nothing. Raises UnsupportedError where there can be no such
    decode, with the legal values.
    """
    if bf16_layers is not None and not isinstance(bf16_layers, str):
        bf16_layers = ",".join(str(layer) for layer in bf16_layers) or "none"
    return _report(
        "plan",
        *([] if checkpoint is None else [checkpoint]),
        log=log,
        ranks=ranks,
        ep=ep,
        tp=tp,
        experts=experts,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        bf16_layers=bf16_layers,
        top_k=top_k,
        batch=batch,
        act=act,
        backend=backend,
        device=device,
        tail=tail,
        uneven=uneven,
        pad=pad,
    )


def decode(
    checkpoint: Path,
    *,
    ranks: int | None = None,
    ep: int | None = None,
    tp: int | None = None,
    mode: str | None = None,
    batch: Iterable[int] = (1, 8),
    layers: Iterable[int] | None = None,
    seed: int = 1,
    seconds: float = 2.0,
    act: str = "nvfp4",
    backend: str | None = None,
    device: str = "cpu",
    tail: str = "fast",
    block: str = "none",
    threads: int | None = None,
    uneven: bool = False,
    pad: bool = False,
    log: Log | None = None,
) -> Report:
    """The main job on ranks that are threads of this process: build, reshard, probe, and measured steps.

    ``mode``: "ep", "tp" or "both" (left out: both, as far as there is anything to cut). ``batch``: tokens of
    the steps. ``seconds``: about how long each mode and batch is measured. Times of steps are in microseconds a
    layer; ``output_sha256`` digests the outputs that ``seed`` gives.
    """
    return _report(
        "decode",
        checkpoint,
        log=log,
        ranks=ranks,
        ep=ep,
        tp=tp,
        mode=mode,
        batch=list(batch),
        layers=None if layers is None else list(layers),
        seed=seed,
        seconds=seconds,
        act=act,
        backend=backend,
        device=device,
        tail=tail,
        block=block,
        threads=threads,
        uneven=uneven,
        pad=pad,
    )


def export(
    checkpoint: Path,
    directory: Path,
    *,
    ranks: int | None = None,
    ep: int | None = None,
    tp: int | None = None,
    expert_tp: bool = False,
    uneven: bool = False,
    pad: bool = False,
    log: Log | None = None,
) -> Report:
    """Writes the experts in the converted layout, one file a rank, for starts that convert nothing."""
    return _report(
        "export",
        checkpoint,
        directory,
        log=log,
        ranks=ranks,
        ep=ep,
        tp=tp,
        expert_tp=expert_tp,
        uneven=uneven,
        pad=pad,
    )


def synth(
    directory: Path,
    *,
    model: str = "muse-spark",
    experts: int | None = None,
    hidden: int | None = None,
    intermediate: int | None = None,
    layers: int | None = None,
    top_k: int | None = None,
    bf16_layers: Iterable[int] | str | None = None,
    seed: int = 1,
    log: Log | None = None,
) -> Report:
    """Writes a made-up checkpoint of any size under real tensor names: the same seed gives the same bytes."""
    if bf16_layers is not None and not isinstance(bf16_layers, str):
        bf16_layers = ",".join(str(layer) for layer in bf16_layers) or "none"
    return _report(
        "synth",
        directory,
        log=log,
        model=model,
        experts=experts,
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        top_k=top_k,
        bf16_layers=bf16_layers,
        seed=seed,
    )
