"""evalguard: catches, proves and pins down regressions of converted language models.

``evalguard.compare(base, candidate, ...)`` is the Python API; the command is ``evalguard compare``.
``evalguard.compare_several`` compares several candidates with one base.
``evalguard.bisect_settings`` names the settings that make a candidate drift (the pure search is
``evalguard.bisect.find_culprits``). ``evalguard.plan`` tells beforehand what a comparison would
show and cost, ``evalguard.floor`` what an unchanged model shows. ``evalguard.nightly`` compares
every pair of a guard file.
Importing this package loads neither torch nor lm_eval: what needs them is imported on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.2.0.dev0"
__all__ = [
    "CompareOptions",
    "CompareResult",
    "FloorResult",
    "NightlyResult",
    "PlanResult",
    "SeveralResult",
    "__version__",
    "bisect_settings",
    "compare",
    "compare_several",
    "floor",
    "nightly",
    "plan",
    "resume_bisection",
]

if TYPE_CHECKING:
    from evalguard.pipeline.bisection.bisect import bisect_settings, resume_bisection
    from evalguard.pipeline.compare import compare
    from evalguard.pipeline.floor import floor
    from evalguard.pipeline.floor_result import FloorResult
    from evalguard.pipeline.nightly.nightly import nightly
    from evalguard.pipeline.nightly.result import NightlyResult
    from evalguard.pipeline.options import CompareOptions
    from evalguard.pipeline.plan_result import PlanResult
    from evalguard.pipeline.planning import plan
    from evalguard.pipeline.result import CompareResult
    from evalguard.pipeline.several import SeveralResult, compare_several

_HOMES = {
    "bisect_settings": "evalguard.pipeline.bisection.bisect",
    "resume_bisection": "evalguard.pipeline.bisection.bisect",
    "compare": "evalguard.pipeline.compare",
    "FloorResult": "evalguard.pipeline.floor_result",
    "floor": "evalguard.pipeline.floor",
    "NightlyResult": "evalguard.pipeline.nightly.result",
    "nightly": "evalguard.pipeline.nightly.nightly",
    "PlanResult": "evalguard.pipeline.plan_result",
    "plan": "evalguard.pipeline.planning",
    "CompareOptions": "evalguard.pipeline.options",
    "CompareResult": "evalguard.pipeline.result",
    "compare_several": "evalguard.pipeline.several",
    "SeveralResult": "evalguard.pipeline.several",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalguard' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
