"""A conversation as text, by a model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.failures import one_line


def rendered(lm: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool) -> str:
    """Apply a model's chat template to a conversation.

    Raises:
        EvaluationError: the model has none.
    """
    history = [dict(message) for message in messages]
    try:
        return str(lm.apply_chat_template(history, add_generation_prompt=add_generation_prompt))
    except Exception as error:
        raise EvaluationError(
            f"the model's chat template cannot be applied: {one_line(error)}",
            hint="run without --apply_chat_template, or give the tokenizer a chat template",
        ) from error
