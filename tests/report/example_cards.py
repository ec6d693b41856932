"""Runs of several candidates of one base, as `evalguard card` takes them."""

from __future__ import annotations

import dataclasses
from typing import Any

from distribution_examples import distribution, figure, percentile
from example_reports import UNCHANGED, UNDECIDED, comparison, failed, report

from evalguard.core.compare_report import AskedTask, CheckpointSize, CompareReport, RunIdentity
from evalguard.core.gate import Gate

COMMIT = "12e45670123456789abcdef0123456789abcdef0"
ACC: dict[str, Any] = {
    "task": "arc_easy", "metric": "acc", "higher_is_better": True, "n": 2376, "n_used": 2376,
    "n_total": 2376, "base": 0.76, "base_stderr": 0.0088, "candidate_stderr": 0.0088,
}  # fmt: skip
ASKED = (
    AskedTask(
        task="lambada_openai", n=5153, n_total=5153, version="1.0", num_fewshot=0,
        dataset="EleutherAI/lambada_openai", config="default", split="test",
        documents="0123456789abcdef", prompts="fedcba9876543210", revision=COMMIT,
    ),
    AskedTask(
        task="arc_easy", n=2376, n_total=2376, version="1.0", num_fewshot=5, fewshot_seed=1234,
        dataset="allenai/ai2_arc", config="ARC-Easy", split="test",
        documents="00112233445566aa", prompts="aa66554433221100",
    ),
)  # fmt: skip
ENVIRONMENT = {"packages": {"lm_eval": "0.4.13", "torch": "2.13.0", "transformers": "5.24.0"}}
BASE = RunIdentity(
    name="f16", digest="3f2a9c0d11e2b4a7", model="org/model", revision=COMMIT,
    description="hf, 1.2M parameters, float16 on cpu", computation={"batch_size": 16},
    size=CheckpointSize(bytes=2_400_000, weights=1_200_000, kind="safetensors"),
)  # fmt: skip


def candidate(name: str, size: int | None = 1_000_000, **changes: Any) -> RunIdentity:
    stored = CheckpointSize(bytes=size, weights=1_200_000, kind="gguf") if size else None
    return dataclasses.replace(
        BASE, name=name, digest=f"{sum(map(ord, name)):08x}c0ffee00", model="", revision="",
        size=stored, **changes,
    )  # fmt: skip


def run(name: str, *metrics: Any, kl: float | None = 0.01, **changes: Any) -> CompareReport:
    """A run of a candidate; by default one that passed on two tasks."""
    metrics = metrics or (comparison(**UNCHANGED, n_total=5153),
                          comparison(**{**ACC, **UNCHANGED, "candidate": 0.755}))  # fmt: skip
    tail = (percentile(99.9, 30.0 * (kl or 0.0), 20.0 * (kl or 0.0), 50.0 * (kl or 0.0)),)
    spread = () if kl is None else (
        distribution(task="lambada_openai", kl=figure(kl, kl / 20.0), kl_percentiles=tail),
    )  # fmt: skip
    fields: dict[str, Any] = {
        "base": BASE, "candidate": candidate(name), "distributions": spread, "tasks": ASKED,
        "environment": ENVIRONMENT, "version": "0.2.0", "gate": Gate(),
    }  # fmt: skip
    return report(*metrics, **{**fields, **changes})


Q8 = run("Q8_0", kl=0.0008, candidate=candidate("Q8_0", 1_275_000))
Q4 = run(
    "Q4_K", comparison(**{**UNDECIDED, "n_total": 5153}),
    comparison(**{**ACC, **UNCHANGED, "candidate": 0.74}), kl=0.02,
    candidate=candidate("Q4_K", 720_000),
)  # fmt: skip
Q2 = run(
    "Q2_K", comparison(n_total=5153), comparison(**{**ACC, **UNCHANGED, "candidate": 0.70}),
    kl=0.3, candidate=candidate("Q2_K", 450_000),
)  # fmt: skip
BROKEN = run("int4", failed(), comparison(**{**ACC, **UNCHANGED, "candidate": 0.75}), kl=None,
             candidate=candidate("int4", None))  # fmt: skip
LADDER = (Q8, Q4, Q2, BROKEN)
