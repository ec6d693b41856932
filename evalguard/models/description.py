"""The ModelDescription of a loaded lm-eval model."""

from __future__ import annotations

import hashlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.errors import EvaluationError
from evalguard.models.built_findings import list_built_findings
from evalguard.models.config_overrides import is_computed_with, to_json_value
from evalguard.models.failures import OUT_OF_MEMORY, quote_error
from evalguard.models.identity import (
    attention_implementation,
    describe_environment,
    identity_of_lm,
    model_dtype,
    read_batching,
    torch_model,
)
from evalguard.models.model_caveats import list_model_caveats, list_model_findings
from evalguard.models.served.calls import is_served
from evalguard.models.tokenizers import digest_vocabulary, rules_digest

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.core.settings import Value
    from evalguard.models.assigned_model import EditedAttributes
    from evalguard.models.hf.batch_scoring import PieceScoring


def format_chat(
    lm: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
) -> str:
    """Apply a model's chat template to a conversation.

    Raises:
        EvaluationError: the model has none.
    """
    history = [dict(message) for message in messages]
    try:
        made = lm.apply_chat_template(history, add_generation_prompt=add_generation_prompt)
        # Clients of chat endpoints send the conversation itself: they wrap its JSON.
        return str(getattr(made, "prompt", made))
    except Exception as error:
        raise EvaluationError(
            f"the model's chat template cannot be applied: {type(error).__name__}",
            quotes=quote_error(error),
            hint="run without --apply_chat_template, or give the tokenizer a chat template",
        ) from error


def describe_template(lm: Any) -> str | None:
    """Say which chat template a model's prompts would be made by: where it is from, and digest.

    "tokenizer#0123456789abcdef": the one that the tokenizer brings, in tokenizer_config.json or
    chat_template.jinja. "NAME#...": one of several that it brings, chosen by
    ``chat_template_args``; "argument#...": given there as text. The digest is sha256 of the
    template's text, as lm-eval records it. None: the model has none here, or shows none.
    """
    tokenizer = getattr(lm, "tokenizer", None)
    held = getattr(tokenizer, "chat_template", None)
    given = getattr(lm, "chat_template_args", None) or {}
    chosen = given.get("chat_template") if isinstance(given, Mapping) else None
    named = held if isinstance(held, Mapping) else {}
    if chosen is not None:
        source, text = (chosen, named[chosen]) if chosen in named else ("argument", chosen)
    else:
        source, text = "tokenizer", named.get("default") if named else held
    if not isinstance(text, str):
        return None
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{source}#{digest[:16]}"


def read_computation(lm: Any) -> dict[str, Value]:
    """Return batches, scorer, threads, device kind, attention, softmax dtype of an lm-eval model.

    Of one behind a server also the requests in flight: concurrency; and of an engine that may keep
    prompts from one request to the next, whether it does: prefix_cache.

    Each is read from the model or from torch, not from what was asked for; None where the model
    type does not show it.
    """
    import torch

    return {
        **read_batching(lm),
        "threads": torch.get_num_threads(),
        "device": _device_kind(lm),
        "attention": attention_implementation(lm),
        "softmax_dtype": _softmax_dtype(lm),
        **_concurrency(lm),
        **_prefix_cache(lm),
    }


def _concurrency(lm: Any) -> dict[str, Value]:
    """Requests in flight, of a model behind a server that shows it."""
    number = getattr(lm, "num_concurrent", getattr(lm, "_concurrent", None))
    return {"concurrency": number} if isinstance(number, int) else {}


def _prefix_cache(lm: Any) -> dict[str, Value]:
    """Of a server None, which does not say; an engine in this process has it as an attribute."""
    if is_served(lm):
        return {"prefix_cache": None}
    enabled = getattr(lm, "prefix_cache", None)
    return {"prefix_cache": enabled} if isinstance(enabled, bool) else {}


def _device_kind(lm: Any) -> str | None:
    device = getattr(lm, "device", None)
    return None if device is None else str(device).partition(":")[0]


def _softmax_dtype(lm: Any) -> str | None:
    """Of lm-eval's Hugging Face models, which take None for the dtype of the logits."""
    if torch_model(lm) is None or not hasattr(lm, "softmax_dtype"):
        return None
    if lm.softmax_dtype is None:
        return model_dtype(lm).partition("+")[0]
    return str(lm.softmax_dtype).removeprefix("torch.")


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
    config = to_json_value(value)
    if not isinstance(config, Mapping):
        return None if config is None else str(config)
    bits = next((config[name] for name in ("bits", "w_bit", "nbits") if config.get(name)), None)
    four = "4" if config.get("load_in_4bit") or config.get("_load_in_4bit") else None
    parts = [str(config.get("quant_method") or "quantised"), bits or four]
    return ", ".join(f"{part} bits" if at else str(part) for at, part in enumerate(parts) if part)


