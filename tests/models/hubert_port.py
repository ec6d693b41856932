"""A port of HuBERT to numpy, with its sums as a port's author may write them, and faults."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from scipy.special import erf
from transformers import HubertConfig, HubertModel

Array = np.ndarray[Any, Any]
Sums = Literal["naive", "pairwise", "float64"]


def make_hubert(hidden: int = 64, layers: int = 1, seed: int = 0) -> HubertModel:
    """A HuBERT of three convolutions; weights keep the size of what they are given."""
    torch.manual_seed(seed)
    config = HubertConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=max(hidden // 64, 2),
        intermediate_size=hidden, conv_dim=(min(hidden, 512),) * 3, conv_stride=(5, 2, 2),
        conv_kernel=(10, 3, 2), num_conv_pos_embeddings=16, num_conv_pos_embedding_groups=4,
        num_feat_extract_layers=3, feat_extract_norm="group", do_stable_layer_norm=False,
        mask_time_prob=0.0, initializer_range=1.0 / math.sqrt(hidden),
    )  # fmt: skip
    model = HubertModel(config).eval()
    with torch.no_grad():
        for name, one in model.named_parameters():
            if one.ndim == 1:
                one.copy_(torch.randn_like(one) * 0.1 + float("norm.weight" in name))
    return model


def make_wave(frames: int = 24, seed: int = 1) -> Array:
    """(1, samples) of a wave that the convolutions make so many frames of."""
    samples = ((((frames - 1) * 2 + 2) - 1) * 2 + 3 - 1) * 5 + 10
    drawn = np.random.default_rng(seed).standard_normal((1, samples))
    return drawn.astype(np.float32)


@dataclass(frozen=True)
class Faults:
    """What the port does otherwise: a module's name to what is wrong there."""

    epsilon: Mapping[str, float] = field(default_factory=dict)
    tanh_gelu: frozenset[str] = frozenset()
    half_input: frozenset[str] = frozenset()  # with its weights
    half_weight: frozenset[str] = frozenset()
    scale: Mapping[str, float] = field(default_factory=dict)  # of attention, times its own
    no_bias: frozenset[str] = frozenset()
    swapped: Mapping[str, str] = field(default_factory=dict)  # a module's weights -> whose they are
    dropped_frame: Mapping[str, int | slice] = field(default_factory=dict)


NONE = Faults()


def half(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32)


