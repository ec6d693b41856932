"""Two models compared by their files alone: classes, weights, tokenizers, dtypes."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from evalguard.errors import EvaluationError
from evalguard.models.arguments import constructor_parameters
from evalguard.models.checkpoint_files import (
    CheckpointFiles,
    checkpoint_folder,
    open_stored_tensors,
)
from evalguard.models.checkpoint_tensors import map_loading_names, map_tied_names
from evalguard.models.config_overrides import apply_overrides, override_config
from evalguard.models.failures import explain_load_failures
from evalguard.models.process_state import silence_libraries

if TYPE_CHECKING:
    import torch
    from transformers import PretrainedConfig, PreTrainedModel

    from evalguard.core.settings import Value

_FIRST_ELEMENTS = 4096  # elements that are looked at before all of a tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointComparison:
    """Names in a model's state: bit-identical in both checkpoints, differing, or in one only."""

    same: tuple[str, ...] = ()
    differing: tuple[str, ...] = ()
    unmatched: tuple[str, ...] = ()


def compare_shapes(base: PreTrainedModel, candidate: PreTrainedModel) -> tuple[str, ...]:
    """Say where the tensors of two models have other names or shapes; () where nowhere."""
    of_base, of_candidate = _shapes(base), _shapes(candidate)
    differences = [f"{name}: only in the base" for name in of_base if name not in of_candidate]
    differences += [
        f"{name}: only in the candidate" for name in of_candidate if name not in of_base
    ]
    differences += [
        f"{name}: {list(of_base[name])} in the base, {list(of_candidate[name])} in the candidate"
        for name in of_base
        if name in of_candidate and of_base[name] != of_candidate[name]
    ]
    return tuple(differences)


def compare_checkpoints(
    model: PreTrainedModel,
    base: CheckpointFiles,
    candidate: CheckpointFiles,
    dtypes: Iterable[str],
) -> CheckpointComparison:
    """Compare what two checkpoints give the tensors of a model (which may be on meta).

    Tensors are read one pair at a time, from mapped files. Two that are stored under other names
    are compared where transformers only renames them; what it converts (stacks, splits) counts as
    differing unless both store the same parts.

    Args:
        dtypes: names of those that the model is loaded in; tensors are the same if they are after
            the cast to each of them.
    """
    with ExitStack() as stack:
        sides = [
            _StoredTensors.of(model, open_stored_tensors(files, stack))
            for files in (base, candidate)
        ]
        same: list[str] = []
        differing: list[str] = []
        unmatched: list[str] = []
        for name in model.state_dict():
            given = [side.parts.get(name, {}) for side in sides]
            if not given[0] and not given[1]:
                continue  # nothing that checkpoints hold
            if not given[0] or not given[1]:
                unmatched.append(name)
                continue
            casts = [*dtypes, *(["float32"] if _kept_in_float32(model, name) else [])]
            equal = _equal_parts(sides, given, casts)
            (same if equal else differing).append(name)
    return CheckpointComparison(
        same=tuple(same), differing=tuple(differing), unmatched=tuple(unmatched)
    )


@dataclass(frozen=True, slots=True)
class _StoredTensors:
    """A checkpoint: its tensors, and for each of the model's the stored ones it is made of."""

    stored: Mapping[str, Any]
    parts: Mapping[str, Mapping[str, bool]]  # name -> {stored name: converted}

    @classmethod
    def of(cls, model: PreTrainedModel, stored: Mapping[str, Any]) -> _StoredTensors:
        parts: dict[str, dict[str, bool]] = {}
        for key, into in map_loading_names(model, stored).items():
            for name in into.names:
                parts.setdefault(name, {})[key] = into.converted
        for name, source in map_tied_names(model).items():
            held = parts.get(source) or parts.get(name)
            if held:
                parts.setdefault(name, held)
                parts.setdefault(source, held)
        return cls(stored, parts)


def _equal_parts(
    sides: list[_StoredTensors], given: list[Mapping[str, bool]], casts: Iterable[str]
) -> bool:
    first, second = (sorted(parts) for parts in given)
    renamed = not any(converted for parts in given for converted in parts.values())
    if first != second and not (renamed and len(first) == len(second) == 1):
        return False
    return all(
        _equal(sides[0].stored[here][...], sides[1].stored[there][...], casts)
        for here, there in zip(first, second, strict=True)
    )


