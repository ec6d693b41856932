"""EarlyEnds: texts of a search that need not be written to their end, because they have told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from evalguard.core.early_end import END_AT
from evalguard.core.scorer import Request
from evalguard.core.settings import Value
from evalguard.harness.figure_tables import Answered
from evalguard.harness.requests import TaskRequests
from evalguard.models.arguments import HF_TYPES
from evalguard.run.sources import ModelSource

_LOOPS = "loops"
_DIFFERENCES = ("first_difference", "first_difference_beyond_ties")


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnds:
    """Where the texts for a figure end: at their first loop, or at the first other token.

    Nothing else may be judged by such texts.

    Attributes:
        loop: at the first loop.
        others: by doc_id, the base's token ids; the first other one ends the text.
    """

    loop: bool = False
    others: Mapping[int, tuple[int, ...]]

    @classmethod
    def for_figure(cls, figure: str, candidate: ModelSource, base: Answered) -> EarlyEnds | None:
        """Where texts for a figure may end; None where all of them are needed, or the model cannot.

        Args:
            base: what the base generated, by doc_id.
        """
        if candidate.variant.model not in HF_TYPES:
            return None
        if figure == _LOOPS:
            return cls(loop=True, others={})
        if figure not in _DIFFERENCES:
            return None
        shown = {doc: [*of.tokens] for doc, of in base.items() if len(of.texts) == 1}
        ids = {
            doc: tuple(tokens[0].ids.tolist())
            for doc, tokens in shown.items()
            if len(tokens) == 1 and tokens[0] is not None
        }
        return cls(others=ids) if ids else None

    def of(self, requests: TaskRequests) -> TaskRequests:
        """The same requests, whose texts may end early."""
        return replace(requests, requests=tuple(map(self.ended, requests.requests)))

    def ended(self, request: Request) -> Request:
        """The same request, whose text may end early."""
        end: dict[str, Value] = {"loop": True} if self.loop else {}
        if request.doc_id in self.others:
            end = {"other_than": list(self.others[request.doc_id])}
        options = request.arguments[-1] if request.kind == "generate_until" else None
        if not end or not isinstance(options, Mapping):
            return request
        arguments = (*request.arguments[:-1], {**options, END_AT: end})
        return replace(request, arguments=arguments)
