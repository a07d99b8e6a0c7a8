"""What the checks of this folder share: a command line, and a report that can fail."""

import pathlib
import sys


def main(arguments, name, usage, check, self_test, sound):
    """Runs check(root) -> faults on the tree (or the folder given), or self_test() -> exit code with --self-test."""
    if arguments == ["--self-test"]:
        return self_test()
    if len(arguments) > 1 or (arguments and arguments[0].startswith("-")):
        print(usage, file=sys.stderr)
        return 2
    root = pathlib.Path(arguments[0]) if arguments else pathlib.Path(__file__).resolve().parent.parent
    faults = check(root)
    for fault in faults:
        print(fault)
    print(f"{name}: {len(faults)} faults" if faults else f"{name}: {sound}")
    return 1 if faults else 0
