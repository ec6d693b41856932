"""Bisections that the tests of report/ render: one of every status."""

from __future__ import annotations

from typing import Any

from evalguard.bisect.bisect_report import (
    BisectReport,
    GuiltySetting,
    MetricSearch,
    ModulePrice,
    ModulePrices,
    Recommended,
    Repaired,
    RepairedMetric,
    UntestableAssignment,
    WonBack,
)
from evalguard.bisect.search.search_result import Part, Probe, Suspect
from evalguard.core.limits import LimitVerdict

WHERE: dict[str, Any] = {"task": "lambada_openai", "filter": "none", "metric": "perplexity"}
NAMES = tuple(f"setting_{letter}" for letter in "abcdefgh")


def culprit(name: str = "attn_softcap", sigma: float = 1.4, **changes: Any) -> GuiltySetting:
    """A setting that is guilty by itself."""
    fields: dict[str, Any] = {
        "setting": name,
        "reference": 40.0,
        "candidate": None,
        "target": "attr:model.layers.*.self_attn.attn_logit_softcapping",
        "sigma_alone": sigma,
        "alone_error_sigma": 0.02,
        "alone_share": 1.0,
        "sigma_in_context": sigma,
        "shapley_sigma": sigma,
        "error_sigma": 0.02,
        "role": "additive",
        **WHERE,
    }
    return GuiltySetting(**{**fields, **changes})


def measured(*settings: str, documents: int = 0, **changes: Any) -> Probe:
    """One measurement; of no document: one that failed."""
    fields: dict[str, Any] = {
        "settings": settings,
        "documents": documents,
        "documents_so_far": documents,
        "drift_sigma": None,
        "error_sigma": 0.1 if documents else None,
        "outcome": "scored",
        "cost": 0.05,
    }
    return Probe(**{**fields, **changes})


def search(**changes: Any) -> MetricSearch:
    """One guilty setting of eight."""
    fields: dict[str, Any] = {
        **WHERE,
        "status": "minimal",
        "n": 5153,
        "margin": 1.0,
        "settings": ("attn_softcap", *NAMES[1:]),
        "drift_sigma": 1.465,
        "unexplained_sigma": 0.06,
        "culprits": (culprit(),),
        "cleared": NAMES[1:7],
        "inert": NAMES[7:],
        "untestable": (
            UntestableAssignment(
                settings=("setting_b", "setting_c"),
                outcome="out_of_memory",
                reason="out of memory",
            ),
        ),
        "evaluations": 3.4,
        "probes": 12,
        "measured": (
            measured("attn_softcap", *NAMES[1:4], documents=1024, drift_sigma=1.5, cost=0.25),
            measured("attn_softcap", documents=5153, drift_sigma=1.4, error_sigma=0.02, cost=1.05),
            measured("setting_b", "setting_c", outcome="out_of_memory", reason="out of memory"),
            measured(*NAMES[1:], documents=5153, drift_sigma=0.06, cost=1.05),
        ),
        "seed": 1234,
    }
    return MetricSearch(**{**fields, **changes})


def bisection(*searches: MetricSearch, **changes: Any) -> BisectReport:
    """A finished bisection."""
    fields: dict[str, Any] = {
        "searches": searches or (search(),),
        "repaired": Repaired(
            assignment={"attn_softcap": 40.0, "setting_b": 1},
            reset=("attn_softcap",),
            passed=True,
            state="passed",
            metrics=(RepairedMetric(**WHERE, sigma=0.06, outcome="unchanged", gated=True),),
        ),
        "fix": "models:\n  fla-port:\n    settings:\n      attn_softcap: {candidate: 40.0}",
        "fix_where": "configs/demo.yaml:21",
        "proof": "evalguard compare --base orig --cand fla-port --set attn_softcap=reference",
        "seconds": 48.0,
        "expected": (2.5, 4.1, 5.6),
        "versions": {"numpy": "2.4.6"},
    }
    return BisectReport(**{**fields, **changes})


