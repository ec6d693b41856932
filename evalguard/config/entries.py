"""Models given on the command line: a path or hub id, and lm-eval's ``key=value`` arguments."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)

from evalguard.core.amounts import parse_size
from evalguard.core.reports.tracked_run import BUILT_IN_TRACKERS, NO_TRACKER
from evalguard.core.settings import Value, Variant
from evalguard.errors import StoreError, UsageError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_HINT = 'write dtype=float32,revision=main or {"dtype": "float32", "revision": "main"}'
_INT = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_WORDS: Mapping[str, Value] = {"true": True, "false": False, "none": None, "null": None}


def inline_variant(
    spec: str,
    *,
    model: str,
    model_args: Mapping[str, Value],
    cwd: Path,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
) -> Variant:
    """Return the variant of a path or hub id; its name is the path's last part or the hub id.

    The user typed it, so ``trust_remote_code`` may stand among ``model_args``, as in lm-eval.

    Raises:
        UsageError: if the spec is neither a path nor a hub id, or the arguments contradict it.
    """
    args = dict(model_args)
    trusted = args.pop("trust_remote_code", trust_remote_code)
    if not isinstance(trusted, bool):
        raise UsageError(f"trust_remote_code is true or false, not '{trusted}'")
    if "pretrained" in args:
        raise UsageError(
            f"'{spec}' and pretrained={args['pretrained']} name the model twice",
            hint="leave pretrained out of the model args",
        )
    name, pretrained = _resolve_spec(spec, cwd)
    return Variant(
        name=name,
        model=model,
        model_args={"pretrained": pretrained, **resolve_model_args(args, cwd)},
        trust_remote_code=trusted or trust_remote_code,
        allow_pickle=allow_pickle,
        allow_code=True,
    )


def _resolve_spec(spec: str, cwd: Path) -> tuple[str, str]:
    if not spec.strip():
        raise UsageError("the name of a model is empty")
    path = resolve_path(spec, cwd)
    if os.path.exists(path):
        return path.name or spec, str(path)
    if is_written_as_path(spec):
        raise UsageError(f"no model folder at {path}")
    if not _HUB_ID.fullmatch(spec):
        raise UsageError(f"'{spec}' is neither a model folder (nothing at {path}) nor a hub id")
    return spec, spec


def parse_model_args(text: str, *, where: str = "model arguments") -> dict[str, Value]:
    """Return model_args from lm-eval's ``a=1,b=true`` or a JSON object, with typed values.

    ``where`` is the option that errors name. true, false, none, whole numbers and numbers are
    recognised; quotes keep text as text. A value that holds a comma needs the JSON form.

    Raises:
        UsageError: for an argument without "=", without a name or value, or given twice, and for
            JSON that is not an object of finite values.
    """
    stripped = text.strip()
    return _from_json(stripped, where) if stripped.startswith("{") else _from_pairs(stripped, where)


def _unique(pairs: list[tuple[str, Value]], where: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for name, value in pairs:
        if name in found:
            raise UsageError(f"{where}: '{name}' is given twice")
        found[name] = value
    return found


def _from_pairs(text: str, where: str) -> dict[str, Value]:
    found: list[tuple[str, Value]] = []
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, value = (side.strip() for side in part.partition("="))
        if not (name and equals and value):
            raise UsageError(f"{where}: '{part}' is not NAME=VALUE", hint=_HINT)
        found.append((name, _typed(value, where)))
    return _unique(found, where)


def _typed(text: str, where: str) -> Value:
    if len(text) >= 2 and text[0] == text[-1] and text[0] in "'\"":
        return text[1:-1]
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _INT.fullmatch(text) and len(text) < 100:
        return int(text)
    return _finite(text, where) if _FLOAT.fullmatch(text) else text


def _finite(text: str, where: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise UsageError(f"{where}: {text} is not a finite number")
    return number


def _from_json(text: str, where: str) -> dict[str, Value]:
    def number(digits: str) -> float:
        return _finite(digits, where)

    def unique(pairs: list[tuple[str, Value]]) -> dict[str, Value]:
        return _unique(pairs, where)

    try:
        value: dict[str, Value] = json.loads(
            text, object_pairs_hook=unique, parse_float=number, parse_constant=number
        )
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON: {error}", hint=_HINT) from error
    return value


# Entry: what the parts of a guard file have in common, and the types of their simplest fields.


# Names become folder names and command-line words: no spaces, no slashes (a name with a slash
# would read like a hub id), no leading dash or dot.
NAME_PATTERN = r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$"

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
Text = Annotated[str, StringConstraints(min_length=1)]
TEXT_SCHEMA = {"type": "string", "minLength": 1}


def _listed(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


Paths = Annotated[
    list[Text],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [TEXT_SCHEMA, {"type": "array", "items": TEXT_SCHEMA}]}),
]


_NAME_SCHEMA = {"type": "string", "pattern": NAME_PATTERN}
Names = Annotated[
    list[Name],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema(
        {"anyOf": [_NAME_SCHEMA, {"type": "array", "items": _NAME_SCHEMA, "minItems": 1}]}
    ),
]


class GuardEntry(BaseModel):
    """A mapping of a guard file: unknown keys are refused, and nothing is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


# Local paths in a guard file: relative to its folder, or hub ids left as they are.


# The model_args that lm-eval's Hugging Face types read as a local path or a hub id.
PATH_ARGS = frozenset({"pretrained", "tokenizer", "peft", "delta", "gguf_file"})


def is_written_as_path(text: str) -> bool:
    """Whether a text can only mean a local path, never a hub id."""
    return text in (".", "..", "~") or text.startswith(("./", "../", "/", "~/"))


def resolve_path(text: str, folder: Path) -> Path:
    """Return the absolute path of a local path that is relative to ``folder``."""
    # os.path answers for names that pathlib refuses (too long, an unknown user's home).
    joined = folder / os.path.expanduser(text)
    return joined.resolve() if os.path.exists(joined) else Path(os.path.abspath(joined))


def resolve_model(text: str, folder: Path) -> str:
    """Return the absolute path of a local model, or the text itself where it is a hub id.

    A text that can only be a path becomes absolute even if nothing is there: loading then says so.
    """
    if text and (is_written_as_path(text) or os.path.exists(folder / text)):
        return str(resolve_path(text, folder))
    return text


def resolve_model_args(args: Mapping[str, Value], folder: Path) -> dict[str, Value]:
    """Return model_args with local paths resolved."""
    return {name: resolve_value(name, value, folder) for name, value in args.items()}


def resolve_value(name: str, value: Value, folder: Path) -> Value:
    """Return the value of one model_arg, resolved if it is a local path."""
    if name in PATH_ARGS and isinstance(value, str):
        return resolve_model(value, folder)
    return value


# RunEntry: how tasks are run, as a guard file says it.


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
        description="sqlite file that every comparison is added to (evalguard history shows it); "
        "relative paths start at this file.",
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


# The commented guard file that ``evalguard init`` writes.


TEMPLATE = Path(__file__).with_name("template.yaml").read_text(encoding="utf-8")


def write_template(path: Path, *, force: bool = False) -> None:
    """Write the template to ``path``, whole or not at all.

    Raises:
        UsageError: if the file exists and ``force`` is not given, or the path is a folder.
        StoreError: if it cannot be written.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a folder", hint=f"name a file: {path / 'evalguard.yaml'}")
    if path.exists() and not force:
        raise UsageError(f"{path} exists and is left alone", hint="--force overwrites it")
    half = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        try:
            half.write_text(TEMPLATE, encoding="utf-8")
            half.replace(path)
        finally:
            half.unlink(missing_ok=True)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
