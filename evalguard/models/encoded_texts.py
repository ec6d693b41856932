"""EncodedTexts: token ids of texts, by what was encoded, for all models with one tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Bytes of texts and ids together; a task of 5,000 documents takes a few MB.
_MOST_BYTES = 2**27

_texts_by_tokenizer: dict[str, EncodedTexts] = {}


class EncodedTexts:
    """Token ids by text and by whether special tokens are added (None: as the tokenizer has it).

    Attributes:
        most: bytes that may be held; what was encoded first goes first.
    """

    def __init__(self, most: int = _MOST_BYTES) -> None:
        self.most = most
        self._held = 0
        self._ids: dict[tuple[str, bool | None], NDArray[np.int32]] = {}

    def get(self, text: str, special: bool | None) -> list[int] | None:
        """Return a text's ids, as a list of the caller's own; None where they are not known."""
        found = self._ids.get((text, special))
        return None if found is None else found.tolist()

    def knows(self, text: str, special: bool | None) -> bool:
        """Whether a text's ids are held."""
        return (text, special) in self._ids

    def put(self, text: str, special: bool | None, ids: Sequence[int]) -> None:
        """Hold a text's ids."""
        if (text, special) in self._ids:
            return
        kept = np.array(ids, dtype=np.int32)
        self._ids[text, special] = kept
        self._held += _size_in_bytes(text, kept)
        while self._held > self.most:
            first, _ = oldest = next(iter(self._ids))
            self._held -= _size_in_bytes(first, self._ids.pop(oldest))


def shared_texts(tokenizer: str) -> EncodedTexts:
    """Return what is held for all models whose tokenizers do the same.

    Args:
        tokenizer: digest of everything that a tokenizer's ids follow from.
    """
    return _texts_by_tokenizer.setdefault(tokenizer, EncodedTexts())


def clear_shared_texts() -> None:
    """Let go of all texts, once a run is over."""
    _texts_by_tokenizer.clear()


def _size_in_bytes(text: str, ids: NDArray[np.int32]) -> int:
    return len(text) + ids.nbytes
