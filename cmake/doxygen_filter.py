#!/usr/bin/env python3
"""Doxygen's input filter: kerf's plain comments as Doxygen's, line for line.

The first comment of a file is the file's. Any other describes the declaration below it and those that follow, up to
an empty line or another comment; one behind a declaration, on its line, describes that. Bodies of functions are left.
"""
import re
import sys

COMMENT = re.compile(r"^(\s*)// ?(.*)$")
TRAILING = re.compile(r"^(.*\S)\s{2,}// (.*)$")
NOT_MEANT = re.compile(r"^(namespace|NOLINT|IWYU|clang-format)")
STARTS = re.compile(r"^\s*(\[\[|[A-Za-z_~:])")
LABEL = re.compile(r"^\s*(public|private|protected):")
TYPE = re.compile(r"^\s*(template.*>\s*)?(class|struct|enum|namespace|union)\b")
EXPORTS = "#pragma GCC visibility"


def escaped(text):
    """Doxygen's commands and HTML are not meant."""
    return re.sub(r"([\\@<>#%&])", r"\\\1", text)


def indent(line):
    return len(line) - len(line.lstrip())


def filtered(lines):
    out, words, depth, described, heading, body = [], [], 0, False, True, None
    begins, start = True, 0  # whether a statement does, and where the one that goes on did
    for line in lines:
        comment, trailing = COMMENT.match(line), TRAILING.match(line)
        if body is not None:  # inside a function
            if indent(line) <= body and line.strip().startswith("}"):
                body = None
        elif heading:
            if comment:
                line = "/// " + escaped(comment[2])
            else:
                heading, line = False, "/// @file"
        elif comment and not NOT_MEANT.match(comment[2]):
            if described or indent(line) != depth:
                words = []
            words.append(escaped(comment[2]))
            depth, described = indent(line), False
            line = f"{comment[1]}/// {escaped(comment[2])}"
        elif not line.strip() or line.startswith(EXPORTS) or LABEL.match(line):
            words = []
            line = "" if line.startswith(EXPORTS) else line
        else:
            code = trailing[1] if trailing else line
            start = indent(line) if begins else start
            begins = code.endswith((";", "{", "}"))
            opens = code.endswith("{") and not TYPE.match(code) and ("(" in code or code.lstrip().startswith(":"))
            if trailing and not NOT_MEANT.match(trailing[2]):
                line = f"{code}  ///< {escaped(trailing[2])}"
            if STARTS.match(line) and indent(line) == depth and words:
                if described and not (trailing and code.endswith(";")):
                    line = f"{' ' * depth}/** {' '.join(words)} */ {line.lstrip()}"
                described = True
            body = (indent(line) if "[](" in code else start) if opens else None
        out.append(line)
    return out


if __name__ == "__main__":
    with open(sys.argv[1]) as source:
        print("\n".join(filtered(source.read().split("\n"))))
