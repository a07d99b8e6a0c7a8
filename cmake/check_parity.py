#!/usr/bin/env python3
"""Checks docs/parity.md and docs/beyond.md: a row for every part, and every test and file that a row names exists.

  check_parity.py [ROOT]       exit 1 and one line a fault
  check_parity.py --self-test  plants every kind of fault and expects it to be found

A row is '| A1 | ... |'. A test is written as Suite.Name, in backquotes or bare; Suite.* means every test of a suite.
A row of parity.md without any test must say "not yet".
"""
import pathlib
import re
import sys
import tempfile

import checks

IDS = [f"A{i}" for i in range(1, 10)] + [f"B{i}" for i in range(1, 28)]
BEYOND = [f"C{i}" for i in range(1, 9)]
ROW = re.compile(r"^\|\s*([A-Z]\d+)\s*\|(.*)$")
# Suite.Name: both begin with a capital, so that file names and versions are no tests.
NAMED = re.compile(r"(?<![\w./-])([A-Z]\w+)\.([A-Z]\w*|\*)(?![\w/])")
DEFINED = re.compile(r"\b(?:TEST|TEST_F|TEST_P|TYPED_TEST|TYPED_TEST_P|RC_GTEST_PROP|RC_GTEST_FIXTURE_PROP)\s*\(\s*(\w+)\s*,\s*(\w+)")


PLACE = re.compile(r"(?<![\w/])((?:kerf|cli|tests|bench|cmake|examples)/[\w./-]*\w)")


def check_page(root, page, ids, tests, needs_test):
    path = root / "docs" / page
    if not path.is_file():
        return [f"docs/{page}: missing"]
    suites = {suite for suite, _ in tests}
    faults, rows = [], {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
        match = ROW.match(line)
        if not match:
            continue
        where = f"docs/{page}:{number}: {match[1]}"
        if match[1] in rows:
            faults.append(f"{where}: a second row (the first is line {rows[match[1]]})")
        rows.setdefault(match[1], number)
        named = NAMED.findall(match[2])
        for suite, name in named:
            if name == "*" and suite not in suites:
                faults.append(f"{where}: no suite {suite} in tests/")
            elif name != "*" and (suite, name) not in tests:
                faults.append(f"{where}: no test {suite}.{name} in tests/")
        faults += [f"{where}: no {place}" for place in PLACE.findall(match[2]) if not (root / place).exists()]
        if needs_test and not named and "not yet" not in match[2].lower():
            faults.append(f"{where}: names no test and does not say \"not yet\"")
    return faults + [f"docs/{page}: no row for {i}" for i in ids if i not in rows]


def check(root):
    tests = set()
    for source in sorted((root / "tests").rglob("*.cc")):
        tests.update(DEFINED.findall(source.read_text(errors="replace")))
    return check_page(root, "parity.md", IDS, tests, True) + check_page(root, "beyond.md", BEYOND, tests, False)


def self_test():
    test = "TEST(Cut, IsExact) {}\nRC_GTEST_PROP(Cut, AnyShape, (int x)) {}\n"
    rows = [f"| {i} | part | tests/cut_test.cc | `Cut.IsExact` |" for i in IDS]
    beyond = "\n".join(f"| {i} | part | words |" for i in BEYOND)
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
        ("a file that is not there", [rows[0].replace("cut_test", "gone_test")] + rows[1:], "no tests/gone_test.cc"),
        ("no page", None, "docs/parity.md: missing"),
        ("a missing row beyond", rows, "no row for C8", beyond.replace("| C8 |", "| - |")),
        ("a test beyond that is not there", rows, "no test Cut.IsGone", beyond.replace("words", "`Cut.IsGone`", 1)),
    ]
    failed = 0
    for what, page, words, *other in cases:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "tests").mkdir()
            (root / "tests" / "cut_test.cc").write_text(test)
            (root / "docs").mkdir()
            (root / "docs" / "beyond.md").write_text(other[0] if other else beyond)
            if page is not None:
                (root / "docs" / "parity.md").write_text("# Parity\n\n" + "\n".join(page) + "\n")
            faults = check(root)
        if (words is None and faults) or (words is not None and not any(words in f for f in faults)):
            failed += 1
            print(f"{what}: wanted {words!r}, got", *faults, sep="\n  ")
    print(f"parity self-test: {len(cases) - failed} of {len(cases)} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(checks.main(sys.argv[1:], "parity", __doc__, check, self_test, f"{len(IDS) + len(BEYOND)} rows, no faults"))
