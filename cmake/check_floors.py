#!/usr/bin/env python3
"""Checks that the folders of kerf/ include each other only as kerf/floors.txt allows.

  check_floors.py [ROOT]       exit 1 and one line a fault
  check_floors.py --self-test  plants every kind of fault in a small tree and expects it to be found
"""
import pathlib
import re
import sys
import tempfile

import checks

SOURCES = {".h", ".cc", ".cu", ".cuh"}
LENGTH_CHECKED = SOURCES | {".py", ".cmake", ".txt", ".sh", ""}
MAX_LINES = 600
CHECKED_FOLDERS = ("kerf", "cli", "tests", "bench", "examples", "cmake")
OWN = {"kerf", "cli", "tests", "bench", "examples"}
# Parts that stay out of every header that kerf/kerf.h reaches, and parts that stay out of the library.
NOT_PUBLIC = {"fmt", "nlohmann", "CLI", "spdlog", "hwy", "tbb", "oneapi"}
NOT_LIBRARY = {"CLI", "spdlog"}
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
FLOOR_LINE = re.compile(r"^(\d+)\s+(\w+)\s*:\s*(.*)$")


def read_floors(root, faults):
    """folder -> (floor, folders it may include)"""
    floors = {}
    path = root / "kerf" / "floors.txt"
    if not path.is_file():
        faults.append("kerf/floors.txt: missing")
        return floors
    for number, line in enumerate(path.read_text().splitlines(), 1):
        line = line.split("#")[0].strip()
        if not line:
            continue
        match = FLOOR_LINE.match(line)
        if not match:
            faults.append(f"kerf/floors.txt:{number}: not 'FLOOR FOLDER : FOLDERS'")
            continue
        if match[2] in floors:
            faults.append(f"kerf/floors.txt:{number}: {match[2]} is listed twice")
        floors[match[2]] = (int(match[1]), match[3].split())
    for folder, (floor, allowed) in floors.items():
        for other in allowed:
            if other not in floors:
                faults.append(f"kerf/floors.txt: {folder} may include {other}, which is not listed")
            elif floors[other][0] >= floor:
                faults.append(f"kerf/floors.txt: {folder} (floor {floor}) may include {other} "
                              f"(floor {floors[other][0]}), which is not below it")
    return floors


def includes_of(path):
    """(line, quoted, path) of every include"""
    text = path.read_text(errors="replace")
    return [(text.count("\n", 0, m.start()) + 1, m[1] == '"', m[2]) for m in INCLUDE.finditer(text)]


def circles(graph):
    """Every circle that a depth-first walk closes, as the list of its nodes."""
    found, state, path = [], {}, []

    def walk(node):
        state[node] = "open"
        path.append(node)
        for following in sorted(graph.get(node, ())):
            if state.get(following) == "open":
                found.append(path[path.index(following):] + [following])
            elif following not in state:
                walk(following)
        path.pop()
        state[node] = "done"

    for node in sorted(graph):
        if node not in state:
            walk(node)
    return found


def check_one(name, line, quoted, target, floors, root, faults):
    """One include of file `name` (a path from the root)."""
    own_parts, parts = name.split("/"), target.split("/")
    where = f"{name}:{line}"
    if quoted and parts[0] not in OWN and ((root / name).parent / target).exists():
        faults.append(f"{where}: includes \"{target}\" by a relative path, wanted the path from the root")
        return
    if own_parts[0] == "kerf" and parts[0] in NOT_LIBRARY:
        faults.append(f"{where}: the library includes {target}")
    if parts[0] not in OWN:
        return
    if not (root / target).is_file():
        faults.append(f"{where}: includes {target}, which does not exist")
        return
    if own_parts[0] == "cli":
        if target != "kerf/kerf.h" and parts[0] != "cli":
            faults.append(f"{where}: cli includes {target}, wanted kerf/kerf.h or cli's own headers only")
        return
    if parts[0] != "kerf":
        if own_parts[0] == "kerf":
            faults.append(f"{where}: kerf includes {target}, which is not part of the library")
        return
    if own_parts[0] != "kerf":
        return
    if name == "kerf/kerf.h":
        return
    if len(parts) == 2:
        faults.append(f"{where}: {own_parts[1]} includes {target}, which is above every floor")
        return
    folder, other = own_parts[1], parts[1]
    if folder != other and folder in floors and other not in floors[folder][1]:
        faults.append(f"{where}: {folder} includes {target}, but kerf/floors.txt does not allow {folder} -> {other}")
    if folder != other and "internal" in parts[2:-1]:
        faults.append(f"{where}: {folder} includes {target}, which is internal to {other}")


