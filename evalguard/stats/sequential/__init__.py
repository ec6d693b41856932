"""Stopping early: what a seeded random part of the documents says about all of them."""

from __future__ import annotations

from evalguard.stats.sequential.carried import carried
from evalguard.stats.sequential.finding import Finding, cannot_stop, find
from evalguard.stats.sequential.looks import planned_looks
from evalguard.stats.sequential.order import document_order
from evalguard.stats.sequential.rule import StoppingRule
from evalguard.stats.sequential.stopped import complete, stopped_comparison

__all__ = [
    "Finding",
    "StoppingRule",
    "cannot_stop",
    "carried",
    "complete",
    "document_order",
    "find",
    "planned_looks",
    "stopped_comparison",
]
