"""``evalguard github`` and ``gitlab``: a result shown in the job that runs."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from evalguard.cli.click_options import PATH
from evalguard.cli.option_groups import DEBUG
from evalguard.cli.output import CommandResult, Job

if TYPE_CHECKING:
    from evalguard.publish.forges import CommentMode

RESULT_ARGUMENT = click.argument("result", type=PATH)
COMMENT_OPTION = click.option(
    "--comment",
    type=click.Choice(["always", "failures", "never"]),
    default="always",
    show_default=True,
    help="Comment on the pull or merge request. The comment of an earlier run is updated.",
)
NAME_OPTION = click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Tells the comments of several comparisons in one request apart.",
)


@click.command("github")
@RESULT_ARGUMENT
@COMMENT_OPTION
@NAME_OPTION
@DEBUG
def github_command(result: Path, comment: CommentMode, name: str) -> Job:
    """Show a result in the job of GitHub Actions that runs: summary, annotations, comment.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. The outputs
    state, passed, headline, guilty, run-folder and comment-url are set. A comment needs
    GITHUB_TOKEN with the permission `pull-requests: write`. The exit code is 0 whatever the
    verdict was.
    """
    return partial(_github, result, comment, name)


def _github(result: Path, comment: CommentMode, name: str) -> CommandResult:
    from evalguard.publish.forges import show_on_github

    text = show_on_github(result, name=name, comment=comment, environment=os.environ)
    return CommandResult(lambda: text, workflow_commands=True)


@click.command("gitlab")
@RESULT_ARGUMENT
@COMMENT_OPTION
@NAME_OPTION
@DEBUG
def gitlab_command(result: Path, comment: CommentMode, name: str) -> Job:
    """Show a result in the job of GitLab CI that runs: its log, and a note on the merge request.

    RESULT is a run folder, or a file with what --json printed; an error is shown too. A note needs
    EVALGUARD_GITLAB_TOKEN, a project access token with the scope `api`: GitLab lets no job's own
    token write notes. The exit code is 0 whatever the verdict was.
    """
    return partial(_gitlab, result, comment, name)


def _gitlab(result: Path, comment: CommentMode, name: str) -> CommandResult:
    from evalguard.publish.forges import show_on_gitlab

    text = show_on_gitlab(result, name=name, comment=comment, environment=os.environ)
    return CommandResult(lambda: text)
