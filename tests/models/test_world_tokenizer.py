"""RWKV's world vocabulary: the longest token first, and every text comes back."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evalguard.errors import EvaluationError
from evalguard.models.runtimes.tokenizer import FolderTokenizer, WorldTokenizer, open_tokenizer

# As in RWKV's file: single bytes, then longer tokens; texts as str, what is no text as bytes.
BYTES = [bytes([value]) for value in range(256)]
LONGER = ["th", "the", " the", "  ", "é", "'", '"""', "ab\n"]


def line(token: int, literal: str, size: int) -> str:
    return f"{token} {literal} {size}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lines = [line(number, repr(one), 1) for number, one in enumerate(BYTES, start=1)]
    longer = [text for text in LONGER if len(text.encode()) > 1]
    lines += [
        line(number, repr(text), len(text.encode())) for number, text in enumerate(longer, 257)
    ]
    made = tmp_path_factory.mktemp("world")
    (made / "rwkv_vocab_v20230424.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return made


@pytest.fixture(scope="module")
def world(folder: Path) -> WorldTokenizer:
    found = open_tokenizer(folder)
    assert isinstance(found, WorldTokenizer)
    return found


@given(text=st.text())
def test_every_text_comes_back(world: WorldTokenizer, text: str) -> None:
    assert world.decode(world.encode(text)) == text


def test_the_longest_token_that_fits_is_taken(world: WorldTokenizer) -> None:
    texts = {token: text for text, token in world.vocabulary.items()}
    assert [texts[one] for one in world.encode("then the")] == ["the", "n", " the"]


def test_token_0_is_put_first_only_where_it_is_asked_for(world: WorldTokenizer) -> None:
    plain = world.encode("a")
    assert world.encode("a", special=False) == plain
    assert world.encode("a", special=True) == [0, *plain]
    assert world.decode([0, *plain, 0]) == "a"


def test_bytes_that_are_no_text_are_shown_as_such(world: WorldTokenizer) -> None:
    assert world.decode([0xC3 + 1]) == "\ufffd"


@pytest.mark.parametrize("broken", ["1 'ab' 3", "x 'ab' 2", "1 ab 2", "1", "1 [] 0"])
def test_a_line_that_is_no_token_is_named(tmp_path: Path, broken: str) -> None:
    file = tmp_path / "rwkv_vocab_broken.txt"
    file.write_text(f"1 'a' 1\n{broken}\n", encoding="utf-8")
    with pytest.raises(EvaluationError, match="line 2"):
        WorldTokenizer(file)


def test_a_byte_without_a_token_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "rwkv_vocab_small.txt"
    file.write_text("1 'a' 1\n", encoding="utf-8")
    with pytest.raises(EvaluationError, match="no token for byte 98"):
        WorldTokenizer(file).encode("ab")


def test_a_folder_with_a_tokenizer_of_hugging_face_keeps_it(tiny_llama: Path) -> None:
    assert isinstance(open_tokenizer(tiny_llama), FolderTokenizer)
