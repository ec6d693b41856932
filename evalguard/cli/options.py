"""Options of ``evalguard compare``, ``demo`` and ``plan``, in groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from evalguard.cli.distribution_options import DISTRIBUTIONS, MEMORY, REFERENCE_FILE
from evalguard.cli.task_options import MODEL_ARGS
from evalguard.cli.values import PATH, BatchSize, Pairs, Size
from evalguard.report_format import FORMATS

Decorated = TypeVar("Decorated", bound=Callable[..., Any])

EPILOG = """\b
Exit codes: 0 passed, 1 regressed, 2 usage or guard file, 3 an evaluation
failed (nothing is known), 4 undecided under --strict, 130 interrupted
(Ctrl-C), 143 terminated. What is finished is kept: the same command goes on.
Options may be written with dashes or, as in lm-eval, with underscores."""

CONFIG = click.option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="Guard file. Default: ./evalguard.yaml, ./configs/*.",
)
DEBUG = click.option(
    "--debug", is_flag=True, expose_value=False, help="Tracebacks of errors, logs of libraries."
)

CANDIDATE_SETTINGS = click.option(
    "--set",
    "cand_set",
    type=Pairs(),
    multiple=True,
    help="Value of a candidate's setting: reference, candidate or another. Repeatable.",
)
_BASE = (
    CONFIG,
    click.option(
        "--model",
        default="hf",
        metavar="TYPE",
        show_default=True,
        help="lm-eval model type of a path or hub id.",
    ),
    click.option(
        "--base-model-args",
        "base_model_args",
        default="",
        metavar=MODEL_ARGS,
        help="Added to the base's.",
    ),
)
CODE = (
    click.option("--trust-remote-code", is_flag=True, help="Run code that comes with a model."),
    click.option(
        "--allow-code",
        is_flag=True,
        help="Run code of a guard file that was not named with --config.",
    ),
)
MODELS = (
    *_BASE,
    click.option(
        "--cand-model-args",
        "cand_model_args",
        default="",
        metavar=MODEL_ARGS,
        help="Added to the candidate's.",
    ),
    CANDIDATE_SETTINGS,
    click.option("--base-set", type=Pairs(), multiple=True, help="The same for the base."),
    *CODE,
)
ONE_MODEL = (
    *_BASE,
    click.option(
        "--set",
        "--base-set",
        "base_set",
        type=Pairs(),
        multiple=True,
        help="Value of a setting: reference, candidate or another. Repeatable.",
    ),
    *CODE,
)
SCORING = (
    click.option(
        "--batch-size",
        type=BatchSize(),
        metavar="N|auto",
        help="Sequences per pass, for both models. Default auto: by tokens.",
    ),
    click.option(
        "--token-budget",
        type=click.IntRange(min=0),
        metavar="N",
        help="Padded tokens per pass, for both; 0: measured on this device (default).",
    ),
    click.option(
        "--scorer",
        type=click.Choice(["fast", "harness"]),
        help="Path to the scores of Hugging Face models: lm-eval's own is harness. Default fast.",
    ),
    click.option(
        "--share-prefixes/--no-share-prefixes",
        default=None,
        help="Read what several continuations have before them once. Default: yes.",
    ),
    click.option("--device", default="", metavar="NAME", help="cpu, cuda, cuda:1, mps."),
    click.option(
        "--threads",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="CPU threads; 0: automatic.",
    ),
    click.option(
        "--worker",
        type=click.Choice(["auto", "always"]),
        default="auto",
        help="Score in worker processes: where a setting needs it, or always.",
    ),
    click.option(
        "--timeout",
        type=click.FloatRange(min=0, min_open=True),
        metavar="SECONDS",
        help="Seconds one call to a worker may take.",
    ),
    click.option(
        "--cache-dir", type=PATH, metavar="FOLDER", help="Where finished scores are kept."
    ),
    click.option(
        "--cache-max-size",
        type=Size(),
        metavar="SIZE",
        help="How large that may be after the run, such as 20GB. Default: no limit.",
    ),
)
NO_CACHE = click.option("--no-cache", is_flag=True, help="Neither read nor keep finished scores.")
SEQUENTIAL = (
    click.option(
        "--sequential/--no-sequential",
        default=None,
        help="Stop a task as soon as the verdict of all its documents is known.",
    ),
    click.option(
        "--sequential-alpha",
        type=click.FloatRange(0, 0.5, min_open=True, max_open=True),
        metavar="P",
        help="Chance that it is not. Default 0.05.",
    ),
)
RUNNING = (
    *SCORING,
    *SEQUENTIAL,
    click.option(
        "--check-batch-size",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Score N documents per task again at batch size 1.",
    ),
    click.option(
        "--verify-scorer",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Score N documents per task again by lm-eval's own path; other scores are an error.",
    ),
    *DISTRIBUTIONS,
    REFERENCE_FILE,
    MEMORY,
    NO_CACHE,
)
MARGIN = click.option(
    "--margin",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SIGMA",
    help="Allowed drift in standard errors of the base. Default 1.",
)
CONFIDENCE = click.option(
    "--confidence",
    type=click.FloatRange(0.5, 1, min_open=True, max_open=True),
    metavar="P",
    help="Of the intervals. Default 0.95.",
)
VARY = click.option(
    "--vary",
    type=click.Choice(["repeat", "batch-size", "threads", "device", "attention", "softmax-dtype"]),
    multiple=True,
    help="What to vary of an unchanged model. Repeatable. Default: all.",
)
FLOOR_FILE = click.option(
    "--floor",
    type=PATH,
    metavar="FILE",
    help="Measured floor to hold the drift against (evalguard floor --json).",
)
FLOOR = (
    click.option(
        "--aa",
        is_flag=True,
        help="Base and candidate are one model: show what it shows unchanged.",
    ),
    VARY,
    FLOOR_FILE,
)
STRICT = click.option("--strict", is_flag=True, help="Undecided exits with 4.")
GATE = (
    MARGIN,
    click.option(
        "--fail-on",
        type=click.Choice(["margin", "significant", "certain", "any-degradation"]),
        help="What makes the gate fail. Default margin.",
    ),
    CONFIDENCE,
    click.option(
        "--gate-metric",
        "gate_limits",
        type=Pairs("kl_mean=0.01"),
        multiple=True,
        help="Absolute limit: kl_mean=0.01, same_top1=0.98 ... Repeatable.",
    ),
    STRICT,
    click.option(
        "--git-bisect",
        is_flag=True,
        help="Exit codes for git bisect run: what gives no verdict is 125.",
    ),
)
JSON = click.option(
    "--json", "as_json", is_flag=True, help="One JSON document on stdout, nothing else."
)
REPORT_FILES = (
    click.option(
        "-o",
        "--output",
        type=PATH,
        multiple=True,
        metavar="FILE",
        help="Write the report to FILE, in the format of its suffix. Repeatable.",
    ),
    click.option(
        "--format",
        "output_format",
        type=click.Choice(FORMATS),
        help="Format of every -o FILE, whatever its suffix; without -o, of stdout.",
    ),
)
SHOWING = (
    JSON,
    click.option("--quiet", "-q", is_flag=True, help="No progress."),
    DEBUG,
)
OUTPUT = (
    click.option(
        "--output-path",
        type=PATH,
        metavar="FOLDER",
        help="Where run folders go. Default ./reports.",
    ),
    *REPORT_FILES,
    *SHOWING,
)


def together(*options: Callable[[Decorated], Decorated]) -> Callable[[Decorated], Decorated]:
    """Return a decorator that gives a command several options, shown in this order."""

    def decorate(function: Decorated) -> Decorated:
        for option in reversed(options):
            function = option(function)
        return function

    return decorate
