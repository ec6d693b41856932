"""What about a loaded model may make a comparison unfair, in words for the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from evalguard.core.findings import Finding
from evalguard.models.checkpoint_files import checkpoint_folder
from evalguard.models.hf.longrope import scales_with_length
from evalguard.models.identity import model_dtype
from evalguard.models.quantised_folders import OTHER_WEIGHTS, read_stored_quantisation

if TYPE_CHECKING:
    import torch

    from evalguard.core.settings import Value
    from evalguard.models.assigned_model import EditedAttributes

_CONTEXT_LENGTHS = ("n_positions", "max_position_embeddings", "n_ctx")


def list_model_caveats(lm: Any, model_args: Mapping[str, Value]) -> tuple[str, ...]:
    """List what was left to chance or to the checkpoint, and what it turned out to be."""
    caveats: list[str] = []
    config = getattr(lm, "config", None)
    if config is not None and model_args.get("dtype") in (None, "auto"):
        caveats.append(f"dtype follows the checkpoint ({model_dtype(lm)}); set model_args.dtype")
    if config is not None and not model_args.get("max_length"):
        text_config = getattr(config, "text_config", None) or config
        if not any(hasattr(text_config, name) for name in _CONTEXT_LENGTHS):
            caveats.append(
                f"the config names no context length; {lm.max_length} tokens are used; "
                "set model_args.max_length"
            )
    dequantised = None if config is None else _find_dequantised(lm, model_args)
    if dequantised is not None:
        caveats.append(
            f"its {dequantised} weights were dequantised while they were loaded, as transformers "
            "does on this device: what rounding has left of them is measured, and neither the "
            "kernels that serve them nor activations in fewer bits"
        )
    if model_args.get("mixed_precision_dtype"):
        caveats.append(f"computed under autocast ({model_args['mixed_precision_dtype']})")
    if getattr(lm, "unshared", ""):
        caveats.append(f"shared prefixes are read again for every continuation: {lm.unshared}")
    if _is_causal(lm):
        if lm.own_path and lm.rows_reason:
            caveats.append(
                "logits are computed at every position, not only at the scored ones, which is "
                f"slower: of this model, {lm.rows_reason}"
            )
        if lm.padding is not None and lm.padding.before_matters:
            caveats.append(_padding_caveat(lm))
    return tuple(caveats)


def _find_dequantised(lm: Any, model_args: Mapping[str, Value]) -> str | None:
    """How the stored weights are quantised, where the model's own are plain."""
    source = model_args.get("pretrained")
    if not isinstance(source, str) or getattr(lm.model, "hf_quantizer", None) is not None:
        return None
    subfolder = str(model_args.get("subfolder") or "")
    folder = checkpoint_folder(source, str(model_args.get("revision") or "main"), subfolder)
    if folder is None or any(model_args.get(name) for name in OTHER_WEIGHTS):
        return None
    stored = read_stored_quantisation(folder / subfolder / "config.json")
    return None if stored is None else stored.method


def list_model_findings(lm: Any, edited: EditedAttributes) -> Iterator[Finding]:
    """List what of a loaded model every reader of its scores must see.

    Args:
        edited: attributes that settings have changed after it was built.
    """
    unused = sorted(
        str(key) for report in getattr(lm, "loading", ()) for key in report["unexpected_keys"]
    )
    if unused:
        yield Finding(
            kind="weights_unused",
            text=f"{len(unused)} weights of the checkpoint are not used (first: {unused[0]})",
            values={"weights": len(unused), "first": unused[0]},
        )
    if not _is_causal(lm):
        return
    from evalguard.models.hf.padding import exceeds_rounding, measure_effect_of_later_tokens

    with watch_reads(lm.model, edited) as unread:
        change = measure_effect_of_later_tokens(lm)
    for setting in unread:
        places = edited[setting]
        module, attribute = places[0]
        suffix = f" (and of {len(places) - 1} more modules)" if len(places) > 1 else ""
        yield Finding(
            kind="setting_unread",
            text=f"setting '{setting}' is inert: it sets {module}.{attribute}{suffix}, which a "
            "forward pass of a few tokens does not read",
            values={"setting": setting, "attribute": attribute, "modules": len(places)},
        )
    if exceeds_rounding(lm, change):
        yield Finding(
            kind="scores_depend",
            text=f"a token's score depends on tokens that follow it (by {change:.2g} nats in a "
            "probe): attention without a causal mask, or activations quantised together",
            values={"nats": change if math.isfinite(change) else None},
        )
    if scales_with_length(lm.config, lm.max_length):
        yield Finding(
            kind="scores_depend",
            text="dynamic rotary scaling: beyond the trained length, scores depend on what was "
            "read before; set model_args.max_length to max_position_embeddings",
        )


@contextmanager
def watch_reads(model: torch.nn.Module, edited: EditedAttributes) -> Iterator[list[str]]:
    """Yield a list that holds, once the block ends, the settings of which nothing read what they
    set.

    While it runs, the classes of the modules have a property in place of each attribute: Python
    asks it before a module's own values, its parameters and its buffers.
    """
    modules = dict(model.named_modules())
    wanted: dict[tuple[int, str], set[str]] = {}
    classes: dict[tuple[type, str], None] = {}
    unknown: set[str] = set()
    for setting, places in edited.items():
        for name, attribute in places:
            kind = type(modules[name])
            if any(attribute in vars(base) for base in kind.__mro__):  # of the class, or computed
                unknown.add(setting)
                continue
            wanted.setdefault((id(modules[name]), attribute), set()).add(setting)
            classes[kind, attribute] = None
    read: set[str] = set()
    unread: list[str] = []
    watched: list[tuple[type, str]] = []
    try:
        for kind, attribute in classes:
            try:
                setattr(kind, attribute, _watched(attribute, wanted, read))
            except (TypeError, AttributeError):  # a class of C's, or one that refuses
                unknown |= set(edited)
            else:
                watched.append((kind, attribute))
        yield unread
    finally:
        for kind, attribute in watched:
            delattr(kind, attribute)
    unread += [setting for setting in edited if setting not in read | unknown]


def _watched(
    attribute: str, wanted: Mapping[tuple[int, str], set[str]], read: set[str]
) -> property:
    """Return a property that gives what a module holds, and notes whose setting was read."""

    def get(module: Any) -> Any:
        read.update(wanted.get((id(module), attribute), ()))
        own = vars(module)
        for held in (own, own["_parameters"], own["_buffers"], own["_modules"]):
            if attribute in held:
                return held[attribute]
        raise AttributeError(f"'{type(module).__name__}' object has no attribute '{attribute}'")

    def put(module: Any, value: Any) -> None:
        own = vars(module)
        held = next(
            (table for table in (own["_parameters"], own["_buffers"]) if attribute in table), own
        )
        held[attribute] = value

    return property(get, put)


def _is_causal(lm: Any) -> bool:
    return hasattr(lm, "score_pairs") and bool(lm.backend == "causal")


def _padding_caveat(lm: Any) -> str:
    size = f"padding changes its answers, by up to {lm.padding.left:.2g} nats a token in a probe"
    if lm.unpadded:
        return f"{size}: texts are generated one by one"
    if lm.sequences == 1:
        return f"{size}: nothing is padded at batch size 1"
    return (
        f"{size}: texts are generated in padded batches, as --batch-size {lm.sequences} asks; "
        "without it, one by one"
    )
