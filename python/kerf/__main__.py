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
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            _say("error", f"cannot write to standard output: {error.strerror}")
        # The interpreter would try again at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return _OUTPUT
    return 0


def main() -> int:
    """Runs the command line's arguments; the exit code."""
    # While a command runs no handler of Python's would be called.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        return _write(commands.run(sys.argv[1:], _say))
    except errors.Error as error:
        _write(error.written)
        _say("error", str(error))
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
