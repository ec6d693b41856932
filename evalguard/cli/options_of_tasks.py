"""Options of which tasks are asked, and how."""

from __future__ import annotations

import click

from evalguard.cli.parameters import PATH, gate_option, task_option
from evalguard.cli.value_types import ChatTemplate, LimitValue

MODEL_ARGS = "NAME=VALUE,...|JSON"

TASK_NAMES = (
    task_option(
        "--tasks",
        default="",
        metavar="TASK,...",
        help="lm-eval tasks, tags or groups. Default: the guard file's.",
    ),
    task_option(
        "--include-path",
        type=PATH,
        multiple=True,
        metavar="FOLDER",
        help="Folder with more task files. Repeatable.",
    ),
)
PROMPTS = (
    task_option(
        "--num-fewshot",
        type=click.IntRange(min=0),
        metavar="N",
        help="Number of few-shot examples in the prompt. Default: the task's.",
    ),
    task_option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        help="Seed of few-shot examples, sampling and the order of documents.",
    ),
    task_option(
        "--apply-chat-template",
        is_flag=False,
        flag_value=True,
        type=ChatTemplate(),
        default=None,
        help="Use the chat template of each model.",
    ),
)
TASKS = (
    *TASK_NAMES,
    task_option(
        "--requests",
        type=PATH,
        metavar="FILE",
        help="Chat requests in OpenAI's form, one a line.",
    ),
    task_option(
        "--limit",
        type=LimitValue(),
        help="First N documents per task, or a share (0.1).",
    ),
    *PROMPTS,
    task_option(
        "--gen-kwargs",
        default="",
        metavar=MODEL_ARGS,
        help="Generation arguments, in addition to the task's.",
    ),
    task_option(
        "--confirm-run-unsafe-code",
        is_flag=True,
        help="Allow tasks that execute what the model writes.",
    ),
    task_option(
        "--allow-differing",
        type=click.Choice(["prompt", "tokens"]),
        multiple=True,
        help="Accept that prompts or token ids of the two sides differ (tokens: the versions of "
        "lm-eval of finished runs, too). Repeatable.",
    ),
    gate_option(
        "--cluster",
        default="",
        metavar="FIELD",
        help="Treat documents with the same value of FIELD (a passage, say) as dependent.",
    ),
)
