"""Words that options take and records keep: whoever reads a command line needs no more of these."""

from __future__ import annotations

from typing import Literal, get_args

FailOn = Literal["real", "margin", "significant", "certain", "any-degradation"]
Format = Literal["text", "json", "html", "markdown", "junit", "annotations"]
FORMATS: tuple[Format, ...] = get_args(Format)
RollingBos = Literal["lm-eval", "once"]
ScorerName = Literal["fast", "harness"]
