"""A conversation as text, by a model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.answer_failures import format_error


def format_chat(
    lm: Any, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool
) -> str:
    """Apply a model's chat template to a conversation.

    Raises:
        EvaluationError: the model has none.
    """
    history = [dict(message) for message in messages]
    try:
        made = lm.apply_chat_template(history, add_generation_prompt=add_generation_prompt)
        # Clients of chat endpoints send the conversation itself: they wrap its JSON.
        return str(getattr(made, "prompt", made))
    except Exception as error:
        raise EvaluationError(
            f"the model's chat template cannot be applied: {format_error(error)}",
            hint="run without --apply_chat_template, or give the tokenizer a chat template",
        ) from error
