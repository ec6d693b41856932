"""How the tokenizers of two models differ: their files, and whether they put BOS first."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from evalguard.models.checkpoint_files import checkpoint_folder
from evalguard.models.load_failures import explain_load_failures, silence_libraries

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel

    from evalguard.core.settings import Value


# How the files begin that transformers and its tokenizers read, whatever the kind.
_FILE_PREFIXES = (
    "tokenizer", "tokenization", "vocab", "merges", "special_tokens", "added_tokens", "spiece",
    "sentencepiece", "chat_template", "additional_chat_templates",
)  # fmt: skip
_FILE_SUFFIXES = (".tiktoken", ".spm", ".bpe", ".model")
_PROBE_TEXTS = ("The quick brown fox", "1 + 1 = 2", " été\n")


def tokenizer_files(model_args: Mapping[str, Value]) -> dict[str, str]:
    """Digest by name of every file that the tokenizer of these model_args is read from.

    {} where they are not on this machine, or lie in the model's own file (gguf).
    """
    folder = tokenizer_folder(model_args)
    if folder is None or not folder.is_dir():
        return {}
    found = (file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(found)
        if _is_tokenizer_file(file.relative_to(folder))
    }


def load_tokenizer(model_args: Mapping[str, Value], *, trust_remote_code: bool) -> Any:
    """Load the tokenizer of these model_args as lm-eval does.

    Raises:
        EvaluationError: it cannot be loaded.
    """
    from transformers import AutoTokenizer

    options: dict[str, Any] = {
        "revision": str(model_args.get("revision") or "main"),
        "use_fast": model_args.get("use_fast_tokenizer", True),
        "trust_remote_code": trust_remote_code,
    }
    for name in ("add_bos_token", "subfolder"):
        if model_args.get(name) not in (None, ""):
            options[name] = model_args[name]
    if model_args.get("gguf_file") and not model_args.get("tokenizer"):
        options["gguf_file"] = model_args["gguf_file"]
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    with explain_load_failures("hf", model_args, {}), silence_libraries():
        return AutoTokenizer.from_pretrained(source, **options)


def puts_bos_first(model_args: Mapping[str, Value], *, trust_remote_code: bool) -> bool | None:
    """Whether a model's texts begin with BOS; None where that is not a plain yes or no.

    None, too, where saying so explicitly (``add_bos_token``) would give other token ids than the
    tokenizer gives by itself: such a tokenizer puts more than BOS around a text.

    Raises:
        EvaluationError: the tokenizer cannot be loaded.
    """
    trusted = {"trust_remote_code": trust_remote_code}
    tokenizer = load_tokenizer(model_args, **trusted)
    bos = tokenizer.bos_token_id
    ids = _encode_probes(tokenizer, model_args.get("add_bos_token"))
    first = {bos is not None and one[:1] == [bos] for one in ids}
    if bos is None or len(first) != 1:
        return None
    said = first.pop()
    told = load_tokenizer({**model_args, "add_bos_token": said}, **trusted)
    return said if _encode_probes(told, said) == ids else None


def _encode_probes(tokenizer: Any, add_bos_token: Value) -> list[list[int]]:
    options = {} if add_bos_token is None else {"add_special_tokens": add_bos_token}
    return [list(tokenizer.encode(text, **options)) for text in _PROBE_TEXTS]


def tokenizer_folder(model_args: Mapping[str, Value]) -> Path | None:
    """Where the tokenizer of these model_args lies; None if it is not on this machine."""
    if model_args.get("gguf_file") and not model_args.get("tokenizer"):
        return None
    source = str(model_args.get("tokenizer") or model_args["pretrained"])
    subfolder = str(model_args.get("subfolder") or "")
    folder = checkpoint_folder(source, str(model_args.get("revision") or "main"), subfolder)
    return None if folder is None else folder / subfolder


def _is_tokenizer_file(file: Path) -> bool:
    return file.parts[0].startswith(_FILE_PREFIXES) or (
        len(file.parts) == 1 and file.name.endswith(_FILE_SUFFIXES)
    )


# Where two Hugging Face configs differ, as far as that can change what is computed.


# What no forward pass reads. Whatever is not here counts, known or not.
_NOT_COMPUTED_WITH = frozenset(
    {
        # bookkeeping of files and classes; the class comes from the model type
        "transformers_version", "architectures", "auto_map", "ignore_keys_at_rope_validation",
        # of classification heads, which no causal model has
        "id2label", "label2id", "problem_type",
        # what the scorer says at every call
        "use_cache", "return_dict", "output_hidden_states", "output_attentions",
        # of training: values before it
        "initializer_range",
    }
)  # fmt: skip
# of training: nothing is dropped in evaluation
_TRAINING = re.compile(r".*dropout(_prob|_rate|_p)?|.*_pdrop")
# These are settings of their own: the class, model_args.dtype, quantisation, and the output head,
# whose weights are compared whether they are tied or not.
_OTHER_SETTINGS = frozenset(
    {"model_type", "dtype", "torch_dtype", "quantization_config", "tie_word_embeddings"}
)
_ABSENT = object()


def is_computed_with(path: str) -> bool:
    """Whether a dotted path of a config may change what is computed, and is no other setting."""
    names = path.split(".")
    return not any(
        name in _NOT_COMPUTED_WITH or name in _OTHER_SETTINGS or _TRAINING.fullmatch(name)
        for name in names
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigDifference:
    """One dotted path with both values; ``known``: whether the config class knows it."""

    path: str
    base: Value
    candidate: Value
    known: bool = True


def compare_configs(base: Any, candidate: Any) -> tuple[ConfigDifference, ...]:
    """Compare two configs of one class, as transformers has completed them.

    Dictionaries with the same keys (rope parameters) and inner configs are compared inside; others
    as a whole. A key that only one of them has is None in the other one.
    """
    known = _config_attributes(_default_like(candidate))
    found = _find_differences(_config_attributes(base), _config_attributes(candidate), "")
    return tuple(
        ConfigDifference(
            path=path, base=one, candidate=other, known=path.partition(".")[0] in known
        )
        for path, one, other in found
    )


def _default_like(config: Any) -> Any:
    try:
        return type(config)()
    except Exception:  # noqa: BLE001 - a remote config may demand arguments
        return config


def _config_attributes(config: Any) -> dict[str, Any]:
    values = config if isinstance(config, Mapping) else vars(config)
    return {str(k): v for k, v in values.items() if not str(k).startswith("_")}


def _find_differences(
    base: Mapping[str, Any], candidate: Mapping[str, Any], prefix: str
) -> Iterator[tuple[str, Value, Value]]:
    for name in dict.fromkeys((*base, *candidate)):
        if not is_computed_with(name):
            continue
        one, other = base.get(name, _ABSENT), candidate.get(name, _ABSENT)
        if _is_nested(one) and _is_nested(other):
            inner, others = _config_attributes(one), _config_attributes(other)
            if not isinstance(one, Mapping) or inner.keys() == others.keys():
                yield from _find_differences(inner, others, f"{prefix}{name}.")
                continue
        if not _same_value(one, other):
            yield prefix + name, to_json_value(one), to_json_value(other)


def _is_nested(value: Any) -> bool:
    return isinstance(value, Mapping) or hasattr(value, "to_dict")


def _same_value(one: Any, other: Any) -> bool:
    # in Python, 1 equals true; YAML and JSON write 1 where a config holds 1.0
    one, other = to_json_value(one), to_json_value(other)
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def to_json_value(value: Any) -> Value:
    """Return a config's value as it is written in JSON."""
    if value is _ABSENT:
        return None
    if isinstance(value, Mapping):
        return {str(key): to_json_value(inner) for key, inner in value.items()}
    if isinstance(value, (set, frozenset)):
        return [*sorted(map(str, value))]
    if isinstance(value, (list, tuple)):
        return [to_json_value(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if hasattr(value, "to_dict"):
        return to_json_value(value.to_dict())
    return str(value).removeprefix("torch.")


# What the tensors of a model are for: embeddings, norms, attention, MLP, mixers, head.


WeightKind = Literal["embeddings", "norms", "attention", "mlp", "recurrent", "output_head", "other"]
WEIGHT_KINDS: tuple[WeightKind, ...] = get_args(WeightKind)

# The words by which people who write models call the parts of a layer; the first that is found in
# the name of a class, without its model's name, or of an attribute decides.
_KIND_PATTERNS: tuple[tuple[WeightKind, re.Pattern[str]], ...] = (
    ("mlp", re.compile(r"mlp|feed_?forward|ffn|expert|moe|router|channel_?mix|^ff|^fc\d?$")),
    ("attention", re.compile(r"attn|attention")),
    ("recurrent", re.compile(r"mixer|mamba|ssm|recurren|lru|delta|retention|conv|time_?mix")),
)
_NORM_PATTERN = re.compile(r"norm|^ln_?\w{0,4}$")
_MODEL_NAME = re.compile(r"For[A-Z]|LMHead|Model$|PreTrained")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlace:
    """Where a tensor is: its kind, its layer (None outside of the layers), its module's name."""

    kind: WeightKind
    layer: int | None
    module: str


def locate_weights(model: PreTrainedModel) -> dict[str, WeightPlace]:
    """Say for every tensor in a model's state what it is for.

    Found from the structure: which modules read tokens and give logits, which are embeddings,
    norms or convolutions, what stands in a list of layers; and from the words in the names of
    classes and attributes. A mixer that holds a convolution keeps a state.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    head = model.get_output_embeddings()
    family = _MODEL_NAME.split(type(model).__name__)[0].lower()
    places: dict[str, WeightPlace] = {}
    for tensor in model.state_dict():
        name = tensor.rpartition(".")[0]
        path, layer = _inside_layer(name, modules)
        kind: WeightKind | None = "output_head" if modules[name] is head else None
        kind = (
            kind or _kind_from_module(modules[name], name) or _kind_from_path(path, modules, family)
        )
        places[tensor] = WeightPlace(kind=kind, layer=layer, module=name)
    return places


def _inside_layer(name: str, modules: dict[str, torch.nn.Module]) -> tuple[list[str], int | None]:
    """The modules on the way to a tensor, from the layer inwards, and the layer's number."""
    import torch

    parts = name.split(".") if name else []
    way = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    for depth, part in enumerate(parts):
        above = modules[way[depth - 1]] if depth else None
        if part.isdigit() and isinstance(above, torch.nn.ModuleList):
            return way[depth + 1 :], int(part)
    return way, None


def _kind_from_module(module: torch.nn.Module, name: str) -> WeightKind | None:
    import torch

    if isinstance(module, torch.nn.Embedding):
        return "embeddings"
    leaf = name.rpartition(".")[2].lower()
    if "norm" in type(module).__name__.lower() or _NORM_PATTERN.search(leaf):
        return "norms"
    return None


def _kind_from_path(
    path: list[str], modules: dict[str, torch.nn.Module], family: str
) -> WeightKind:
    import torch

    for name in path:
        module = modules[name]
        own = type(module).__name__.lower().removeprefix(family)
        leaf = name.rpartition(".")[2].lower()
        found = _kind_from_name(own) or _kind_from_name(leaf)
        if found == "mlp":
            return found
        if any(isinstance(inner, torch.nn.Conv1d) for inner in module.modules()):
            return "recurrent"
        if found:
            return found
    return "other"


def _kind_from_name(text: str) -> WeightKind | None:
    return next((kind for kind, words in _KIND_PATTERNS if words.search(text)), None)
