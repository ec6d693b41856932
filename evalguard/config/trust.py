"""Trust: which parts of a guard file need it, and whether the user gave it to this file.

A guard file is trusted if the user named it (``--config``), passed ``--allow-code``, or it came
with evalguard. One that was only found in the working folder is not: a cloned repository must not
run code, reach a server, read files outside, or touch what is the user's, because somebody
evaluates a model in it. It may say what ``HARMLESS_KEYS`` and ``CHECKED_KEYS`` list, and no more.

These are lists of what is known to be harmless, not of what is known to be dangerous: a key of the
guard file, or an argument that a library adds tomorrow, is refused until somebody has looked at it.
The reasons are predicates ("opens another kind of model"), "" for what is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from evalguard.config.declared_options import declared_options
from evalguard.config.guard import CodeUse, Guard
from evalguard.config.guard_document import Document, Loc, dotted_key
from evalguard.config.guard_shape import GuardFile, ModelEntry, SettingEntry, setting_target
from evalguard.config.local_paths import PATH_ARGS, leads_outside
from evalguard.config.options import RunOptions
from evalguard.config.task_file_code import find_task_code, is_task_file
from evalguard.config.variants import Inherited
from evalguard.core.settings import Target, Value, Variant
from evalguard.errors import UsageError

# What a key of a guard file may do although the file was only found, each with why that harms
# nobody: "*" is any name or position, and the gate of a pair has the keys of the file's. Keys with
# a name in ``CHECKED_KEYS`` are harmless for some of their values. All others need trust.
HARMLESS_KEYS: Mapping[str, str] = {
    "models.*.extends": "names a model of this file, whose own keys are looked at in turn",
    "models.*.constraints.*.if": "forbids assignments of settings",
    "models.*.constraints.*.then": "forbids assignments of settings",
    "models.*.revision": "is a word that scores are kept under; nothing is fetched by it",
    "models.*.description": "is shown to people",
    "models.*.settings.*.target": "is looked at with the setting's values",
    "models.*.settings.*.reference": "is looked at with the setting's target",
    "models.*.settings.*.candidate": "is looked at with the setting's target",
    "models.*.settings.*.alternatives": "is looked at with the setting's target",
    "pairs.*.base": "names a model of this file",
    "pairs.*.cand": "names models of this file",
    "pairs.*.differs": "says which differences are meant; the report says so",
    "pairs.*.accept.*.task": "lets a known drift through the gate, which is shown",
    "pairs.*.accept.*.metric": "lets a known drift through the gate, which is shown",
    "pairs.*.accept.*.filter": "lets a known drift through the gate, which is shown",
    "pairs.*.accept.*.up_to": "lets a known drift through the gate, which is shown",
    "pairs.*.accept.*.until": "lets a known drift through the gate, which is shown",
    "pairs.*.accept.*.reason": "lets a known drift through the gate, which is shown",
    "clusters": "names fields of documents",
    "answers.*.json": "is what answers must be",
    "answers.*.pattern": "is matched against answers, in limited time",
    "answers.*.call": "is what answers must be",
    "gate.undecided": "judges numbers",
    "gate.subtasks": "judges numbers",
    "gate.metrics.kl_mean": "judges numbers",
    "gate.metrics.kl_median": "judges numbers",
    "gate.metrics.kl_p90": "judges numbers",
    "gate.metrics.kl_p95": "judges numbers",
    "gate.metrics.kl_p99": "judges numbers",
    "gate.metrics.kl_p99.9": "judges numbers",
    "gate.metrics.kl_max": "judges numbers",
    "gate.metrics.dp_mean": "judges numbers",
    "gate.metrics.dp_rms": "judges numbers",
    "gate.metrics.same_top1": "judges numbers",
    "gate.metrics.same_topk": "judges numbers",
    "gate.metrics.*.margin": "judges numbers",
    "gate.metrics.*.higher_is_better": "judges numbers",
    "gate.metrics.*.limit": "judges numbers",
    "gate.only": "judges numbers",
    "gate.advisory": "judges numbers",
    **{
        f"{declared.option.section}.{name}": declared.option.harmless
        for name, declared in declared_options(RunOptions).items()
        if declared.option.harmless
    },
}
# Whose values decide: by ``_danger``, and of models by ``_model_uses``.
CHECKED_KEYS: Mapping[str, str] = {
    "models.*.model": "types that load weights here, and ask no server but the hub",
    "models.*.model_args": "known arguments; weights are read, and never run, wherever they lie",
    "models.*.settings": "targets that change numbers, and weights of other models",
    "pairs.*.tasks": "names, and files inside the working folder that run no code",
    "pairs.*.requests": "a file inside the working folder",
    "tasks": "names, and files inside the working folder that run no code",
    "requests": "a file inside the working folder",
    "include_path": "folders inside the working folder whose tasks run no code",
    "answers.*.schema": "written here, or a file inside the working folder",
    "answers.*.tools": "written here, or a file inside the working folder",
    "run.execution": "here, or a Ray that is started here",
    "run.history": "a file inside the folder of the guard file",
    "run.track": "evalguard's own trackers, which send figures to where you configured them",
}
# Which keys need trust whatever they say, and what they do.
NEEDS_TRUST: Mapping[str, str] = {
    "models.*.build": "runs a command or calls a function",
    "models.*.serve": "starts a server",
    "models.*.python": "runs another interpreter",
    "models.*.requirements": "installs packages",
    "models.*.inputs": "vouch for what code reads",
    "models.*.trust_remote_code": "runs the model's own Python code",
    "models.*.allow_pickle": "loads pickled weights, which can run code",
    "run.cache_max_size": "removes what other runs have left in your cache",
    "run.track_documents": "sends prompts and answers to trackers",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Where a found guard file lies: its ``folder``, and the working folder it was found from.

    What is inside ``root``, links followed, came with the file; all else is the user's.
    """

    folder: Path
    root: Path

    def path_danger(self, text: str) -> str:
        """Return what speaks against a path that starts at the guard file."""
        outside = leads_outside(text, self.folder, self.root)
        return f"names {text}, which lies outside {self.root}" if outside else ""


