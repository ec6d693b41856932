"""The options that several commands share, by group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from evalguard.cli.click_options import (
    PATH,
    bisect_option,
    cache_option,
    distribution_option,
    files_option,
    floor_option,
    gate_option,
    model_option,
    output_option,
    record_option,
    scoring_option,
    speed_option,
    task_option,
)
from evalguard.cli.value_types import (
    BatchSize,
    ChatTemplate,
    FiniteRange,
    LimitValue,
    MarginValue,
    Pairs,
)
from evalguard.core.compare_report import FORMATS
from evalguard.core.noise_floor import FACTORS
from evalguard.core.tracked_run import BUILT_IN_TRACKERS
from evalguard.run_token import go_on_with

_BUDGET_HELP = "Most full evaluations that the search may spend. Default: no limit."
_THOROUGH_HELP = "Also prove small effects; costs more evaluations."
_JOBS_HELP = "Models that are evaluated at the same time. Default 1."
_OVER_HELP = "What to search: settings, layers or modules."
_OVER = click.Choice(["settings", "layers", "modules"])
BISECT = bisect_option(
    "--bisect",
    type=click.Choice(["auto", "always", "never"]),
    help="Search the settings for culprits. Default auto: if the gate fails and the candidate "
    "declares settings.",
)
SEARCH = (
    bisect_option(
        "--budget",
        "bisect_budget",
        type=FiniteRange(min=0),
        metavar="EVALUATIONS",
        help=_BUDGET_HELP,
    ),
    bisect_option("--thorough/--no-thorough", "bisect_thorough", default=None, help=_THOROUGH_HELP),
    bisect_option(
        "--jobs", "bisect_jobs", type=click.IntRange(min=1), metavar="N", help=_JOBS_HELP
    ),
    bisect_option("--over", "bisect_over", type=_OVER, metavar="WHAT", help=_OVER_HELP),
)
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
TRACKING = record_option(
    "--track",
    metavar="NAME",
    multiple=True,
    help=f"Send the finished run to a tracker: {', '.join(BUILT_IN_TRACKERS)}, one that another "
    "package brings, or none. Repeatable. Default: W&B where it is configured.",
)


def _history_option(otherwise: str) -> Callable[[Any], Any]:
    return record_option(
        "--history",
        type=PATH,
        metavar="FILE|none",
        help=f"Add this run to a history, or to none. Default: the guard file's, else {otherwise}.",
    )


HISTORY = _history_option("none")
NIGHT_HISTORY = _history_option("history.sqlite beside the nights")
EPILOG = """\b
Exit codes: 0 passed, 1 regressed, 2 usage, 3 failed, 4 undecided (--strict).
The same command goes on with what was stopped. --num_fewshot works as well."""
CONFIG = model_option(
    "--config",
    type=PATH,
    metavar="FILE",
    help="Guard file. Default: evalguard.yaml, configs/*.",
)
DEBUG = output_option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show tracebacks of errors and the logs of libraries.",
)
BASE = model_option(
    "--base",
    metavar="MODEL",
    help="Base: a name in the guard file, a folder, hub id, GGUF, URL, TYPE:MODEL, finished run, "
    "dump, history, reference file.",
)
CANDIDATE_SETTINGS = model_option(
    "--set",
    "cand_set",
    type=Pairs(),
    multiple=True,
    help="Give a setting of the candidate a value: reference, candidate or another. Repeatable.",
)
_BASE = (
    CONFIG,
    model_option(
        "--model",
        default="hf",
        metavar="TYPE",
        show_default=True,
        help="Model type of folders, hub ids and URLs, unless TYPE:MODEL says it. A GGUF, a graph "
        "and a URL tell their own.",
    ),
    model_option(
        "--base-model-args",
        "base_model_args",
        default="",
        metavar=MODEL_ARGS,
        help="Model arguments of the base, in addition to the guard file's.",
    ),
)
CODE = (
    model_option(
        "--trust-remote-code", is_flag=True, help="Run the Python code that comes with a model."
    ),
    model_option(
        "--allow-code",
        is_flag=True,
        help="Run the code of a guard file that was found, not named with --config.",
    ),
)
MODELS = (
    *_BASE,
    model_option(
        "--cand-model-args",
        "cand_model_args",
        default="",
        metavar=MODEL_ARGS,
        help="Model arguments of the candidate, in addition to the guard file's.",
    ),
    CANDIDATE_SETTINGS,
    model_option(
        "--base-set",
        type=Pairs(),
        multiple=True,
        help="Give a setting of the base a value. Repeatable.",
    ),
    *CODE,
)
ONE_MODEL = (
    *_BASE,
    model_option(
        "--set",
        "--base-set",
        "base_set",
        type=Pairs(),
        multiple=True,
        help="Give a setting a value: reference, candidate or another. Repeatable.",
    ),
    *CODE,
)
DEVICE = speed_option(
    "--device",
    default="",
    metavar="NAME",
    help="cpu, cuda, cuda:1, mps. Default: cuda if any.",
)
THREADS = speed_option(
    "--threads",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="CPU threads. Default 0: chosen automatically.",
)
CACHE_DIR = cache_option(
    "--cache-dir",
    type=PATH,
    metavar="FOLDER",
    help="Folder of the score cache. Default: in the user's cache.",
)
DISTRIBUTIONS = distribution_option(
    "--distributions",
    type=click.Choice(["auto", "lockstep", "reference", "off"]),
    help="Compare the models' token distributions: with both models loaded (lockstep), or one "
    "after the other (reference). Default auto: lockstep where both fit.",
)
REFERENCE_FILE = distribution_option(
    "--save-reference",
    type=PATH,
    metavar="FILE",
    help="Write the base's answers and distributions to FILE: --base FILE then needs no model.",
)
SCORING = (
    speed_option(
        "--batch-size",
        type=BatchSize(),
        metavar="N|auto",
        help="Sequences per forward pass, for both models. Default auto: measured on the device.",
    ),
    scoring_option(
        "--scorer",
        type=click.Choice(["fast", "harness"]),
        help="Scoring code for Hugging Face models: evalguard's (fast, the default) or lm-eval's "
        "(harness).",
    ),
    DEVICE,
    THREADS,
    CACHE_DIR,
)
NO_CACHE = cache_option(
    "--no-cache", is_flag=True, help="Score everything again, and store no scores."
)


def _go_on(_context: click.Context, _option: click.Parameter, token: str | None) -> None:
    if token:
        go_on_with(token)


UNCHANGED_SINCE = cache_option(
    "--unchanged-since",
    metavar="RUN",
    expose_value=False,
    callback=_go_on,
    help="Go on with a run that was stopped, as it was told: nothing that the models' own code "
    "reads has changed since.",
)
EXECUTION = speed_option(
    "--execution",
    default="",
    metavar="PLACE",
    help="Where models run: here (default), ray (a local Ray), ray://HOST:PORT, ray://auto; "
    "'ray?actors=4&num_gpus=1' says how much.",
)
SEQUENTIAL = speed_option(
    "--sequential/--no-sequential",
    default=None,
    help="Stop a task as soon as the verdict on all its documents is certain enough.",
)
RUNNING = (
    *SCORING,
    EXECUTION,
    SEQUENTIAL,
    scoring_option(
        "--verify-scorer",
        type=click.IntRange(min=0),
        default=0,
        metavar="N",
        help="Score N documents per task again with lm-eval; a difference is an error.",
    ),
    DISTRIBUTIONS,
    REFERENCE_FILE,
    NO_CACHE,
    UNCHANGED_SINCE,
)
MARGIN = gate_option(
    "--margin",
    type=MarginValue(),
    metavar="N|Npp|N%",
    help="Allowed drift: standard errors of the base (1), points (1pp), relative (2%). Default 1.",
)
GATE_METRIC = gate_option(
    "--gate-metric",
    "gate_limits",
    type=Pairs("kl_mean=0.01", alone=True),
    multiple=True,
    help="Limit on a figure: kl_mean=0.01, loops=0, gsm8k/valid_json=0.99; margin on one: "
    "cut=1pp; a figure of answers gated like a metric: loops. Repeatable.",
)
CONFIDENCE = gate_option(
    "--confidence",
    type=FiniteRange(0.5, 1, min_open=True, max_open=True),
    metavar="P",
    help="Confidence level of the intervals. Default 0.95.",
)
_VARIED = [factor.replace("_", "-") for factor in FACTORS]
VARY = floor_option(
    "--vary",
    type=click.Choice(_VARIED),
    multiple=True,
    metavar="WHAT",
    help=f"What to vary while the model stays the same: {', '.join(_VARIED[:-1])} or "
    f"{_VARIED[-1]}. Repeatable. Default: all.",
)
FLOOR_FILE = floor_option(
    "--floor",
    type=PATH,
    metavar="FILE",
    help="Compare the drift with a measured floor (evalguard floor --json).",
)
STRICT = gate_option("--strict", is_flag=True, help="Exit with 4 where the verdict is undecided.")
GATE = (
    MARGIN,
    gate_option(
        "--fail-on",
        type=click.Choice(["real", "margin", "significant", "certain", "any-degradation"]),
        help="What fails. Default real: above the margin, and the paired test calls it real.",
    ),
    CONFIDENCE,
    GATE_METRIC,
    STRICT,
    gate_option(
        "--git-bisect",
        is_flag=True,
        help="Exit codes for git bisect run: 125 where there is no verdict.",
    ),
)
JSON = output_option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
VERBOSE = output_option(
    "-v", "--verbose", is_flag=True, help="Show everything, not only the first screen."
)
REPORT_FILES = (
    files_option("report", ".html, .md, .json, .xml or .txt"),
    output_option(
        "--format",
        "output_format",
        type=click.Choice(FORMATS),
        help="Format of every -o FILE, whatever its suffix; without -o, of the printed report.",
    ),
)
QUIET = output_option("--quiet", "-q", is_flag=True, help="Show no progress.")
SHOWING = (JSON, VERBOSE, QUIET, DEBUG)
OUTPUT_PATH = output_option(
    "--output-path",
    type=PATH,
    metavar="FOLDER",
    help="Folder of run folders. Default: ./reports.",
)
OUTPUT = (
    OUTPUT_PATH,
    *REPORT_FILES,
    *SHOWING,
)
