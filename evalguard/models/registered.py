"""evalguard's model types for plain lm-eval: importing this file registers them.

    python -m evalguard.models.registered run --model llama_cpp \
        --model_args pretrained=model.gguf --tasks arc_easy

is lm-eval's own command with these types beside its own. In Python, import this file before
``lm_eval.simple_evaluate(model="llama_cpp", model_args={...})``. A name that lm-eval has already
stays its own: ``evalguard-openvino``. The packages of a type have to be in lm-eval's environment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import lm_eval.models  # noqa: F401  fills the registry with lm-eval's own
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry, register_model

from evalguard.core.scorer import ModelDescription, Request, RequestKind, Response, ScoringPolicy
from evalguard.models.runtimes.engine import make_scorer
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.types import RUNTIME_TYPES, load_runtime

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class RuntimeLM(LM):  # type: ignore[misc]  # lm-eval has no types
    """A runtime as one of lm-eval's models; sequences are read one after the other.

    Args:
        model_type: one of ``RUNTIME_TYPES``.
        batch_size, max_batch_size: what lm-eval hands to every model; without effect.
        device: "" leaves it to the runtime.
        trust_remote_code: whether code that comes with a checkpoint may run.
        model_args: of the type; one that it does not know is refused.

    Raises:
        EvaluationError, UsageError: as ``load_runtime``.
    """

    def __init__(
        self,
        model_type: str,
        *,
        batch_size: Any = None,  # noqa: ARG002
        max_batch_size: Any = None,  # noqa: ARG002
        device: str | None = None,
        trust_remote_code: bool = False,
        **model_args: Any,
    ) -> None:
        super().__init__()
        self._runtime = load_runtime(
            model_type,
            RuntimeArguments(
                model_type=model_type,
                given=model_args,
                device=device or "",
                code_allowed=trust_remote_code,
            ),
        )
        self._name = str(model_args.get("tokenizer") or model_args.get("pretrained"))
        self._scorer = make_scorer(
            self._runtime, ScoringPolicy(), ModelDescription(model_type=model_type)
        )

    def loglikelihood(self, requests: list[Instance]) -> list[tuple[float, bool]]:
        """Log-likelihoods of continuations, and whether greedy decoding gives them."""
        return [
            (cast(float, response.loglikelihood), bool(response.is_greedy))
            for response in self._score("loglikelihood", requests)
        ]

    def loglikelihood_rolling(self, requests: list[Instance]) -> list[float]:
        """Log-likelihoods of whole texts."""
        responses = self._score("loglikelihood_rolling", requests)
        return [cast(float, response.loglikelihood) for response in responses]

    def generate_until(self, requests: list[Instance]) -> list[str]:
        """Greedy continuations."""
        return [str(response.text) for response in self._score("generate_until", requests)]

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, str]], add_generation_prompt: bool = True
    ) -> str:
        """Apply the model's chat template."""
        return self._runtime.render_chat(chat_history, add_generation_prompt)

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval tells prompts of different models apart by."""
        return self._name.replace("/", "__")

    def _score(self, kind: RequestKind, instances: Sequence[Instance]) -> list[Response]:
        return self._scorer.score(
            [
                Request(
                    task=str(instance.task_name),
                    doc_id=instance.doc_id or 0,
                    index=instance.idx,
                    kind=kind,
                    arguments=tuple(instance.args),
                )
                for instance in instances
            ]
        )


def register_types() -> None:
    """Register every type of evalguard's under its name, or behind "evalguard-" if that is taken.

    "transformers" is not among them: in lm-eval's environment it is ``hf``.
    """
    for name in RUNTIME_TYPES:
        if name == "transformers":
            continue
        taken = name in model_registry and not issubclass(_registered(name), RuntimeLM)
        register_model(f"evalguard-{name}" if taken else name)(_type_class(name))


def _registered(name: str) -> type:
    try:
        return cast(type, model_registry.get(name))
    except ImportError:  # a type of lm-eval's whose package is not here
        return object


def _type_class(name: str) -> type[RuntimeLM]:
    def load(self: RuntimeLM, **given: Any) -> None:
        RuntimeLM.__init__(self, name, **given)

    return type(f"{name}_LM", (RuntimeLM,), {"__init__": load})


register_types()
if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
