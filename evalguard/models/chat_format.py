"""A conversation as text, by a model's own chat template; which template that is."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from evalguard.errors import EvaluationError
from evalguard.models.answer_failures import quote_error


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
            f"the model's chat template cannot be applied: {type(error).__name__}",
            quotes=quote_error(error),
            hint="run without --apply_chat_template, or give the tokenizer a chat template",
        ) from error


def describe_template(lm: Any) -> str | None:
    """Say which chat template a model's prompts would be made by: where it is from, and digest.

    "tokenizer#0123456789abcdef": the one that the tokenizer brings, in tokenizer_config.json or
    chat_template.jinja. "NAME#...": one of several that it brings, chosen by
    ``chat_template_args``; "argument#...": given there as text. The digest is sha256 of the
    template's text, as lm-eval records it. None: the model has none here, or shows none.
    """
    tokenizer = getattr(lm, "tokenizer", None)
    held = getattr(tokenizer, "chat_template", None)
    given = getattr(lm, "chat_template_args", None) or {}
    chosen = given.get("chat_template") if isinstance(given, Mapping) else None
    named = held if isinstance(held, Mapping) else {}
    if chosen is not None:
        source, text = (chosen, named[chosen]) if chosen in named else ("argument", chosen)
    else:
        source, text = "tokenizer", named.get("default") if named else held
    if not isinstance(text, str):
        return None
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
    return f"{source}#{digest[:16]}"
