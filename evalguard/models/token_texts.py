"""Texts of token ids, for people to read; no model is loaded for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from evalguard.models.tokenizer_files import tokenizer_folder

if TYPE_CHECKING:
    from evalguard.core.settings import Value


_FAST_TOKENIZER_FILE = "tokenizer.json"
_LEADING_BLANK = (
    "\u2581"  # how a sentencepiece token writes the blank before it, which decoding drops
)


def token_texts(model_args: Mapping[str, Value], token_ids: Sequence[int]) -> dict[int, str]:
    """Return the text of each token id, as far as its tokenizer knows it.

    {} where the tokenizer's one file is not on this machine: slow tokenizers have none, and their
    tokens go by their ids.
    """
    if "pretrained" not in model_args:
        return {}
    folder = tokenizer_folder(model_args)
    if folder is None or not (folder / _FAST_TOKENIZER_FILE).is_file():
        return {}
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(folder / _FAST_TOKENIZER_FILE))
    except Exception:  # noqa: BLE001 - the library raises nothing narrower
        return {}
    known = [(one, token) for one in token_ids if (token := tokenizer.id_to_token(one)) is not None]
    texts = tokenizer.decode_batch([[one] for one, _ in known], skip_special_tokens=False)
    return {one: _with_blank(token, text) for (one, token), text in zip(known, texts, strict=True)}


def _with_blank(token: str, text: str) -> str:
    blank = token.startswith(_LEADING_BLANK) and not text.startswith(" ")
    return f" {text}" if blank else text
