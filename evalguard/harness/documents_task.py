"""DocumentsTask: an lm-eval task whose documents are at hand, without a dataset or examples."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.task import Task


class DocumentsTask(Task):  # type: ignore[misc]
    """What such a task answers to lm-eval whatever its documents ask."""

    VERSION = 1

    def __init__(self, documents: Sequence[dict[str, Any]], config: Mapping[str, Any]) -> None:
        self._docs = list(documents)
        super().__init__(config={"num_fewshot": 0, "output_type": self.OUTPUT_TYPE, **config})

    def download(self, *_: Any, **__: Any) -> None:
        """There is nothing to be downloaded."""

    def has_training_docs(self) -> bool:
        """None."""
        return False

    def has_validation_docs(self) -> bool:
        """None."""
        return False

    def has_test_docs(self) -> bool:
        """All documents."""
        return True

    def test_docs(self) -> list[dict[str, Any]]:
        """All documents."""
        return self._docs

    @property
    def eval_docs(self) -> list[dict[str, Any]]:
        """All documents."""
        return self._docs

    def doc_to_target(self, doc: Mapping[str, Any]) -> str:  # noqa: ARG002 - lm-eval's
        """No text is known to be the right answer."""
        return ""

    def set_fewshot_seed(self, seed: int | None = None) -> None:
        """There are no examples."""
