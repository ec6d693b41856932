"""The windows of a llama.cpp logits file as an lm-eval task: one document a window.

Perplexity is per token, as llama.cpp has it: exp of minus the mean log-probability of the scored
tokens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.registry import AGGREGATION_REGISTRY

from evalguard.core.token_windows import TokenWindow
from evalguard.harness.documents_task import DocumentsTask

METRIC = "perplexity"


class WindowsTask(DocumentsTask):
    """A task of windows of token ids."""

    OUTPUT_TYPE = "loglikelihood"

    def __init__(self, name: str, windows: Sequence[TokenWindow]) -> None:
        self._windows = tuple(windows)
        documents = [
            {"window": number, "source": window.source, "ids": list(window.ids)}
            for number, window in enumerate(windows)
        ]
        super().__init__(documents, {"task": name})

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:  # noqa: ARG002 - lm-eval's
        """No text: token ids."""
        return ""

    def fewshot_context(self, *_: Any, **__: Any) -> str:
        """There are no examples."""
        return ""

    def construct_requests(self, doc: Mapping[str, Any], ctx: str, **options: Any) -> Instance:  # noqa: ARG002
        """One request a window."""
        return Instance(
            request_type="loglikelihood",
            doc=doc,
            arguments=self._windows[doc["window"]].arguments,
            idx=0,
            metadata=options.get("metadata"),
        )

    def process_results(
        self, doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]
    ) -> dict[str, tuple[float, int]]:
        """Log-likelihood, and the tokens that it is of."""
        ((loglikelihood, _),) = results
        window = self._windows[doc["window"]]
        return {METRIC: (loglikelihood, len(window.ids) - window.given)}

    def aggregation(self) -> dict[str, Any]:
        """exp of minus the mean over all tokens."""
        return {METRIC: AGGREGATION_REGISTRY["weighted_perplexity"]}

    def higher_is_better(self) -> dict[str, bool]:
        """Lower is better."""
        return {METRIC: False}
