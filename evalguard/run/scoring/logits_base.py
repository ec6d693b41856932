"""A base of which a llama.cpp logits file says what it answered."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from evalguard.core.coded_rows import ROUNDING, SPAN
from evalguard.core.reference import Reference
from evalguard.core.reports.findings import Finding
from evalguard.core.scorer import ModelDescription, Request, Response
from evalguard.core.settings import digest_of
from evalguard.errors import EvaluationError
from evalguard.harness.request_blocks import requests_digest
from evalguard.models.hf.scored_tokens import hash_window
from evalguard.models.logits_file import LogitsFile
from evalguard.run.scoring.base_file import BaseFile
from evalguard.run.sources import LogitsSource


class LogitsBase(BaseFile):
    """Answers as a logits file has it; a Scorer.

    Attributes:
        key: digest of it, under which divergences from it are kept.
        top_k: none: the file has the distributions whole.

    Raises:
        UsageError: the file is damaged.
    """

    top_k = 0

    def __init__(self, source: LogitsSource) -> None:
        self._file = LogitsFile(source.path)
        super().__init__(source.path, self._file, source.description)
        self.key = digest_of(["logits", self._file.digest])
        self._asked: dict[str, Sequence[Request]] = {}

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Return what the model answered to windows of the file.

        Raises:
            EvaluationError: it was not asked this.
        """
        self._asked[requests_digest(requests)] = tuple(requests)
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Response:
        chunk = request.doc_id
        if not (
            0 <= chunk < self._file.chunks
            and request.arguments == self._file.window(chunk).arguments
        ):
            raise EvaluationError(f"{self.path} was changed while it was compared with")
        logprobs = self._file.logprobs[chunk].astype("float64")
        return Response(
            loglikelihood=float(logprobs.sum()),
            token_logprobs=logprobs,
            token_hash=hash_window(self._file.window(chunk)),
            n_tokens=self._file.context,
        )

    def references(self, task: str, block: str) -> Sequence[Reference | None] | None:  # noqa: ARG002
        """Return where the distributions of a block are; None for one that was not asked."""
        asked = self._asked.get(block)
        return None if asked is None else [self._file.reference(one.doc_id) for one in asked]


def read_logits_file(path: Path) -> LogitsSource:
    """Read what a logits file holds.

    Raises:
        UsageError: it is damaged, or not whole.
    """
    file = LogitsFile(path)
    try:
        return LogitsSource(
            name=path.name,
            path=path,
            description=ModelDescription(
                model_type="",
                identity={"logits_file": file.digest},
                vocabulary_size=file.vocabulary,
                findings=(_rounded(file),),
            ),
            windows=tuple(file.window(chunk) for chunk in range(file.chunks)),
        )
    finally:
        file.close()


def _rounded(file: LogitsFile) -> Finding:
    """What a reader has to know of the numbers of such a base."""
    cut, scored = int(file.cut_off.sum()), file.cut_off.size
    limit = f"end {SPAN:g} nats below the most likely token"
    if cut:
        limit += f" ({cut:,} of {scored:,} scored tokens lie lower and count as that on both sides)"
    text = (
        f"{file.path.name} is a logits file of llama.cpp: its log-probabilities are rounded to "
        f"within {ROUNDING:.2g} nats and {limit}"
    )
    values = {"rounding": ROUNDING, "cut_off": cut, "scored": scored}
    return Finding(kind="rounded_base", text=text, values=values)
