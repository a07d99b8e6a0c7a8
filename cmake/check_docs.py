#!/usr/bin/env python3
"""Makes the reference of kerf's public face with Doxygen, and checks that nothing of it is left unsaid.

  check_docs.py [OUT]          writes OUT/html (build/reference); exit 1 and one line a fault
  check_docs.py --self-test    plants every kind of fault in a small header and expects it to be found

Every function, class, type and enumeration that a public header declares must be described; members of structs and
values of enumerations may speak by their names, and a comparison that compares all members does. Any other warning of
Doxygen's is a fault.
"""
import pathlib
import re
import subprocess
import sys
import tempfile

import check_public

ROOT = pathlib.Path(__file__).resolve().parent.parent
BY_NAME = re.compile(r"Member .* \((variable|enumvalue)\) of .* is not documented")
COMPARISON = re.compile(r"Member operator==\(.*\)=default \(friend\)")


def doxygen(root, headers, out, html):
    """Its warnings."""
    out.mkdir(parents=True, exist_ok=True)
    version = re.search(r'headers_version = "([\d.]+)"', (ROOT / "kerf/base/version.h").read_text())[1]
    told = (ROOT / "docs/Doxyfile").read_text().replace("cmake/doxygen_filter.py", f"{ROOT}/cmake/doxygen_filter.py")
    told += f"""
INPUT = {' '.join(headers)}
PROJECT_NUMBER = {version}
OUTPUT_DIRECTORY = {out}
WARN_LOGFILE = {out}/warnings
GENERATE_HTML = {'YES' if html else 'NO'}
GENERATE_XML = {'NO' if html else 'YES'}
"""
    subprocess.run(["doxygen", "-"], input=told, text=True, cwd=root, check=True)
    return (out / "warnings").read_text().splitlines()


def faults_of(warnings, root):
    lines = [w.replace(f"{root}/", "") for w in warnings if w.strip()]
    return [w for w in lines if not BY_NAME.search(w) and not COMPARISON.search(w)]


HEADER = """// A header of a test.
#pragma once

namespace kerf {

// What is said holds for both.
int one(int x);
int other(int x);

// A type.
struct Told {
  int by_its_name = 0;
  friend bool operator==(const Told&, const Told&) = default;
  int said() const { return 1; }  // by what stands behind
};

}  // namespace kerf
"""
BAD = [
    ("a function", "int unsaid(int x);\n", "unsaid"),
    ("one behind an empty line", "// Of the first.\nint first();\n\nint second();\n", "second"),
    ("a class", "class Unsaid {\n public:\n  // Said.\n  int f();\n};\n", "Unsaid"),
    ("a member function", "// A type.\nstruct Type {\n  int unsaid() const;\n};\n", "unsaid"),
    ("an enumeration", "enum class Unsaid { a };\n", "Unsaid"),
]


def self_test():
    failed = 0
    for what, planted, words in [("a sound header", "", None)] + BAD:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            (root / "a.h").write_text(HEADER.replace("}  // namespace kerf", planted + "\n}  // namespace kerf"))
            faults = faults_of(doxygen(root, ["a.h"], root / "out", False), root)
        if (words is None and faults) or (words is not None and not any(words in f for f in faults)):
            failed += 1
            print(f"{what}: wanted {words!r}, got", *faults, sep="\n  ")
    print(f"docs self-test: {len(BAD) + 1 - failed} of {len(BAD) + 1} passed")
    return 1 if failed else 0


def main(arguments):
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(__doc__, file=sys.stderr)
        return 2
    out = pathlib.Path(arguments[0] if arguments else ROOT / "build/reference").resolve()
    headers = ["kerf/kerf.h"] + check_public.public_headers(ROOT)
    faults = faults_of(doxygen(ROOT, headers, out, True), ROOT)
    for fault in faults:
        print(fault)
    print(f"docs: {len(faults)} faults" if faults else f"docs: {len(headers)} headers in {out}/html, no faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
