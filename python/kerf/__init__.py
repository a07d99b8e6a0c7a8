"""kerf: the routed experts of mixture-of-experts decode, from Python."""

from __future__ import annotations

from kerf import _kerf, expert_tp, flashinfer, group
from kerf._kerf import Array, Checkpoint, Group, Router, Step, StepPlan, Unfinalized, decode_inputs, empty, routing_methods
from kerf.commands import decode, env, export, inspect, plan, synth, verify
from kerf.errors import (
    BugError,
    CheckpointError,
    DeviceError,
    Error,
    GroupFailed,
    OutOfMemoryError,
    PeerError,
    ProbeError,
    UnsupportedError,
    UsageError,
)
from kerf.experts import (
    Bf16Experts,
    Nvfp4Experts,
    Nvfp4Tensor,
    convert,
    convert_bf16,
    dequantize_nvfp4,
    quantize_nvfp4,
)
from kerf.group import run_ranks
from kerf.runtime import RouteNorm, Runtime, StockLayer

__version__: str = _kerf.version
#: The converted layout's name and version, as exports have it.
layout: str = _kerf.layout

__all__ = [
    "Array",
    "Bf16Experts",
    "BugError",
    "Checkpoint",
    "CheckpointError",
    "DeviceError",
    "Error",
    "Group",
    "GroupFailed",
    "Nvfp4Experts",
    "Nvfp4Tensor",
    "OutOfMemoryError",
    "PeerError",
    "ProbeError",
    "RouteNorm",
    "Router",
    "Runtime",
    "Step",
    "StepPlan",
    "StockLayer",
    "Unfinalized",
    "UnsupportedError",
    "UsageError",
    "convert",
    "convert_bf16",
    "decode",
    "decode_inputs",
    "dequantize_nvfp4",
    "empty",
    "env",
    "expert_tp",
    "export",
    "flashinfer",
    "group",
    "inspect",
    "layout",
    "plan",
    "quantize_nvfp4",
    "routing_methods",
    "run_ranks",
    "synth",
    "verify",
]
