#!/usr/bin/env python3
"""Checks that the headers which kerf/kerf.h reaches make their names visible outside the library, and no others do.

  check_public.py [ROOT]       exit 1 and one line a fault
  check_public.py --self-test  plants every kind of fault and expects it to be found

The library is compiled with hidden visibility. What it exports is what stands between these lines of a public header,
behind its includes:  #pragma GCC visibility push(default) ... #pragma GCC visibility pop
"""
import pathlib
import re
import sys
import tempfile

import checks

PUSH, POP = "#pragma GCC visibility push(default)", "#pragma GCC visibility pop"
INCLUDE = re.compile(r'^#include "(kerf/[^"]+)"', re.M)
# Only these macros are kerf's to define in a header that others include: none.
DEFINE = re.compile(r"^\s*#\s*define\s+(\w+)", re.M)


def public_headers(root):
    """The headers that kerf/kerf.h reaches, ascending, itself left out."""
    seen, queue = set(), ["kerf/kerf.h"]
    while queue:
        name = queue.pop()
        if name in seen or not (root / name).is_file():
            continue
        seen.add(name)
        queue.extend(INCLUDE.findall((root / name).read_text()))
    return sorted(seen - {"kerf/kerf.h"})


def check(root):
    faults, public = [], set(public_headers(root))
    for path in sorted((root / "kerf").rglob("*.h")):
        name, text = path.relative_to(root).as_posix(), path.read_text()
        lines = text.splitlines()
        pushes, pops = lines.count(PUSH), lines.count(POP)
        if name not in public:
            if pushes or pops:
                faults.append(f"{name}: makes names visible, and kerf/kerf.h does not reach it")
            continue
        if (pushes, pops) != (1, 1):
            faults.append(f"{name}: is public, and has {pushes} '{PUSH}' and {pops} '{POP}', wanted one of each")
            continue
        inside = range(lines.index(PUSH), lines.index(POP))
        for number, line in enumerate(lines):
            if line.startswith("#include") and number in inside:
                faults.append(f"{name}:{number + 1}: includes another header where names are made visible")
            if line.startswith("namespace kerf") and number not in inside:
                faults.append(f"{name}:{number + 1}: names that are not made visible")
        for macro in DEFINE.findall(text):
            faults.append(f"{name}: defines the macro {macro}, and is public")
    return faults


GOOD = {
    "kerf/kerf.h": '#include "kerf/a.h"\n',
    "kerf/a.h": f"#include <vector>\n{PUSH}\nnamespace kerf {{\n}}\n{POP}\n",
    "kerf/i.h": "namespace kerf {\n}\n",
}
BAD = [
    ("a public header without", {"kerf/a.h": "namespace kerf {\n}\n"}, "kerf/a.h: is public, and has 0"),
    ("one that is not closed", {"kerf/a.h": f"{PUSH}\nnamespace kerf {{\n}}\n"}, "and 0 '#pragma GCC visibility pop'"),
    ("an internal header with", {"kerf/i.h": GOOD["kerf/a.h"]}, "kerf/kerf.h does not reach it"),
    ("an include inside", {"kerf/a.h": f"{PUSH}\n#include <vector>\nnamespace kerf {{\n}}\n{POP}\n"}, "a.h:2: includes"),
    ("names outside", {"kerf/a.h": f"{PUSH}\n{POP}\nnamespace kerf {{\n}}\n"}, "a.h:3: names that are not"),
    ("a macro", {"kerf/a.h": "#define KERF_X 1\n" + GOOD["kerf/a.h"]}, "defines the macro KERF_X"),
]


def self_test():
    failed = 0
    for what, planted, words in [("a sound tree", {}, None)] + BAD:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name, text in {**GOOD, **planted}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(text)
            faults = check(root)
        if (words is None and faults) or (words is not None and not any(words in f for f in faults)):
            failed += 1
            print(f"{what}: wanted {words!r}, got", *faults, sep="\n  ")
    print(f"public self-test: {len(BAD) + 1 - failed} of {len(BAD) + 1} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(checks.main(sys.argv[1:], "public", __doc__, check, self_test, "no faults"))
