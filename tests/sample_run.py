"""The run folder that comes with the repository; runs of one's own may lie beside it."""

from __future__ import annotations

from pathlib import Path

SAMPLE = Path(__file__).parent.parent / "reports" / "20261130T145216Z-orig-vs-fla-port"
