#!/usr/bin/env python3
"""Checks that the program in README.md is the example that the tests build and run.

  check_readme.py [ROOT]       exit 1 and one line a fault
  check_readme.py --self-test  plants a difference and expects it to be found
"""
import pathlib
import re
import sys
import tempfile

import checks

EXAMPLE = "examples/00_ten_lines.cc"
BLOCK = re.compile(r"^```cpp\n(.*?)^```", re.M | re.S)


def check(root):
    page, example = root / "README.md", root / EXAMPLE
    missing = [f"{p.name}: missing" for p in (page, example) if not p.is_file()]
    if missing:
        return missing
    blocks = BLOCK.findall(page.read_text())
    if len(blocks) != 1:
        return [f"README.md: {len(blocks)} C++ programs, wanted the one of {EXAMPLE}"]
    return [] if blocks[0] == example.read_text() else [f"README.md: its program differs from {EXAMPLE}"]


def self_test():
    cases = [
        ("the same", "```cpp\nint x;\n```\n", None),
        ("another program", "```cpp\nint y;\n```\n", "differs"),
        ("no program", "words\n", "0 C++ programs"),
        ("two programs", "```cpp\nint x;\n```\n```cpp\nint x;\n```\n", "2 C++ programs"),
    ]
    failed = 0
    for what, page, words in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "examples").mkdir()
            (root / EXAMPLE).write_text("int x;\n")
            (root / "README.md").write_text(page)
            faults = check(root)
        if (words is None and faults) or (words is not None and not any(words in f for f in faults)):
            failed += 1
            print(f"{what}: wanted {words!r}, got", *faults, sep="\n  ")
    print(f"readme self-test: {len(cases) - failed} of {len(cases)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(checks.main(sys.argv[1:], "readme", __doc__, check, self_test, "no faults"))