def model_danger(value: Value) -> str:
    """Return what speaks against a model folder or hub id.

    Weights are read and never run, wherever they lie, and only figures come of them: models are
    most often in a folder of their own. What would run there needs trust by its own key.
    """
    if value is None or isinstance(value, bool):
        return ""
    if not isinstance(value, str):
        return "is neither a path nor a hub id"
    return f"names {value}, which is a URL" if "://" in value else ""


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
_GENERATION = frozenset({
    "bad_words_ids", "begin_suppress_tokens", "bos_token_id", "cache_implementation",
    "decoder_start_token_id", "diversity_penalty", "do_sample", "early_stopping",
    "encoder_no_repeat_ngram_size", "encoder_repetition_penalty", "eos_token_id",
    "epsilon_cutoff", "eta_cutoff", "exponential_decay_length_penalty", "forced_bos_token_id",
    "forced_eos_token_id", "guidance_scale", "length_penalty", "max_length", "max_new_tokens",
    "max_time", "min_length", "min_new_tokens", "min_p", "no_repeat_ngram_size", "num_beam_groups",
    "num_beams", "num_return_sequences", "pad_token_id", "penalty_alpha", "prefill_chunk_size",
    "remove_invalid_values", "renormalize_logits", "repetition_penalty", "sequence_bias",
    "stop_strings", "suppress_tokens", "temperature", "token_healing", "top_h", "top_k", "top_p",
    "typical_p", "use_cache", "watermarking_config",
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
    if name in PATH_ARGS:
        return model_danger(value)
    if name in ("subfolder", "revision"):
        part = Path(str(value))
        outside = part.is_absolute() or ".." in part.parts
        return f"names {value}, which leads out of the model's folder" if outside else ""
    return _kernel_danger(name, value)


def target_danger(target: Target, value: Value) -> str:
    """Return what speaks against a setting's target with one of its values."""
    match target.kind:
        case "env":
            return env_danger(target.path)
        case "model_args":
            return argument_danger(target.path, value)
        case "config":
            return config_danger(target.path, value)
        case "attr":
            return attribute_danger(target.attribute, value)
        case "generation":
            return generation_danger(target.path)
        case "dtype":
            return ""  # the name of a floating-point type
        case "weights":
            return model_danger(value)
        case "module":
            return _module_danger(value)
        case "build" | "serve":
            return ""  # only with a recipe or server, whose own key needs trust
    return "is not known to be harmless"


def _module_danger(value: Value) -> str:
    """What speaks against a model that modules are taken from, with arguments and edits."""
    if not isinstance(value, dict):
        return model_danger(value)
    for key, parts in value.items():
        if key not in ("model_args", "settings") or not isinstance(parts, dict):
            return f"holds {key}, which is not known to be harmless"
        for name, part in parts.items():
            if key == "model_args":
                danger = argument_danger(name, part)
            else:
                danger = _edit_danger(name, part)
            if danger:
                return f"takes modules from a model whose {key}.{name} {danger}"
    return ""


def _edit_danger(name: str, value: Value) -> str:
    try:
        return target_danger(Target.parse(name), value)
    except UsageError:
        return "is no target"


def config_danger(path: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a Hugging Face config."""
    for parts, part in _leaves(tuple(path.split(".")), value):
        hidden = [name for name in parts if name.startswith("_") and name not in _KERNEL_CHOICES]
        if hidden or _CONFIG_CODE.intersection(parts):
            return "can choose the code that loads the model"
        if danger := _kernel_danger(parts[-1], part):
            return danger
    return ""


def _leaves(parts: tuple[str, ...], value: Value) -> Iterator[tuple[tuple[str, ...], Value]]:
    """Every value in a value, with the names that lead to it."""
    if isinstance(value, dict):
        yield parts, None
        for name, part in value.items():
            yield from _leaves((*parts, *name.split(".")), part)
    elif isinstance(value, list):
        for part in value:
            yield from _leaves(parts, part)
    else:
        yield parts, value


def attribute_danger(name: str, value: Value) -> str:
    """Return what speaks against setting an attribute of a module."""
    if name.startswith("_") and name not in _KERNEL_CHOICES:
        return "is an attribute that the library keeps to itself"
    return config_danger(name, value)


def generation_danger(path: str) -> str:
    """Return what speaks against an attribute of the generation config."""
    return "" if path in _GENERATION else "is not known to change answers only"


def env_danger(name: str) -> str:
    """Return what speaks against an environment variable: many make a library load code."""
    return "" if _ENVIRONMENT.fullmatch(name) else "is not known to change numbers only"


def execution_danger(value: str | None) -> str:
    """Return what speaks against a place where models run: a cluster is a host to connect to."""
    target = (value or "here").partition("?")[0]
    return "" if target in ("here", "ray") else "connects to a Ray cluster"


def _kernel_danger(name: str, value: Value) -> str:
    """Attention and expert kernels whose name holds a slash are repositories of the hub."""
    kernel = name.endswith("_implementation") and "/" in str(value)
    return "loads a kernel from the hub" if kernel else ""


_UNKNOWN = "is not known to be harmless"


def model_uses(model: Inherited, document: Document) -> tuple[CodeUse, ...]:
    """Return everything of a model that needs trust, with its place."""
    return tuple(
        CodeUse(what=what, where=document.where(model.place(*loc)))
        for what, loc in _model_uses(model.entry)
    )


def file_uses(parsed: GuardFile, document: Document, around: Surroundings) -> tuple[CodeUse, ...]:
    """Return everything of a guard file beside its models that needs trust, with its place."""
    uses = _key_uses(parsed, "", (), around)
    return tuple(CodeUse(what=what, where=document.where(loc)) for what, loc in uses)


def surroundings_of(guard_file: Path, *, in_configs: bool) -> Surroundings:
    """Return where a guard file lies; the files of ``configs/`` belong to the folder above."""
    folder = guard_file.absolute().parent
    return Surroundings(folder=folder, root=folder.parent if in_configs else folder)


def require_code_allowed(guard: Guard, variant: Variant) -> None:
    """Check that the user trusts this guard file with what it and this variant of it need.

    Raises:
        UsageError: if not; names what would be done, where it is written, and how to allow it.
    """
    if guard.code_allowed:
        return
    of_model = guard.code_uses.get(variant.name, ())
    uses = [*of_model, *guard.file_uses, *_task_uses(guard)]
    if uses:
        listed = "\n".join(dict.fromkeys(f"  {use.where}: {use.what}" for use in uses))
        raise UsageError(
            f"'{variant.name}' needs code or more trust than {guard.label} has, which was found, "
            f"not named:\n{listed}",
            hint=f"if you trust it: --config {guard.label}, or --allow-code",
        )


def _task_uses(guard: Guard) -> Iterator[CodeUse]:
    """Yield what the guard file's task folders and task files would run or read."""
    root = Path.cwd()
    for folder in guard.include_paths:
        if code := find_task_code(folder, root=root):
            yield CodeUse(what=f"include_path: {code}", where=guard.include_where)
    tasks = dict.fromkeys([*guard.tasks, *(task for pair in guard.pairs for task in pair.tasks)])
    for task in filter(is_task_file, tasks):
        # lm-eval takes a task's name for a file of the working folder, if there is one.
        if code := find_task_code(Path(task), root=root):
            yield CodeUse(what=f"task file: {code}", where=guard.label)


def _key_uses(
    entry: BaseModel, path: str, loc: Loc, around: Surroundings
) -> Iterator[tuple[str, Loc]]:
    """Yield what needs trust of an entry and of all that stands in it, key by key.

    Args:
        path: the entry as ``HARMLESS_KEYS`` and ``CHECKED_KEYS`` write it, with a dot behind it.
    """
    for name, part in (entry.__pydantic_extra__ or {}).items():
        yield from _key_uses(part, f"{path}*.", (*loc, name), around)
    for name, field in type(entry).model_fields.items():
        if name not in entry.model_fields_set:
            continue
        value, key = getattr(entry, name), field.alias or name
        here, inner_loc = f"{path}{key}", (*loc, key)
        if here == "models" or here in HARMLESS_KEYS:
            continue
        if here in CHECKED_KEYS:
            if danger := _danger(here, value, around):
                yield f"{dotted_key(inner_loc)} {danger}", inner_loc
        elif parts := _entries(value, here, inner_loc):
            for part, there, where in parts:
                yield from _key_uses(part, there, where, around)
        elif not _says_nothing(value, field):
            danger = NEEDS_TRUST.get(here, _UNKNOWN)
            yield f"{dotted_key(inner_loc)} {danger}", inner_loc


def _entries(value: object, path: str, place: Loc) -> list[tuple[BaseModel, str, Loc]]:
    """The entries that a key holds: itself, or each of a list or mapping."""
    if isinstance(value, BaseModel):
        return [(value, "gate." if path == "pairs.*.gate" else f"{path}.", place)]
    items: Iterable[tuple[Any, Any]] = value.items() if isinstance(value, Mapping) else ()
    if isinstance(value, (list, tuple)):
        items = enumerate(value)
    return [
        (part, f"{path}.*.", (*place, key)) for key, part in items if isinstance(part, BaseModel)
    ]


def _says_nothing(value: object, field: FieldInfo) -> bool:
    # pydantic 2.10 calls no factory without it, whatever the factory takes
    default = field.get_default(call_default_factory=True, validated_data={})
    return value is False or value == default or value in (None, [], {}, ())


def _danger(path: str, value: Any, around: Surroundings) -> str:
    """What speaks against the value of a checked key of the file; "" for a harmless one."""
    if path in ("run.track", "run.history"):
        return ""  # asked where they are used: --track and --history take their place
    if path == "run.execution":
        return execution_danger(value)
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    named = [text for text in texts if isinstance(text, str)]
    if path.endswith("tasks"):
        named = list(filter(is_task_file, named))
        around = Surroundings(folder=around.root, root=around.root)
    return next(filter(None, map(around.path_danger, named)), "")


def _model_uses(entry: ModelEntry) -> Iterator[tuple[str, Loc]]:
    for name, field in ModelEntry.model_fields.items():
        path = f"models.*.{name}"
        value = getattr(entry, name) if name in entry.model_fields_set else None
        # A list that is written says something, even if it is empty.
        silent = value is None if name == "inputs" else _says_nothing(value, field)
        if path in HARMLESS_KEYS or path in CHECKED_KEYS or silent:
            continue
        yield _model_danger(name, value), (name,)
    if why := model_type_danger(entry.model):
        yield f"model type {entry.model} {why}", ("model",)
    else:
        for name, value in entry.model_args.items():
            if why := argument_danger(name, value):
                yield f"model_args.{name} {why}", ("model_args", name)
    for name, setting in entry.settings.items():
        if why := _setting_use(name, setting):
            yield f"setting '{name}' {why}", ("settings", name)


def _model_danger(key: str, value: Any) -> str:
    """What a key of a model does that needs trust, with what it names."""
    match key:
        case "build":
            return f"the build recipe {f'calls {value.call}' if value.call else 'runs a command'}"
        case "serve":
            return f"starts the server {value.command[0]}"
        case "python":
            return f"the model runs in {value}"
        case "requirements":
            return f"installs {', '.join(value)}"
    return f"{key} {NEEDS_TRUST.get(f'models.*.{key}', _UNKNOWN)}"


def _setting_use(name: str, setting: SettingEntry) -> str:
    unknown = [
        k for k in setting.model_fields_set if f"models.*.settings.*.{k}" not in HARMLESS_KEYS
    ]
    if unknown:
        return f"has {unknown[0]}, which {_UNKNOWN}"
    target = setting_target(name, setting)
    if target.kind == "call":
        return f"calls {target.path}"
    if target.kind == "package":
        return f"installs {target.path}"
    values = (setting.reference, setting.candidate, *setting.alternatives)
    whys = (target_danger(target, value) for value in values)
    why = next(filter(None, whys), "")
    return f"sets {target}, which {why}" if why else ""
