"""Options of which tasks are asked, and how."""

from __future__ import annotations

import click

from evalguard.cli.values import PATH, Limit

MODEL_ARGS = "a=b,c=d or JSON"

TASKS = (
    click.option("--tasks", default="", metavar="A,B", help="lm-eval tasks, tags or groups."),
    click.option(
        "--include-path",
        type=PATH,
        multiple=True,
        metavar="FOLDER",
        help="With further task files. Repeatable.",
    ),
    click.option(
        "--limit", type=Limit(), help="First N documents of each task, or a share below 1."
    ),
    click.option(
        "--num-fewshot", type=click.IntRange(min=0), metavar="N", help="Examples in the prompt."
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        metavar="N",
        help="Seed of few-shot examples, sampling and the order of documents.",
    ),
    click.option(
        "--apply-chat-template", is_flag=True, default=None, help="Use each model's chat template."
    ),
    click.option("--system-instruction", metavar="TEXT", help="System message of the prompt."),
    click.option(
        "--fewshot-as-multiturn", is_flag=True, default=None, help="Few-shot examples as turns."
    ),
    click.option("--gen-kwargs", default="", metavar=MODEL_ARGS, help="Generation arguments."),
    click.option(
        "--confirm-run-unsafe-code", is_flag=True, help="Run tasks that execute model output."
    ),
    click.option(
        "--allow-differing",
        type=click.Choice(["prompt", "tokens"]),
        multiple=True,
        help="A difference between the sides that is meant.",
    ),
    click.option(
        "--cluster",
        default="",
        metavar="FIELD",
        help="Documents with the same FIELD (a passage, say) are not independent.",
    ),
)
