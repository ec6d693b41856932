"""The shape of a guard file, as pydantic models: what validation and the JSON Schema come from.

Types are strict: a truth value is no number, and text is neither. Unknown keys are refused.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    StringConstraints,
    WithJsonSchema,
)

from evalguard.amounts import parse_size

# Names become folder names and command-line words: no spaces, no slashes (a name with a slash
# would read like a hub id), no leading dash or dot.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"
# Kept in step with evalguard.settings.Target.parse by a test.
TARGET_PATTERN = (
    r"^(model_args\.[\s\S]+|config\.[\s\S]+|env\.[\s\S]+|build\.[\s\S]+"
    r"|attr:[\s\S]+\.[^.]+|dtype:[\s\S]+|weights:[\s\S]+|call:[\s\S]+:[^\W\d]\w*)$"
)

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1)]


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _limit(value: Any) -> Any:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or (number and (0 < value < 1 or (isinstance(value, int) and value >= 1))):
        return value
    raise ValueError("a number of documents (1 or more) or a share of them (between 0 and 1)")


def _batch_size(value: Any) -> Any:
    whole = isinstance(value, int) and not isinstance(value, bool) and value >= 1
    if value is None or value == "auto" or whole:
        return value
    raise ValueError("a whole number of sequences (1 or more) or auto")


def _chat_template(value: Any) -> Any:
    if value is None or isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise ValueError("true, false, or the name of a chat template")


def _distributions(value: Any) -> Any:
    value = "off" if value is False else value  # YAML reads a bare off as false
    if value is None or value in _MODES:
        return value
    raise ValueError(f"one of {', '.join(_MODES)}")


_MODES = ("auto", "lockstep", "reference", "off")


def _size(value: Any) -> Any:
    if isinstance(value, str):
        parse_size(value)
    elif value is not None and (isinstance(value, bool) or value != 0):
        raise ValueError("a size such as 20GB, with its unit")
    return value


# The schema says in its words what the validators above say in theirs; a test compares them.
_TEXT = {"type": "string", "minLength": 1}
_COUNT = {"type": "integer", "minimum": 1}
_SHARE = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}
_NULL = {"type": "null"}
Limit = Annotated[Any, BeforeValidator(_limit), WithJsonSchema({"anyOf": [_COUNT, _SHARE, _NULL]})]
BatchSize = Annotated[
    Any, BeforeValidator(_batch_size), WithJsonSchema({"anyOf": [_COUNT, {"const": "auto"}, _NULL]})
]
_SIZE = r"^(0|[0-9]+(\.[0-9]+)?\s*([bB]|[kKmMgGtTpP][iI]?[bB]|[kKmMgGtTpP]))$"
Size = Annotated[
    Any,
    BeforeValidator(_size),
    WithJsonSchema({"anyOf": [{"const": 0}, {"type": "string", "pattern": _SIZE}, _NULL]}),
]
ChatTemplate = Annotated[
    Any,
    BeforeValidator(_chat_template),
    WithJsonSchema({"anyOf": [{"type": "boolean"}, _TEXT, _NULL]}),
]
Distributions = Annotated[
    Any,
    BeforeValidator(_distributions),
    WithJsonSchema({"anyOf": [{"enum": [*_MODES, False]}, _NULL]}),
]
Paths = Annotated[
    list[Text],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}),
]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class SettingEntry(_Entry):
    """One conversion knob: what a bisection may toggle."""

    reference: JsonValue = Field(description="The value the original model has.")
    candidate: JsonValue = Field(description="The value the converted model has.")
    target: str = Field(
        description="Where it is applied: model_args.X, config.X, attr:GLOB.X, dtype:GLOB, "
        "weights:GLOB, env.X, build.X or call:pkg.mod:function.",
        json_schema_extra={"pattern": TARGET_PATTERN},
    )
    alternatives: list[JsonValue] = Field(
        default_factory=list,
        description="Other values that would do, the best first: tried in place of the candidate's "
        "value if that is guilty.",
    )


class ConstraintEntry(_Entry):
    """Assignments that cannot be built: where `if` holds, `then` must hold too."""

    when: dict[Name, JsonValue] = Field(
        alias="if", min_length=1, description="Setting name -> one of its values."
    )
    then: dict[Name, JsonValue] = Field(
        min_length=1, description="Setting name -> one of its values."
    )


class BuildEntry(_Entry):
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
    call: Text = Field(default="", description="pkg.mod:function or path/to/file.py:function.")
    output: Text = Field(
        default="output", description="Path, inside the build folder, of what was made."
    )
    inputs: dict[Name, JsonValue] = Field(
        default_factory=dict, description="Fixed inputs; a setting with target build.X overrides X."
    )


class ModelEntry(_Entry):
    """A model under a name."""

    extends: Name | None = Field(
        default=None, description="A model of this file to inherit everything from."
    )
    model: Text = Field(default="hf", description="Any lm-eval model type.")
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
    trust_remote_code: bool = Field(
        default=False, description="Run the Python code that comes with this model. Not inherited."
    )
    allow_pickle: bool = Field(
        default=False, description="Load pickled weights, which can run code. Not inherited."
    )
    description: str = Field(default="", description="One line for people.")


class PairEntry(_Entry):
    """Two models to compare."""

    base: Name = Field(description="The original.")
    cand: Name = Field(description="The candidate.")
    differs: list[Literal["prompt", "tokens"]] = Field(
        default_factory=list,
        description="Differences between the two that are meant: prompts, token ids.",
    )
    tasks: list[Text] = Field(
        default_factory=list, min_length=1, description="Tasks of this pair, instead of the file's."
    )


class RunEntry(_Entry):
    """How tasks are run; the command line wins over these."""

    num_fewshot: int | None = Field(default=None, ge=0, description="Few-shot examples.")
    limit: Limit = Field(default=None, description="First documents of each task, or a share.")
    batch_size: BatchSize = Field(
        default=None,
        description="Sequences per forward pass; auto (the default): as many as the token budget "
        "has room for.",
    )
    token_budget: int | None = Field(
        default=None,
        ge=0,
        description="Padded tokens per forward pass; 0 (the default): measured on this device.",
    )
    scorer: Literal["fast", "harness"] | None = Field(
        default=None,
        description="How Hugging Face models are scored: fast (the default), or by lm-eval's own "
        "path.",
    )
    share_prefixes: bool | None = Field(
        default=None,
        description="Whether what several continuations have before them is read once (the "
        "default), where the model proves to give the same scores.",
    )
    seed: int | None = Field(default=None, ge=0, description="Seed of few-shot and document order.")
    device: Text | None = Field(default=None, description="cpu, cuda, cuda:1, mps.")
    apply_chat_template: ChatTemplate = Field(
        default=None, description="Whether to apply the chat template, or which one."
    )
    distributions: Distributions = Field(
        default=None,
        description="How the two models' distributions are compared: lockstep, reference, off, or "
        "auto (lock-step where it is possible).",
    )
    reference_top_k: int | None = Field(
        default=None, ge=1, description="Tokens of the base that a reference keeps."
    )
    memory: Literal["auto", "lockstep", "sequential"] | None = Field(
        default=None,
        description="Both models loaded (lockstep), one after the other (sequential), or auto: "
        "both where they fit.",
    )
    sequential: bool | None = Field(
        default=None,
        description="Stop a task as soon as the verdict of all its documents is known.",
    )
    sequential_alpha: float | None = Field(
        default=None, gt=0, lt=0.5, description="Chance that it is not; default 0.05."
    )
    cache_max_size: Size = Field(
        default=None,
        description="How large the cache may be after a run, such as 20GB; default: no limit.",
    )


def _distance(what: str, **more: Any) -> Any:
    return Field(default=None, ge=0, allow_inf_nan=False, description=f"At most: {what}", **more)


def _share(what: str) -> Any:
    return Field(default=None, ge=0, le=1, description=f"At least: {what}")


class LimitsEntry(_Entry):
    """Absolute limits on how far the two models' distributions and answers differ, per task."""

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


class GateEntry(_Entry):
    """When a comparison fails."""

    margin: float = Field(
        default=1.0, gt=0, description="Tolerated drift, in standard errors of the base model."
    )
    fail_on: Literal["margin", "significant", "certain", "any-degradation"] = Field(
        default="margin", description="What a regression must be, beside larger than the margin."
    )
    confidence: float = Field(default=0.95, gt=0, lt=1, description="Of the interval of the drift.")
    undecided: Literal["warn", "fail"] = Field(
        default="warn", description="What too few documents to decide lead to."
    )
    subtasks: bool = Field(
        default=False,
        description="Whether the subtasks of a group with an aggregate are gated too.",
    )
    metrics: LimitsEntry = Field(
        default_factory=LimitsEntry, description="Absolute limits, beside the margin."
    )


class GuardFile(_Entry):
    """A guard file of evalguard: models, how they were converted, and what to hold them to."""

    models: dict[Name, ModelEntry] = Field(min_length=1, description="Models by name.")
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
