"""The program: ``python -m evalguard`` and the ``evalguard`` script."""

from __future__ import annotations

import contextlib
import sys
from typing import NoReturn

from evalguard.garbage import leave_the_rest, look_seldom


def run() -> NoReturn:
    """Run the command line.

    An exception while evalguard itself is imported (a broken installation) would end Python with
    exit code 1, which means "regressed" here, and "bad" to ``git bisect run``.
    """
    look_seldom()
    try:
        from evalguard.cli import main
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    except BaseException as error:  # noqa: BLE001 - no exception is a verdict
        with contextlib.suppress(OSError, AttributeError):  # stderr is full, or closed
            sys.stderr.write(
                f"error: evalguard cannot be loaded: {error!r}\n"
                "hint: its installation is incomplete; install it anew\n"
            )
        asked = {word.replace("_", "-") for word in sys.argv}
        raise SystemExit(125 if "--git-bisect" in asked else 3) from None
    try:
        main()
    finally:
        leave_the_rest()


if __name__ == "__main__":
    run()
