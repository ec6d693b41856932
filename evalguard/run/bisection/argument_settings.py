"""Settings from the arguments that two models are loaded with."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

from evalguard.core.settings import Setting, Target, Value
from evalguard.models.config_comparison import to_json_value
from evalguard.models.empty_model import config_model_args
from evalguard.run.bisection.model_differences import HFSide

# Compared by what they lead to, not by how they are written: weights, tokenizer, dtype, attention.
_BY_EFFECT = frozenset(
    {
        "pretrained", "revision", "subfolder", "gguf_file", "tokenizer", "dtype",
        "attn_implementation", "quantization_config",
    }
)  # fmt: skip


def argument_settings(base: HFSide, candidate: HFSide) -> tuple[list[Setting], list[str]]:
    """Return settings ``model_args.X`` for what the models are loaded with, and notes.

    An argument that one side leaves out has the value that loading gives it.
    """
    settings, notes = [*_dtype_and_attention(base, candidate)], []
    names = dict.fromkeys((*candidate.model_args, *base.model_args))
    for name in names:
        if name in _BY_EFFECT:
            continue
        given = [_argument_value(name, side) for side in (base, candidate)]
        if name == "device" and None in given:
            notes.append("device: only one of the two models names one")
        elif to_json_value(given[0]) != to_json_value(given[1]):
            settings.append(argument_setting(name, given[0], given[1]))
    return settings, notes


def argument_setting(name: str, reference: Value, candidate: Value, *, called: str = "") -> Setting:
    """A setting on one argument of the model type."""
    target = Target(kind="model_args", path=name)
    return Setting(name=called or name, reference=reference, candidate=candidate, target=target)


def _dtype_and_attention(base: HFSide, candidate: HFSide) -> Iterator[Setting]:
    """What the weights are held and attention is computed in."""
    if base.dtype and candidate.dtype and base.dtype != candidate.dtype:
        yield argument_setting("dtype", base.dtype, candidate.dtype)
    kinds = [_attention_of(side) for side in (base, candidate)]
    asked = any(side.model_args.get("attn_implementation") for side in (base, candidate))
    # what another architecture resolves to by itself comes with it
    comparable = asked or type(base.config) is type(candidate.config)
    if comparable and None not in kinds and kinds[0] != kinds[1]:
        yield argument_setting("attn_implementation", kinds[0], kinds[1])


def _attention_of(side: HFSide) -> str | None:
    """The implementation that this model resolves to."""
    config = side.config if side.model is None else side.model.config
    found = getattr(config, "_attn_implementation", None)
    return found if isinstance(found, str) else None


def _argument_value(name: str, side: HFSide) -> Value:
    from evalguard.models.hf.model import GuardedHFLM

    if name in side.model_args:
        return side.model_args[name]
    for kind in GuardedHFLM.__mro__:
        known = inspect.signature(kind.__init__).parameters.get(name)
        if known is not None and known.default is not known.empty:
            return to_json_value(known.default)
    # transformers takes it for an attribute of the config
    laid = name in config_model_args(side.config, {name: True})
    return to_json_value(getattr(side.config, name)) if laid else None
