"""Statistics of a drift between two runs over the same documents. numpy and scipy only."""

from __future__ import annotations

from evalguard.stats.binary import (
    flip_estimate,
    flip_stderr,
    mcnemar_chi_square,
    mcnemar_exact,
    mcnemar_mid_p,
    tango_interval,
)
from evalguard.stats.compare import (
    Compared,
    compare_documents,
    compare_scores,
    failed_comparison,
)
from evalguard.stats.contributions import Contributions, TaskContributions
from evalguard.stats.drift import Drift, estimate_drift
from evalguard.stats.estimate import Estimate
from evalguard.stats.group import Subtask, compare_group, failed_group
from evalguard.stats.joint import across_tasks, crossing_chance
from evalguard.stats.multiplicity import benjamini_hochberg, holm
from evalguard.stats.permutation import SignFlip, sign_flip
from evalguard.stats.planning import (
    documents_needed,
    documents_to_detect,
    documents_to_show_no_loss,
    smallest_effect,
)
from evalguard.stats.rank import wilcoxon_signed_rank
from evalguard.stats.summary import harness_sigma, one_sided_p, unpaired_z

__all__ = [
    "Compared",
    "Contributions",
    "Drift",
    "Estimate",
    "SignFlip",
    "Subtask",
    "TaskContributions",
    "across_tasks",
    "benjamini_hochberg",
    "compare_documents",
    "compare_group",
    "compare_scores",
    "crossing_chance",
    "documents_needed",
    "documents_to_detect",
    "documents_to_show_no_loss",
    "estimate_drift",
    "failed_comparison",
    "failed_group",
    "flip_estimate",
    "flip_stderr",
    "harness_sigma",
    "holm",
    "mcnemar_chi_square",
    "mcnemar_exact",
    "mcnemar_mid_p",
    "one_sided_p",
    "sign_flip",
    "smallest_effect",
    "tango_interval",
    "unpaired_z",
    "wilcoxon_signed_rank",
]