def _equal(one: torch.Tensor, other: torch.Tensor, casts: Iterable[str]) -> bool:
    import torch

    if one.shape != other.shape:
        return False
    if one.dtype == other.dtype and _same_bits(one, other):
        return True
    if not (one.is_floating_point() and other.is_floating_point()):
        return False
    wanted = [getattr(torch, name) for name in casts]
    if all(one.dtype == other.dtype == dtype for dtype in wanted):
        return False
    return all(_same_after_cast(one, other, dtype) for dtype in wanted)


def _same_after_cast(one: torch.Tensor, other: torch.Tensor, dtype: torch.dtype) -> bool:
    first = [tensor.flatten()[:_FIRST_ELEMENTS].to(dtype) for tensor in (one, other)]
    return _same_bits(*first) and _same_bits(one.to(dtype), other.to(dtype))


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    import torch

    # as bytes: NaN is not equal to itself, and -0.0 equals 0.0
    parts = [tensor.contiguous().flatten().view(torch.uint8) for tensor in (one, other)]
    return torch.equal(parts[0][:_FIRST_ELEMENTS], parts[1][:_FIRST_ELEMENTS]) and torch.equal(
        *parts
    )


def _kept_in_float32(model: PreTrainedModel, name: str) -> bool:
    """Whether transformers may keep this tensor in float32, whatever the dtype of the rest."""
    kinds = ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    return any(part in name for kind in kinds for part in getattr(model, kind, None) or ())


def _shapes(model: PreTrainedModel) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in model.state_dict().items()}


# model_args of reading a config, with lm-eval's defaults
_CONFIG_LOCATION: Mapping[str, Value] = {"revision": "main", "gguf_file": None, "subfolder": ""}


def read_effective_config(
    model_args: Mapping[str, Value],
    overrides: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PretrainedConfig:
    """Read a config as loading these model_args does, with all that is laid over it.

    Raises:
        SettingError: an override names nothing in the config.
        EvaluationError: there is no such config.
    """
    from transformers import AutoConfig

    pretrained = str(model_args["pretrained"])
    where: dict[str, Any] = {n: model_args.get(n) or value for n, value in _CONFIG_LOCATION.items()}
    with explain_load_failures("hf", model_args, overrides), silence_libraries():
        config = AutoConfig.from_pretrained(
            pretrained, trust_remote_code=trust_remote_code, **where
        )
        apply_overrides(config, overrides, pretrained, **where)
        override_config(config, config_model_args(config, model_args))
    return config


def config_model_args(
    config: PretrainedConfig, model_args: Mapping[str, Value]
) -> dict[str, Value]:
    """Return the model_args that transformers takes for attributes of the config."""
    from evalguard.models.hf.model import LOADER_ARGUMENTS, GuardedHFLM

    known = constructor_parameters(GuardedHFLM).keys() | LOADER_ARGUMENTS
    return {n: v for n, v in model_args.items() if n not in known and hasattr(config, n)}


def build_empty_model(
    config: PretrainedConfig,
    model_args: Mapping[str, Value],
    *,
    trust_remote_code: bool = False,
) -> PreTrainedModel:
    """Make the modules that these model_args and this config lead to, on the meta device.

    The config is copied; the model's own says which attention implementation it resolves to.

    Raises:
        EvaluationError: the architecture cannot be made without its weights.
    """
    try:
        return make_empty_model(config, model_args, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise EvaluationError(
            f"the modules of {model_args['pretrained']} cannot be listed without its weights: "
            f"{' '.join(str(error).split())}",
        ) from error


def make_empty_model(
    config: PretrainedConfig, model_args: Mapping[str, Value], *, trust_remote_code: bool
) -> PreTrainedModel:
    """As ``build_empty_model``, with what transformers raises as it is."""
    import torch

    asked = {n: v for n, v in model_args.items() if n == "attn_implementation" and v is not None}
    with torch.device("meta"), silence_libraries():
        made: PreTrainedModel = _auto_class(config, model_args).from_config(
            copy.deepcopy(config), trust_remote_code=trust_remote_code, **asked
        )
    return made


def _auto_class(config: PretrainedConfig, model_args: Mapping[str, Value]) -> Any:
    """The auto class with which lm-eval loads a model of this type."""
    import transformers
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES as WITH_ENCODER,
    )

    backend = model_args.get("backend") or "default"
    encoder = backend == "seq2seq" or (backend == "default" and config.model_type in WITH_ENCODER)
    return transformers.AutoModelForSeq2SeqLM if encoder else transformers.AutoModelForCausalLM


# lm-eval's and transformers' own names for a dtype come to these
_DTYPE_NAMES: Mapping[str, str] = {"half": "float16", "float": "float32", "double": "float64"}


def load_dtype(model_args: Mapping[str, Value], config: Any, stored: Mapping[str, Any]) -> str:
    """Return the name of the dtype; "" where only loading will tell.

    What model_args say, else the config, else the first floating tensor of the checkpoint, as
    transformers does with "auto".

    Args:
        stored: the checkpoint's tensors, by name; {} where they cannot be read.
    """
    asked = model_args.get("dtype") or "auto"
    if asked != "auto":
        return _DTYPE_NAMES.get(str(asked), str(asked))
    dtype = getattr(config, "dtype", None) or _text_config_dtype(config)
    if dtype is None:
        tensors = (stored[name][...] for name in stored)
        dtype = next((tensor.dtype for tensor in tensors if tensor.is_floating_point()), None)
    return "" if dtype is None else str(dtype).removeprefix("torch.")


def _text_config_dtype(config: Any) -> Any:
    text = config.get_text_config() if hasattr(config, "get_text_config") else None
    return getattr(text, "dtype", None)


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
    files = (file for file in folder.rglob("*") if file.is_file())
    return {
        file.relative_to(folder).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(files)
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
    first = {bos is not None and encoded[:1] == [bos] for encoded in ids}
    if bos is None or len(first) != 1:
        return None
    adds_bos = first.pop()
    configured = load_tokenizer({**model_args, "add_bos_token": adds_bos}, **trusted)
    return adds_bos if _encode_probes(configured, adds_bos) == ids else None


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


_FAST_TOKENIZER_FILE = "tokenizer.json"
_LEADING_BLANK = (
    "\u2581"  # how a sentencepiece token writes the blank before it, which decoding drops
)


def token_texts(model_args: Mapping[str, Value], token_ids: Sequence[int]) -> dict[int, str]:
    """Return the text of each token id, as far as its tokenizer knows it.

    {} where the tokenizer's one file is not on this machine: slow tokenizers have none, and their
    tokens go by their ids.
    """
    if "pretrained" not in model_args:
        return {}
    folder = tokenizer_folder(model_args)
    if folder is None or not (folder / _FAST_TOKENIZER_FILE).is_file():
        return {}
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / _FAST_TOKENIZER_FILE))
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        return {}
    known = [
        (token_id, token)
        for token_id in token_ids
        if (token := tokenizer.id_to_token(token_id)) is not None
    ]
    texts = tokenizer.decode_batch([[token_id] for token_id, _ in known], skip_special_tokens=False)
    return {
        token_id: _with_blank(token, text)
        for (token_id, token), text in zip(known, texts, strict=True)
    }


