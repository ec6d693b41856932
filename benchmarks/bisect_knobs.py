"""Conversion settings of the sampled models: each harmless, or guilty to any degree.

A knob's harmless value is what a conversion does that no score should notice: a constant rounded to
bfloat16, another attention implementation, one module in bfloat16. Its dial is the same setting
gone wrong: the greater, the worse.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import exp
from pathlib import Path

from evalguard.core.settings import Setting, Target, Value

Dial = Callable[[float], Value]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knob:
    """One setting: ``reference``, ``harmless``, and what it is at a strength above 0.

    ``dial`` is None where it cannot do harm.
    """

    name: str
    target: str
    reference: Value
    harmless: Value
    dial: Dial | None = None

    def setting(self, candidate: Value) -> Setting:
        """As a guard file would declare it."""
        return Setting(
            name=self.name,
            reference=self.reference,
            candidate=candidate,
            target=Target.parse(self.target),
        )


def number(name: str, target: str, reference: float, *, stretch: float = 1.0) -> Knob:
    """A number that is off by a factor."""
    return Knob(
        name=name, target=target, reference=reference, harmless=reference * (1.0 + 2.0**-11),
        dial=lambda strength: reference * exp(stretch * strength),
    )  # fmt: skip


def norm(name: str, path: str, reference: float) -> Knob:
    """The weights of norms, all one number."""
    return Knob(
        name=name, target=f"attr:{path}.weight", reference=reference,
        harmless=reference + 2.0**-10, dial=lambda strength: reference + strength,
    )  # fmt: skip


def harmless(name: str, target: str, reference: Value, candidate: Value) -> Knob:
    """A setting that changes rounding at most."""
    return Knob(name=name, target=target, reference=reference, harmless=candidate)


def knobs(kind: str, model: Path) -> dict[str, Knob]:
    """The settings of a kind of sampled model, by name; ``model``: its folder."""
    made = {"gemma2": _gemma2, "hybrid": _hybrid}[kind]
    return {knob.name: knob for knob in (*made(), *_everywhere(model))}


def _everywhere(model: Path) -> tuple[Knob, ...]:
    eps = Knob(
        name="rms_norm_eps", target="config.rms_norm_eps", reference=1e-6, harmless=1e-5,
        dial=lambda strength: 1e-3 * strength**4,
    )  # fmt: skip
    weights = Knob(
        name="layer2_mlp", target="weights:model.layers.2.mlp", reference=None,
        harmless=str(perturbed(model, 2.0**-12)),
        dial=lambda strength: str(perturbed(model, strength)),
    )  # fmt: skip
    return (
        eps,
        weights,
        norm("last_norm", "model.norm", 1.0),
        number("rope_theta", "config.rope_parameters.rope_theta", 1000.0, stretch=-4.0),
        harmless("max_length", "model_args.max_length", 64, 128),
        harmless("layer0_mlp_dtype", "dtype:model.layers.0.mlp", "float32", "bfloat16"),
    )


def _gemma2() -> tuple[Knob, ...]:
    attention = "attr:model.layers.*.self_attn"
    return (
        number("attn_scale", f"{attention}.scaling", 0.25),
        number("attn_softcap", f"{attention}.attn_logit_softcapping", 8.0, stretch=-2.0),
        number("final_softcap", "config.final_logit_softcapping", 12.0, stretch=-1.0),
        number("embed_scale", "attr:model.embed_tokens.embed_scale", 48.0**0.5),
        norm("post_norm", "model.layers.1.post_attention_layernorm", 0.0),
        norm("mlp_norm", "model.layers.3.pre_feedforward_layernorm", 0.0),
        harmless("activation", "config.hidden_activation", "gelu_pytorch_tanh", "gelu"),
        # the attribute above is set afterwards
        harmless("query_pre_attn_scalar", "config.query_pre_attn_scalar", 16, 144),
        harmless("norm_dtype", "dtype:model.layers.*.input_layernorm", "float32", "bfloat16"),
    )


def _hybrid() -> tuple[Knob, ...]:
    attention, delta = "model.layers.*.self_attn", "model.layers.2.linear_attn"
    return (
        number("attn_scale", f"attr:{attention}.scaling", 12.0**-0.5),
        norm("q_norm", f"{attention}.q_norm", 0.0),
        norm("delta_norm", f"{delta}.norm", 1.0),
        Knob(
            name="dt_bias", target=f"attr:{delta}.dt_bias", reference=1.0, harmless=1.0 + 2.0**-10,
            dial=lambda strength: 1.0 + 4.0 * strength,
        ),
        norm("input_norm", "model.layers.1.input_layernorm", 0.0),
        norm("mlp_norm", "model.layers.3.post_attention_layernorm", 0.0),
        harmless("attention", "model_args.attn_implementation", "eager", "sdpa"),
        harmless("activation", "config.hidden_act", "silu", "swish"),
        harmless("delta_dtype", "dtype:model.layers.0.linear_attn", "float32", "bfloat16"),
    )  # fmt: skip


def perturbed(model: Path, strength: float, *, layer: int = 2) -> Path:
    """A copy of a model with noise on the weights of a layer's MLP, relative to their scatter."""
    import torch
    from safetensors.torch import load_file, save_file

    folder = model.with_name(f"{model.name}-mlp{layer}-{strength:.6g}")
    if folder.exists():
        return folder
    weights: Mapping[str, torch.Tensor] = load_file(model / "model.safetensors")
    noise = torch.Generator().manual_seed(layer)
    changed = {
        name: weight + strength * weight.std() * torch.randn(weight.shape, generator=noise)
        if f"layers.{layer}.mlp." in name
        else weight
        for name, weight in weights.items()
    }
    shutil.copytree(model, folder)
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