class Port:
    """The numpy port; each call gives the values of all points of one wave, in order."""

    def __init__(self, model: HubertModel, sums: Sums = "naive", faults: Faults = NONE) -> None:
        self.config, self.sums, self.faults = model.config, sums, faults
        self.weights = {name: value.detach().numpy() for name, value in model.state_dict().items()}
        positional = model.encoder.pos_conv_embed.conv
        self.weights["encoder.pos_conv_embed.conv.weight"] = positional.weight.detach().numpy()
        self.found: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}  # of norms, which a dense dump leaves out

    def __call__(self, wave: Array) -> dict[str, Array]:
        self.found = {}
        self.inputs = {}
        x = wave[0][None, :]
        self.found["feature_extractor.conv_layers.0.conv:in"] = x[None]
        for number in range(3):
            name = f"feature_extractor.conv_layers.{number}"
            x = self._conv(f"{name}.conv", x, stride=self.config.conv_stride[number])
            if number == 0:
                x = self._norm(f"{name}.layer_norm", x, axis=1)
            x = self._gelu(f"{name}.activation", x)
        x = np.ascontiguousarray(x.T)
        x = self._linear(
            "feature_projection.projection", self._norm("feature_projection.layer_norm", x)
        )
        x = x + self._positions(x)
        x = self._norm("encoder.layer_norm", x)
        for number in range(self.config.num_hidden_layers):
            x = self._layer(f"encoder.layers.{number}", x)
        self.found["(root):out"] = x[None]
        return self.found

    def _layer(self, name: str, x: Array) -> Array:
        heads = self.config.num_attention_heads
        width = x.shape[-1] // heads
        scale = np.float32(width**-0.5 * self.faults.scale.get(f"{name}.attention", 1.0))
        q, k, v = (
            self._linear(f"{name}.attention.{one}_proj", x).reshape(len(x), heads, width)
            for one in "qkv"
        )
        made = np.empty_like(q)
        for head in range(heads):
            logits = self._product(q[:, head] * scale, k[:, head].T)
            exponents = np.exp(logits - logits.max(axis=-1, keepdims=True))
            weights = exponents / self._sum(exponents)
            made[:, head] = self._product(weights, v[:, head])
        mixed = made.reshape(len(x), -1)
        self.found[f"{name}.attention.out_proj:in"] = mixed[None]
        x = self._norm(f"{name}.layer_norm", x + self._linear(f"{name}.attention.out_proj", mixed))
        inner = self._linear(f"{name}.feed_forward.intermediate_dense", x)
        inner = self._gelu(f"{name}.feed_forward.intermediate_act_fn", inner)
        inner = self._linear(f"{name}.feed_forward.output_dense", inner)
        return self._norm(f"{name}.final_layer_norm", x + inner)

    def _positions(self, x: Array) -> Array:
        name = "encoder.pos_conv_embed"
        kernel, groups = 16, 4
        padded = np.pad(x.T, ((0, 0), (kernel // 2, kernel // 2)))
        made = self._conv(f"{name}.conv", padded, groups=groups, record=False)[:, :-1]
        moved = self._gelu(f"{name}.activation", made, record=False)
        self.found[f"{name}:out"] = moved.T[None]
        return moved.T

    def _conv(
        self, name: str, x: Array, *, stride: int = 1, groups: int = 1, record: bool = True
    ) -> Array:
        weight = self._weight(name)
        x = half(x) if name in self.faults.half_input else x
        kernel = weight.shape[-1]
        parts = []
        for own, of in zip(np.split(x, groups), np.split(weight, groups), strict=True):
            windows = np.lib.stride_tricks.sliding_window_view(own, kernel, axis=1)[:, ::stride]
            rows = windows.transpose(1, 0, 2).reshape(windows.shape[1], -1)
            parts.append(self._product(rows, of.reshape(len(of), -1).T).T)
        out = np.concatenate(parts)
        bias = self.weights.get(f"{name}.bias")
        if bias is not None and name not in self.faults.no_bias:
            out = out + bias[:, None]
        frame = self.faults.dropped_frame.get(name)
        if frame is not None:
            out = np.delete(out, frame, axis=1)
        return self._keep(name, out) if record else out

    def _linear(self, name: str, x: Array) -> Array:
        x = half(x) if name in self.faults.half_input else x
        out = self._product(x, self._weight(name).T)
        if name not in self.faults.no_bias:
            out = out + self.weights[f"{name}.bias"]
        return self._keep(name, out)

    def _weight(self, name: str) -> Array:
        weight = self.weights[f"{self.faults.swapped.get(name, name)}.weight"]
        return half(weight) if name in self.faults.half_input | self.faults.half_weight else weight

    def _norm(self, name: str, x: Array, axis: int = -1) -> Array:
        epsilon = np.float32(self.faults.epsilon.get(name, self.config.layer_norm_eps))
        self.inputs[f"{name}:in"] = x[None]
        size = np.float32(x.shape[axis])
        moved = x - self._sum(x, axis) / size
        out = moved / np.sqrt(self._sum(moved * moved, axis) / size + epsilon)
        weight, bias = (self.weights[f"{name}.{one}"] for one in ("weight", "bias"))
        if axis == 1:  # over time, a channel at a time
            weight, bias = weight[:, None], bias[:, None]
        return self._keep(name, out * weight + (0 if name in self.faults.no_bias else bias))

    def _gelu(self, name: str, x: Array, *, record: bool = True) -> Array:
        if name in self.faults.tanh_gelu:
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            out = 0.5 * x * (1 + np.tanh(inner))
        else:
            out = 0.5 * x * (1 + erf(x * np.float32(math.sqrt(0.5))))
        out = out.astype(np.float32)
        return self._keep(name, out) if record else out

    def _keep(self, name: str, values: Array) -> Array:
        made = np.asarray(values, dtype=np.float32)
        self.found[f"{name}:out"] = made[None]
        return made

    def _product(self, rows: Array, columns: Array) -> Array:
        if self.sums == "float64":
            return (rows.astype(np.float64) @ columns.astype(np.float64)).astype(np.float32)
        if self.sums == "pairwise":
            return rows @ columns
        total = np.zeros((len(rows), columns.shape[1]), dtype=np.float32)
        for number in range(rows.shape[1]):
            total += rows[:, number, None] * columns[number]
        return total

    def _sum(self, values: Array, axis: int = -1) -> Array:
        if self.sums == "float64":
            return values.sum(axis=axis, keepdims=True, dtype=np.float64).astype(np.float32)
        if self.sums == "pairwise":
            return values.sum(axis=axis, keepdims=True)
        running = np.add.accumulate(values, axis=axis)
        return np.take(running, [-1], axis=axis)
