"""``python -m kerf ARGUMENTS``: the program, in this interpreter."""

from __future__ import annotations

import os
import signal
import sys

from kerf import commands, errors

_OUTPUT = 1  # the program's exit code where standard output could not be written


def _say(level: str, line: str) -> None:
    print(f"kerf: {level}: {line}", file=sys.stderr)


def _write(text: str) -> int:
    try:
        # As the program writes it, whatever the terminal's encoding: paths as they were given.
        sys.stdout.flush()
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape"))
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _say("error", f"cannot write to standard output: {error.strerror}")
        # The interpreter would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _OUTPUT
    return 0


def main() -> int:
    """Runs the command line's arguments, which may be any bytes. Returns the exit code; raises nothing of kerf's."""
    # While a command runs no handler of Python's would be called.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        text, error, hint = commands.attempt(sys.argv[1:], _say)
    except errors.Error as refused:
        text, error, hint = "", refused, False
    code = _write(text)
    if error is None:
        return code
    bug = " (this is a bug in kerf)" if isinstance(error, errors.BugError) else ""
    _say("error", f"{error}{bug}")
    if hint:
        print("Run kerf --help, or kerf COMMAND --help.", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
