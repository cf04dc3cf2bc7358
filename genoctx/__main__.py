"""The process: ``genoctx`` and ``python -m genoctx``."""

from __future__ import annotations

import sys

from genoctx.cli.interrupt import came, note_interrupts


def main() -> None:
    """Run the command line and exit; Ctrl-C ends it with one word, also while modules are imported."""
    try:
        note_interrupts()
        from genoctx.cli.app import run

        code = run()
    except BaseException as error:
        if not (isinstance(error, KeyboardInterrupt) or came()):
            raise
        sys.stderr.write("interrupted\n")
        code = 130
    sys.exit(code)


if __name__ == "__main__":
    main()
