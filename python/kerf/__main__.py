"""``python -m kerf ARGUMENTS``: the program, in this interpreter."""

from __future__ import annotations

import sys

from kerf import commands, errors


def _say(level: str, line: str) -> None:
    print(f"kerf: {level}: {line}", file=sys.stderr)


def main() -> int:
    """Runs the command line's arguments; the exit code."""
    try:
        sys.stdout.write(commands.run(sys.argv[1:], _say))
    except errors.Error as error:
        if error.report is not None:
            import json

            print(json.dumps(error.report, indent=2))
        print(f"kerf: error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
