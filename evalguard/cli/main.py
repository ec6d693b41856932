"""The ``evalguard`` command: its sub-commands, and how errors become exit codes."""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

import click

import evalguard
from evalguard.cli.compare import compare_command, demo_command
from evalguard.cli.guard import init_command, models_command, schema_command, tasks_command
from evalguard.errors import (
    EXIT_FAILED,
    EXIT_PASSED,
    EXIT_REGRESSED,
    EXIT_USAGE,
    EvalguardError,
    Interrupted,
    nearest,
)

GIT_BISECT_SKIP = 125
EPILOG = """\b
Exit codes: 0 passed, 1 regressed, 2 usage or guard file, 3 an evaluation
failed (nothing is known), 4 undecided under --strict, 130 interrupted.
Options may be written with dashes or, as in lm-eval, with underscores."""


class _Group(click.Group):
    """A group that names the nearest command when one does not exist."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            hint = nearest(args[0], self.list_commands(ctx))
            known = ", ".join(self.list_commands(ctx))
            raise click.UsageError(f"no such command '{args[0]}'{hint}\ncommands: {known}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Group,
    epilog=EPILOG,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda token: token.replace("_", "-"),
    },
)
@click.version_option(evalguard.__version__, message="evalguard %(version)s")
def cli() -> None:
    """Tell whether a converted language model got worse, how much, and how sure that is.

    \b
    evalguard demo                                a run on built-in models
    evalguard compare --base A --cand B --tasks T compare two models
    evalguard compare --base runs/a --cand runs/b compare finished lm-eval runs
    evalguard init                                write a guard file to start from
    """


for _command in (
    compare_command,
    demo_command,
    init_command,
    schema_command,
    models_command,
    tasks_command,
):
    cli.add_command(_command)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit the process with its code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal without UTF-8 gets "?" for "…" and "±" instead of a crash.
            stream.reconfigure(errors="replace")
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(message)s")
    # What lm-eval warns of is prevented here or becomes a caveat; --debug shows its own words.
    logging.getLogger("lm_eval").setLevel(
        logging.WARNING if "--debug" in arguments else logging.ERROR
    )
    code = _run(arguments)
    if "--git-bisect" in arguments or "--git_bisect" in arguments:
        code = (
            code
            if code in (EXIT_PASSED, EXIT_REGRESSED, Interrupted.exit_code)
            else GIT_BISECT_SKIP
        )
    _flush()
    raise SystemExit(code)


def _run(arguments: list[str]) -> int:
    as_json = "--json" in arguments
    debug = "--debug" in arguments
    try:
        code = cli.main(arguments, prog_name="evalguard", standalone_mode=False)
        return code if isinstance(code, int) else EXIT_PASSED
    except click.ClickException as error:
        if as_json:
            _print_json_error("UsageError", error.format_message(), "", EXIT_USAGE)
        error.show(sys.stderr)
        return EXIT_USAGE
    except EvalguardError as error:
        return _report(error, as_json=as_json, debug=debug)
    except (KeyboardInterrupt, click.Abort):
        return _report(Interrupted("interrupted"), as_json=as_json, debug=debug)
    except BrokenPipeError:
        # The reader of our stdout went away (`| head`); what could be written was written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_FAILED
    except Exception as error:  # noqa: BLE001 - the last fence: a bug is exit 3, never a verdict
        bug = EvalguardError(
            f"internal error: {type(error).__name__}: {error}",
            hint="this is a bug in evalguard or in a library; run again with --debug and report it",
        )
        bug.__cause__ = error
        return _report(bug, as_json=as_json, debug=debug)


def _report(error: EvalguardError, *, as_json: bool, debug: bool) -> int:
    if debug:
        traceback.print_exception(type(error), error, error.__traceback__)
    if as_json:
        _print_json_error(type(error).__name__, str(error), error.hint, error.exit_code)
    label = "stopped" if isinstance(error, Interrupted) else "error"
    click.secho(f"{label}: ", fg="red", nl=False, err=True)
    click.echo(_clean(str(error)), err=True)
    if error.hint:
        click.secho("hint: ", fg="cyan", nl=False, err=True)
        click.echo(_clean(error.hint), err=True)
    return error.exit_code


def _clean(text: str) -> str:
    """Drop control characters: a file name or a model's text must not drive the terminal."""
    return "".join(char for char in text if char in "\n\t" or char.isprintable())


def _print_json_error(kind: str, message: str, hint: str, code: int) -> None:
    error = {"type": kind, "message": message, "hint": hint}
    click.echo(json.dumps({"schema": "evalguard.error/1", "error": error, "exit_code": code}))


def _flush() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
