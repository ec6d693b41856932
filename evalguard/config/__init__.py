"""Guard files: found, validated and turned into variants, pairs, tasks and gate options."""

from __future__ import annotations

from evalguard.config.domain import (
    CodeUse,
    GateOptions,
    Guard,
    GuardSet,
    Pair,
    RunOptions,
)
from evalguard.config.embedded import embedded_folder, embedded_tasks
from evalguard.config.files import load_guards
from evalguard.config.inline import inline_variant, parse_model_args
from evalguard.config.paths import resolve_model_args
from evalguard.config.problems import raise_problems
from evalguard.config.schema import schema
from evalguard.config.template import TEMPLATE, write_template
from evalguard.config.trust import require_code_allowed

__all__ = [
    "TEMPLATE",
    "CodeUse",
    "GateOptions",
    "Guard",
    "GuardSet",
    "Pair",
    "RunOptions",
    "embedded_folder",
    "embedded_tasks",
    "inline_variant",
    "load_guards",
    "parse_model_args",
    "raise_problems",
    "require_code_allowed",
    "resolve_model_args",
    "schema",
    "write_template",
]
