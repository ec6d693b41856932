"""Which chat template a model's prompts are made by."""

from __future__ import annotations

import hashlib
from types import SimpleNamespace

import pytest

from evalguard.models.description import describe_template


@pytest.mark.parametrize(
    ("held", "chosen", "source", "text"),
    [
        ("own", None, "tokenizer", "own"),
        ({"default": "own", "rag": "other"}, None, "tokenizer", "own"),
        ({"default": "own", "rag": "other"}, "rag", "rag", "other"),
        ("own", "{{ messages }}", "argument", "{{ messages }}"),
    ],
)
def test_a_chat_template_is_named_by_where_it_is_from_and_its_digest(
    held: object, chosen: str | None, source: str, text: str
) -> None:
    args = {} if chosen is None else {"chat_template": chosen}
    lm = SimpleNamespace(tokenizer=SimpleNamespace(chat_template=held), chat_template_args=args)
    assert describe_template(lm) == f"{source}#{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def test_a_model_without_a_template_has_none() -> None:
    assert describe_template(SimpleNamespace(tokenizer=SimpleNamespace(chat_template=None))) is None
    assert describe_template(SimpleNamespace()) is None
