"""GateEntry: when a comparison fails, as a guard file says it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, ConfigDict, Field, JsonValue, WithJsonSchema

from evalguard.config.entries import GuardEntry, Name, Names, Paths, RunEntry, Text
from evalguard.core.settings import TARGETS_HINT, Target
from evalguard.core.verdict import MARGIN_PATTERN, Margin
from evalguard.errors import UsageError


def _margin(value: Any) -> Any:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise ValueError(_MARGIN_WORDS)
    try:
        margin = Margin.parse(value)
    except ValueError as error:
        raise ValueError(_MARGIN_WORDS) from error
    if margin.value == 0.0:
        raise ValueError(f"{_MARGIN_WORDS} above 0")
    return margin


_MARGIN_WORDS = "a number of sigmas (1.0), points (1pp) or a relative drop (2%)"
MarginField = Annotated[
    Any,
    BeforeValidator(_margin),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "number", "exclusiveMinimum": 0},
                {"type": "string", "pattern": MARGIN_PATTERN},
            ]
        }
    ),
]


def _distance(what: str, **more: Any) -> Any:
    return Field(default=None, ge=0, allow_inf_nan=False, description=f"At most: {what}", **more)


def _share(what: str) -> Any:
    return Field(default=None, ge=0, le=1, description=f"At least: {what}")


class MetricGateEntry(GuardEntry):
    """What the gate asks of one metric, or of one task's."""

    margin: MarginField = Field(
        default=None, description="Tolerated drift of this metric: 1.0, 1pp, 2%."
    )
    higher_is_better: bool | None = Field(
        default=None,
        description="Which way is better, of a metric whose task does not say: without it such a "
        "metric is shown and not gated.",
    )


class LimitsEntry(GuardEntry):
    """Limits on how far distributions and answers differ, and margins of single metrics.

    The names of limits hold a number; any other is a metric, or TASK/METRIC, with its margin.
    """

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)
    __pydantic_extra__: dict[str, MetricGateEntry] = Field(init=False)

    kl_mean: float | None = _distance("mean KL divergence from the base, in nats a token.")
    kl_median: float | None = _distance("median KL.")
    kl_p90: float | None = _distance("the KL that 90% of the tokens do not exceed.")
    kl_p95: float | None = _distance("the KL that 95% of the tokens do not exceed.")
    kl_p99: float | None = _distance("the KL that 99% of the tokens do not exceed.")
    kl_p99_9: float | None = _distance(
        "the KL that 99.9% of the tokens do not exceed.", alias="kl_p99.9"
    )
    kl_max: float | None = _distance("the largest KL.")
    dp_mean: float | None = _distance(
        "size of the mean change in the scored token's probability.", le=1
    )
    dp_rms: float | None = _distance(
        "root mean square change in the scored token's probability.", le=1
    )
    same_top1: float | None = _share("share of tokens with the same most probable token.")
    same_topk: float | None = _share("mean share of the most probable tokens that both have.")
    same_answer: float | None = _share("share of documents with the same answer.")


class GateEntry(GuardEntry):
    """When a comparison fails."""

    margin: MarginField = Field(
        default=1.0,
        description="Tolerated drift: in standard errors of the base model (1.0), points (1pp) or "
        "relative to the base's value (2%).",
    )
    fail_on: Literal["real", "margin", "significant", "certain", "any-degradation"] = Field(
        default="real",
        description="What fails: real (above the margin, and its interval, Holm-adjusted over all "
        "gated metrics, above 0), margin (above the margin), significant (its own interval above "
        "0), certain (the whole interval above the margin), any-degradation (real ones within it "
        "too).",
    )
    confidence: float = Field(
        default=0.95,
        gt=0,
        lt=1,
        description="Of the interval of the drift, and so of what is real: at 0.90 more is found, "
        "and an unchanged candidate fails in 5% of cases, not 2.5%.",
    )
    undecided: Literal["warn", "fail", "pass"] = Field(
        default="warn",
        description="What becomes of a run whose documents cannot tell: warn (exit code 0, with a "
        "warning of CI), fail (exit code 4, as --strict), pass.",
    )
    broken_documents: int = Field(
        default=0,
        ge=0,
        description="How many documents may be broken: the candidate gives what it is asked far "
        "less than chance, or no finite score, and the base does not.",
    )
    subtasks: bool = Field(
        default=False,
        description="Whether the subtasks of a group with an aggregate are gated too.",
    )
    metrics: LimitsEntry = Field(
        default_factory=LimitsEntry,
        description="Absolute limits, beside the margin; margins of single metrics.",
    )
    only: list[Text] = Field(
        default_factory=list,
        description="Metrics (acc) or tasks' metrics (gsm8k/exact_match) that are gated, of one "
        "filter after a comma (gsm8k/exact_match,strict-match); one that is not in the run fails. "
        "Default: all.",
    )
    advisory: list[Text] = Field(
        default_factory=list,
        description="Metrics, tasks' metrics, or those of one filter, that are shown and never "
        "fail.",
    )


# The shape of a guard file, as pydantic models: what validation and the JSON Schema come from.
#
# Types are strict: a truth value is not a number, and text is neither. Unknown keys are refused.


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
    gate: GateEntry | None = Field(
        default=None, description="The gate of this pair: its keys in place of the file's."
    )
    accept: list[AcceptEntry] = Field(
        default_factory=list, description="Known degradations that are let through for a while."
    )


# A guard file has one of these; the rest says nothing without.
SAYING_SOMETHING = ("models", "run", "gate", "clusters")


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
    include_path: Paths = Field(
        default_factory=list, description="Folders with further lm-eval task files."
    )
    clusters: dict[Text, Text] = Field(
        default_factory=dict,
        description="Task -> field of its documents; documents with the same value there (a shared "
        "passage, say) are not independent.",
    )
    run: RunEntry = Field(default_factory=RunEntry, description="How tasks are run.")
    gate: GateEntry = Field(default_factory=GateEntry, description="When a comparison fails.")


# The JSON Schema of a guard file, made from the models that validate it.


SCHEMA_ID = "urn:evalguard:guard-file:1"


def build_guard_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a guard file, as plain data."""
    made = GuardFile.model_json_schema(by_alias=True)
    _close(made)
    made.pop("title", None)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": "evalguard guard file",
        **made,
    }


def _close(node: object) -> None:
    """Refuse keys that match no pattern: pydantic does, its schema leaves that open."""
    if isinstance(node, dict):
        if "patternProperties" in node:
            node["additionalProperties"] = False
        for value in node.values():
            _close(value)
    elif isinstance(node, list):
        for value in node:
            _close(value)
