"""The options that several commands share: declared ones as click has them, and those of cli alone.

What an option of a comparison is called and says stands in ``config/options.py``; here is which
command takes which.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_origin

import click

from evalguard.cli.click_options import (
    PATH,
    Option,
    cache_option,
    model_option,
    output_option,
)
from evalguard.cli.value_types import (
    BatchSize,
    ChatTemplate,
    FiniteRange,
    LimitValue,
    MarginValue,
    Pairs,
)
from evalguard.config.declared_options import DeclaredOption, Kind, declared_options
from evalguard.config.options import CompareOptions
from evalguard.run_token import go_on_with

Decorator = Callable[[Any], Any]
# How a value is typed whose type does not say it.
_KINDS: Mapping[Kind, Mapping[str, Any]] = {
    "arguments": {"default": "", "metavar": "NAME=VALUE,...|JSON"},
    "batch_size": {"type": BatchSize()},
    "chat_template": {"type": ChatTemplate(), "is_flag": False, "flag_value": True},
    "confidence": {"type": FiniteRange(0.5, 1, min_open=True, max_open=True)},
    "gate_metrics": {"type": Pairs("kl_mean=0.01", alone=True), "multiple": True},
    "limit": {"type": LimitValue()},
    "margin": {"type": MarginValue()},
    "names": {"default": ""},
    "settings": {"type": Pairs(), "multiple": True},
}


def take(
    *names: str, of: type[CompareOptions] = CompareOptions, **instead: Any
) -> tuple[Decorator, ...]:
    """Return declared options as click has them.

    Args:
        names: of the options, in the order of help.
        of: the record that declares them.
        instead: attributes that count in place of the declared ones, and ``flags``.
    """
    return tuple(_click_option(declared_options(of)[name], **instead) for name in names)


def take_all(*without: str, of: type[CompareOptions] = CompareOptions) -> tuple[Decorator, ...]:
    """Every option that can be typed, under the headings in their order."""
    typed = [declared for declared in declared_options(of).values() if declared.option.help]
    left_out = (*without, "quiet")  # is among those about what is shown
    named = [
        declared.name for declared in sorted(typed, key=_heading) if declared.name not in left_out
    ]
    return (*take(*named, of=of), UNCHANGED_SINCE, *SHOWING)


_HEADINGS = (
    "Models", "Tasks and prompts", "Gate and statistics", "Speed and memory", "Scoring", "Cache",
    "Distributions", "Bisection", "Noise floor", "History and tracking", "Output",
)  # fmt: skip
_OF_BISECT = ("bisect_budget", "bisect_thorough", "bisect_jobs", "bisect_over")


def _heading(declared: DeclaredOption) -> int:
    return _HEADINGS.index(declared.option.group)


def _click_option(declared: DeclaredOption, **instead: Any) -> Decorator:
    option = declared.option
    by_kind = None if option.kind is None else _KINDS.get(option.kind)
    attributes = dict(_typed_as(declared) if by_kind is None else by_kind)
    attributes |= {"group": option.group, "help": option.help, "show_default": option.shows_default}
    attributes |= instead
    if option.metavar is not None:
        attributes["metavar"] = option.metavar
    flags = attributes.pop("flags", declared.flags)
    return click.option(*flags, declared.name, cls=Option, **attributes)


def _typed_as(declared: DeclaredOption) -> dict[str, Any]:
    """Attributes that the type of an option says."""
    kind, option, default = declared.type, declared.option, declared.default
    if kind is bool and default is None:
        return {"default": None}
    if kind is bool:  # typed where it is not the default
        return {"is_flag": True, **({"callback": _switched_off} if default else {})}
    if kind is int:
        return {"type": click.IntRange(min=_whole(option.at_least)), "default": default}
    if kind is float:
        return {"type": FiniteRange(min=option.at_least)}
    if kind is Path or get_args(kind)[:1] == (Path,):
        return {"type": PATH, "multiple": kind is not Path}
    if declared.choices:
        several = get_origin(kind) is frozenset
        return {"type": click.Choice(declared.choices), "multiple": several}
    return {"multiple": True} if get_origin(kind) is tuple else {"default": default}


def _whole(bound: float | None) -> int | None:
    return None if bound is None else int(bound)


def _switched_off(_context: click.Context, _option: click.Parameter, typed: bool) -> bool:
    return not typed


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
EPILOG = """\b
Exit codes: 0 passed, 1 regressed, 2 usage, 3 failed, 4 undecided (--strict).
The same command goes on with what was stopped. --num_fewshot works as well."""
BASE = model_option(
    "--base",
    metavar="MODEL",
    help="Base: a name in the guard file, a folder, hub id, GGUF, URL, TYPE:MODEL, finished run, "
    "dump, history, reference file.",
)
DEBUG = output_option(
    "--debug",
    is_flag=True,
    expose_value=False,
    help="Show tracebacks of errors and the logs of libraries.",
)
JSON = output_option(
    "--json", "as_json", is_flag=True, help="Print one JSON document and nothing else."
)
VERBOSE = output_option(
    "-v", "--verbose", is_flag=True, help="Show everything, not only the first screen."
)
(CONFIG,) = take("config")
(TRACKING,) = take("track")
(QUIET,) = take("quiet")
REPORT_FILES = take("output", "output_format")
CODE = take("trust_remote_code", "allow_code")
MODELS = take(
    "config", "model", "base_model_args", "cand_model_args", "cand_set", "base_set",
    "trust_remote_code", "allow_code",
)  # fmt: skip
ONE_MODEL = (
    *take("config", "model", "base_model_args"),
    *take(
        "base_set",
        flags=("--set", "--base-set"),
        help="Give a setting a value: reference, candidate or another. Repeatable.",
    ),
    *CODE,
)
TASK_NAMES = take("tasks", "include_path")
PROMPTS = take("num_fewshot", "seed", "apply_chat_template")
TASKS = take(
    "tasks", "include_path", "requests", "limit", "num_fewshot", "seed", "apply_chat_template",
    "gen_kwargs", "confirm_run_unsafe_code", "allow_differing", "cluster",
)  # fmt: skip
SCORING = take("batch_size", "scorer", "device", "threads", "cache_dir")
RUNNING = (
    *SCORING,
    *take(
        "execution", "sequential", "verify_scorer", "distributions", "save_reference", "use_cache"
    ),
    UNCHANGED_SINCE,
)
SHOWING = (JSON, VERBOSE, QUIET, DEBUG)
OUTPUT = (*take("output_path"), *REPORT_FILES, *SHOWING)
COMPARE = take_all(*_OF_BISECT)
BISECT = take_all("bisect")
