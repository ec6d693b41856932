"""Comparisons and reports that the tests of report/ render."""

from __future__ import annotations

from typing import Any

from evalguard.core.compare_report import CompareReport, RunIdentity, SettingState
from evalguard.core.comparison import Comparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared

INF = float("inf")


def comparison(**changes: Any) -> Comparison:
    """lambada_openai of the FLA RWKV-7 port (statistics.md), with some fields changed."""
    fields: dict[str, Any] = {
        "task": "lambada_openai",
        "filter": "none",
        "metric": "perplexity",
        "higher_is_better": False,
        "n": 5153,
        "n_used": 5153,
        "base": 4.1329989138930125,
        "base_stderr": 0.08878972964627665,
        "candidate": 4.2631,
        "candidate_stderr": 0.0918,
        "sigma": 1.465272,
        "sigma_interval": (1.30, 1.63),
        "paired_stderr": 0.0075,
        "p_value": 1e-60,
        "method": "paired-t",
        "confidence": 0.95,
        "false_alarm_probability": 1e-33,
        "outcome": "regressed",
        "significant": True,
        "certain": True,
        "bit_identical": False,
        "reason": "the drift is above the margin",
    }
    return Comparison(**{**fields, **changes})


def failed(**changes: Any) -> Comparison:
    """A comparison without numbers."""
    names = (
        "base", "base_stderr", "candidate", "candidate_stderr", "sigma", "sigma_interval",
        "paired_stderr", "p_value", "false_alarm_probability",
    )  # fmt: skip
    nothing: dict[str, Any] = dict.fromkeys(names)
    fields = {
        **nothing,
        "outcome": "failed",
        "significant": False,
        "certain": False,
        "method": "",
        "reason": "3 of 5,153 scores of fla-port are NaN (first: document 17)",
    }
    return comparison(**{**fields, **changes})


_NOT_REAL: dict[str, Any] = {"significant": False, "certain": False}
UNCHANGED: dict[str, Any] = {
    "outcome": "unchanged", "sigma": 0.1, "sigma_interval": (-0.2, 0.4), **_NOT_REAL
}  # fmt: skip
UNDECIDED: dict[str, Any] = {
    "outcome": "undecided", "sigma": 0.2, "sigma_interval": (-1.0, 1.4), **_NOT_REAL
}  # fmt: skip

SETTINGS = (
    SettingState(
        name="norm_dtype",
        value="float32",
        reference="float32",
        candidate="bfloat16",
        target="dtype:model.layers.*.input_layernorm",
        effective="float32",
    ),
    SettingState(
        name="attn_scale",
        value=0.0668,
        reference=0.0625,
        candidate=0.0668,
        target="attr:model.layers.*.self_attn.scaling",
        effective=0.0668,
    ),
)


def report(*comparisons: Comparison, gate: Gate | None = None, **changes: Any) -> CompareReport:
    """A report over ``comparisons``, judged by the real gate."""
    judged = (gate or Gate()).judge(comparisons)
    fields: dict[str, Any] = {
        "base": RunIdentity(
            name="orig",
            digest="3f2a9c0d11e2b4a7",
            description="hf, 1.2M parameters, float32 on cpu",
            model_type="hf",
        ),
        "candidate": RunIdentity(
            name="fla-port",
            digest="90b1c77ad0e5f312",
            description="hf, 1.2M parameters, float32 on cpu",
            model_type="hf",
            settings=SETTINGS,
            effective={"norm_dtype": "float32", "attn_scale": 0.0668},
        ),
        "comparisons": comparisons,
        "gate": judged,
        "exit_code": decide_exit_code(judged, strict=False, git_bisect=False),
        "created": "2026-11-20T11:00:00Z",
        "environment": {"python": "3.11.9", "packages": {"torch": "2.13.0"}},
        "command": "evalguard compare --base orig --cand fla-port",
        "run_folder": "reports/20261120T110000Z-orig-vs-fla-port",
        "version": "0.1.0",
    }
    return CompareReport(**{**fields, **changes})


DEMO = report(
    comparison(task="evalguard_lastword", n=2048, n_used=2048, caveats=(
        "76% of the drift comes from the worst 1% of documents",
    )),
    comparison(
        task="evalguard_lastword", metric="acc", higher_is_better=True, n=2048, n_used=2048,
        base=0.6211, base_stderr=0.0107, candidate=0.6094, candidate_stderr=0.0108,
        sigma=1.0934, sigma_interval=(0.41, 1.78), p_value=0.0008, method="mcnemar-exact",
        false_alarm_probability=0.002, certain=False, flips=(60, 36),
    ),
    comparison(
        task="evalguard_rolling", metric="word_perplexity", n=300, n_used=300,
        base=12.4312, base_stderr=0.2213, candidate=12.5034, candidate_stderr=0.2231,
        sigma=0.326, sigma_interval=(0.29, 0.36), p_value=3.2e-31, method="paired-t-ratio",
        outcome="degraded", certain=False,
        caveats=("lm-eval gives no standard error for this metric; evalguard computes it",),
    ),
    comparison(
        task="evalguard_rolling", metric="bits_per_byte", n=300, n_used=300,
        base=0.8123, base_stderr=0.0041, candidate=0.8135, candidate_stderr=0.0041,
        sigma=0.292, sigma_interval=(0.26, 0.33), p_value=3.2e-31, method="paired-t-ratio",
        outcome="degraded", certain=False,
        caveats=("lm-eval gives no standard error for this metric; evalguard computes it",),
    ),
    comparison(
        task="evalguard_choice", metric="acc", higher_is_better=True, n=1000, n_used=1000,
        base=0.512, base_stderr=0.0158, candidate=0.513, candidate_stderr=0.0158,
        sigma=-0.0633, sigma_interval=(-0.31, 0.18), p_value=0.68, method="mcnemar-exact",
        outcome="unchanged", significant=False, certain=False, flips=(7, 8),
        false_alarm_probability=1e-15,
    ),
    not_compared=(
        NotCompared(
            task="evalguard_choice", filter="none", metric="f1",
            reason="its aggregation is not a mean",
        ),
    ),
)  # fmt: skip
