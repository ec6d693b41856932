"""A report with everything that one can hold."""

from __future__ import annotations

import dataclasses
import math

from distribution_examples import distribution
from example_reports import DEMO, INF, failed

from evalguard.core.compare_report import AnswerCounts, Phase, Resources
from evalguard.core.comparison import (
    Companion,
    Influence,
    InfluentialDocument,
    SequentialRun,
    SequentialTask,
    Stopping,
)
from evalguard.core.distribution_comparison import Figure
from evalguard.core.gate import AcceptedDrift, Waiver
from evalguard.core.generation_comparison import (
    DriftPart,
    FilterComparison,
    GenerationComparison,
    PairedFigure,
    RepeatedScore,
)
from evalguard.core.limits import LimitVerdict
from evalguard.core.noise_floor import Floor

_FIGURE = PairedFigure(
    base=Figure(value=0.1, stderr=0.02),
    candidate=Figure(value=0.5, stderr=0.03),
    difference=Figure(value=0.4, stderr=0.01, interval=(-INF, INF)),
    n=9,
    method="paired-t",
)
KEY = ("evalguard_lastword", "none", "perplexity")
WHOLE = dataclasses.replace(
    DEMO,
    comparisons=(
        dataclasses.replace(
            DEMO.comparisons[0],
            n=10, n_used=5, sigma_interval=(0.5, INF), certain=False,
            companions=(
                Companion(method="sign-flip", p_value=0.2, seed=7, sigma_interval=(-INF, 1.0)),
            ),
            influence=Influence(
                documents=(InfluentialDocument(task="t", doc_id=3, contribution=0.4, share=None),),
                moved=5,
                half=2,
                removed=1,
                sigma_without=math.nan,
            ),
            floor=Floor(
                sigma=0.1, sigma_upper=INF, document_sd=None, n=9, variation="batch size 1",
                bit_identical=False, measured="2026-11-20T11:00:00Z", times=14.6, within=False,
                within_upper=True,
            ),
            stopping=Stopping(
                n_total=10, n_used=5, look=1, looks=(5, 10), seed=1, alpha=0.05, alpha_below=0.05,
                alpha_above=0.01, error_chance=0.03, method="flips-exact", guarantee="it holds",
            ),
        ),
        *DEMO.comparisons[1:],
        failed(task="another"),
    ),
    gate=dataclasses.replace(
        DEMO.gate,
        limits=(
            LimitVerdict(
                metric="kl_mean", kind="upper", limit=0.01, task="evalguard_rolling", filter="f",
                of="acc", value=0.02, interval=(0.01, INF), bounds=None, state="regressed",
                certain=False, reason="above the limit",
            ),
        ),
        regressed=tuple(key for key in DEMO.gate.regressed if key != KEY),
        accepted=(
            AcceptedDrift(
                key=KEY,
                waiver=Waiver(
                    task=KEY[0], metric=KEY[2], filter=KEY[1], up_to=2.0, until="2026-12-31",
                    reason="known", where="guard.yaml:7",
                ),
            ),
        ),
    ),
    distributions=(distribution(), distribution(task="another", failure="no logits")),
    generations=(
        GenerationComparison(
            task="sums", n=9, repeats=4, confidence=0.95, clusters=3, cluster_field="passage",
            length=_FIGURE, cut=_FIGURE, same_text=Figure(value=0.5, interval=(0.2, 0.8)),
            base_equal=0.0, candidate_equal=1.0, caveats=("few",),
            filters=(
                FilterComparison(filter="f", missing=_FIGURE, candidate_only=3, base_only=1),
            ),
            repeated=(
                RepeatedScore(filter="f", metric="m", kind="pass", k=4, score=_FIGURE),
            ),
            parts=(
                DriftPart(
                    filter="f", metric="m", cause="cut", side="candidate", documents=3,
                    part=-0.2, drift=-0.3,
                ),
            ),
        ),
    ),
    sequential=SequentialRun(
        alpha=0.05, gated=2, seed=1, loads=2, saved_seconds=-1.0,
        tasks=(SequentialTask(task="t", n_used=5, n_total=10, look=1, looks=(5, 10)),),
    ),
    resources=Resources(
        phases=(Phase(phase="scoring", models=("a", "b"), wall_seconds=1.0, cpu_seconds=2.0),),
        answers=(AnswerCounts(model="a", documents=9, kept=3, tokens=None),),
        wall_seconds=1.5, cpu_seconds=2.5, children_cpu_seconds=0.0, peak_memory=2**30,
    ),
    environment={"python": "3.11.9", "odd": [math.nan, {"deep.key": -INF}], "none": None},
)  # fmt: skip
