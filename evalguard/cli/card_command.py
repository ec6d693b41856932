"""``evalguard card``: what is published of finished runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from evalguard.cli.click_options import PATH, Command, add_options, files_option
from evalguard.cli.option_groups import DEBUG, EPILOG
from evalguard.cli.output import CommandResult, Job

_FILES = files_option(
    "card", ".md (with FILE-size.svg beside it), .yaml (model-index) or .svg (a badge)"
)


@click.command(
    "card",
    cls=Command,
    epilog=EPILOG,
)
@click.argument("runs", type=PATH, nargs=-1, required=True, metavar="RUN...")
@add_options(_FILES, DEBUG)
def card_command(runs: tuple[Path, ...], output: tuple[Path, ...]) -> Job:
    """Make a model card's section, metadata or badge of finished comparisons; no model is run.

    RUN is a folder of `evalguard compare`, or what `compare -o FILE.json` wrote; all of one base.
    Of a candidate that was compared again, its last run is taken. Without -o the section is printed
    as Markdown. Of several candidates, YAML and badges are a file each (FILE-CANDIDATE.svg). The
    exit code is 0 whatever the verdicts were.
    """
    return partial(_card, runs, output)


def _card(runs: tuple[Path, ...], output: tuple[Path, ...]) -> CommandResult:
    from evalguard.several.card import read_model_card

    card = read_model_card(runs)
    for note in card.notes:
        click.echo(f"note: {note}", err=True)
    if not output:
        return CommandResult(lambda: card.markdown().removesuffix("\n"))
    for path in card.write(output):
        click.echo(f"wrote {path}", err=True)
    return CommandResult(str)
