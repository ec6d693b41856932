"""``evalguard gitlab``: a result shown in the job of GitLab CI that runs."""

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


@click.command("gitlab", short_help="Show a result in a job of GitLab CI.")
@RESULT
@COMMENT
@NAME
@DEBUG
def gitlab_command(result: Path, comment: Commenting, name: str) -> Job:
    """Show a result in the job of GitLab CI that runs: its log, and a note on the merge request.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. A note needs
    EVALGUARD_GITLAB_TOKEN, a project access token with the scope `api`: GitLab lets no job's own
    token write notes. The exit code is 0 whatever the verdict was.
    """
    return partial(_gitlab, result, comment, name)


def _gitlab(result: Path, comment: Commenting, name: str) -> Answer:
    from evalguard.pipeline.gitlab import show_on_gitlab

    text = show_on_gitlab(result, name=name, comment=comment, environment=os.environ)
    return Answer(lambda: text)
