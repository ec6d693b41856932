"""The shape of a guard file, as pydantic models: what validation and the JSON Schema come from.

Types are strict: a truth value is not a number, and text is neither. Unknown keys are refused.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import ConfigDict, Field, JsonValue

from evalguard.config.entries import AnswerEntry, GuardEntry, Name, Names, Paths, Text
from evalguard.config.gate_entry import GateEntry
from evalguard.config.run_entry import RunEntry
from evalguard.core.settings import TARGETS_HINT, Target
from evalguard.errors import UsageError

# Kept in step with evalguard.core.settings.Target.parse by a test.
TARGET_PATTERN = (
    r"^(model_args\.[\s\S]+|config\.[\s\S]+|generation\.[\s\S]+|env\.[\s\S]+|build\.[\s\S]+"
    r"|package\.[\s\S]+|serve\.[\s\S]+"
    r"|attr:[\s\S]+\.[^.]+|dtype:[\s\S]+|weights:[\s\S]+|module:[\s\S]+|call:[\s\S]+:[^\W\d]\w*)$"
)
DATE_PATTERN = r"^[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])$"


class SettingEntry(GuardEntry):
    """One conversion knob: what a bisection may toggle."""

    reference: JsonValue = Field(description="The value the original model has.")
    candidate: JsonValue = Field(description="The value the converted model has.")
    target: str = Field(
        default="",
        description="Where it is applied: model_args.X, config.X, attr:GLOB.X, dtype:GLOB, "
        "weights:GLOB, module:GLOB, generation.X, env.X, build.X, package.X, serve.FLAG, "
        "serve.env.X or call:pkg.mod:function. Default: what the setting's name says.",
        json_schema_extra={"pattern": f"{TARGET_PATTERN}|^$"},
    )
    alternatives: list[JsonValue] = Field(
        default_factory=list,
        description="Other values that would do, the best first: tried in place of the candidate's "
        "value if that is a culprit.",
    )


def setting_target(name: str, entry: SettingEntry) -> Target:
    """The target of a setting: the one that is written, else what its name says.

    Raises:
        UsageError: neither is one.
    """
    if not entry.target and not re.match(TARGET_PATTERN, name):
        raise UsageError("it has no 'target', and its name is none", hint=TARGETS_HINT)
    return Target.parse(entry.target or name)


def readable_target(name: str, entry: SettingEntry) -> Target | None:
    """The target of a setting; None where it is none, which is told elsewhere."""
    try:
        return setting_target(name, entry)
    except UsageError:
        return None


class ConstraintEntry(GuardEntry):
    """Assignments that cannot be built: where `if` holds, `then` must hold too."""

    when: dict[Name, JsonValue] = Field(
        alias="if", min_length=1, description="Setting name -> one of its values."
    )
    then: dict[Name, JsonValue] = Field(
        min_length=1, description="Setting name -> one of its values."
    )


class BuildEntry(GuardEntry):
    """A recipe that makes the model from settings: a command, or a Python function."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": ["command"]}, {"required": ["call"]}]}
    )

    command: list[Text] = Field(
        default_factory=list,
        min_length=1,
        description="Program and arguments, run without a shell; {NAME} stands for an input, "
        "{output} for the output path.",
    )
    call: Text = Field(
        default="",
        description="pkg.mod:function, path/to/file.py:function, or the name of a recipe.",
    )
    output: Text = Field(
        default="output", description="Path, inside the build folder, of what was made."
    )
    inputs: dict[Name, JsonValue] = Field(
        default_factory=dict, description="Fixed inputs; a setting with target build.X overrides X."
    )


class ServeEntry(GuardEntry):
    """The server that answers for the model: evalguard starts it, and stops it in the end."""

    command: list[Text] = Field(
        min_length=1,
        description="Program and arguments, run without a shell in this file's folder; {port} "
        "stands for a free port, {python} for the interpreter of the model's environment, {build} "
        "for what its recipe made.",
    )
    url: Text = Field(
        description="Becomes the model's base_url: http://127.0.0.1:{port}/v1/completions."
    )
    ready: str = Field(
        default="",
        description="Path or URL that answers when the server can be asked, such as /health; "
        "default: its list of models (/v1/models).",
    )
    env: dict[Text, JsonValue] = Field(
        default_factory=dict,
        description="Environment variables of the server; null takes one away.",
    )
    start_limit: float = Field(
        default=600.0,
        gt=0,
        allow_inf_nan=False,
        description="Seconds until it has to be ready.",
    )


