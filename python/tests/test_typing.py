"""Users' programs pass mypy --strict."""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys

import pytest

SAMPLE = pathlib.Path(__file__).with_name("typed_sample.py")


def check(text: str, tmp_path: pathlib.Path) -> tuple[int, str]:
    file = tmp_path / "sample.py"
    file.write_text(text)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    return ran.returncode, ran.stdout


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed here")
def test_a_users_program_is_well_typed(tmp_path) -> None:
    text = SAMPLE.read_text()
    code, said = check(text, tmp_path)
    assert code == 0, said
    # The check would see an error.
    code, said = check(text.replace('report["legal_tp"]', "kerf.__version__"), tmp_path)
    assert code == 1 and "Incompatible types in assignment" in said, said
