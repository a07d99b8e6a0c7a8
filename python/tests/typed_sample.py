"""What users write, for the type checker alone (test_typing.py): every line of it must pass mypy --strict."""

from __future__ import annotations

import os
from typing import Any

import numpy

import kerf


def commands(path: bytes, folder: os.PathLike[bytes]) -> list[int]:
    report = kerf.inspect(path)
    kerf.verify(folder, source=path, log=lambda level, line: print(level.upper(), line))
    legal: list[int] = report["legal_tp"]
    return legal


def flashinfer(runtime: kerf.Runtime) -> dict[str, Any]:
    arguments = kerf.flashinfer.nvfp4_arguments(runtime.stock(0), num_experts=4, top_k=2)
    return kerf.flashinfer.tp_arguments(arguments, runtime.sliced(0))


def steps(runtime: kerf.Runtime) -> tuple[int, ...]:
    inputs = kerf.decode_inputs(0, 1, "nvfp4", experts=4, hidden=128, top_k=2)
    runtime.router = kerf.Router("renormalize", experts=4, top_k=2)
    ids, weights = runtime.router.select(numpy.zeros((1, 4), numpy.float32))
    runtime.execute(0, x=inputs["x"], ids=ids, weights=weights)
    rows = runtime.routed_experts(0, **inputs)
    in_order, local = kerf.expert_tp.route_rows(rows.rows, rows.map)
    assert local.all() and in_order.any()
    return rows.rows.shape


def arrays(rows: kerf.Array, path: bytes) -> int:
    copy = numpy.from_dlpack(rows)
    assert memoryview(rows).nbytes == len(bytes(rows))
    return int(copy.size) + kerf.Checkpoint.open(path).experts


def experts(x: kerf.Array) -> kerf.Nvfp4Experts:
    codes, scales, scale = kerf.quantize_nvfp4(x)
    one = numpy.ones(1, numpy.float32)
    return kerf.convert(
        codes, codes, codes, gate_sf=scales, up_sf=scales, down_sf=scales,
        gate_scale=one, up_scale=one, down_scale=one, input_scale=scale, intermediate_scale=scale,
    )  # fmt: skip


def tp(group: kerf.Group, stock: kerf.Nvfp4Experts) -> float:
    if (why := kerf.expert_tp.agree(group, kerf.expert_tp.unsupported(stock, group.size))) is not None:
        raise kerf.UnsupportedError(why)
    return sum(shape[1] for shape in kerf.expert_tp.final_shapes(stock, group.size, 4)) / 2
