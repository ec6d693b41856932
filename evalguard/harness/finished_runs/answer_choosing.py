"""Choosing: how the answers of a stored run's task came about."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Choosing:
    """What a results file records of it.

    Attributes:
        output_type: lm-eval's name of it, "" where it is not recorded.
        own_rules: whether the task has a ``process_results`` of its own.
        delimiter: what lm-eval puts before each option.
        doubled: whether the options are asked once more, without their context.
    """

    output_type: str
    own_rules: bool
    delimiter: str
    doubled: bool

    @property
    def asks_likelihoods(self) -> bool:
        """Whether log-likelihoods of given texts are asked."""
        return "likelihood" in self.output_type or self.output_type == "multiple_choice"

    @property
    def shows_options(self) -> bool:
        """Whether a run shows what is chosen from, and by which rule."""
        return self.output_type == "multiple_choice" and not self.own_rules
