"""What the tests share: a small checkpoint, the golden vectors, the program."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import tarfile

import pytest

import kerf

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """16 experts of 256 x 256, top 4, 3 layers of which the first is BF16; it can be cut 2 and 4 ways."""
    path = tmp_path_factory.mktemp("checkpoint") / "c"
    kerf.synth(path, model="qwen3-moe", experts=16, hidden=256, intermediate=256, layers=3, top_k=4, bf16_layers=[0])
    return path


@pytest.fixture(scope="session")
def program() -> str:
    """The program that the checkout's release build made, of the same version."""
    path = pathlib.Path(os.environ.get("KERF_PROGRAM", ROOT / "build/release/bin/kerf"))
    if not path.is_file():
        pytest.skip(f"there is no program at {path}: build it, or name one in KERF_PROGRAM")
    return str(path)


@pytest.fixture(scope="session")
def run_program(program: str):
    """Runs the program: exit code, what it reports (JSON where there is any), the text of its error."""

    def run(*arguments: object):
        ran = subprocess.run([program, *map(str, arguments)], capture_output=True, text=True)
        error = [line.removeprefix("kerf: error: ") for line in ran.stderr.splitlines() if "error: " in line]
        report = json.loads(ran.stdout) if ran.stdout.startswith("{") else None
        return ran.returncode, report, "\n".join(error)

    return run


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory):
    """golden(name): a vector that an independent implementation made (tests/golden/vectors.tar.xz)."""
    numpy = pytest.importorskip("numpy")
    archive = ROOT / "tests/golden/vectors.tar.xz"
    folder = tmp_path_factory.mktemp("golden")
    with tarfile.open(archive) as tar:
        tar.extractall(folder)  # the checkout's own
    return lambda name: numpy.load(folder / "golden" / f"{name}.npy")
