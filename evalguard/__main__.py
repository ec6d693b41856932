"""The program: ``python -m evalguard`` and the ``evalguard`` script."""

from __future__ import annotations

import contextlib
import sys
from typing import NoReturn

from evalguard.garbage import freeze_gc_at_exit, raise_gc_threshold
from evalguard.installation import namesake_note


def run() -> NoReturn:
    """Run the command line.

    An exception while evalguard itself is imported (a broken installation) would end Python with
    exit code 1, which means "regressed" here, and "bad" to ``git bisect run``. What is printed
    then is what the command line prints, which is not there yet.
    """
    raise_gc_threshold()
    try:
        from evalguard.cli.main import main
    except KeyboardInterrupt:
        _say("stopped: interrupted", "the same command starts again")
        raise SystemExit(_unloaded("Interrupted", "interrupted", 130)) from None
    except BaseException as error:  # noqa: BLE001 - no exception is a verdict
        message = f"evalguard cannot be loaded: {error!r}"
        _say(
            f"error: {message}",
            namesake_note() or "its installation is incomplete; install it anew",
        )
        code = 125 if "--git-bisect" in _typed_flags() else 3
        raise SystemExit(_unloaded("EvaluationError", message, code)) from None
    if note := namesake_note():
        _say("warning: this installation is damaged", note)
    try:
        main()
    finally:
        freeze_gc_at_exit()


def _typed_flags() -> set[str]:
    return {word.replace("_", "-") for word in sys.argv}


def _say(text: str, hint: str) -> None:
    with contextlib.suppress(OSError, AttributeError):  # stderr is full, or closed
        sys.stderr.write(f"{text}\nhint: {hint}\n")


def _unloaded(kind: str, message: str, code: int) -> int:
    """Print the JSON document of an error where one was asked for; return the exit code."""
    if "--json" in _typed_flags():
        import json

        error = {"type": kind, "message": message, "hint": ""}
        document = {"schema": "evalguard.error/1", "error": error, "exit_code": code}
        with contextlib.suppress(OSError, AttributeError):
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
    return code


if __name__ == "__main__":
    run()
