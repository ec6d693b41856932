"""llama.cpp's logits file, as ``llama-perplexity --kl-divergence-base FILE`` writes it.

Little-endian, in tools/perplexity/perplexity.cpp: ``_logits_``; int32 n_ctx, n_vocab, n_chunk;
int32 tokens (n_chunk, n_ctx); then for every chunk the rows of positions n_ctx // 2 to n_ctx - 2,
each a float32 scale, a float32 least log-probability and n_vocab codes of 16 bits, padded to an
even number. The row of position i is of the token at i + 1. The first token of a chunk is that of
the text; where the tokenizer adds BOS, the model read that in its place.
"""

from __future__ import annotations

import hashlib
import os
import struct
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from evalguard.core.coded_rows import (
    CodedRows,
    DamagedRowError,
    check_scales,
    divergence_from_codes,
    spans_all,
)
from evalguard.core.divergence import Divergence
from evalguard.core.logprob_rows import longest_piece
from evalguard.core.reference import Reference
from evalguard.core.scored_positions import join_positions
from evalguard.core.token_windows import TokenWindow
from evalguard.errors import EvaluationError, UsageError
from evalguard.regular_file import check_regular, open_regular

MAGIC = b"_logits_"
_HEADER = struct.Struct("<8s3i")
_AT_ONCE = 2**24  # bytes of rows that are read in one go
_AGAIN = "make the file again (llama-perplexity --kl-divergence-base FILE)"


def is_logits_file(path: Path) -> bool:
    """Whether a logits file is there."""
    try:
        if not path.is_file():
            return False
        with open_regular(path) as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


