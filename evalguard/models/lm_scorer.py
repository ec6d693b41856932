"""A Scorer over any lm-eval model in this process."""

from __future__ import annotations

import gc
import inspect
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from evalguard.errors import EvaluationError
from evalguard.models.answers import responses
from evalguard.models.caveats import model_caveats
from evalguard.models.computation import computation
from evalguard.models.encoding import encode_request
from evalguard.models.fed_recorder import recorded
from evalguard.models.generated_length import LENGTH_NAMES
from evalguard.models.identity import (
    environment,
    model_dtype,
    scoring_identity,
    torch_model,
    vocabulary,
)
from evalguard.models.quiet import quiet
from evalguard.models.scored_tokens import UnscorablePairError
from evalguard.models.threads import computing_with
from evalguard.scorer import ModelDescription, Request, Response, ScoringPolicy

if TYPE_CHECKING:
    from lm_eval.api.model import LM

    from evalguard.settings import Value


class LMScorer:
    """Scores requests with an lm-eval model instance.

    Args:
        lm: any lm-eval model.
        policy: how requests are scored; its seed is set before every block, so that a block's
            answers do not depend on the blocks before it.
        model_type, model_args: what ``lm`` was made from.
        effective: setting name -> value read back.
        provenance: digests of weights and code; None where the weights cannot be proven, so that
            scores must not be cached.
        threads: CPU threads that torch computes with; 0: as many as it uses at the time.

    Raises:
        EvaluationError: the model cannot read a few tokens.
    """

    def __init__(
        self,
        lm: LM,
        policy: ScoringPolicy,
        *,
        model_type: str,
        model_args: Mapping[str, Value] | None = None,
        effective: Mapping[str, Value] | None = None,
        provenance: Mapping[str, Value] | None = None,
        threads: int = 0,
    ) -> None:
        self._lm: Any = lm
        self._policy = policy
        self._threads = threads
        arguments = dict(model_args or {})
        with computing_with(threads), _failures("reading a few tokens", ()), quiet():
            self._description = _describe(lm, policy, model_type, arguments, effective, provenance)

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""
        return self._description

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated); () where unknown.

        Raises:
            EvaluationError: the tokenizer fails.
        """
        lm = self._open_lm()
        with _failures("encoding", requests):
            return [encode_request(lm, request) for request in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked.

        NaN and infinite scores are returned as they are: judging them is the statistics' part.

        Raises:
            EvaluationError: several kinds in one block, or the model fails.
        """
        if not requests:
            return []
        kinds = sorted({request.kind for request in requests})
        if len(kinds) > 1:
            raise EvaluationError(f"one block asks for {' and '.join(kinds)}; one kind is allowed")
        lm, kind = self._open_lm(), kinds[0]
        arguments = [self._arguments(request) for request in requests]
        seeded = _seeded(self._policy.seed)
        threads = computing_with(self._threads)
        with threads, _failures(kind, requests), quiet(), seeded, recorded(lm) as fed:
            if hasattr(lm, "scored"):
                lm.scored = []
            answers = _ask(lm, kind, requests, arguments)
            if len(answers) != len(requests):
                raise EvaluationError(
                    f"the model gave {len(answers)} answers to {len(requests)} requests"
                )
            return responses(lm, kind, arguments, answers, fed)

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation.

        Raises:
            EvaluationError: the model has none.
        """
        lm = self._open_lm()
        history = [dict(message) for message in messages]
        try:
            return str(lm.apply_chat_template(history, add_generation_prompt=add_generation_prompt))
        except Exception as error:
            raise EvaluationError(
                f"the model's chat template cannot be applied: {_one_line(error)}",
                hint="run without --apply_chat_template, or give the tokenizer a chat template",
            ) from error

    def close(self) -> None:
        """Release the model. May be called twice."""
        if self._lm is None:
            return
        self._lm = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _open_lm(self) -> Any:
        if self._lm is None:
            raise EvaluationError("this model was closed")
        return self._lm

    def _arguments(self, request: Request) -> tuple[Any, ...]:
        cap = self._policy.max_gen_toks
        if request.kind != "generate_until":
            return request.arguments
        context, options = request.arguments
        options = dict(options) if isinstance(options, dict) else {}
        if cap is not None:
            given = [name for name in LENGTH_NAMES if options.get(name) is not None]
            for name in given or LENGTH_NAMES[:1]:
                options[name] = min(int(options.get(name, cap)), cap)  # type: ignore[arg-type]
        return (context, options)


def _describe(
    lm: Any,
    policy: ScoringPolicy,
    model_type: str,
    model_args: Mapping[str, Value],
    effective: Mapping[str, Value] | None,
    provenance: Mapping[str, Value] | None,
) -> ModelDescription:
    model = torch_model(lm)
    digest, size = vocabulary(lm)
    identity = None
    if provenance is not None:
        identity = scoring_identity(lm, model_type, model_args, policy, provenance)
    return ModelDescription(
        model_type=model_type,
        effective=dict(effective or {}),
        identity=identity,
        vocabulary_digest=digest,
        vocabulary_size=size,
        max_length=int(getattr(lm, "max_length", 0) or 0),
        dtype=model_dtype(lm),
        device=str(getattr(lm, "device", None) or ""),
        parameters=0 if model is None else sum(p.numel() for p in model.parameters()),
        environment=environment(lm),
        computation=computation(lm),
        caveats=model_caveats(lm, model_args, policy),
    )


def _ask(
    lm: Any, kind: str, requests: Sequence[Request], arguments: Sequence[tuple[Any, ...]]
) -> list[Any]:
    from lm_eval.api.instance import Instance

    instances = [
        Instance(
            request_type=request.kind,
            doc={},
            arguments=asked,
            idx=request.index,
            metadata=(request.task, request.doc_id, 1),
        )
        for request, asked in zip(requests, arguments, strict=True)
    ]
    method = getattr(lm, kind)
    known = inspect.signature(method).parameters
    return list(method(instances, **({"disable_tqdm": True} if "disable_tqdm" in known else {})))


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Seed every generator that sampling may use, and give the caller's states back."""
    import torch

    python_state, numpy_state = random.getstate(), np.random.get_state()
    cuda: Any = torch.cuda
    devices = range(cuda.device_count()) if cuda.is_initialized() else ()
    with torch.random.fork_rng(devices):
        random.seed(seed)
        np.random.seed(seed % 2**32)
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)


@contextmanager
def _failures(doing: str, requests: Sequence[Request]) -> Iterator[None]:
    """Turn whatever a model raises into one line that says what was asked of it."""
    try:
        yield
    except UnscorablePairError as error:
        raise EvaluationError(f"{_place(error, requests)}: {error}", hint=error.hint) from error
    except EvaluationError:
        raise
    except (Exception, SystemExit) as error:
        tasks = ", ".join(sorted({request.task for request in requests}))
        what = f"{doing} of {tasks}" if tasks else doing
        memory = "memory" in str(error).lower()
        raise EvaluationError(
            f"the model failed in {what}: {_one_line(error)}",
            hint="try a smaller --batch_size" if memory else "",
        ) from error


def _place(error: UnscorablePairError, requests: Sequence[Request]) -> str:
    """The task, and the document where the pairs of a call are its requests one by one."""
    request = requests[0]
    if request.kind != "loglikelihood":
        return f"task '{request.task}'"
    request = requests[error.position]
    return f"task '{request.task}', document {request.doc_id}"


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())[:300]
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
