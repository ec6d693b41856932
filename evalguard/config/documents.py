"""Inheritance: what a model has after ``extends``, and which model of the file said so."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from evalguard.config.entries import PATH_ARGS, is_written_as_path, resolve_path
from evalguard.config.guard import CodeUse, Guard, Problem, refuse
from evalguard.config.schema import GuardFile, ModelEntry, SettingEntry, setting_target
from evalguard.config.task_code import find_task_code, is_task_file
from evalguard.config.yaml_nodes import NULL_TAG, Loc, Walk, compose, line_of
from evalguard.core.settings import Target, Value, Variant
from evalguard.errors import UsageError, nearest
from evalguard.regular_file import open_regular

# "For that model" is taken at its word: trusting one model's code says nothing about the model
# that a descendant puts in its place.
_NEVER_INHERITED = ("extends", "trust_remote_code", "allow_pickle", "revision")
_BY_KEY = ("model_args", "settings")
# Far above what anybody writes by hand; the time it takes to merge grows with the square.
MAX_CHAIN = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Inherited:
    """A model with everything it inherits. ``origins`` maps a key to its place in the file."""

    name: str
    entry: ModelEntry
    origins: Mapping[Loc, Loc]

    def place(self, *loc: str | int) -> Loc:
        """Return where in the file a part of this model is written."""
        for length in range(len(loc), 0, -1):
            if loc[:length] in self.origins:
                return (*self.origins[loc[:length]], *loc[length:])
        return ("models", self.name, *loc)


def inherit(file: GuardFile, document: Document) -> tuple[dict[str, Inherited], list[Problem]]:
    """Return every model with what it inherits; models whose ``extends`` is wrong are left out."""
    made: dict[str, Inherited] = {}
    problems: list[Problem] = []
    for name in file.models:
        chain, problem = _chain(name, file, document)
        if problem is None:
            made[name] = _merged(name, [(step, file.models[step]) for step in reversed(chain)])
        else:
            problems.append(problem)
    return made, problems


def _chain(name: str, file: GuardFile, document: Document) -> tuple[list[str], Problem | None]:
    """Return the model and its ancestors, nearest first, or what is wrong with the chain."""
    chain = [name]
    while (parent := file.models[chain[-1]].extends) is not None:
        loc = ("models", chain[-1], "extends")
        if parent not in file.models:
            message = f"'{chain[-1]}' extends '{parent}', which is not a model of this file"
            known = ", ".join(file.models)
            message += nearest(parent, file.models)
            return chain, document.problem(loc, message, f"models of this file: {known}")
        if parent in chain:
            circle = chain[chain.index(parent) :]
            start = circle.index(min(circle))
            circle = circle[start:] + circle[:start]
            message = f"models extend each other in a circle: {' -> '.join([*circle, circle[0]])}"
            return chain, document.problem(("models", circle[0], "extends"), message)
        if len(chain) == MAX_CHAIN:
            message = f"'{name}' extends over {MAX_CHAIN} models, one through the other"
            return chain, document.problem(("models", name, "extends"), message)
        chain.append(parent)
    return chain, None


def _merged(name: str, steps: list[tuple[str, ModelEntry]]) -> Inherited:
    """Merge from the root ancestor down: maps by key, everything else replaced."""
    values: dict[str, object] = {}
    origins: dict[Loc, Loc] = {}
    for owner, entry in steps:
        for key in entry.model_fields_set:
            if key in _NEVER_INHERITED and owner != name:
                continue
            value = getattr(entry, key)
            if key in _BY_KEY:
                known = values.get(key, {})
                assert isinstance(known, dict)
                values[key] = {**known, **value}
                origins.update({(key, item): ("models", owner, key, item) for item in value})
            else:
                values[key] = value
                origins[(key,)] = ("models", owner, key)
    return Inherited(name=name, entry=ModelEntry.model_construct(None, **values), origins=origins)


# What a guard file names on this machine and what is not there.
#
# No error of loading: a guard file may be read where only some of its models are. ``evalguard
# check`` tells of it. ``os.path`` is asked, not ``Path``, which raises where a text can be no
# path.


_HINT = "a relative path starts at the guard file; a hub id is NAME or OWNER/NAME"


def absent_paths(
    parsed: GuardFile, models: Iterable[Inherited], document: Document
) -> Iterator[Problem]:
    """Yield every folder of tasks, and every local model, that is not there.

    A path that models share by ``extends`` is named once, where it is written.
    """
    for number, folder in enumerate(parsed.include_path):
        if not os.path.isdir(resolve_path(folder, document.folder)):
            yield document.problem(
                ("include_path", number),
                f"include_path: there is no folder {folder}",
                "the folder that holds the tasks' YAML files; a relative path starts at the guard "
                "file",
            )
    told: dict[tuple[Loc, str], Problem] = {}
    for model in models:
        for loc, what, value in _named(model):
            if isinstance(value, str) and _is_absent(value, document.folder):
                found = document.problem(loc, f"{what}: there is nothing at {value}", _HINT)
                told.setdefault((loc, value), found)
    yield from told.values()


def _named(model: Inherited) -> Iterator[tuple[Loc, str, Value]]:
    """Where a model may name a path: place in the file, what it is of, and the value."""
    entry = model.entry
    for name, value in entry.model_args.items():
        # What is built takes the place of pretrained.
        if name in PATH_ARGS and not (name == "pretrained" and entry.build is not None):
            yield model.place("model_args", name), f"{name} of '{model.name}'", value
    for key, setting in entry.settings.items():
        target = setting_target(key, setting)
        of_path = target.kind == "model_args" and target.path in PATH_ARGS
        if of_path or target.kind in ("weights", "module"):
            loc = model.place("settings", key)
            for value in (setting.reference, setting.candidate, *setting.alternatives):
                if target.kind == "module" and isinstance(value, dict):
                    arguments = value.get("model_args")
                    value = arguments.get("pretrained") if isinstance(arguments, dict) else None
                yield loc, f"setting '{key}' of '{model.name}'", value


def _is_absent(text: str, folder: Path) -> bool:
    """Whether a text can be no hub id, and leads nowhere.

    OWNER/NAME may be one, whatever lies beside the file; with another slash it is none, but maybe
    some address that a model type reads, unless its folder is there.
    """
    if "{build}" in text or "://" in text or not text.strip():
        return False
    path = resolve_path(text, folder)
    if os.path.exists(path):
        return False
    return is_written_as_path(text) or (text.count("/") > 1 and os.path.isdir(path.parent))


# Document: a guard file as plain data, with the line on which everything in it stands.


# Far above what anybody writes by hand; a stranger's file must not exhaust time or memory.
MAX_BYTES = 512 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One guard file's data.

    ``label`` is the file as messages name it, ``folder`` where its relative paths start.
    ``lines`` maps a location (keys and list positions) to its line. ``problems`` are those that
    leave the rest readable, duplicate keys for one.
    """

    label: str
    folder: Path
    data: Mapping[str, object]
    lines: Mapping[Loc, int]
    problems: tuple[Problem, ...] = ()

    def line(self, loc: Loc) -> int:
        """Return the line of a location, or of what holds it where it does not exist."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def where(self, loc: Loc) -> str:
        """Return ``FILE:LINE`` of a location."""
        return f"{self.label}:{self.line(loc)}"

    def problem(self, loc: Loc, message: str, hint: str = "") -> Problem:
        """Return a problem that stands at a location."""
        return Problem(label=self.label, line=self.line(loc), message=message, hint=hint)


def read_guard_document(path: Path, label: str) -> Document:
    """Read a guard file.

    Raises:
        GuardFileError: if it cannot be read, is not UTF-8, not YAML, empty, or not a mapping.
    """
    text = _read_text(path, label)
    node = compose(text, label)
    if node is None or node.tag == NULL_TAG:
        refuse(label, 0, "the guard file is empty", "`evalguard init` writes one to start from")
    if not isinstance(node, yaml.MappingNode):
        refuse(label, line_of(node), "a guard file is a mapping that starts with 'models:'")
    walk = Walk(label=label)
    data = walk.value(node, (), 1)
    assert isinstance(data, dict)
    return Document(
        label=label,
        folder=path.absolute().parent,
        data=data,
        lines=walk.lines,
        problems=tuple(walk.problems),
    )


def _read_text(path: Path, label: str) -> str:
    if path.is_dir():
        refuse(label, 0, "is a folder, not a guard file")
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        refuse(label, 0, f"cannot be read: {error.strerror}")
    if len(raw) > MAX_BYTES:
        refuse(label, 0, f"is larger than {MAX_BYTES // 1024} KiB, so it is not a guard file")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = f"0x{raw[error.start]:02x}"
        refuse(label, line, f"is not UTF-8 (byte {byte})", "save the file as UTF-8")


# What a guard file may ask for without trust: parts that choose numbers and weights only.
#
# These are lists of what is known to be harmless, not of what is known to be dangerous: an
# argument that a library adds tomorrow is refused until somebody has looked at it. The reasons are
# predicates ("opens another kind of model"), "" for what is harmless.


# Types that load weights in this process and speak to no server but the hub.
_MODEL_TYPES = frozenset({"hf", "hf-auto", "huggingface", "dummy"})
_MODEL_ARGS = frozenset({
    "add_bos_token", "attn_implementation", "backend", "chat_template_args", "delta", "device",
    "device_map", "dtype", "enable_thinking", "experts_implementation", "gguf_file", "load_in_4bit",
    "load_in_8bit", "logits_cache", "low_cpu_mem_usage", "max_cpu_memory", "max_length",
    "max_memory_per_gpu", "mixed_precision_dtype", "parallelize", "peft", "prefix_token_id",
    "pretrained", "revision", "softmax_dtype", "subfolder", "think_end_token", "tokenizer",
    "truncation", "use_fast_tokenizer",
})  # fmt: skip
_CONFIG_CODE = frozenset({"auto_map", "quantization_config"})
_KERNEL_CHOICES = frozenset({"_attn_implementation", "_experts_implementation"})
_ENVIRONMENT = re.compile(
    r"\w+_NUM_THREADS|(OMP|KMP|MKL)_(DYNAMIC|SCHEDULE|BLOCKTIME|AFFINITY|CBWR)|MKL_CBWR"
    r"|MKL_ENABLE_INSTRUCTIONS|ATEN_CPU_CAPABILITY|ONEDNN_(MAX_CPU_ISA|DEFAULT_FPMATH_MODE)"
    r"|NVIDIA_TF32_OVERRIDE|TORCH_ALLOW_TF32_CUBLAS_OVERRIDE|CUBLAS_WORKSPACE_CONFIG"
    r"|CUDA_(VISIBLE_DEVICES|LAUNCH_BLOCKING|DEVICE_ORDER)|PYTORCH_(CUDA_|HIP_)?ALLOC_CONF"
    r"|PYTORCH_ENABLE_MPS_FALLBACK|TOKENIZERS_PARALLELISM|RWKV_(V7_ON|JIT_ON|HEAD_SIZE)"
    r"|FLA_(CONV_BACKEND|USE_\w+|DISABLE_\w+|NO_\w+)|VLLM_(ATTENTION_BACKEND|USE_V1)"
)


def model_type_danger(model_type: str) -> str:
    """Return what speaks against a model type, e.g. that it sends prompts to a server."""
    if model_type in _MODEL_TYPES:
        return ""
    return "may reach servers, send them keys, or load pickles"


def argument_danger(name: str, value: Value) -> str:
    """Return what speaks against an argument of a Hugging Face model."""
    if name not in _MODEL_ARGS:
        return "is not known to be harmless"
    return _kernel_danger(name, value)


def config_danger(path: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a Hugging Face config."""
    parts = path.split(".")
    hidden = [part for part in parts if part.startswith("_") and part not in _KERNEL_CHOICES]
    if hidden or _CONFIG_CODE.intersection(parts):
        return "can choose the code that loads the model"
    return _kernel_danger(parts[-1], value)


