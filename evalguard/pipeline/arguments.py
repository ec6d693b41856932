"""Arguments typed as text: ``a=b,c=d`` or a JSON object."""

from __future__ import annotations

from evalguard.config import parse_model_args
from evalguard.settings import Value


def parse_arguments(text: str, *, where: str) -> dict[str, Value]:
    """Return the arguments in ``text``; ``where`` names the option in error messages.

    Raises:
        UsageError: if the text is neither form.
    """
    return dict(parse_model_args(text, where=where)) if text else {}
