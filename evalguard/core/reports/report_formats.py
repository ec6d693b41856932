"""The formats that a report can be written in, by name; ``evalguard.report.formats`` makes them."""

from __future__ import annotations

from typing import Literal, get_args

Format = Literal["text", "json", "html", "markdown", "junit", "annotations"]
FORMATS: tuple[Format, ...] = get_args(Format)
