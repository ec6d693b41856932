"""The command line. It parses, prints and exits; what a command does is in run/."""

from __future__ import annotations

from evalguard.cli.main import main

__all__ = ["main"]
