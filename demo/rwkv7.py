"""RWKV-7 in small, with the names of BlinkDL's checkpoints: `python -m demo.rwkv7`.

Weights stay float32 to the end, those of the group norm too, so that a port that rounds them can be
told from one that does not.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn import functional

from demo.tokens import learn_tokenizer
from demo.train import Recipe, describe_training, tokenizer_texts, train
from evalguard.models.runtimes import fla_kernels

HEAD = 64  # of rwkv-pip: the eps of its group norm is 64e-5 whatever the head's size
_DECAY = -0.6065306597126334  # -exp(-0.5): the strongest decay of one token, as a logarithm


def _ramp(width: int) -> Tensor:
    return torch.arange(width) / width


class TimeMix(nn.Module):
    """A layer's attention: the recurrence with its low-rank gates."""

    def __init__(self, width: int, layer: int, layers: int, rank: int) -> None:
        super().__init__()
        self.layer, self.heads = layer, width // HEAD
        early = 1.0 - layer / layers
        for name, power in zip("rwkvag", (0.2, 0.9, 0.7, 0.7, 0.9, 0.2), strict=True):
            mix = 1.0 - _ramp(width) ** (power * early)
            setattr(self, f"x_{name}", nn.Parameter(mix.view(1, 1, -1)))
        for name in "wav" if layer else "wa":
            setattr(self, f"{name}0", nn.Parameter(torch.zeros(1, 1, width)))
            self._add_low_rank(name, width, rank)
        self.w0.data += -6.0 + 6.0 * _ramp(width) ** (1.0 + layer / max(1, layers - 1))
        self._add_low_rank("g", width, 2 * rank)
        self.k_k = nn.Parameter(torch.full((1, 1, width), 0.7))
        self.k_a = nn.Parameter(torch.ones(1, 1, width))
        self.r_k = nn.Parameter(torch.full((self.heads, HEAD), -0.04))
        for name, gain in (("receptance", 1.0), ("key", 0.1), ("value", 1.0), ("output", 0.0)):
            linear = nn.Linear(width, width, bias=False)
            nn.init.orthogonal_(linear.weight, gain=gain)
            setattr(self, name, linear)
        self.ln_x = nn.GroupNorm(self.heads, width, eps=64e-5)

    def _add_low_rank(self, name: str, width: int, rank: int) -> None:
        setattr(self, f"{name}1", nn.Parameter(torch.zeros(width, rank)))
        second = nn.init.orthogonal_(torch.empty(rank, width), gain=0.1)
        setattr(self, f"{name}2", nn.Parameter(second))

    def forward(self, x: Tensor, first_value: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) to (B, T, D), and the first layer's values."""
        delta = fla_kernels.shift_tokens(x)
        mixes = [getattr(self, f"x_{name}") for name in "rwkvag"]
        xr, xw, xk, xv, xa, xg = (torch.addcmul(x, delta, mix) for mix in mixes)
        r, k, v = self.receptance(xr), self.key(xk), self.value(xv)
        w = _DECAY * (self.w0 + torch.tanh(xw @ self.w1) @ self.w2).sigmoid()
        a = (self.a0 + xa @ self.a1 @ self.a2).sigmoid()
        g = (xg @ self.g1).sigmoid() @ self.g2
        if first_value is None:
            first_value = v
        else:
            v = torch.lerp(v, first_value, (self.v0 + xv @ self.v1 @ self.v2).sigmoid())
        kk = functional.normalize(self._by_head(k * self.k_k), dim=-1)
        k = k * (1.0 + (a - 1.0) * self.k_a)
        r, w, k, v_heads, a = (self._by_head(one) for one in (r, w, k, v, a))
        out, _ = fla_kernels.run_chunks(r, w, k, v_heads, -kk, kk * a)
        out = self.ln_x(out.flatten(0, 1).flatten(1)).view_as(x)
        bonus = (r * k * self.r_k).sum(-1, keepdim=True) * v_heads
        found: Tensor = self.output((out + bonus.flatten(2)) * g)
        return found, first_value

    def _by_head(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, HEAD))


class ChannelMix(nn.Module):
    """A layer's feed-forward part, with squared ReLU."""

    def __init__(self, width: int, layer: int, layers: int) -> None:
        super().__init__()
        mix = 1.0 - _ramp(width) ** ((1.0 - layer / layers) ** 4)
        self.x_k = nn.Parameter(mix.view(1, 1, -1))
        self.key = nn.Linear(width, 4 * width, bias=False)
        self.value = nn.Linear(4 * width, width, bias=False)
        nn.init.orthogonal_(self.key.weight)
        nn.init.zeros_(self.value.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) to (B, T, D)."""
        mixed = torch.addcmul(x, fla_kernels.shift_tokens(x), self.x_k)
        found: Tensor = self.value(functional.relu(self.key(mixed)).square())
        return found


class Block(nn.Module):
    """One layer."""

    def __init__(self, width: int, layer: int, layers: int, rank: int) -> None:
        super().__init__()
        if layer == 0:
            self.ln0 = nn.LayerNorm(width)
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.att = TimeMix(width, layer, layers, rank)
        self.ffn = ChannelMix(width, layer, layers)

    def forward(self, x: Tensor, first_value: Tensor | None) -> tuple[Tensor, Tensor]:
        """(B, T, D) to (B, T, D), and the first layer's values."""
        if hasattr(self, "ln0"):
            x = self.ln0(x)
        mixed, first_value = self.att(self.ln1(x), first_value)
        x = x + mixed
        return x + self.ffn(self.ln2(x)), first_value


class RWKV7(nn.Module):
    """The model: token ids (B, T) to logits (B, T, V)."""

    def __init__(self, vocabulary: int, *, width: int = 128, layers: int = 2, rank: int = 16):
        super().__init__()
        self.emb = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, n, layers, rank) for n in range(layers))
        self.ln_out = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.uniform_(self.emb.weight, -1e-2, 1e-2)
        nn.init.orthogonal_(self.head.weight, gain=0.5)

    def forward(self, input_ids: Tensor, use_cache: bool = False) -> SimpleNamespace:
        """Logits as ``.logits``; nothing is cached."""
        del use_cache
        x, first_value = self.emb(input_ids), None
        for block in self.blocks:
            x, first_value = block(x, first_value)
        return SimpleNamespace(logits=self.head(self.ln_out(x)))


def main() -> None:
    """Train, and write the checkpoint and TRAINING.json; the tokenizer is the demo's."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("demo/rwkv7"))
    parser.add_argument("--steps", type=int, default=800)
    arguments = parser.parse_args()
    recipe = Recipe(steps=arguments.steps)
    torch.set_num_threads(recipe.threads)
    torch.set_flush_denormal(True)  # decays that have vanished would slow every product down
    torch.manual_seed(recipe.seed)
    tokenizer = learn_tokenizer(tokenizer_texts(recipe.seed))
    model = RWKV7(len(tokenizer))
    outcome = train(model, tokenizer, recipe)
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.save(model.state_dict(), arguments.output / "rwkv7.pth")
    command = shlex.join(["python", "-m", "demo.rwkv7", *sys.argv[1:]])
    record = describe_training(command, recipe, outcome, sum(p.numel() for p in model.parameters()))
    (arguments.output / "TRAINING.json").write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
