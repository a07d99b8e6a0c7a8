#!/usr/bin/env python3
"""Checks docs/parity.md: a row for every part, and every test that a row names exists.

  check_parity.py [ROOT]       exit 1 and one line a fault
  check_parity.py --self-test  plants every kind of fault and expects it to be found

A row is '| A1 | ... |'. A test is written as Suite.Name, in backquotes or bare; Suite.* means every test of a suite.
A row without any test must say "not yet".
"""
import pathlib
import re
import sys
import tempfile

import checks

IDS = [f"A{i}" for i in range(1, 10)] + [f"B{i}" for i in range(1, 28)]
ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|(.*)$")
# Suite.Name: both begin with a capital, so that file names and versions are no tests.
NAMED = re.compile(r"(?<![\w./-])([A-Z]\w+)\.([A-Z]\w*|\*)(?![\w/])")
DEFINED = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\s*\(\s*(\w+)\s*,\s*(\w+)")


def check(root):
    path = root / "docs" / "parity.md"
    if not path.is_file():
        return ["docs/parity.md: missing"]
    tests = set()
    for source in sorted((root / "tests").rglob("*.cc")):
        tests.update(DEFINED.findall(source.read_text(errors="replace")))
    suites = {suite for suite, _ in tests}
    faults, rows = [], {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = ROW.match(line)
        if not match:
            continue
        where = f"docs/parity.md:{number}: {match[1]}"
        if match[1] in rows:
            faults.append(f"{where}: a second row (the first is line {rows[match[1]]})")
        rows.setdefault(match[1], number)
        named = NAMED.findall(match[2])
        for suite, name in named:
            if name == "*" and suite not in suites:
                faults.append(f"{where}: no suite {suite} in tests/")
            elif name != "*" and (suite, name) not in tests:
                faults.append(f"{where}: no test {suite}.{name} in tests/")
        if not named and "not yet" not in match[2].lower():
            faults.append(f"{where}: names no test and does not say \"not yet\"")
    faults += [f"docs/parity.md: no row for {i}" for i in IDS if i not in rows]
    return faults


def self_test():
    test = "TEST(Cut, IsExact) {}\nRC_GTEST_PROP(Cut, AnyShape, (int x)) {}\n"
    rows = [f"| {i} | part | kerf/layout/slice.h | `Cut.IsExact` |" for i in IDS]
    cases = [
        ("a sound page", rows, None),
        ("a property and a suite", [rows[0].replace("IsExact`", "AnyShape`, `Cut.*`")] + rows[1:], None),
        ("not yet", [f"| {IDS[0]} | part | - | not yet |"] + rows[1:], None),
        ("a missing row", rows[1:], "no row for A1"),
        ("a missing last row", rows[:-1], "no row for B27"),
        ("a row twice", rows + rows[:1], "a second row"),
        ("a test that is not there", [rows[0].replace("IsExact", "IsGone")] + rows[1:], "no test Cut.IsGone"),
        ("a suite that is not there", [rows[0].replace("Cut.IsExact", "Gone.*")] + rows[1:], "no suite Gone"),
        ("a row without a test", [f"| {IDS[0]} | part | slice.h | |"] + rows[1:], "names no test"),
        ("no page", None, "docs/parity.md: missing"),
    ]
    failed = 0
    for what, page, words in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tests").mkdir()
            (root / "tests" / "cut_test.cc").write_text(test)
            if page is not None:
                (root / "docs").mkdir()
                (root / "docs" / "parity.md").write_text("# Parity\n\n" + "\n".join(page) + "\n")
            faults = check(root)
        if (words is None and faults) or (words is not None and not any(words in f for f in faults)):
            failed += 1
            print(f"{what}: wanted {words!r}, got", *faults, sep="\n  ")
    print(f"parity self-test: {len(cases) - failed} of {len(cases)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(checks.main(sys.argv[1:], "parity", __doc__, check, self_test, f"{len(IDS)} rows, no faults"))
