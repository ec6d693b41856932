"""What the spine fetches from the tools that stand on it; no other file of the spine names them.

A tool is a folder that can be taken away. What it would give is then absent, too: a command, a
format, a step after the verdict. Whoever asks for that by name is told so.
"""

from __future__ import annotations

import importlib
from functools import cache
from importlib.util import find_spec
from typing import Any

from evalguard.errors import UsageError

# What a tool gives, and the module that has it.
_GIVEN = {
    # before a model is loaded
    "read_given_floor": "floors.known_floors",
    "prepare_history": "nights.history_runs",
    "read_base_of_history": "nights.history_runs",
    # beside the drifts
    "read_declared_hyperparameters": "tracing.recordings",
    "compare_with_floors": "floors.known_floors",
    # after the verdict, in this order
    "store_in_history": "nights.history_runs",
    "attach_bisection": "bisect.attach_bisection",
    "track_run": "publish.tracking",
    # of a comparison's page and document
    "BisectReport": "bisect.bisect_report",
    "bisect_fields": "bisect.bisect_report",
    "bisection_view": "bisect.bisect_section",
    "bisection_cause": "bisect.bisect_meaning",
    "explain_bisection": "bisect.bisect_meaning",
    "culprits_text": "bisect.bisect_meaning",
    "bisection_lines": "bisect.bisect_pages",
    "fix_lines": "bisect.bisect_pages",
    "culprits_markdown": "bisect.bisect_pages",
    "repair_markdown": "bisect.bisect_pages",
    "bisection_folds": "bisect.bisect_pages",
    "bisection_section": "bisect.bisect_charts",
    "read_trace_file": "tracing.trace_report",
    "read_trace_folder": "tracing.trace_result",
    "build_trace_view": "tracing.trace_view",
    "TRACE_SCRIPTS": "tracing.trace_page",
    "draw_growth": "tracing.trace_page",
    # formats and schemas
    "render_junit": "publish.junit",
    "render_annotations": "publish.annotations",
    "annotation_command": "publish.annotations",
    "floor_schema": "floors.floor_report",
    "night_schema": "nights.night_page",
    "plan_schema": "planning.plan_page",
    "tensors_schema": "tensors.tensors_report",
    "trace_schema": "tracing.trace_report",
    # where a model is
    "load_traced": "tracing.model_apart",
    "trace_models": "tracing.measure.forced_trace",
    # names that options take
    "INVARIANTS": "tensors.tensors_report",
    "OPERATIONS": "tensors.tolerances",
    "PLATFORMS": "tensors.tolerances",
    # from tool to tool
    "measure_swap_effects": "bisect.swap_effect",
    "note_mixed_code": "bisect.settings.hf_side",
    "resume_bisection": "bisect.command",
    "bisection_numbers": "bisect.bisect_tables",
    "bisection_tables": "bisect.bisect_tables",
    "compare_tensors": "tensors.compare_tensors",
    "TensorOptions": "tensors.compare_tensors",
}


def has(name: str) -> bool:
    """Whether the tool is there that gives this."""
    return is_there(_GIVEN[name].partition(".")[0])


@cache
def is_there(tool: str) -> bool:
    """Whether a tool's folder is there."""
    return find_spec(f"evalguard.{tool}") is not None


def fetch(name: str) -> Any:
    """Import what a tool gives.

    Raises:
        UsageError: the tool's folder is not there.
    """
    module = _GIVEN[name]
    tool = module.partition(".")[0]
    if not is_there(tool):
        raise missing(tool)
    return getattr(importlib.import_module(f"evalguard.{module}"), name)


def missing(tool: str) -> UsageError:
    """What a user is told who asks for what a tool would give."""
    return UsageError(
        f"this evalguard has no {tool}: its folder evalguard/{tool} is missing",
        hint="install evalguard again, whole, or leave out what asks for it",
    )
