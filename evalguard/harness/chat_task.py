"""Chat requests of a file as an lm-eval task: one document a request.

It has no metric of lm-eval's: figures of the answers are what is compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import Task

from evalguard.core.chat import PLACE, ChatRequest
from evalguard.core.scorer import LENGTH_NAMES
from evalguard.core.settings import Value


class ChatTask(Task):  # type: ignore[misc]
    """A task of chat requests.

    The conversation itself is the prompt, for every model: a server gets it as it is, and a model
    in this process renders it by its own template.
    """

    VERSION = 1
    OUTPUT_TYPE = "generate_until"
    # A call of a tool is an answer without a text.
    FINDS_ANSWERS = False

    def __init__(self, name: str, requests: Sequence[ChatRequest]) -> None:
        self._requests = tuple(requests)
        self._docs = [{PLACE: n, **request.document} for n, request in enumerate(requests)]
        super().__init__(
            config={
                "num_fewshot": 0, "output_type": self.OUTPUT_TYPE, "task": name, "repeats": 1,
            }
        )  # fmt: skip
        # What --gen-kwargs says goes in here; lm-eval's own would end answers at an empty line.
        self._config.generation_kwargs = {}

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

    def doc_to_text(self, doc: Mapping[str, Any]) -> str:
        """The conversation as JSON."""
        request: ChatRequest = self._requests[doc[PLACE]]
        return request.arguments[0]

    def fewshot_context(self, doc: Mapping[str, Any], *_: Any, **__: Any) -> str:
        """The conversation as JSON, whatever template a model has."""
        return self.doc_to_text(doc)

    def construct_requests(self, doc: Mapping[str, Any], ctx: str, **options: Any) -> Instance:
        """One request to write an answer."""
        own: dict[str, Value] = self._requests[doc[PLACE]].arguments[1]
        return Instance(
            request_type="generate_until",
            doc=doc,
            arguments=(ctx, _override(own, self._config.generation_kwargs)),
            idx=0,
            metadata=options.get("metadata"),
        )

    def process_results(self, doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, Any]:  # noqa: ARG002
        """Nothing of lm-eval's."""
        return {}

    def aggregation(self) -> dict[str, Any]:
        """Nothing of lm-eval's."""
        return {}

    def higher_is_better(self) -> dict[str, bool]:
        """Nothing of lm-eval's."""
        return {}


def _override(own: Mapping[str, Value], given: Mapping[str, Value]) -> dict[str, Value]:
    """A request's generation arguments with those that were given for all."""
    options = {**own, **given}
    if any(name in given for name in LENGTH_NAMES) and LENGTH_NAMES[0] not in given:
        del options[LENGTH_NAMES[0]]
    if "temperature" in given and "do_sample" not in given:
        options["do_sample"] = float(given["temperature"] or 0.0) > 0.0  # type: ignore[arg-type]
    return options