def check_public_face(graph, includes, faults):
    """No third-party part in the headers that kerf/kerf.h reaches."""
    seen, queue = set(), ["kerf/kerf.h"]
    while queue:
        name = queue.pop()
        if name in seen:
            continue
        seen.add(name)
        for line, _, target in includes.get(name, ()):
            if target.split("/")[0] in NOT_PUBLIC:
                faults.append(f"{name}:{line}: includes {target}, and kerf/kerf.h reaches this header")
        queue.extend(graph.get(name, ()))


def check(root):
    faults = []
    floors = read_floors(root, faults)
    on_disk = sorted(p.name for p in (root / "kerf").iterdir() if p.is_dir())
    for folder in on_disk:
        if folder not in floors:
            faults.append(f"kerf/{folder}: a folder that kerf/floors.txt does not list")
    for folder in floors:
        if folder not in on_disk:
            faults.append(f"kerf/floors.txt: {folder} is listed, but there is no kerf/{folder}")
    for path in sorted((root / "kerf").iterdir()):
        if path.is_file() and path.suffix in SOURCES and path.name != "kerf.h":
            faults.append(f"kerf/{path.name}: a source outside every floor")

    graph, folder_graph, includes = {}, {f: set(a) for f, (_, a) in floors.items()}, {}
    for top in CHECKED_FOLDERS:
        for path in sorted((root / top).rglob("*")):
            if not path.is_file():
                continue
            name = path.relative_to(root).as_posix()
            if path.suffix in LENGTH_CHECKED:
                lines = path.read_bytes().count(b"\n")
                if lines > MAX_LINES:
                    faults.append(f"{name}: {lines} lines, at most {MAX_LINES} wanted")
            if path.suffix not in SOURCES:
                continue
            includes[name] = includes_of(path)
            for line, quoted, target in includes[name]:
                check_one(name, line, quoted, target, floors, root, faults)
                # Highway's per-target files include themselves; that is no circle.
                if target.split("/")[0] in OWN and target != name:
                    graph.setdefault(name, set()).add(target)
                    if name.startswith("kerf/") and target.startswith("kerf/") and target.count("/") > 1:
                        if name.count("/") > 1 and name.split("/")[1] != target.split("/")[1]:
                            folder_graph.setdefault(name.split("/")[1], set()).add(target.split("/")[1])
    for circle in circles(folder_graph):
        faults.append("circle of folders: " + " -> ".join(circle))
    for circle in circles(graph):
        faults.append("circle of files: " + " -> ".join(circle))
    check_public_face(graph, includes, faults)
    return faults


