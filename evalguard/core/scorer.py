"""The Scorer protocol: everything the pipeline may ask of a model, wherever the model runs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from evalguard.core.divergence import Divergence, Reference
from evalguard.core.findings import Finding
from evalguard.core.hyperparameters import HeldValue
from evalguard.core.option_words import RollingBos
from evalguard.core.settings import Value, Variant
from evalguard.core.shown_tokens import GeneratedTokens, TopLogprobs
from evalguard.core.trace_points import ModelRounding
from evalguard.core.trace_record import Trace

RequestKind = Literal["loglikelihood", "loglikelihood_rolling", "generate_until"]
# "full logits": the fast path with logits at all positions, for models that need it.
ScoringPath = Literal["fast", "full logits", "harness"]
# Why a generated text ended: by itself or at a stop string, at the token limit, "" where unknown.
Ending = Literal["", "stop", "length"]
# lm-eval's names for how many tokens a generation request asks for, the first one its own.
LENGTH_NAMES = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
# Sequences of a batch where batches are cut by number and nobody gave one, as lm-eval has it here.
DEFAULT_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One lm-eval request, as plain data.

    ``arguments`` are lm-eval's own: (context, continuation), (text,) or (context, generation
    arguments). ``doc_id`` and ``index`` place it in its task: the document, and the request's
    position among the requests of that document (repeats of one request are separate requests).
    """

    task: str
    doc_id: int
    index: int
    kind: RequestKind
    arguments: tuple[Value, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Response:
    """A model's answer to one request.

    Attributes:
        loglikelihood: natural log-probability of the continuation or the whole text; None for
            generation.
        is_greedy: whether greedy decoding would have produced the continuation; None where the
            request kind has no such notion.
        text: generated text; None for likelihood requests.
        token_logprobs: float64 array, shape (n_scored_tokens,), natural log, in reading order
            (rolling windows concatenated); None where the backend does not give it.
        top_logprobs: of the same positions, the tokens that a server shows of its distributions;
            None for any other model.
        token_hash: hash of the token ids actually fed (context and continuation, after any
            truncation), "" where the backend does not show them.
        n_tokens: number of token ids fed, 0 where unknown.
        truncated: whether tokens were cut from the left to fit the model's context.
        ended: of a generated text, whether it ended at the token limit ("length") or before;
            "" where the backend does not say.
        generated: the tokens of a generated text; None where the backend does not show them.
        message: JSON object, what a chat server answered beside its text, in OpenAI's words
            (``tool_calls``, ``reasoning_content``, ``refusal``, ``finish_reason``); "" where
            nothing.
    """

    loglikelihood: float | None = None
    is_greedy: bool | None = None
    text: str | None = None
    token_logprobs: NDArray[np.float64] | None = None
    top_logprobs: TopLogprobs | None = None
    token_hash: str = ""
    n_tokens: int = 0
    truncated: bool = False
    ended: Ending = ""
    generated: GeneratedTokens | None = None
    message: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoringPolicy:
    """How requests are scored; part of a score's identity, the same for base and candidate.

    Attributes:
        batch_size: sequences of a forward pass as the user fixed them; None: as many as
            ``token_budget`` has room for.
        token_budget: padded tokens of a forward pass; 0: what is measured to be best on this
            device, for the first model that is loaded.
        scorer: "harness" takes lm-eval's own path to the scores of a Hugging Face model; "full
            logits" computes logits at all positions, not only at the scored ones.
        share_prefixes: whether tokens that several continuations have before them may be read once.
        device: "" means: CUDA if there is one, else CPU.
        rolling_bos: of whole texts whose tokenizer adds BOS by itself: "lm-eval" scores BOS given
            BOS too, as lm-eval 0.4.13 does; "once" begins with the first real token given BOS.
        softmax_dtype: "model" takes log-softmax in the logits' own dtype, which is only ever done
            to measure what that does.
    """

    batch_size: int | None = None
    token_budget: int = 0
    scorer: ScoringPath = "fast"
    share_prefixes: bool = True
    device: str = ""
    rolling_bos: RollingBos = "lm-eval"
    seed: int = 1234
    threads: int = 0
    max_gen_toks: int | None = None
    softmax_dtype: Literal["float32", "model"] = "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddingEffect:
    """How far padding changes what a model answers to a few tokens.

    Attributes:
        left: largest change of a likely next token's log-probability, in nats, where padding stands
            before a text and is masked, as in a batch of contexts that texts are generated for.
        right: the same of every position of a text that padding follows.
        limit: what rounding may make of either, in nats.
        keeps_state: the model reads tokens into a state, which padding before a text may change
            without any fault of a conversion.
    """

    left: float
    right: float
    limit: float
    keeps_state: bool = False

    @property
    def size(self) -> float:
        """The larger of both, in nats."""
        return max(self.left, self.right)

    @property
    def before_matters(self) -> bool:
        """Whether what padding before a text changes is more than rounding; NaN is."""
        return not self.left <= self.limit

    @property
    def matters(self) -> bool:
        """Whether padding on either side changes more than rounding does."""
        return self.before_matters or not self.right <= self.limit


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelDescription:
    """What was really loaded, read back from the model itself.

    ``identity`` holds everything that can change a score (weights and tokenizer digests, effective
    settings, code digests, dtype, device kind, package versions, policy); None where the backend
    cannot prove its weights, so that scores are never cached. ``effective`` maps each setting's
    name to the value read back after loading. ``vocabulary_digest`` is "" where unknown.
    ``computation`` says how the model computes, read back from it: batch_size, token_budget,
    scorer, shares_prefixes, threads, device (its kind), attention (its implementation),
    softmax_dtype, cache_dtype and weight_types (of a GGUF: of keys and values, and all that its
    tensors have); None for what it does not show; of a model behind a server concurrency, its
    requests in flight, and of an engine that may keep what it computed of one prompt for the
    next, prefix_cache: whether it does.
    ``weight_bytes``: of its parameters and buffers in memory; 0 where it does not show them.
    ``gives_rows`` says whether it shows whole distributions, as a ``DistributionScorer``.
    ``unshared`` says why it cannot share prefixes, though it was to; "" where it can.
    ``padding`` is what padding does to its answers; None where that was not measured.
    ``configuration`` is what it is configured with, by section: config, generation, tokenizer,
    code; {} where it does not show it.
    ``findings``: what was seen of the model while it was asked that every reader must know.
    """

    model_type: str
    effective: Mapping[str, Value] = field(default_factory=dict)
    identity: Mapping[str, Value] | None = None
    vocabulary_digest: str = ""
    vocabulary_size: int = 0
    max_length: int = 0
    dtype: str = ""
    device: str = ""
    parameters: int = 0
    weight_bytes: int = 0
    gives_rows: bool = False
    environment: Mapping[str, Value] = field(default_factory=dict)
    computation: Mapping[str, Value] = field(default_factory=dict)
    unshared: str = ""
    padding: PaddingEffect | None = None
    configuration: Mapping[str, Value] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswer:
    """The distributions of one block, held against the base's.

    ``divergences`` has one entry per request, None for one without any scored position. It is
    empty where the two could not be compared; ``reason`` says why.
    """

    divergences: tuple[Divergence | None, ...] = ()
    reason: str = ""


class Scorer(Protocol):
    """A loaded variant that scores requests; in this process or behind a worker's pipe.

    Every method raises ``EvaluationError`` (or a subclass) when the model cannot do what is asked.
    """

    def describe(self) -> ModelDescription:
        """Return what was loaded, with every setting's effective value."""

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Return the token ids each request would feed (untruncated); () where unknown."""

    def score(self, requests: Sequence[Request]) -> list[Response]:
        """Score one block of requests, all of one kind; the answers in the order asked."""

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        """Apply the model's chat template to a conversation."""

    def close(self) -> None:
        """Release the model. May be called twice."""


def generation_parts(scorer: Scorer, requests: Sequence[Request]) -> list[tuple[int, ...]]:
    """Return the places of requests that are best generated together, part by part.

    The parts hold whole batches: one after the other they are answered exactly as ``score``
    answers all. One part where that is not so (where texts are drawn at random, say), and of a
    scorer that cannot cut them.
    """
    cut = getattr(scorer, "generation_parts", None)
    parts: list[tuple[int, ...]] = [tuple(range(len(requests)))] if cut is None else cut(requests)
    return parts


class ReassignableScorer(Scorer, Protocol):
    """A scorer whose settings can be given other values, where that is safe."""

    def reassign(self, variant: Variant) -> bool:
        """Become another assignment of the same model, bit for bit as if it were loaded so.

        Description, identity and batches follow.

        Returns:
            False where only loading can do that. The scorer is of no use any more then, nor after
            an error.
        """


class AnswerJournal(Protocol):
    """Keeps the answers of one server, each from the moment that it is there."""

    def __len__(self) -> int:
        """How many answers are kept."""

    def find(self, key: str) -> Response | None:
        """Return the answer to a request, by the digest of all that it asks; None: not kept."""

    def add(self, key: str, response: Response) -> None:
        """Keep an answer; a disk that refuses is no error."""

    def confirm(self, fingerprint: str) -> bool:
        """Compare the fingerprint of a server's first answer ("": none) with the kept answers'.

        Returns:
            False where these were another server's, and are kept no more.

        Raises:
            EvaluationError: they were, and are not only in the journal.
        """

    def forget(self, why: str) -> None:
        """Keep no answer of those so far: they are not what the server answers now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """What a model behind a server is told from others by.

    Attributes:
        identity: all of it but what the server tells; no secrets, and not where it is reached.
        facts: what the server tells of itself.
        url: where it is reached, without secrets.
        revision: by which the user vouches for it; "": nobody does.
    """

    identity: Mapping[str, Value]
    facts: Mapping[str, Value]
    url: str
    revision: str = ""


class AheadScorer(Scorer, Protocol):
    """A scorer that may be asked for many blocks before the answers to any are waited for."""

    @property
    def served(self) -> ServedModel | None:
        """What is served; None: it is not behind a server, and nothing is asked ahead of it."""

    @property
    def answers_kept(self) -> int | None:
        """How many answers the journal holds; None: there is no journal."""

    def keep_answers(self, journal: AnswerJournal) -> None:
        """Keep every answer from now on, and use those that are kept."""

    def keep_for_itself(self, finding: Finding) -> None:
        """Let nobody vouch for the server: its scores are not kept, for the reason given."""

    def probe(self, requests: Sequence[Request]) -> None:
        """See whether the server gives what requests of these kinds need; once for each kind.

        Raises:
            UsageError, EvaluationError: it does not.
        """

    def ask_ahead(self, blocks: Iterable[Sequence[Request]]) -> None:
        """Begin to ask for blocks, each of one kind; ``score`` then waits for their answers.

        Raises:
            EvaluationError: what is to be asked cannot be made.
        """


class RepeatableScorer(Scorer, Protocol):
    """A scorer that asks somebody else, who may become another model meanwhile."""

    def check_unchanged(self) -> None:
        """Ask the first prompts once more, and compare the answers; nothing where it computes.

        Raises:
            EvaluationError: it is not the model any more that answered them.
        """


def count_cached_tokens(scorer: Scorer) -> int | None:
    """Tokens of prompts that an engine says it took from its cache so far.

    None where it keeps nothing of one prompt for the next, or does not say.
    """
    count = getattr(scorer, "count_cached_tokens", None)
    tokens: int | None = None if count is None else count()
    return tokens


def check_unchanged(scorer: Scorer) -> None:
    """Have any scorer ask its first prompts once more; see ``RepeatableScorer``."""
    if hasattr(scorer, "check_unchanged"):
        cast(RepeatableScorer, scorer).check_unchanged()


def cached_between(before: int | None, after: int | None) -> int | None:
    """Tokens taken from a cache between two counts; None where that is not told.

    Nothing is counted before the first answer; a count that falls is of a server that was started
    anew.
    """
    if after is None or after < (before or 0):
        return None
    return after - (before or 0)


class DistributionScorer(Scorer, Protocol):
    """A scorer that shows whole distributions: one whose description ``gives_rows``."""

    def score_reference(
        self, requests: Sequence[Request], *, top_k: int, samples: int
    ) -> tuple[list[Response], list[Reference | None]]:
        """Score a block of likelihood requests and keep ``top_k`` tokens of every distribution.

        Returns:
            Answers as of ``score``, and a reference per request; None for one without any scored
            position.
        """

    def score_against(
        self, requests: Sequence[Request], references: Sequence[Reference | None]
    ) -> tuple[list[Response], ComparedAnswer]:
        """Score a block of likelihood requests and compare it with the base's references."""


class ActivationScorer(Scorer, Protocol):
    """A scorer that shows what flows inside of its model while it reads a text."""

    def held_values(self) -> Sequence[HeldValue]:
        """Hyper-parameters as its library holds them; () where that shows none."""

    def activations(
        self,
        ids: Sequence[int],
        wanted: Collection[str] = (),
        forced: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[str, NDArray[np.float32]]]:
        """Read token ids in one pass; yield points and their values, one at a time.

        Points have the names of a Hugging Face model (core/trace_points.py).

        Args:
            wanted: points; empty: all that the model shows.
            forced: ``.npy`` files by point. What the model has there is yielded, and then the
                file's values stand in its place, so that the rest starts from them.

        Raises:
            UsageError: the model shows no activations.
            EvaluationError: it fails, or a forced value does not fit.
        """


class TracingScorer(Scorer, Protocol):
    """A scorer of a torch model that can be forced to what was recorded of another model."""

    def trace_recorded(
        self,
        sequences: Sequence[Sequence[int]],
        recorded: Sequence[Mapping[str, str]],
        *,
        rounding: ModelRounding,
        memory: int,
        detail: Collection[str] = (),
    ) -> Trace:
        """Trace another model with this one as the base.

        Args:
            sequences: of token ids.
            recorded: of each, ``.npy`` files by point.
            rounding: of the other model.
            memory: bytes of activations to hold; above it they go to a temporary file.
            detail: points (globs) whose error is also wanted by token and by head.

        Raises:
            UsageError: this model has no torch module whose names are points.
            EvaluationError: no common points, or it fails.
        """