def _read_generation(config: Any) -> dict[str, Value]:
    defaults = {name: getattr(config, name, None) for name in _GENERATION}
    return {name: _plain(value) for name, value in defaults.items() if value is not None}


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


# bitsandbytes keeps the scales of a weight in attributes of it, and those of scales once more.
_ATTRIBUTES = ("quant_state", "SCB", "CB", "absmax", "code", "offset", "state2")
_DEEPEST = 4


def count_weight_bytes(model: Any) -> int:
    """Return the bytes of a module's parameters and buffers, of what is shared once.

    A tensor subclass (torchao) counts as what it holds, with scales and zero points.
    """
    storages: dict[tuple[str, int], int] = {}
    for tensor in chain(model.parameters(), model.buffers()):
        for held in _held_tensors(tensor, 0):
            storage = held.untyped_storage()
            storages[str(held.device), storage.data_ptr()] = int(storage.nbytes())
    return sum(storages.values())


def _held_tensors(value: Any, depth: int) -> Iterator[Any]:
    import torch

    if depth > _DEEPEST or value is None:
        return
    if isinstance(value, torch.Tensor):
        if hasattr(value, "__tensor_flatten__"):
            for name in value.__tensor_flatten__()[0]:
                yield from _held_tensors(getattr(value, name), depth + 1)
            return
        if value.device.type == "meta":
            return
        yield value
    own = getattr(value, "__dict__", {})
    for name in _ATTRIBUTES:
        yield from _held_tensors(own.get(name), depth + 1)


def describe_model(
    lm: LM,
    policy: ScoringPolicy,
    model_type: str,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value] | None,
    provenance: Mapping[str, Value] | None,
    edited: EditedAttributes,
) -> ModelDescription:
    """Read off a loaded model what it is.

    Args:
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where the weights cannot be proven.
        edited: attributes that settings have changed after the model was built.
    """
    if hasattr(lm, "settle") and lm.own_path:
        lm.settle()
    model = torch_model(lm)
    digest, size = digest_vocabulary(lm)
    identity = None
    if provenance is not None:
        identity = identity_of_lm(lm, model_type, model_args, policy, provenance)
    return ModelDescription(
        model_type=model_type,
        effective=dict(effective or {}),
        identity=identity,
        vocabulary_digest=digest,
        vocabulary_size=size,
        max_length=int(getattr(lm, "max_length", 0) or 0),
        dtype=model_dtype(lm),
        device=str(getattr(lm, "device", None) or ""),
        parameters=0 if model is None else _count_parameters(model),
        weight_bytes=0 if model is None else count_weight_bytes(model),
        gives_rows=shows_distributions(lm),
        environment=describe_environment(lm, model_args),
        computation=read_computation(lm),
        unshared=getattr(lm, "unshared", ""),
        padding=lm.padding if hasattr(lm, "forget_padding") else None,
        configuration=read_configuration(lm),
        caveats=list_model_caveats(lm, model_args),
        findings=(
            *list_model_findings(lm, edited),
            *list_built_findings(model_args.get("pretrained")),
        ),
    )


def _count_parameters(model: Any) -> int:
    """Weights of a model, tied ones once: accelerate copies them where it spreads a model."""
    sizes = {name: tensor.numel() for name, tensor in model.named_parameters()}
    tied = getattr(model, "all_tied_weights_keys", None) or {}
    return sum(size for name, size in sizes.items() if tied.get(name) not in sizes)


def update_batching(description: ModelDescription, lm: PieceScoring) -> ModelDescription:
    """Say how batches are cut now, where memory ran out since the model was described."""
    batching = read_batching(lm)
    if not hasattr(lm, "make_room") or all(
        description.computation.get(name) == value for name, value in batching.items()
    ):
        return description
    identity = description.identity
    if identity is not None:
        asked = identity["policy"]
        assert isinstance(asked, Mapping)
        identity = {**identity, "policy": {**asked, **batching}}
    return replace(
        description,
        computation={**description.computation, **batching},
        identity=identity,
        caveats=(
            *(c for c in description.caveats if not c.startswith(OUT_OF_MEMORY)),
            lm.room_note,
        ),
    )


def shows_distributions(lm: LM) -> bool:
    """Whether a model shows the distributions that its scores are read from."""
    return hasattr(lm, "scored_batch") and bool(lm.own_path)
