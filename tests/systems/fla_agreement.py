"""Run by an environment that has fla: how far our kernels are from fla's own, as JSON.

``python fla_agreement.py cpu`` runs fla's in Triton's interpreter, ``cuda`` compiles them.
"""

from __future__ import annotations

import importlib.abc
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

DEVICE = sys.argv[1]
STRONGEST_DECAY = -0.6065306597126334
# Texts, tokens, heads, head size, and how much of the strongest decay there is at most.
SHAPES: list[tuple[Any, ...]] = [
    (1, 16, 2, 32, 1.0), (2, 64, 1, 64, 1.0), (1, 130, 2, 64, 0.3), (1, 100, 1, 32, 0.01),
]  # fmt: skip


class IntegersAsTheyAre(importlib.abc.MetaPathFinder):
    """Triton's interpreter counts loops with Python's integers, which have no ``.to()``."""

    names = ("fla.ops.generalized_delta_rule.dplr.chunk_h_fwd",)

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in self.names:
            return None
        source = Path(path[0]) / (name.rpartition(".")[2] + ".py")
        text = source.read_text(encoding="utf-8").replace("i_t.to(tl.int64)", "i_t")
        changed = Path(tempfile.mkdtemp()) / source.name
        changed.write_text(text, encoding="utf-8")
        return importlib.util.spec_from_file_location(name, changed)


def interpret() -> None:
    """Have Triton interpret its kernels, the first configuration of each, untimed."""
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import autotuner

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        return self.fn.run(*args, **kwargs, **self.configs[0].all_kwargs())

    autotuner.Autotuner.run = run
    sys.meta_path.insert(0, IntegersAsTheyAre())


def take_first_configuration() -> None:
    """Compile one configuration of each kernel, not all of them to find the fastest."""
    from triton.runtime import autotuner

    real = autotuner.Autotuner.__init__

    def start(self: Any, fn: Any, arg_names: Any, configs: Any, *args: Any, **kwargs: Any) -> None:
        real(self, fn, arg_names, configs[:1], *args, **kwargs)

    autotuner.Autotuner.__init__ = start


class Notes(dict[str, dict[str, float]]):
    """The largest differences by name."""

    def add(self, name: str, x: Any, y: Any, scale: Any) -> None:
        known = self.setdefault(name, {"largest": 0.0, "rms": 0.0, "scale": 0.0})
        apart = (x.float() - y.float()).abs()
        known["largest"] = max(known["largest"], float(apart.max()))
        known["rms"] = max(known["rms"], float(apart.square().mean().sqrt()))
        known["scale"] = max(known["scale"], float(scale.float().abs().max()))


def compare(notes: Notes, dtype: Any, shape: tuple[int, int, int, int], decay: float) -> None:
    """Compare all kernels on inputs of one shape."""
    import torch
    from fla.layers import rwkv7
    from fla.modules import GroupNorm, LayerNorm
    from fla.ops.rwkv7 import chunk_rwkv7, fused_mul_recurrent_rwkv7

    from evalguard.models.runtimes import fla_kernels as ours

    kind = str(dtype).removeprefix("torch.")
    texts, tokens, heads, size = shape
    width = heads * size

    def draw(*of: int) -> Any:
        return torch.randn(*of, device=DEVICE).to(dtype)

    r, k, v = draw(*shape), 0.5 * draw(*shape), draw(*shape)
    w = (STRONGEST_DECAY * decay * torch.rand(*shape, device=DEVICE)).to(dtype)
    kk = torch.nn.functional.normalize(draw(*shape), dim=-1)
    a = torch.rand(*shape, device=DEVICE).to(dtype)
    b = kk * a
    token, token_state = fused_mul_recurrent_rwkv7(
        r=r, w=w, k=k, v=v, kk=kk, a=a, scale=1.0, output_final_state=True
    )
    out, last = ours.run_recurrence(r, w, k, v, -kk, b, output_final_state=True)
    notes.add(f"recurrence {kind}", out, token, token)
    notes.add(f"recurrence state {kind}", last, token_state, token_state)
    chunk, chunk_state = chunk_rwkv7(
        r=r, w=w, k=k, v=v, a=-kk, b=b, scale=1.0, output_final_state=True,
        safe_gate=True, lower_bound=STRONGEST_DECAY, chunk_size=64,
    )  # fmt: skip
    out, last = ours.run_chunks(r, w, k, v, -kk, b, output_final_state=True)
    notes.add(f"chunks {kind}", out, chunk, chunk)
    notes.add(f"chunks state {kind}", last, chunk_state, chunk_state)
    notes.add(f"recurrence against chunks, both fla's {kind}", token, chunk, token)

    x, delta, g = (draw(texts, tokens, width) for _ in range(3))
    mixes = [draw(1, 1, width) for _ in range(6)]
    theirs = rwkv7.fused_addcmul_rwkv7(x, delta, *mixes)
    for mine, other in zip(ours.mix_tokens(x, delta, *mixes), theirs, strict=True):
        notes.add(f"mix {kind}", mine, other, other)
    theirs = rwkv7.token_shift(x, output_cache=True)
    for mine, other in zip(ours.shift_tokens(x, output_cache=True), theirs, strict=True):
        notes.add(f"shift {kind}", mine, other.view_as(mine), other)
    flat, r_k = draw(width), draw(heads, size)
    other = rwkv7.fused_k_rwkv7(x, delta, flat)
    notes.add(f"keys {kind}", ours.update_keys(x, delta, flat), other, other)
    other = rwkv7.gate_output_correction(x, r, k, r_k, v, g)
    notes.add(f"gate {kind}", ours.correct_and_gate(x, r, k, r_k, v, g), other, other)
    other = rwkv7.l2_norm(r)
    notes.add(f"length {kind}", ours.normalize_heads(r), other, other)

    fused = LayerNorm(width, bias=True, eps=1e-5).to(DEVICE, dtype)
    stand_in = ours.StandInLayerNorm(width, bias=True, eps=1e-5).to(DEVICE, dtype)
    for mine, other in zip(stand_in(x, delta, True), fused(x, delta, True), strict=True):
        notes.add(f"layer norm {kind}", mine, other, other)
    named: dict[str, Any] = {"num_groups": heads, "hidden_size": width, "eps": 64e-5}
    other = GroupNorm(**named, bias=True).to(DEVICE, dtype)(x)
    mine = ours.StandInGroupNorm(**named, bias=True).to(DEVICE, dtype)(x)
    notes.add(f"group norm {kind}", mine, other, other)


def main() -> None:
    """Compare all kernels on a few inputs."""
    warnings.simplefilter("ignore")
    if DEVICE == "cpu":
        interpret()
    else:
        take_first_configuration()
    import torch

    torch.manual_seed(3)
    notes = Notes()
    # Triton's interpreter has no arithmetic of bfloat16.
    dtypes = [torch.float32, torch.float16] + ([torch.bfloat16] if DEVICE == "cuda" else [])
    with torch.no_grad():
        for dtype in dtypes:
            for *shape, decay in SHAPES:
                compare(notes, dtype, tuple(shape), decay)  # type: ignore[arg-type]
    json.dump(notes, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