class ModelEntry(GuardEntry):
    """A model under a name."""

    extends: Name | None = Field(
        default=None, description="A model of this file to inherit everything from."
    )
    model: Text = Field(
        default="hf",
        description="Any lm-eval model type, or one of evalguard's (evalguard models --types).",
    )
    model_args: dict[Text, JsonValue] = Field(
        default_factory=dict,
        description="Arguments of the model type. Relative local paths start at this file.",
    )
    settings: dict[Name, SettingEntry] = Field(
        default_factory=dict, description="Conversion settings by name."
    )
    constraints: list[ConstraintEntry] = Field(
        default_factory=list, description="Assignments of the settings that cannot be built."
    )
    build: BuildEntry | None = Field(default=None, description="How to make the model.")
    serve: ServeEntry | None = Field(
        default=None, description="How to start the server that answers for the model."
    )
    python: Text | None = Field(
        default=None,
        description="Interpreter in which the model (or its server) runs: a path or a name. "
        "Default: evalguard's.",
    )
    requirements: list[Text] = Field(
        default_factory=list,
        description="Packages of a virtual environment in which the model runs, as pip takes them; "
        "evalguard makes and keeps it.",
    )
    inputs: list[Text] | None = Field(
        default=None,
        description="Files and folders that code of others reads to build or run the model, [] for "
        "none: hooks, trust_remote_code, a build. Where this is written, its scores and builds are "
        "kept from run to run, until one of them or the code changes. Not inherited.",
    )
    revision: Text | Literal[""] = Field(
        default="",
        description="Of a served model: your word for what the server has now. Its scores are kept "
        "under it; write another one whenever something about the server changes. Not inherited.",
    )
    trust_remote_code: bool = Field(
        default=False, description="Run the Python code that comes with this model. Not inherited."
    )
    allow_pickle: bool = Field(
        default=False, description="Load pickled weights, which can run code. Not inherited."
    )
    description: str = Field(default="", description="One line for people.")


class AcceptEntry(GuardEntry):
    """A known degradation that the gate lets through until a date."""

    task: Text = Field(description="The task, or group of tasks.")
    metric: Text = Field(description="Its metric.")
    filter: Text | None = Field(default=None, description="Its filter; default: all.")
    up_to: float = Field(
        gt=0, allow_inf_nan=False, description="The largest sigma that is accepted."
    )
    until: str = Field(
        description="The last day on which it counts, YYYY-MM-DD (UTC).", pattern=DATE_PATTERN
    )
    reason: Text = Field(description="Why.")


class PairEntry(GuardEntry):
    """Two models to compare; with several candidates each of them with the base."""

    base: Name = Field(description="The original.")
    cand: Names = Field(description="The candidate, or a list of candidates.")
    differs: list[Literal["prompt", "tokens"]] = Field(
        default_factory=list,
        description="Differences between the two that are meant: prompts, token ids.",
    )
    tasks: list[Text] = Field(
        default_factory=list, min_length=1, description="Tasks of this pair, instead of the file's."
    )
    requests: Text | None = Field(
        default=None, description="Chat requests of this pair, instead of the file's."
    )
    gate: GateEntry | None = Field(
        default=None, description="The gate of this pair: its keys in place of the file's."
    )
    accept: list[AcceptEntry] = Field(
        default_factory=list, description="Known degradations that are let through for a while."
    )


# A guard file has one of these; the rest says nothing without.
SAYING_SOMETHING = ("models", "run", "gate", "clusters", "answers")


class GuardFile(GuardEntry):
    """A guard file of evalguard: models, how they were converted, and what to hold them to.

    One without models says how models are run and judged that the command line names.
    """

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [key]} for key in SAYING_SOMETHING]}
    )

    models: dict[Name, ModelEntry] = Field(
        default_factory=dict, min_length=1, description="Models by name."
    )
    pairs: list[PairEntry] = Field(default_factory=list, description="Models to compare.")
    tasks: list[Text] = Field(default_factory=list, min_length=1, description="lm-eval tasks.")
    requests: Text | None = Field(
        default=None,
        description="File of chat requests in OpenAI's form, one a line: a task of its own.",
    )
    include_path: Paths = Field(
        default_factory=list, description="Folders with further lm-eval task files."
    )
    clusters: dict[Text, Text] = Field(
        default_factory=dict,
        description="Task -> field of its documents; documents with the same value there (a shared "
        "passage, say) are not independent.",
    )
    answers: dict[Text, AnswerEntry] = Field(
        default_factory=dict,
        description="Task -> what structure its answers must have; what does not is a figure of "
        "generated answers.",
    )
    run: RunEntry = Field(default_factory=RunEntry, description="How tasks are run.")
    gate: GateEntry = Field(default_factory=GateEntry, description="When a comparison fails.")
