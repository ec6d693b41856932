"""``evalguard github``: a result shown in the job of GitHub Actions that runs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard.cli.forge_options import COMMENT, NAME, RESULT
from evalguard.cli.options import DEBUG
from evalguard.cli.output import Answer, Job

if TYPE_CHECKING:
    from evalguard.pipeline.commenting import Commenting


@click.command("github", short_help="Show a result in a job of GitHub Actions.")
@RESULT
@COMMENT
@NAME
@DEBUG
def github_command(result: Path, comment: Commenting, name: str) -> Job:
    """Show a result in the job of GitHub Actions that runs: summary, annotations, comment.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. The outputs
    state, passed, headline, guilty, run-folder and comment-url are set. A comment needs
    GITHUB_TOKEN with the permission `pull-requests: write`. The exit code is 0 whatever the
    verdict was.
    """
    return partial(_github, result, comment, name)


def _github(result: Path, comment: Commenting, name: str) -> Answer:
    from evalguard.pipeline.github import show_on_github

    text = show_on_github(result, name=name, comment=comment, environment=os.environ)
    return Answer(lambda: text)
