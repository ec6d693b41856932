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
    from evalguard.run.bisection.command import bisect_settings, resume_bisection
    from evalguard.run.compare import compare
    from evalguard.run.floor.floor_measurement import floor
    from evalguard.run.floor.floor_result import FloorResult
    from evalguard.run.nightly.night_files import NightlyResult
    from evalguard.run.nightly.nightly_run import nightly
    from evalguard.run.options import CompareOptions
    from evalguard.run.result import CompareResult
    from evalguard.run.sample_size.comparison_plan import plan
    from evalguard.run.sample_size.plan_result import PlanResult
    from evalguard.run.several import SeveralResult, compare_several
    from evalguard.run.tracing.trace_result import TraceResult
    from evalguard.run.tracing.trace_run import trace

_HOMES = {
    "bisect_settings": "evalguard.run.bisection.command",
    "resume_bisection": "evalguard.run.bisection.command",
    "compare": "evalguard.run.compare",
    "FloorResult": "evalguard.run.floor.floor_result",
    "floor": "evalguard.run.floor.floor_measurement",
    "NightlyResult": "evalguard.run.nightly.night_files",
    "nightly": "evalguard.run.nightly.nightly_run",
    "PlanResult": "evalguard.run.sample_size.plan_result",
    "plan": "evalguard.run.sample_size.comparison_plan",
    "CompareOptions": "evalguard.run.options",
    "CompareResult": "evalguard.run.result",
    "compare_several": "evalguard.run.several",
    "SeveralResult": "evalguard.run.several",
    "TraceResult": "evalguard.run.tracing.trace_result",
    "trace": "evalguard.run.tracing.trace_run",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'evalguard' has no attribute '{name}'")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