def _with_blank(token: str, text: str) -> str:
    blank = token.startswith(_LEADING_BLANK) and not text.startswith(" ")
    return f" {text}" if blank else text


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
# What is cut into heads: attention as it is called, or its projections alone; and norms of a head.
_HEADS = re.compile(r"^w?(q|k|v|kv|qkv)(_|$)|^o_proj$|^(query|key|value)|retention|time_?mix")
_HEAD_NORM = re.compile(r"(^|_)[qk]_?(layer)?_?norm")
_MODEL_NAME = re.compile(r"For[A-Z]|LMHead|Model$|PreTrained")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightPlace:
    """Where a tensor is: its kind, its layer (None outside of the layers), its module's name."""

    kind: WeightKind
    layer: int | None
    module: str


def may_have_heads(name: str) -> bool:
    """Whether a tensor of this name may be cut into heads: one of attention, and none of an MLP."""
    parts = re.split(r"[./]", name.lower())
    kinds = {_kind_from_name(part) for part in parts}
    if "mlp" in kinds or any(
        _NORM_PATTERN.search(part) and not _HEAD_NORM.search(part) for part in parts
    ):
        return False
    return "attention" in kinds or any(map(_HEADS.search, parts))


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
        kind = _kind_from_name(own) or _kind_from_name(leaf)
        if kind == "mlp":
            return kind
        if any(isinstance(inner, torch.nn.Conv1d) for inner in module.modules()):
            return "recurrent"
        if kind:
            return kind
    return "other"


def _kind_from_name(text: str) -> WeightKind | None:
    return next((kind for kind, words in _KIND_PATTERNS if words.search(text)), None)
