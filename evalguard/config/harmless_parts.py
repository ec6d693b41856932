"""What a guard file may ask for without trust: parts that choose numbers and weights only.

These are lists of what is known to be harmless, not of what is known to be dangerous: a key of the
guard file, or an argument that a library adds tomorrow, is refused until somebody has looked at it.
The reasons are predicates ("opens another kind of model"), "" for what is harmless.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from evalguard.config.local_paths import PATH_ARGS, leads_outside
from evalguard.core.settings import Target, Value
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
    "run.num_fewshot": "chooses prompts",
    "run.limit": "chooses documents",
    "run.batch_size": "chooses how many sequences a forward pass has",
    "run.token_budget": "chooses how many tokens a forward pass has",
    "run.scorer": "chooses between two ways to the same scores",
    "run.share_prefixes": "chooses between two ways to the same scores",
    "run.rolling_bos": "chooses how whole texts begin",
    "run.seed": "chooses few-shot examples and the order of documents",
    "run.device": "chooses a device of this machine",
    "run.apply_chat_template": "chooses a template of the model's own, rendered in a sandbox",
    "run.system_instruction": "is part of the prompt",
    "run.fewshot_as_multiturn": "chooses the form of prompts",
    "run.distributions": "chooses how the two models' distributions are compared",
    "run.reference_top_k": "chooses how many tokens a reference keeps",
    "run.memory": "chooses whether both models are loaded at the same time",
    "run.sequential": "stops early",
    "run.sequential_alpha": "stops earlier or later",
    "run.bisect": "chooses whether settings are searched",
    "run.bisect_budget": "is how much a search may cost",
    "run.bisect_thorough": "is how much a search may cost",
    "run.bisect_jobs": "is how many probes are made at the same time, on this machine",
    "run.bisect_over": "chooses what is searched",
    "run.worker": "chooses whether models have a process of their own",
    "run.timeout": "ends what takes long",
    "run.actors": "is how many actors a Ray has that was started here, or trusted",
    "run.num_gpus": "places actors of a Ray that was started here, or trusted",
    "run.num_cpus": "places actors of a Ray that was started here, or trusted",
    "run.memory_each": "places actors of a Ray that was started here, or trusted",
    "run.pair_hours": "ends what takes long",
    "gate.margin": "judges numbers",
    "gate.fail_on": "judges numbers",
    "gate.confidence": "judges numbers",
    "gate.undecided": "judges numbers",
    "gate.broken_documents": "judges numbers",
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
}
# Whose values decide: by ``trust.key_uses``.
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
    place = (value or "here").partition("?")[0]
    return "" if place in ("here", "ray") else "connects to a Ray cluster"


def _kernel_danger(name: str, value: Value) -> str:
    """Attention and expert kernels whose name holds a slash are repositories of the hub."""
    kernel = name.endswith("_implementation") and "/" in str(value)
    return "loads a kernel from the hub" if kernel else ""