TOGETHER = search(
    culprits=tuple(
        culprit(name, sigma_alone=alone, shapley_sigma=0.7, role="together", partners=(partner,))
        for name, alone, partner in (
            ("norm_dtype", 0.02, "prefill"),
            ("prefill", -0.01, "norm_dtype"),
        )
    )
)
LIMIT: dict[str, Any] = {"filter": "", "metric": "kl_mean", "unit": "nats"}
OF_A_LIMIT = bisection(
    search(
        **LIMIT,
        margin=0.001,
        drift_sigma=0.003124,
        unexplained_sigma=3.447e-05,
        culprits=(
            culprit(
                sigma=0.003119, sigma_in_context=0.003089, shapley_sigma=0.003089,
                alone_error_sigma=1.1e-05, alone_share=0.25, error_sigma=9.5e-05, **LIMIT,
            ),
        ),
        measured=(measured("attn_softcap", documents=1024, drift_sigma=0.00312, error_sigma=1e-5),),
    ),
    repaired=Repaired(
        assignment={"attn_softcap": 40.0},
        reset=("attn_softcap",),
        passed=True,
        state="passed",
        metrics=(RepairedMetric(**WHERE, sigma=0.06, outcome="unchanged", gated=True),),
        limits=(
            LimitVerdict(
                metric="kl_mean", kind="upper", limit=0.001, task="lambada_openai",
                value=3.435e-05, interval=(3.24e-05, 3.64e-05), bounds=None, state="passed",
                certain=False, reason="within the limit, and so is its whole interval",
            ),
        ),
    ),
    recommended=Recommended(values={"attn_softcap": 50.0}, drift_sigma=0.0009, unit="nats"),
)  # fmt: skip


def won(amount: float, half: float, adjusted_p: float) -> WonBack:
    """What a row of prices wins back."""
    ends = {"low": amount - half, "high": amount + half}
    return WonBack(amount=amount, **ends, p_value=adjusted_p / 3, adjusted_p=adjusted_p)


PRICES = ModulePrices(
    rows=(
        ModulePrice(
            name="self_attn.k_proj (all 5)",
            modules=tuple(f"model.layers.{n}.self_attn.k_proj" for n in range(5)),
            added_bytes=35_200, kl=won(0.01823, 0.006, 4e-8), metric=won(0.237, 0.35, 0.09),
            option="--tensor-type attn_k=f32",
        ),
        ModulePrice(
            name="model.layers.2", modules=("model.layers.2.mlp.up_proj",), added_bytes=117_920,
            kl=won(0.02348, 0.008, 3e-7), metric=won(0.25, 0.33, 0.07),
            option="--tensor-type 'blk.2[.]=f32'",
        ),
        ModulePrice(
            name="lm_head", modules=("lm_head",), added_bytes=131_072,
            kl=won(0.0002, 0.001, 0.7), metric=won(0.01, 0.09, 0.4),
            option="--output-tensor-type f32",
        ),
        ModulePrice(
            name="mlp.gate_proj (all 5)", modules=("model.layers.0.mlp.gate_proj",),
            added_bytes=189_200, failure="has other shapes",
        ),
    ),
    **WHERE, unit="sigma", kl=0.1187, drift=1.61, documents=2048, n=5153, owner="llama.cpp",
    evaluations=1.6,
)  # fmt: skip
OPEN: dict[str, Any] = {"culprits": (), "cleared": (), "inert": (), "untestable": ()}
BY_STATUS: dict[str, BisectReport] = {
    "minimal": bisection(),
    "limit": OF_A_LIMIT,
    "together": bisection(TOGETHER),
    "redundant": bisection(
        search(
            culprits=tuple(
                culprit(
                    name, sigma_in_context=0.0, shapley_sigma=0.7, role="redundant",
                    partners=(partner,),
                )
                for name, partner in (("norm_dtype", "prefill"), ("prefill", "norm_dtype"))
            )
        )
    ),
    "masked": bisection(
        search(status="masked", culprits=(culprit(sigma=2.4), culprit("norm_dtype", -1.1)))
    ),
    "diffuse": bisection(
        search(
            **OPEN,
            status="diffuse",
            unexplained_sigma=1.465,
            parts=(
                Part(settings=NAMES[:4], sigma=0.9, error_sigma=0.1),
                Part(settings=NAMES[4:], sigma=0.5, error_sigma=0.1),
            ),
        ),
        repaired=None, fix="", fix_where="", proof="",
    ),
    "not_reproduced": bisection(
        search(
            **OPEN, status="not_reproduced", drift_sigma=0.1, unexplained_sigma=0.1,
            outside_sigma=1.36,
        ),
        repaired=None, fix="", fix_where="", proof="",
    ),
    "priced": bisection(prices=PRICES),
    "stopped": bisection(
        search(
            **{**OPEN, "culprits": (culprit(),)},
            status="stopped",
            ended="interrupted",
            suspects=(Suspect(name="norm_dtype", probability=0.62),),
        ),
        resume="evalguard bisect --resume reports/20261120T110000Z-orig-vs-fla-port",
    ),
    "unexplained": bisection(
        search(
            **OPEN,
            status="unexplained",
            unexplained_sigma=None,
            suspects=(Suspect(name="norm_dtype", probability=0.62),),
        ),
        repaired=None, fix="", fix_where="", proof="",
    ),
}  # fmt: skip
