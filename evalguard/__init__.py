"""evalguard: catches, proves and pins down regressions of converted language models.

``evalguard.compare(base, candidate, ...)`` is the Python API; the command is ``evalguard compare``.
``evalguard.compare_several`` compares several candidates with one base.
``evalguard.bisect_settings`` names the settings that make a candidate drift (the pure search is
``evalguard.bisect.find_culprits``). ``evalguard.trace`` names the module at which error is
introduced. ``evalguard.plan`` tells beforehand what a comparison would
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
    "TraceResult",
    "__version__",
    "bisect_settings",
    "compare",
    "compare_several",
    "floor",
    "nightly",
    "plan",
    "resume_bisection",
    "trace",
]

if TYPE_CHECKING:
    from evalguard.bisect.command import bisect_settings, resume_bisection
    from evalguard.comparison.compare import compare
    from evalguard.comparison.result import CompareResult
    from evalguard.config.options import CompareOptions
    from evalguard.floors.floor_page import FloorResult
    from evalguard.floors.floor_run import floor
    from evalguard.nights.night import nightly
    from evalguard.nights.night_page import NightlyResult
    from evalguard.planning.plan_page import PlanResult
    from evalguard.planning.plan_run import plan
    from evalguard.several.several_run import SeveralResult, compare_several
    from evalguard.tracing.trace_result import TraceResult
    from evalguard.tracing.trace_run import trace

_HOMES = {
    "bisect_settings": "evalguard.bisect.command",
    "resume_bisection": "evalguard.bisect.command",
    "compare": "evalguard.comparison.compare",
    "FloorResult": "evalguard.floors.floor_page",
    "floor": "evalguard.floors.floor_run",
    "NightlyResult": "evalguard.nights.night_page",
    "nightly": "evalguard.nights.night",
    "PlanResult": "evalguard.planning.plan_page",
    "plan": "evalguard.planning.plan_run",
    "CompareOptions": "evalguard.config.options",
    "CompareResult": "evalguard.comparison.result",
    "compare_several": "evalguard.several.several_run",
    "SeveralResult": "evalguard.several.several_run",
    "TraceResult": "evalguard.tracing.trace_result",
    "trace": "evalguard.tracing.trace_run",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalguard' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
