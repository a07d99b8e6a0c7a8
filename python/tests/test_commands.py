"""The commands as functions: the program's reports and the program's words."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys

import pytest

import kerf


def same(mine: object, theirs: object) -> None:
    assert json.dumps(mine) == json.dumps(theirs)


def test_env_is_the_programs(run_program) -> None:
    code, theirs, _ = run_program("env", "--json")
    assert code == 0
    mine = kerf.env()
    for report in (mine, theirs):
        # What differs between the two builds, and what a launcher of one of them may have set.
        for key in ("options", "launch"):
            report.pop(key)
    same(mine, theirs)
    assert kerf.__version__ == theirs["version"]
    assert list(mine["variables"]) == [v for v in theirs["variables"]]


def test_inspect_verify_and_plan_are_the_programs(run_program, checkpoint: pathlib.Path) -> None:
    same(kerf.inspect(checkpoint), run_program("inspect", checkpoint, "--json")[1])
    same(kerf.inspect(checkpoint, headers=True), run_program("inspect", checkpoint, "--json", "--headers")[1])
    same(kerf.verify(checkpoint), run_program("verify", checkpoint, "--json")[1])
    same(
        kerf.plan(checkpoint, ranks=4, batch=16, act="bf16", pad=True),
        run_program(
            "plan", checkpoint, "--json", "--ranks", 4, "--batch", 16, "--act", "bf16", "--pad"
        )[1],
    )
    same(
        kerf.plan(experts=256, hidden=4096, intermediate=4096, layers=62, bf16_layers=[0, 61], top_k=8, ranks=8),
        run_program(
            *"plan --json --experts 256 --hidden 4096 --intermediate 4096 --layers 62".split(),
            *"--bf16-layers 0,61 --top-k 8 --ranks 8".split(),
        )[1],
    )


def spoil(checkpoint: pathlib.Path, to: pathlib.Path) -> pathlib.Path:
    """A copy with an input scale of zero."""
    shutil.copytree(checkpoint, to)
    for shard in sorted(to.glob("*.safetensors")):
        data = bytearray(shard.read_bytes())
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size])
        for name, entry in header.items():
            if name.endswith("experts.3.down_proj.input_scale"):
                begin = 8 + size + entry["data_offsets"][0]
                data[begin : begin + 4] = bytes(4)
                shard.write_bytes(data)
                return to
    raise AssertionError("no input scale to spoil")


def test_verify_raises_with_the_report(run_program, checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    bad = spoil(checkpoint, tmp_path / "bad")
    code, report, text = run_program("verify", bad, "--json")
    assert code == 3
    with pytest.raises(kerf.CheckpointError) as caught:
        kerf.verify(bad)
    assert str(caught.value) == text
    assert caught.value.exit_code == 3
    assert caught.value.report is not None
    same(caught.value.report, report)
    assert report["faults_total"] >= 1


@pytest.mark.parametrize(
    ("words", "call", "kind"),
    [
        (["inspect", "/nowhere"], lambda: kerf.inspect("/nowhere"), kerf.CheckpointError),
        (
            "plan --experts 8 --hidden 100 --intermediate 128".split(),
            lambda: kerf.plan(experts=8, hidden=100, intermediate=128),
            kerf.UnsupportedError,
        ),
        (
            "plan --experts 8 --hidden 256 --intermediate 256 --ranks 3".split(),
            lambda: kerf.plan(experts=8, hidden=256, intermediate=256, ranks=3),
            kerf.UnsupportedError,
        ),
        (["plan"], lambda: kerf.plan(), kerf.UsageError),
        (
            "plan --experts 8 --hidden 256 --intermediate 256 --tail slow".split(),
            lambda: kerf.plan(experts=8, hidden=256, intermediate=256, tail="slow"),
            kerf.UsageError,
        ),
        (
            "plan --experts 8 --hidden 256 --intermediate 256 --backend gpu".split(),
            lambda: kerf.plan(experts=8, hidden=256, intermediate=256, backend="gpu"),
            kerf.UsageError,
        ),
    ],
)
def test_errors_have_the_programs_words_and_kinds(run_program, words, call, kind) -> None:
    code, _, text = run_program(*words)
    with pytest.raises(kerf.Error) as caught:
        call()
    assert type(caught.value) is kind
    assert caught.value.exit_code == code
    assert str(caught.value) == text


def test_kinds_are_the_programs_exit_codes() -> None:
    kinds = {c.__name__: c.exit_code for c in kerf.Error.__subclasses__()}
    assert kinds == {
        "UsageError": 2,
        "CheckpointError": 3,
        "UnsupportedError": 4,
        "PeerError": 5,
        "ProbeError": 6,
        "OutOfMemoryError": 7,
        "DeviceError": 8,
        "BugError": 70,
    }
    assert kerf.GroupFailed.exit_code == 5


def test_messages_go_to_the_callers_log(checkpoint: pathlib.Path) -> None:
    lines: list[tuple[str, str]] = []
    kerf.decode(checkpoint, ranks=2, batch=[1], seconds=0, log=lambda level, line: lines.append((level, line)))
    assert any("expert TP over 2 ranks" in line for level, line in lines if level == "info")


def test_what_a_log_raises_comes_out(checkpoint: pathlib.Path) -> None:
    class Enough(Exception):
        pass

    calls = 0

    def log(level: str, line: str) -> None:
        nonlocal calls
        calls += 1
        raise Enough(line)

    with pytest.raises(Enough, match="."):
        kerf.decode(checkpoint, ranks=2, batch=[1], seconds=0, log=log)
    assert calls == 1, "a log that raised is called no more"
    with pytest.raises(KeyboardInterrupt):
        kerf.decode(checkpoint, batch=[1], seconds=0, log=lambda *_: (_ for _ in ()).throw(KeyboardInterrupt()))


def test_paths_are_any_bytes(run_program, checkpoint: pathlib.Path, tmp_path: pathlib.Path) -> None:
    named = os.fsencode(tmp_path) + b"/caf\xe9, and more"
    os.symlink(checkpoint, named)
    wanted = kerf.inspect(checkpoint)
    for path in (named, os.fsdecode(named), pathlib.Path(os.fsdecode(named))):
        report = kerf.inspect(path)
        assert report["experts"] == wanted["experts"] == 16
    export = named + b".export"
    kerf.export(named, export, ranks=2)
    assert os.path.isdir(export)
    assert kerf.verify(export, source=named)["faults_total"] == 0
    with pytest.raises(kerf.CheckpointError) as caught:
        kerf.inspect(named + b"/no")
    ran = subprocess.run(
        [sys.executable, "-m", "kerf", "inspect", named + b"/no"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert ran.returncode == 3 and ran.stderr.decode() == f"kerf: error: {caught.value}\n"
    assert "/caf\\xE9, and more/no: no such directory" in str(caught.value)
    with pytest.raises(kerf.UsageError, match="null character"):
        kerf.inspect(b"/tmp\0/junk")


def test_the_module_is_the_program_too(checkpoint: pathlib.Path, run_program) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "kerf", "plan", str(checkpoint), "--json"], capture_output=True, text=True
    )
    assert ran.returncode == 0
    same(json.loads(ran.stdout), run_program("plan", checkpoint, "--json")[1])
    ran = subprocess.run([sys.executable, "-m", "kerf", "plan", "/nowhere"], capture_output=True, text=True)
    assert ran.returncode == 3
    assert ran.stderr.startswith("kerf: error: ")


def test_the_module_writes_what_the_program_writes(checkpoint: pathlib.Path, program: str, tmp_path) -> None:
    bad = str(spoil(checkpoint, tmp_path / "bad"))
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    os.symlink(checkpoint, odd)
    lines = (
        ["verify", bad], ["verify", bad, "--json"], ["plan"], ["inspect", "/nowhere"], ["inspect", "/no\nwhere"],
        ["inspect", odd], ["inspect", odd, "--json"], ["inspect", odd + b"/no"],
        ["plan", "--experts", "-1"], ["inspect"], ["inspect", "--nothing", bad], ["fly"], [], ["--version"], ["--help"],
    )  # fmt: skip
    for words in lines:
        mine = subprocess.run([sys.executable, "-m", "kerf", *words], capture_output=True)
        theirs = subprocess.run([program, *words], capture_output=True)
        assert (mine.returncode, mine.stdout, mine.stderr) == (theirs.returncode, theirs.stdout, theirs.stderr), words
    ran = subprocess.run([sys.executable, "-m", "kerf", "inspect"], capture_output=True, text=True)
    assert ran.returncode == 2 and ran.stderr.endswith("\nRun kerf --help, or kerf COMMAND --help.\n")
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "kerf", "plan", str(checkpoint)], stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert ran.returncode == 1
    assert ran.stderr == "kerf: error: cannot write to standard output: No space left on device\n"
