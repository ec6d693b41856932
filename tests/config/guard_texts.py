"""Guard files that the tests of this folder share."""

from __future__ import annotations

from pathlib import Path

from evalguard.config.guard import Guard
from evalguard.config.guard_search import load_guards

# The guard file of the design page, and every kind of target.
FULL = """\
models:
  orig:
    model: hf
    model_args: {pretrained: org/original, dtype: float32}
  fla-port:
    extends: orig
    model_args: {pretrained: org/port}
    settings:
      norm_dtype:
        {reference: float32, candidate: bfloat16, target: "dtype:model.layers.*.input_layernorm"}
      attn_scale:
        {reference: 0.0625, candidate: 0.0668, target: "attr:model.layers.*.self_attn.scaling"}
      prefill:    {reference: fused_recurrent, candidate: chunk, target: "config.attn_mode"}
      add_bos:    {reference: true, candidate: false, target: "model_args.add_bos_token"}
      eps:        {reference: 1e-6, candidate: 1e-5, target: config.text_config.rms_norm_eps}
      tf32:       {reference: "0", candidate: "1", target: env.NVIDIA_TF32_OVERRIDE}
      group:      {reference: 32, candidate: 128, target: build.group_size}
      clip:       {reference: null, candidate: [1, 2], target: "call:hooks.py:clip"}
    constraints: [{if: {prefill: chunk}, then: {norm_dtype: float32}}]
    build:
      command: [python, convert.py, "{group_size}", "{output}"]
      output: made/model
      inputs: {seed: 1}
pairs:
  - {base: orig, cand: fla-port, differs: [tokens], tasks: [special]}
tasks: [lambada_openai]
include_path: ./tasks
run:
  {num_fewshot: 2, limit: 0.5, batch_size: auto, seed: 7, device: cpu, apply_chat_template: true,
   distributions: off, reference_top_k: 16, memory: sequential, cache_max_size: 20GB,
   history: nightly.sqlite, track: [wandb, mlflow]}
gate:
  {margin: 2, fail_on: significant, confidence: 0.9, undecided: fail, subtasks: true,
   metrics: {kl_mean: 0.01, kl_p99.9: 1, same_top1: 0.98}}
"""


def load(folder: Path, text: str, *, name: str = "guard.yaml") -> Guard:
    """Write a guard file and load it as the one that the user named."""
    (folder / name).write_text(text, encoding="utf-8")
    guards = load_guards(Path(name), cwd=folder, allow_code=False)
    (guard,) = guards.guards
    return guard
