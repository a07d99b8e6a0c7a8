"""The programs of README.md and docs/python.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from conftest import ROOT

import kerf

BLOCK = re.compile(r"^```python\n(.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_first_program_runs(page, tmp_path) -> None:
    if page != "README.md":
        pytest.importorskip("numpy")
    program = BLOCK.findall((ROOT / page).read_text())[0]
    assert len([line for line in program.splitlines() if line.strip()]) <= 16
    kerf.synth(tmp_path / "tiny", model="tiny")
    ran = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
