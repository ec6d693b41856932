"""What transformers reports while it reads a checkpoint into a model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evalguard.errors import EvaluationError


class RecordingLoader:
    """Stands in for an auto class while it loads, and keeps what transformers reports."""

    def __init__(self, loader: Any, reports: list[dict[str, Any]]) -> None:
        self._loader = loader
        self._reports = reports

    def from_pretrained(self, *names: Any, **arguments: Any) -> Any:
        """Load, and keep the report: missing, unexpected and mismatched keys."""
        # Mismatched shapes are refused with their names; transformers would not name them.
        arguments["ignore_mismatched_sizes"] = True
        model, report = self._loader.from_pretrained(*names, **arguments, output_loading_info=True)
        self._reports.append(report)
        return model


def refuse_random_weights(pretrained: str, report: Mapping[str, Any]) -> None:
    """Refuse a model with weights that its checkpoint does not have.

    transformers only warns, and fills them with random numbers.

    Raises:
        EvaluationError: naming the first of them.
    """
    for kind, what in (("missing_keys", "lacks"), ("mismatched_keys", "has other shapes for")):
        keys = sorted(_shown(key) for key in report.get(kind) or ())
        if keys:
            shown = ", ".join(keys[:3]) + (", ..." if len(keys) > 3 else "")
            raise EvaluationError(
                f"{pretrained} {what} {len(keys)} of the model's weights ({shown})",
                hint="the architecture in config.json does not fit these weights",
            )


def _shown(key: Any) -> str:
    """A missing key's name; a mismatched one's with both shapes."""
    if isinstance(key, str):
        return key
    name, stored, wanted = key
    return f"{name}: {list(stored)} stored, {list(wanted)} in the model"
