"""RunEntry: how tasks are run, as a guard file says it."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, WithJsonSchema

from evalguard.config.entries import TEXT_SCHEMA, GuardEntry, Text
from evalguard.core.amounts import parse_size
from evalguard.core.tracked_run import BUILT_IN_TRACKERS, NO_TRACKER


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


def _execution(value: Any) -> Any:
    if value is None or (isinstance(value, str) and re.match(EXECUTION_PATTERN, value)):
        return value
    raise ValueError(
        "here, ray, ray://HOST:PORT or ray://auto; how many actors, and what each takes, are keys "
        "beside it"
    )


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
_AMOUNT = r"(actors|num_gpus|num_cpus|memory)=[0-9]+(\.[0-9]+)?"
EXECUTION_PATTERN = (
    rf"^(here|ray(://(auto|[^\s?/]+:[1-9][0-9]{{0,4}}))?(\?{_AMOUNT}(&{_AMOUNT})*)?)$"
)
Execution = Annotated[
    Any,
    BeforeValidator(_execution),
    WithJsonSchema({"anyOf": [{"type": "string", "pattern": EXECUTION_PATTERN}, _NULL]}),
]
Distributions = Annotated[
    Any,
    BeforeValidator(_distributions),
    WithJsonSchema({"anyOf": [{"enum": [*_MODES, False]}, _NULL]}),
]


def _track(value: Any) -> Any:
    names = [value] if isinstance(value, str) else value
    if value is None:
        return None
    if isinstance(names, list) and names and all(isinstance(n, str) and n for n in names):
        return tuple(dict.fromkeys(names))  # checks.py knows which there are
    raise ValueError(f"{NO_TRACKER}, or one or more of {', '.join(BUILT_IN_TRACKERS)}")


Track = Annotated[
    Any,
    BeforeValidator(_track),
    WithJsonSchema(
        {
            "anyOf": [
                {"enum": [NO_TRACKER, *BUILT_IN_TRACKERS]},
                {"type": "string", "minLength": 1},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
                _NULL,
            ]
        }
    ),
]


class RunEntry(GuardEntry):
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
    system_instruction: Text | None = Field(
        default=None, description="System message of the prompt."
    )
    fewshot_as_multiturn: bool | None = Field(
        default=None, description="Write few-shot examples as turns of a conversation."
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
        default=None,
        gt=0,
        lt=0.5,
        description="Probability of a wrong early verdict; default 0.05.",
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
    bisect_over: Literal["settings", "layers", "modules"] | None = Field(
        default=None,
        description="What is searched: settings (the default), or which layers or modules of the "
        "candidate's model make the drift.",
    )
    worker: Literal["auto", "always"] | None = Field(
        default=None,
        description="Score in worker processes: always, or only where a setting needs one (auto, "
        "the default).",
    )
    timeout: float | None = Field(
        default=None,
        gt=0,
        allow_inf_nan=False,
        description="Seconds that one request to a worker may take; default: no limit.",
    )
    execution: Execution = Field(
        default=None,
        description="Where models run: here (the default), ray (a local Ray), ray://HOST:PORT or "
        "ray://auto (a Ray cluster).",
    )
    actors: int | None = Field(
        default=None,
        ge=1,
        description="Ray: actors at the same time; default: one for every GPU, else one for every "
        "machine.",
    )
    num_gpus: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Ray: GPUs of each actor; default: 1."
    )
    num_cpus: float | None = Field(
        default=None, ge=0, allow_inf_nan=False, description="Ray: CPUs of each actor; default: 1."
    )
    memory_each: Size = Field(
        default=None, description="Ray: memory that each actor is placed by, such as 32GB."
    )
    cache_max_size: Size = Field(
        default=None,
        description="How large the cache may be after a run, such as 20GB; default: no limit.",
    )
    history: Text | None = Field(
        default=None,
        description="sqlite file that every comparison is added to (evalguard history shows it), "
        "or none; relative paths start at this file.",
    )
    track: Track = Field(
        default=None,
        description=f"Experiment trackers that a finished run is sent to: "
        f"{', '.join(BUILT_IN_TRACKERS)}, those of other packages, or none; default: W&B where it "
        "is configured.",
    )
    track_documents: bool | None = Field(
        default=None,
        description="Send trackers the documents, too: prompts, answers and the files of the run "
        "folder; default: figures, tables and plots alone.",
    )
    pair_hours: float | None = Field(
        default=None,
        ge=0,
        allow_inf_nan=False,
        description="Hours that evalguard nightly gives each pair, and its bisection again; 0: any "
        "number; default: 12.",
    )
