"""Users' programs pass mypy --strict."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import site
import subprocess
import sys

import pytest

import kerf

SAMPLE = pathlib.Path(__file__).with_name("typed_sample.py")


def check(text: str, tmp_path: pathlib.Path) -> tuple[int, str]:
    file = tmp_path / "sample.py"
    file.write_text(text)
    root = pathlib.Path(kerf.__file__).parents[1]
    variables = dict(os.environ)
    if str(root) not in site.getsitepackages():
        variables["MYPYPATH"] = str(root)
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)],
        capture_output=True, text=True, cwd=tmp_path, env=variables,
    )  # fmt: skip
    return ran.returncode, ran.stdout


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="mypy is not installed here")
def test_a_users_program_is_well_typed(tmp_path) -> None:
    text = SAMPLE.read_text()
    code, said = check(text, tmp_path)
    assert code == 0, said
    # The check would see an error.
    code, said = check(text.replace('report["legal_tp"]', "kerf.__version__"), tmp_path)
    assert code == 1 and "incompatible type" in said.lower().replace("incompatible types", "incompatible type"), said
