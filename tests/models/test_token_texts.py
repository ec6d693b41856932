"""What a token id says, as transformers' own tokenizer has it."""

from __future__ import annotations

from pathlib import Path

from transformers import AutoTokenizer

from evalguard.models.unloaded_models import token_texts

DEMO = Path(__file__).parent.parent.parent / "demo" / "model"
TEXT = "Anton the farmer gave Rosa a cup, and she was grateful.\n\n1 + 1"


def test_the_texts_of_a_sentence_make_the_sentence() -> None:
    tokenizer = AutoTokenizer.from_pretrained(str(DEMO))
    ids = tokenizer.encode(TEXT, add_special_tokens=False)
    texts = token_texts({"pretrained": str(DEMO)}, sorted(set(ids)))
    assert "".join(texts[one] for one in ids) == tokenizer.decode(ids)


def test_an_id_that_the_tokenizer_does_not_know_has_no_text() -> None:
    assert token_texts({"pretrained": str(DEMO)}, [10**7]) == {}


def test_without_the_tokenizers_file_there_are_no_texts(tmp_path: Path) -> None:
    assert token_texts({"pretrained": str(tmp_path)}, [1]) == {}
    assert token_texts({}, [1]) == {}
    (tmp_path / "tokenizer.json").write_text("{", encoding="utf-8")
    assert token_texts({"pretrained": str(tmp_path)}, [1]) == {}
