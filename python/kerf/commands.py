"""The commands that report, as functions: each returns what the command line prints under ``--json``.

All of them raise the program's errors by kind (kerf.errors), with the program's texts, UsageError for options that make no
sense among them, and what a ``log`` raises as it is. Paths may be bytes, and need not be UTF-8.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from typing import Any, Union

from kerf import _kerf, errors

#: Any bytes that the system takes for a path: str as os.fsdecode gives it, bytes, or what has __fspath__.
Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]
Report = dict[str, Any]
#: Called with a level ("debug", "info" or "warning") and a line.
Log = Callable[[str, str], None]


def _word(value: Any) -> str:
    return os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)


def _words(options: dict[str, Any]) -> list[str]:
    words: list[str] = []
    for name, value in options.items():
        if value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is True:
            continue
        words.append(",".join(map(_word, value)) if isinstance(value, (list, tuple, range)) else _word(value))
    return words


def attempt(arguments: Iterable[Path], log: Log | None = None) -> tuple[str, errors.Error | None, bool]:
    """Runs a command of the program in this process, as ``kerf ARGUMENTS`` would: what it wrote, the error that it
    ended with or None, and whether ``kerf --help`` would have said it.

    Raises what ``log`` raises, and UsageError for an argument with a null character. The interpreter's lock is released
    meanwhile.
    """
    text, code, why, hint = _kerf.run_command([os.fsencode(a) for a in arguments], log)
    if code is None:
        return text, None, False
    error = errors.of_kind(code, why or "")
    error.written = text
    if text.startswith("{"):
        error.report = json.loads(text)
    return text, error, hint


def run(arguments: Iterable[Path], log: Log | None = None) -> str:
    """The same; returns what the command writes.

    Messages go to ``log``. Raises :class:`kerf.Error` of the failure's kind: its ``written`` is what was written before, its
    ``report`` the same where that is JSON; and what ``log`` raises, as it is.
    """
    text, error, _ = attempt(arguments, log)
    if error is not None:
        raise error
    return text


def _report(command: str, *paths: Path, log: Log | None, **options: Any) -> Report:
    # A path is never taken for an option.
    text = run([command, "--json", *_words(options), *(["--", *paths] if paths else [])], log)
    report: Report = json.loads(text)
    return report


def env() -> Report:
    """Versions, backends, groups, what this build lacks and why, ``KERF_*`` variables: ``kerf env --json``.

    ``KERF_*`` variables are shown as they are, also what a start would refuse. Raises nothing for them.
    """
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
    decode, with the legal values; UsageError for sizes that are missing or make no sense; CheckpointError for a config
    that cannot be read.
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
    the steps. ``seconds``: the longest that each mode and batch is measured, roughly. Times of steps are in microseconds a
    layer; ``output_sha256`` digests the outputs that ``seed`` gives.

    Raises UsageError for options that make no sense or are not together, CheckpointError for damaged files,
    UnsupportedError for what cannot be cut or run (with the legal values), OutOfMemoryError (with the sum, before anything
    is loaded), ProbeError where slices do not compute what whole experts do, DeviceError.
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
    """Writes the experts in the converted layout, one file a rank, for starts that convert nothing.

    ``directory``: where to; an earlier export there stays until the new one is whole. ``expert_tp``: slices instead of
    whole experts. Returns what was written: files, bytes, digests.

    Raises CheckpointError for damaged files, UnsupportedError for what the layout cannot hold or cannot be cut (with the
    legal values), ProbeError for slices that do not compute what whole experts do, OutOfMemoryError, and UsageError for
    options that make no sense and for a file that cannot be written.
    """
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
    """Writes a made-up checkpoint of any size under real tensor names: the same seed gives the same bytes.

    ``model``: whose names and config, of which the sizes ``experts`` E, ``hidden`` H, ``intermediate`` I, ``top_k`` K and
    ``layers`` may be other ones. ``bf16_layers``: indices of the layers with BF16 experts ([]: none).

    Raises UsageError for sizes and models that there are not and for a file that cannot be written, UnsupportedError for
    sizes that the layout cannot hold.
    """
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
