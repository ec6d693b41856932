"""The built-in demo: a guard file, a model and tasks that travel with the package."""

from __future__ import annotations

from pathlib import Path

from evalguard.config.embedded import embedded_folder


def find_demo_guard() -> Path:
    """Return the path of the demo's guard file."""
    return embedded_folder() / "configs" / "demo.yaml"
