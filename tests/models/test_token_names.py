"""Which token a server means by a text."""

from __future__ import annotations

from types import SimpleNamespace

from evalguard.models.served.shown_logprobs import TokenNames


class Tokenizer:
    """As SentencePiece: decoded alone, a token loses its space."""

    pieces = ("▁the", "the", "▁a", "<0xC3>", "<0xA4>", ".")
    texts = ("the", "the", "a", "\ufffd", "\ufffd", ".")

    def __len__(self) -> int:
        return len(self.pieces)

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return [self.pieces[one] for one in ids]

    def batch_decode(self, batch: list[list[int]], **_: object) -> list[str]:
        return [self.texts[one] for (one,) in batch]


def identified(name: str) -> list[str]:
    names = TokenNames(SimpleNamespace(tokenizer=Tokenizer()))
    return [label for one in names.identify([{name: -1.0}]) for label in one]


def test_a_name_that_one_token_has_is_its_id() -> None:
    assert identified("▁the") == ["token_id:0"]
    assert identified(" the") == ["token_id:0"]
    assert identified("a") == ["token_id:2"]
    assert identified("<0xC3>") == ["token_id:3"]
    assert identified(".") == ["token_id:5"]


def test_a_name_that_may_be_any_of_several_is_left_out() -> None:
    assert identified("the") == []
    assert identified("\ufffd") == []


def test_a_name_that_the_tokenizer_does_not_know_stays() -> None:
    assert identified("token_id:7") == ["token_id:7"]
    assert identified("xyz") == ["xyz"]


def test_without_a_tokenizer_all_names_stay() -> None:
    assert TokenNames(SimpleNamespace()).identify([{"a": -1.0}, {}]) == ({"a": -1.0}, {})
