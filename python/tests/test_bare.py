"""What must work where there is neither numpy nor torch. `python test_bare.py` runs it without pytest, too."""

from __future__ import annotations

import pathlib
import subprocess
import tempfile

import kerf
from kerf import _kerf


def test_commands_and_a_step_without_numpy_or_torch() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "c"
        kerf.synth(path, model="tiny")
        assert kerf.inspect(path)["experts"] == 8
        assert kerf.verify(path)["faults_total"] == 0
        assert kerf.plan(path, ranks=2)["legal_tp"] == [1, 2]
        runtime = kerf.Runtime.build(path)
        inputs = kerf.decode_inputs(1, 2, "nvfp4", experts=8, hidden=256, top_k=2)
        out = kerf.empty([2, 256], "bfloat16")
        assert runtime.execute(1, **inputs, out=out) is out
        assert any(out.tobytes())
        assert memoryview(out).shape == (2, 256)
        assert memoryview(out).format == "H"


def test_versions_are_one() -> None:
    assert kerf.__version__ == kerf.env()["version"]


def test_the_module_shows_nothing_but_its_entry() -> None:
    names = subprocess.run(
        ["nm", "-D", "--defined-only", "--format=posix", _kerf.__file__], check=True, capture_output=True, text=True
    )
    assert [line.split()[0] for line in names.stdout.splitlines()] == ["PyInit__kerf"]


if __name__ == "__main__":
    import sys

    test_commands_and_a_step_without_numpy_or_torch()
    test_versions_are_one()
    test_the_module_shows_nothing_but_its_entry()
    for name in ("numpy", "torch"):
        assert name not in sys.modules, name
    print("without numpy and torch: fine")