def attribute_danger(name: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a module."""
    return _kernel_danger(name, value)


def env_danger(name: str) -> str:
    """Return what speaks against an environment variable: many make a library load code."""
    return "" if _ENVIRONMENT.fullmatch(name) else "is not known to change numbers only"


def _kernel_danger(name: str, value: Value) -> str:
    """Attention and expert kernels whose name holds a slash are repositories of the hub."""
    kernel = name.endswith("_implementation") and "/" in str(value)
    return "loads a kernel from the hub" if kernel else ""


# Trust: which parts of a guard file need it, and whether the user gave it to this file.
#
# A guard file is trusted if the user named it (``--config``), passed ``--allow-code``, or it came
# with evalguard. One that was only found in the working folder is not: a cloned repository must
# not run code, reach a server or read files outside because somebody evaluates a model in it.


def code_uses(model: Inherited, document: Document) -> tuple[CodeUse, ...]:
    """Return everything of a model that needs trust, with its place."""
    return tuple(
        CodeUse(what=what, where=document.where(model.place(*loc))) for what, loc in _uses(model)
    )


def require_code_allowed(guard: Guard, variant: Variant) -> None:
    """Check that the user trusts this guard file with what this variant of it needs.

    Raises:
        UsageError: if not; names what would run, where it is written, and how to allow it.
    """
    if guard.code_allowed:
        return
    uses = [*guard.code_uses.get(variant.name, ()), *_task_uses(guard)]
    if uses:
        listed = "\n".join(f"  {use.where}: {use.what}" for use in uses)
        raise UsageError(
            f"'{variant.name}' needs code or more trust than {guard.label} has, which was found, "
            f"not named:\n{listed}",
            hint=f"if you trust it: --config {guard.label}, or --allow-code",
        )


def _task_uses(guard: Guard) -> Iterator[CodeUse]:
    """Yield what the guard file's task folders and task files would run or read."""
    root = Path.cwd()
    for folder in guard.include_paths:
        if found := find_task_code(folder, root=root):
            yield CodeUse(what=f"include_path: {found}", where=guard.include_where)
    tasks = dict.fromkeys([*guard.tasks, *(task for pair in guard.pairs for task in pair.tasks)])
    for task in filter(is_task_file, tasks):
        # lm-eval takes a task's name for a file of the working folder, if there is one.
        if found := find_task_code(Path(task), root=root):
            yield CodeUse(what=f"task file: {found}", where=guard.label)


def _uses(model: Inherited) -> Iterator[tuple[str, Loc]]:
    entry = model.entry
    if entry.trust_remote_code:
        yield "trust_remote_code runs the model's own Python code", ("trust_remote_code",)
    if entry.allow_pickle:
        yield "allow_pickle loads pickled weights, which can run code", ("allow_pickle",)
    if entry.build is not None:
        does = f"calls {entry.build.call}" if entry.build.call else "runs a command"
        yield f"the build recipe {does}", ("build",)
    if entry.serve is not None:
        yield f"starts the server {entry.serve.command[0]}", ("serve",)
    if entry.python is not None:
        yield f"the model runs in {entry.python}", ("python",)
    if entry.requirements:
        yield f"installs {', '.join(entry.requirements)}", ("requirements",)
    if why := model_type_danger(entry.model):
        yield f"model type {entry.model} {why}", ("model",)
    else:
        for name, value in entry.model_args.items():
            if why := argument_danger(name, value):
                yield f"model_args.{name} {why}", ("model_args", name)
    for name, setting in entry.settings.items():
        if why := _setting_use(setting, setting_target(name, setting)):
            yield f"setting '{name}' {why}", ("settings", name)


def _setting_use(setting: SettingEntry, target: Target) -> str:
    if target.kind == "call":
        return f"calls {target.path}"
    if target.kind == "package":
        return f"installs {target.path}"
    values = (setting.reference, setting.candidate, *setting.alternatives)
    whys = (_value_danger(target, value) for value in values)
    why = next(filter(None, whys), "")
    return f"sets {target}, which {why}" if why else ""


def _value_danger(target: Target, value: Value) -> str:
    if target.kind == "env":
        return env_danger(target.path)
    if target.kind == "model_args":
        return argument_danger(target.path, value)
    if target.kind == "config":
        return config_danger(target.path, value)
    return attribute_danger(target.attribute, value) if target.kind == "attr" else ""
