"""Names of the parts of a split GGUF, from that of any of them."""

from __future__ import annotations

import pytest

from evalguard.core.split_files import gguf_parts


@pytest.mark.parametrize("number", [1, 2, 3])
def test_every_part_names_all(number: int) -> None:
    assert gguf_parts(f"llama-{number:05d}-of-00003.gguf") == (
        "llama-00001-of-00003.gguf",
        "llama-00002-of-00003.gguf",
        "llama-00003-of-00003.gguf",
    )


@pytest.mark.parametrize(
    "name",
    ["llama.gguf", "llama-00001-of-00002.bin", "llama-1-of-2.gguf", "llama-00004-of-00003.gguf",
     "llama-00000-of-00000.gguf", "-of-.gguf"],
)  # fmt: skip
def test_any_other_file_is_whole(name: str) -> None:
    assert gguf_parts(name) == (name,)
