"""RunEntry: how tasks are run, as a guard file says it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from evalguard.amounts import parse_size
from evalguard.config.entry import TEXT_SCHEMA, Entry, Text


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
    WithJsonSchema({"anyOf": [{"type": "boolean"}, TEXT_SCHEMA, _NULL]}),
]
Distributions = Annotated[
    Any,
    BeforeValidator(_distributions),
    WithJsonSchema({"anyOf": [{"enum": [*_MODES, False]}, _NULL]}),
]


_TRACKERS = ["wandb", "trackio", "mlflow"]


def _track(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    several = isinstance(names, list) and names and all(name in _TRACKERS for name in names)
    if value is None or names == ["none"] or several:
        return None if value is None else tuple(dict.fromkeys(names))
    raise ValueError(f"none, or one or more of {', '.join(_TRACKERS)}")


Track = Annotated[
    Any,
    BeforeValidator(_track),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": ["none", *_TRACKERS]},
                {"const": ["none"]},
                {"type": "array", "items": {"enum": _TRACKERS}, "minItems": 1},
                _NULL,
            ]
        }
    ),
]


class RunEntry(Entry):
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
    rolling_bos: Literal["lm-eval", "once"] | None = Field(
        default=None,
        description="Whole texts whose tokenizer adds BOS: lm-eval (the default) counts BOS given "
        "BOS as lm-eval does, once begins with the first real token.",
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
    bisect: Literal["auto", "never", "always"] | None = Field(
        default=None,
        description="Look for the settings that make the drift: auto (the default: where the gate "
        "fails and the candidate declares settings), always, never.",
    )
    bisect_budget: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Full evaluations that may be spent."
    )
    bisect_thorough: bool | None = Field(
        default=None, description="Be surer of small effects, and spend more."
    )
    bisect_jobs: int | None = Field(default=None, ge=1, description="Probes at the same time.")
    cache_max_size: Size = Field(
        default=None,
        description="How large the cache may be after a run, such as 20GB; default: no limit.",
    )
    history: Text | None = Field(
        default=None,
        description="sqlite file that every comparison is added to (evalguard history shows it); "
        "relative paths start at this file.",
    )
    track: Track = Field(
        default=None,
        description="Experiment trackers that a finished run is sent to: wandb, trackio, mlflow, "
        "or none; default: W&B where it is configured.",
    )
    pair_hours: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Hours that evalguard nightly gives each pair, and its bisection again; 0: any "
        "number; default: 12.",
    )
