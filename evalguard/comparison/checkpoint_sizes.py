"""How much is stored of both models of a comparison, read off files without loading them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from evalguard.core.compare_report import CheckpointSize
from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Value, Variant
from evalguard.engine.built_arguments import find_built_arguments
from evalguard.engine.scored_side import ScoredSide
from evalguard.engine.sources import ModelSource, Source
from evalguard.errors import EvaluationError
from evalguard.models.arguments import HF_TYPES
from evalguard.models.checkpoint_files import hub_snapshot, split_revision
from evalguard.store.cache_folder import default_cache_dir
from evalguard.tensor_files.loaded_weights import (
    LoadedWeights,
    read_adapter_bytes,
    read_loaded_weights,
    same_architecture,
)

_LOG = logging.getLogger(__name__)
# Types of lm-eval and of evalguard that load a folder as transformers does, or a file of weights.
_READ_TYPES = (
    *HF_TYPES, "vllm", "vllm-vlm", "hf-multimodal", "llama_cpp", "rwkv", "fla", "transformer_lens",
)  # fmt: skip
_CHANGING_KINDS = ("dtype", "call", "weights", "module")


def with_sizes(
    sources: tuple[Source, Source], scored: tuple[ScoredSide, ScoredSide], cache_dir: Path | None
) -> tuple[ScoredSide, ScoredSide]:
    """Return both sides with the sizes of those that are models; of others as they are known.

    What cannot be read has a reason in place of a number: it is no part of the verdict.
    """
    folder = cache_dir or default_cache_dir()
    base, candidate = (
        _read_side(source, side.description, folder)
        for source, side in zip(sources, scored, strict=True)
    )
    sizes = (_size(base, beside=None), _size(candidate, beside=base))
    first, second = (
        side if size is None else replace(side, identity=replace(side.identity, size=size))
        for side, size in zip(scored, sizes, strict=True)
    )
    return first, second


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """What is stored of a model, and more of an ``adapter``; else the ``reason`` why not."""

    stored: LoadedWeights | None = None
    adapter: int = 0
    loaded_as: str = ""
    loaded_bytes: int | None = None
    reason: str = ""


def _size(side: _Side | None, *, beside: _Side | None) -> CheckpointSize | None:
    """A side's size; packed weights are as many as those of a base of the same architecture."""
    if side is None:
        return None
    stored = side.stored
    if stored is None:
        return CheckpointSize(loaded_as=side.loaded_as, reason=side.reason)
    weights, reason = stored.numbers, ""
    if weights is None:
        base = None if beside is None else beside.stored
        if base is not None and same_architecture(base, stored):
            weights = base.numbers
        if weights is None:
            reason = f"how many weights are packed in its files is not known ({stored.packing})"
    return CheckpointSize(
        bytes=stored.bytes + side.adapter,
        weights=weights,
        kind=stored.kind,
        loaded_as=side.loaded_as,
        loaded_bytes=side.loaded_bytes,
        reason=reason,
    )


def _read_side(
    source: Source, description: ModelDescription | None, cache_dir: Path
) -> _Side | None:
    if not isinstance(source, ModelSource):
        return None
    try:
        return _read_variant(source.variant, description, cache_dir)
    except Exception as error:  # noqa: BLE001 - whatever a file holds, the verdict stands
        _LOG.info("the size of %s is not known", source.name, exc_info=True)
        return _Side(reason=" ".join(str(error).split()) or type(error).__name__)


def _read_variant(variant: Variant, description: ModelDescription | None, cache_dir: Path) -> _Side:
    if variant.serve is not None or "base_url" in variant.model_args:
        raise EvaluationError("its files are its server's")
    if variant.model not in _READ_TYPES:
        raise EvaluationError(f"files of model type '{variant.model}' are not read")
    arguments = find_built_arguments(variant, cache_dir)
    for name in ("delta", "variant"):
        if arguments.get(name):
            raise EvaluationError(f"which files model_args.{name} loads is not known")
    gguf_file = str(arguments.get("gguf_file") or "")
    stored = read_loaded_weights(_find_place(variant, arguments), gguf_file=gguf_file)
    peft = arguments.get("peft")
    adapter = read_adapter_bytes(_find_named(str(peft), "")) if peft else 0
    in_memory = 0 if description is None else description.weight_bytes
    quantised = not stored.packing and bool(_quantised_while_loading(arguments))
    return _Side(
        stored=stored,
        adapter=adapter,
        loaded_as=_loaded_as(variant, arguments, stored, description),
        loaded_bytes=in_memory if in_memory and quantised else None,
    )


def _find_place(variant: Variant, arguments: Mapping[str, Value]) -> Path:
    """The folder or file that is loaded.

    Raises:
        EvaluationError: it is not on this machine.
    """
    pretrained = arguments.get("pretrained")
    if not isinstance(pretrained, str) or not pretrained:
        raise EvaluationError(f"model type '{variant.model}' names no files in pretrained")
    subfolder = str(arguments.get("subfolder") or "")
    revision = str(arguments.get("revision") or "")
    return _find_named(pretrained, subfolder, revision)


def _find_named(name: str, subfolder: str, revision: str = "") -> Path:
    folder = Path(name).expanduser()
    if not folder.exists():
        hub_id, named_revision = split_revision(name)
        snapshot = hub_snapshot(hub_id, revision or named_revision, subfolder)
        if snapshot is None:
            raise EvaluationError(f"{name} is neither a folder nor in the hub's cache here")
        folder = snapshot
    return folder / subfolder if subfolder else folder


def _loaded_as(
    variant: Variant,
    arguments: Mapping[str, Value],
    stored: LoadedWeights,
    description: ModelDescription | None,
) -> str:
    """What loading makes of the stored weights; "" where they are loaded as they are."""
    quantised = _quantised_while_loading(arguments)
    changing = [
        setting.name
        for setting in variant.settings
        if setting.target.kind in _CHANGING_KINDS
        and variant.assignment.get(setting.name) != setting.reference
    ]
    dtype = "" if description is None else description.dtype
    loaded_dtype = dtype if dtype and not stored.packing and variant.model in HF_TYPES else ""
    parts = [
        quantised,
        loaded_dtype if loaded_dtype != stored.dtype and not quantised else "",
        f"changed by {', '.join(changing)}" if changing else "",
        "with an adapter" if arguments.get("peft") else "",
    ]
    return ", ".join(filter(None, parts))


def _quantised_while_loading(arguments: Mapping[str, Value]) -> str:
    nested = arguments.get("quantization_config")
    config: Mapping[str, Value] = nested if isinstance(nested, dict) else {}
    config = {**arguments, **config}
    kind = ""
    if config.get("load_in_4bit"):
        kind = str(config.get("bnb_4bit_quant_type") or "4 bits")
    elif config.get("load_in_8bit"):
        kind = "int8"
    elif config.get("quant_type") is not None:
        kind = str(config["quant_type"])
    method = str(config.get("quant_method") or config.get("quantization") or "")
    if kind and not method:
        method = "bitsandbytes"
    return f"{method} {kind}".strip()