GOOD = {
    "kerf/floors.txt": "# floors\n0 base :\n1 upper : base\n1 beside : base\n",
    "kerf/base/a.h": "#pragma once\n#include <vector>\n",
    "kerf/base/internal/i.h": "#pragma once\n",
    "kerf/base/a.cc": '#include "kerf/base/a.h"\n\n#include <fmt/format.h>\n\n#include "kerf/base/internal/i.h"\n',
    "kerf/upper/b.h": '#include "kerf/base/a.h"\n',
    "kerf/beside/c.h": '#include "kerf/base/a.h"\n',
    "kerf/kerf.h": '#include "kerf/base/a.h"\n#include "kerf/upper/b.h"\n',
    "cli/main.cc": '#include <CLI/CLI.hpp>\n#include "cli/x.h"\n#include "kerf/kerf.h"\n',
    "cli/x.h": '#include "kerf/kerf.h"\n',
    "tests/base/a_test.cc": '#include "kerf/base/internal/i.h"\n',
}
# What is planted (path -> text, None: removed), and words of the line that must come out.
BAD = [
    ("an include upward", {"kerf/base/a.cc": '#include "kerf/upper/b.h"\n'}, "does not allow base -> upper"),
    ("an include sideways", {"kerf/upper/b.cc": '#  include "kerf/beside/c.h"\n'}, "does not allow upper -> beside"),
    ("an include in angle brackets", {"kerf/base/a.cc": "#include <kerf/upper/b.h>\n"}, "does not allow base -> upper"),
    ("a folder without a line", {"kerf/new/n.h": "\n"}, "kerf/new: a folder that kerf/floors.txt does not list"),
    ("a line without a folder", {"kerf/beside/c.h": None}, "beside is listed, but there is no kerf/beside"),
    ("no floors at all", {"kerf/floors.txt": None}, "kerf/floors.txt: missing"),
    ("a line that allows upward", {"kerf/floors.txt": "0 base : upper\n1 upper : base\n1 beside : base\n"},
     "which is not below it"),
    ("a circle of folders", {"kerf/floors.txt": "0 base : upper\n1 upper : base\n1 beside : base\n"},
     "circle of folders: base -> upper -> base"),
    ("a circle of files", {"kerf/upper/b.h": '#include "kerf/upper/d.h"\n', "kerf/upper/d.h": '#include "kerf/upper/b.h"\n'},
     "circle of files: kerf/upper/b.h -> kerf/upper/d.h -> kerf/upper/b.h"),
    ("cli past the public face", {"cli/x.h": '#include "kerf/base/a.h"\n'}, "cli includes kerf/base/a.h"),
    ("cli and tests", {"cli/x.h": '#include "tests/base/a_test.cc"\n'}, "cli includes tests/base/a_test.cc"),
    ("the library and cli", {"kerf/base/a.cc": '#include "cli/x.h"\n'}, "which is not part of the library"),
    ("the library and its own face", {"kerf/upper/b.cc": '#include "kerf/kerf.h"\n'}, "above every floor"),
    ("the library and a command line part", {"kerf/upper/b.cc": "#include <spdlog/spdlog.h>\n"}, "the library includes spdlog"),
    ("an internal header", {"kerf/upper/b.cc": '#include "kerf/base/internal/i.h"\n'}, "internal to base"),
    ("a third party in the face", {"kerf/base/a.h": "#include <fmt/format.h>\n"}, "kerf/kerf.h reaches this header"),
    ("a relative include", {"kerf/base/a.cc": '#include "a.h"\n'}, "by a relative path"),
    ("an include of nothing", {"kerf/base/a.cc": '#include "kerf/base/gone.h"\n'}, "which does not exist"),
    ("a source outside the floors", {"kerf/loose.cc": "\n"}, "a source outside every floor"),
    ("a file too long", {"kerf/base/a.cc": "\n" * (MAX_LINES + 1)}, f"{MAX_LINES + 1} lines"),
    ("a test too long", {"tests/base/a_test.cc": "\n" * (MAX_LINES + 1)}, f"{MAX_LINES + 1} lines"),
    ("a line that cannot be read", {"kerf/floors.txt": "0 base :\nupper : base\n1 beside : base\n"},
     "kerf/floors.txt:2: not"),
]


def faults_of(files):
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, text in files.items():
            if text is None:
                continue
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return check(root)


def self_test():
    failed = 0
    clean = faults_of(GOOD)
    if clean:
        failed += 1
        print("a sound tree is refused:", *clean, sep="\n  ")
    for what, change, words in BAD:
        found = faults_of({**GOOD, **change})
        if not any(words in fault for fault in found):
            failed += 1
            print(f"{what}: not found (wanted '{words}')", *found, sep="\n  ")
    print(f"floors self-test: {len(BAD) + 1 - failed} of {len(BAD) + 1} passed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(checks.main(sys.argv[1:], "floors", __doc__, check, self_test, "no faults"))