class LogitsFile:
    """A logits file. Rows are read when they are asked for, never all of them.

    Attributes:
        context, vocabulary, chunks: n_ctx, n_vocab, n_chunk.
        tokens: shape (chunks, context), int32.
        first: position of a chunk of which the first row is.
        scored: rows of a chunk.

    Raises:
        UsageError: it is no logits file, or not a whole one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            check_regular(path)
            self._descriptor: int | None = os.open(path, os.O_RDONLY)
            size = os.fstat(self._descriptor).st_size
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
        try:
            self._read_header(size)
        except BaseException:
            self.close()
            raise

    def _read_header(self, size: int) -> None:
        head = self._read(0, min(size, _HEADER.size))
        if len(head) < _HEADER.size or head[: len(MAGIC)].tobytes() != MAGIC:
            raise UsageError(f"{self.path} is no logits file of llama.cpp", hint=_AGAIN)
        _, self.context, self.vocabulary, self.chunks = _HEADER.unpack(head.tobytes())
        told = f"{self.chunks:,} windows of {self.context:,} tokens, {self.vocabulary:,} in all"
        if self.context < 4 or self.vocabulary < 2 or self.chunks < 1:
            raise UsageError(f"{self.path} is damaged: it says {told}", hint=_AGAIN)
        self.first = self.context // 2
        self.scored = self.context - 1 - self.first
        self._width = 2 * (2 * ((self.vocabulary + 1) // 2) + 4)
        self._rows_at = _HEADER.size + 4 * self.context * self.chunks
        of_chunk = self.scored * self._width
        whole = self._rows_at + self.chunks * of_chunk
        if size != whole:
            there = max(0, size - self._rows_at) // of_chunk
            what = "goes on behind its end" if size > whole else f"holds {there:,} of them"
            raise UsageError(
                f"{self.path} is not whole: it says {told} ({whole:,} bytes), and {what} "
                f"({size:,} bytes)",
                hint="copy it again, or wait until llama-perplexity has written it",
            )
        tokens = self._read(_HEADER.size, self._rows_at).view("<i4")
        if tokens.min() < 0 or tokens.max() >= self.vocabulary:
            raise UsageError(
                f"{self.path} is damaged: it has tokens beyond its {self.vocabulary:,}", hint=_AGAIN
            )
        self.tokens: NDArray[np.int32] = tokens.reshape(self.chunks, self.context)

    @cached_property
    def _targets(self) -> tuple[NDArray[np.float32], NDArray[np.bool_], str]:
        """Of all scored tokens the log-probabilities, and which were cut off; a digest of both.

        Raises:
            UsageError: a row's scale or least log-probability cannot be.
        """
        rows = self.chunks * self.scored
        scales, codes = np.empty((rows, 2), dtype="<f4"), np.empty(rows, dtype="<u2")
        targets = self.tokens[:, self.first + 1 :].reshape(-1)
        for row, target in enumerate(targets.tolist()):
            place = self._rows_at + row * self._width
            scales[row] = self._read(place, place + 8).view("<f4")
            at = place + 8 + 2 * target
            codes[row] = self._read(at, at + 2).view("<u2")[0]
        scale, least = (np.ascontiguousarray(scales[:, i], dtype=np.float32) for i in (0, 1))
        try:
            check_scales(scale, least)
        except DamagedRowError as error:
            raise UsageError(
                self.damage(error, self._rows_at + error.row * self._width), hint=_AGAIN
            ) from error
        shape = (self.chunks, self.scored)
        found = (codes.astype(np.float32) * scale + least).reshape(shape)
        # scales and least log-probabilities follow from all logits of a row
        content = [_HEADER.pack(MAGIC, self.context, self.vocabulary, self.chunks)]
        content += [one.tobytes() for one in (self.tokens, scales, codes)]
        digest = hashlib.sha256(b"".join(content)).hexdigest()
        return found, (spans_all(scale) & (codes == 0)).reshape(shape), digest

    @property
    def digest(self) -> str:
        """Digest of header, tokens, every row's scale and least log-probability, and targets."""
        return self._targets[2]

    @property
    def logprobs(self) -> NDArray[np.float32]:
        """Log-probabilities of the scored tokens, shape (chunks, scored)."""
        return self._targets[0]

    @property
    def cut_off(self) -> NDArray[np.bool_]:
        """Which of them are known to be no greater than that, shape (chunks, scored)."""
        return self._targets[1]

    def window(self, chunk: int) -> TokenWindow:
        """What is read of a chunk, and scored."""
        source = f"{self.path.name} ({self.digest[:12]})"
        ids = tuple(self.tokens[chunk].tolist())
        return TokenWindow(ids=ids, given=self.first + 1, source=source)

    def reference(self, chunk: int) -> Reference:
        """Where the rows of a chunk are."""
        rows, none = self.scored, np.empty((self.scored, 0))
        start = self._rows_at + chunk * self.scored * self._width
        return Reference(
            token_ids=self.tokens[chunk, self.first + 1 :].astype(np.int64),
            token_logprobs=self.logprobs[chunk].astype(np.float64),
            vocabulary_size=self.vocabulary,
            top_ids=none.astype(np.int32),
            top_logprobs=none.astype(np.float32),
            tail_mass=np.ones(rows),
            full_support=np.zeros(rows, dtype=np.bool_),
            sample_ids=none.astype(np.int32),
            sample_logprobs=none.astype(np.float32),
            file=str(self.path.absolute()),
            places=start + self._width * np.arange(rows, dtype=np.int64),
            cut_off=self.cut_off[chunk],
        )

    def rows(self, places: NDArray[np.int64]) -> CodedRows:
        """Read the rows that begin at these bytes."""
        raw = [self._read(place, place + self._width) for place in places.tolist()]
        found = np.stack(raw) if raw else np.empty((0, self._width), dtype=np.uint8)
        scales = np.ascontiguousarray(found[:, :8]).view("<f4").astype(np.float32)
        codes = np.ascontiguousarray(found[:, 8:]).view("<u2")[:, : self.vocabulary]
        return CodedRows(scale=scales[:, 0], least=scales[:, 1], codes=codes)

    def damage(self, error: DamagedRowError, place: int) -> str:
        """Say which row cannot have been written so."""
        before = (place - self._rows_at) // self._width
        window, row = divmod(before, self.scored)
        return (
            f"{self.path} is damaged at byte {place:,}, position {self.first + row} of window "
            f"{window}: {error}"
        )

    def close(self) -> None:
        """Close it. May be called twice."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _read(self, start: int, stop: int) -> NDArray[np.uint8]:
        assert self._descriptor is not None
        found = bytearray()
        while start + len(found) < stop:
            try:
                part = os.pread(self._descriptor, stop - start - len(found), start + len(found))
            except OSError as error:
                raise EvaluationError(f"{self.path} cannot be read: {error.strerror}") from error
            if not part:
                raise EvaluationError(f"{self.path} ends at byte {start + len(found):,}: it shrank")
            found += part
        return np.frombuffer(bytes(found), dtype=np.uint8)


def compare_with_file(kept: Reference, candidate: NDArray[np.float32]) -> Divergence:
    """Compare a candidate's distributions with the rows of a logits file, a few at a time.

    Args:
        kept: where these are.
        candidate: natural log-probabilities, shape (T, V).

    Raises:
        EvaluationError: the file is gone, was changed or is damaged, or is of another vocabulary.
    """
    if candidate.shape[1] != kept.vocabulary_size:
        raise EvaluationError(
            f"{kept.file} is of a vocabulary of {kept.vocabulary_size:,} tokens, and the model has "
            f"{candidate.shape[1]:,}",
            hint="compare with a file that was made of this model's tokenizer",
        )
    assert kept.places is not None
    file = LogitsFile(Path(kept.file))
    try:
        step = max(longest_piece(kept.vocabulary_size), _AT_ONCE // (2 * kept.vocabulary_size))
        parts = []
        for start in range(0, len(kept.token_ids), step):
            piece = slice(start, start + step)
            coded = file.rows(kept.places[piece])
            try:
                found = divergence_from_codes(coded, candidate[piece], kept.token_ids[piece])
            except DamagedRowError as error:
                place = kept.places[piece][error.row]
                raise EvaluationError(file.damage(error, place), hint=_AGAIN) from error
            if not np.array_equal(found.base_logprobs, kept.token_logprobs[piece]):
                raise EvaluationError(f"{kept.file} was changed while it was compared with")
            parts.append(found)
        return join_positions(parts)
    finally:
        file.close()
