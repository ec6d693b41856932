"""What a loaded Hugging Face model is configured with: config, tokenizer, code, read off itself."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.models.chat_format import describe_template
from evalguard.models.config_comparison import is_computed_with, to_json_value
from evalguard.models.identity import torch_model
from evalguard.models.tokenizers import rules_digest

if TYPE_CHECKING:
    from evalguard.core.settings import Value

# Beside what ``is_computed_with`` leaves out: nothing that a causal model's text or scores follow
# from. The dtype is the weights' own, and is read off them.
_NOT_READ = re.compile(
    r"(output|summary|return)_.*|is_encoder_decoder|chunk_size_feed_forward|pretraining_tp|"
    r"(pad|sep|decoder_start)_token_id|router_aux_loss_coef|name_or_path|tokenizer_class|"
    r"dtype|torch_dtype|num_labels|task_specific_params"
)
# Of the generation config what greedy texts follow from.
_GENERATION = (
    "bos_token_id", "eos_token_id", "repetition_penalty", "no_repeat_ngram_size", "bad_words_ids",
    "suppress_tokens", "begin_suppress_tokens", "forced_bos_token_id", "forced_eos_token_id",
    "num_beams", "length_penalty", "min_length", "min_new_tokens", "sequence_bias",
)  # fmt: skip
_REMOTE = "transformers_modules."


def read_configuration(lm: Any) -> dict[str, Value]:
    """Return sections ``config``, ``generation``, ``tokenizer``, ``code``, each name to value.

    Of the config as it stands in the model now, overrides included, by dotted names; ``code`` has
    the class, and whether it comes with the checkpoint (``remote``, with a digest of its file).
    {} for a model without a config.
    """
    model = torch_model(lm)
    config = getattr(model, "config", None)
    if model is None or config is None or not hasattr(config, "to_dict"):
        return {}
    return {
        "config": dict(_read_config(config)),
        "generation": _read_generation(getattr(model, "generation_config", None)),
        "tokenizer": _read_tokenizer(lm),
        "code": _read_code(model),
    }


def _read_config(config: Any, prefix: str = "") -> Iterator[tuple[str, Value]]:
    named = config if isinstance(config, Mapping) else vars(config)
    for name, value in named.items():
        if name.startswith("_") or _NOT_READ.fullmatch(name):
            continue
        if name == "quantization_config":
            yield prefix + name, _quantisation(value)
        elif name in ("model_type", "tie_word_embeddings") or is_computed_with(name):
            if isinstance(value, Mapping) or hasattr(value, "to_dict"):
                yield from _read_config(value, f"{prefix}{name}.")
            else:
                yield prefix + name, _plain(value)


def _plain(value: Any) -> Value:
    """A value that JSON can hold; "inf" for one that it cannot, at any depth."""
    return _name_non_finite(to_json_value(value))


def _name_non_finite(value: Value) -> Value:
    if isinstance(value, Mapping):
        return {name: _name_non_finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_name_non_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _quantisation(value: Any) -> Value:
    told = to_json_value(value)
    if not isinstance(told, Mapping):
        return None if told is None else str(told)
    bits = next((told[name] for name in ("bits", "w_bit", "nbits") if told.get(name)), None)
    four = "4" if told.get("load_in_4bit") or told.get("_load_in_4bit") else None
    parts = [str(told.get("quant_method") or "quantised"), bits or four]
    return ", ".join(f"{one} bits" if at else str(one) for at, one in enumerate(parts) if one)


def _read_generation(config: Any) -> dict[str, Value]:
    found = {name: getattr(config, name, None) for name in _GENERATION}
    return {name: _plain(value) for name, value in found.items() if value is not None}


def _read_tokenizer(lm: Any) -> dict[str, Value]:
    tokenizer = getattr(lm, "tokenizer", None)
    if tokenizer is None:
        return {}
    backend = getattr(tokenizer, "backend_tokenizer", None)
    return {
        "rules": "" if backend is None else rules_digest(backend),
        "chat template": describe_template(lm),
        "BOS": _plain(getattr(tokenizer, "bos_token", None)),
        "EOS": _plain(getattr(tokenizer, "eos_token", None)),
        "puts BOS first": _puts_bos_first(lm),
    }


def _puts_bos_first(lm: Any) -> bool | None:
    bos = getattr(lm.tokenizer, "bos_token_id", None)
    return None if bos is None else list(lm.tok_encode("a"))[:1] == [bos]


def _read_code(model: Any) -> dict[str, Value]:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    kind = type(inner)
    remote = kind.__module__.startswith(_REMOTE)
    file = inspect.getsourcefile(kind) if remote else None
    digest = "" if file is None else _digest(Path(file).read_text(encoding="utf-8"))
    return {"class": kind.__name__, "remote": remote, "digest": digest}


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
