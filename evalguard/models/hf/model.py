"""Distinct token sequences scored in batches, with the whole distributions where they are asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from lm_eval import utils

from evalguard.errors import EvaluationError, SettingError
from evalguard.models.checkpoint_files import RecordingLoader, refuse_random_weights
from evalguard.models.config_overrides import apply_overrides, override_config
from evalguard.models.hf.batch_cuts import (
    OUT_OF_MEMORY,
    BatchTooLargeError,
    cut_by_number,
    cut_by_tokens,
    retry_with_smaller_batches,
)
from evalguard.models.hf.batch_scoring import BatchScoring
from evalguard.models.hf.moved_batch import PackedBatch, pad_batch
from evalguard.models.hf.prefix_tree import plan_sharing
from evalguard.models.hf.scored_tokens import (
    InputTokens,
    ScoredTokens,
    UnscorablePairError,
    longrope_switch_length,
    pair_answer,
    refuse_empty_side,
    text_answer,
)
from evalguard.models.runtimes.hf import read_quantisation

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from evalguard.core.scorer import RollingBos, ScoringPath
    from evalguard.core.settings import Value


IdPair = tuple[Sequence[int], Sequence[int]]

DEFAULT_TOKEN_BUDGET = 1024
# What a forward pass costs beside its tokens, as a share of the budget: at a budget from which on
# more tokens at a time are no faster, it is a few percent.
_PASS_COST_SHARE = 1 / 32


class PieceScoring(BatchScoring):
    """HFLM whose scores depend on the model and the token ids only.

    Batches are cut from the distinct token sequences of a block sorted by length, so that neither
    the order of requests nor duplicates change a score. Where the longest sequence of a batch would
    change the others' scores (longrope), they do not share a batch.

    Attributes:
        sequences: as of ``GuardedGeneration``; None: as many as ``token_budget``, padded tokens,
            has room for.
        unshared: why prefixes cannot be shared, though they are to be.
        room_note: what is to be said where memory ran out; else "".
    """

    token_budget: int = DEFAULT_TOKEN_BUDGET
    unshared: str = ""
    room_note = ""
    _only_encoding = False

    def score_pairs(self, pairs: Sequence[IdPair]) -> list[ScoredTokens]:
        """Score (context ids, continuation ids) pairs of a causal model; answers in order asked.

        Raises:
            UnscorablePairError: an empty context or continuation, a continuation that is longer
                than the model's context, a token id that the model does not know.
        """
        fed = self._all_fed(pairs)
        if self._only_encoding:
            return [_without_scores(piece) for piece in fed]
        found = retry_with_smaller_batches([self], lambda: self.score_batches(self.batches(fed)))
        answers = {scored.fed: scored for scored in found}
        return [answers[piece] for piece in fed]

    @contextmanager
    def only_encoding(self) -> Iterator[None]:
        """Encode what is asked and score nothing: the answers show what would be fed."""
        self._only_encoding = True
        try:
            yield
        finally:
            self._only_encoding = False

    def batches(self, pieces: Iterable[InputTokens]) -> Iterator[PackedBatch]:
        """Cut the distinct pieces into batches; those that share prefixes first, in trees.

        Raises:
            FallbackError: trees of these pieces turn out to be scored otherwise, or so does the
                longest of them at its scored positions only.
        """
        switch = longrope_switch_length(self.config)
        distinct = set(pieces)
        self.check_rows(distinct)
        beyond = {p for p in distinct if switch is not None and len(p.ids) - 1 > switch}
        for group in (beyond, distinct - beyond):
            alone: Iterable[InputTokens] = group
            if self.sharing is not None:
                # a trunk below the length at which frequencies switch would have the others
                plan = plan_sharing(
                    group, widest=self.token_budget, cut=self._cut, trunks=group is not beyond
                )
                with self.giving_up():
                    yield from self.sharing.batches(self, plan)
                alone = plan.alone
            yield from self.plain_batches(alone)

    def plain_batches(self, pieces: Iterable[InputTokens]) -> Iterator[PackedBatch]:
        """Cut distinct pieces into batches with a row for each, the longest first."""
        longest_first = sorted(
            pieces, key=lambda piece: (-len(piece.ids), piece.ids, piece.n_scored)
        )
        start = 0
        for size in self._cut([len(piece.ids) - 1 for piece in longest_first]):
            yield pad_batch(longest_first[start : start + size])
            start += size

    def make_room(self, found: BatchTooLargeError) -> bool:
        """Cut smaller batches from now on, after one that was too large; whether that can be."""
        if self.sequences is None:
            if found.tokens > self.token_budget:  # what cannot be cut any smaller
                return False
            self.token_budget = max(1, found.tokens // 2)
            most = f"{self.token_budget:,} padded tokens"
        else:
            if found.sequences == 1:
                return False
            self.sequences = min(self.sequences, found.sequences // 2)
            most = f"{self.sequences} sequences"
        self.room_note = f"{OUT_OF_MEMORY}: batches were halved, to {most} at last"
        return True

    def _cut(self, lengths: Sequence[int]) -> list[int]:
        if self.sequences is not None:
            return cut_by_number(len(lengths), self.sequences)
        budget = self.token_budget
        return cut_by_tokens(lengths, budget=budget, per_batch=budget * _PASS_COST_SHARE)

    def _all_fed(self, pairs: Sequence[IdPair]) -> list[InputTokens]:
        fed = []
        # Looked up once: lm-eval and transformers go through their configs every time.
        longest, embedded = self.max_length, self.embedded
        for position, (context, continuation) in enumerate(pairs):
            refuse_empty_side(context, continuation, position=position)
            try:
                fed.append(self._input_tokens(context, continuation, longest))
                if embedded is not None and max(fed[-1].ids) >= embedded:
                    self.check_known(max(fed[-1].ids))
            except EvaluationError as error:
                raise UnscorablePairError(str(error), position=position, hint=error.hint) from error
        return fed

    def _input_tokens(
        self, context: Sequence[int], continuation: Sequence[int], longest: int
    ) -> InputTokens:
        if len(continuation) > longest:
            raise EvaluationError(
                f"a continuation of {len(continuation)} tokens does not fit the model's context "
                f"of {longest}",
                hint="raise max_length in model_args if the model allows it",
            )
        return InputTokens.of_pair(context, continuation, longest)


def _without_scores(piece: InputTokens) -> ScoredTokens:
    return ScoredTokens(fed=piece, logprobs=np.zeros(piece.n_scored), is_greedy=False)


# lm-eval's Hugging Face model, made fair for comparisons and with per-token answers.


EncodedRequest = tuple[tuple[str, str] | None, list[int], list[int]]


class GuardedHFLM(PieceScoring):
    """HFLM as evalguard loads it.

    Log-softmax is float32, unless the policy asks for the model's own dtype, and lm-eval's logits
    cache, which mixes up two splits of one sequence, is never used. Log-probabilities are kept per
    token in ``scored``: one list of pieces (rolling windows) per request of the last call; empty
    where lm-eval's own path scores: encoder-decoder models, and where the user asked for it.

    ``loading`` holds what transformers reported while loading: missing, unexpected and mismatched
    keys of the checkpoint.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        config_overrides: Mapping[str, Value] | None = None,
        allow_pickle: bool = False,
        rolling_bos: RollingBos = "lm-eval",
        softmax_dtype: Literal["float32", "model"] = "float32",
        sequences: int | None = None,
        token_budget: int = 0,
        scorer: ScoringPath = "fast",
        quantization_config: Mapping[str, Value] | None = None,
        **model_args: Any,
    ) -> None:
        """Load a model; ``model_args`` are HFLM's own.

        Args:
            pretrained: local folder or hub id.
            config_overrides: dotted config path -> value, set before the model is built.
            allow_pickle: whether pickled weights may be loaded.
            rolling_bos: whether a text whose ids begin with the prefix token scores that token
                ("lm-eval", as lm-eval 0.4.13 does) or not ("once").
            softmax_dtype: of log-softmax; "model": that of the logits.
            sequences: of a batch; None: as many as ``token_budget`` has room for.
            token_budget: padded tokens of a batch; 0: a default.
            scorer: "harness" leaves likelihoods to lm-eval's own methods; "full logits" computes
                logits at all positions.
            quantization_config: as in a checkpoint's config.json; the weights are quantised while
                they are loaded.

        Raises:
            UsageError: a quantisation that transformers does not know.
            SettingError: an override names nothing in the config.
            EvaluationError: the checkpoint lacks weights of the model; the tokenizer has no token
                to put before a text.
        """
        self.AUTO_MODEL_CLASS: Any = None
        self._whole_texts = False
        self._config_overrides = dict(config_overrides or {})
        self._quantisation = quantization_config
        self._allow_pickle = allow_pickle
        self._rolling_bos = rolling_bos
        self.loading: list[dict[str, Any]] = []
        self.scored: list[list[ScoredTokens]] = []
        self.sequences = sequences
        self.token_budget = token_budget or DEFAULT_TOKEN_BUDGET
        self.scorer = scorer
        model_args["softmax_dtype"] = None if softmax_dtype == "model" else softmax_dtype
        super().__init__(pretrained, logits_cache=False, **model_args)
        if self.prefix_token_id is None:
            raise EvaluationError(
                f"the tokenizer of {pretrained} has neither a BOS nor an EOS token, and lm-eval "
                "puts one before a text",
                hint="give it one, or name a token id: model_args.prefix_token_id",
            )

    def _get_config(self, pretrained: str, **where: Any) -> None:
        super()._get_config(pretrained, **where)
        apply_overrides(self._config, self._config_overrides, pretrained, **where)

    def _create_model(self, pretrained: str, **arguments: Any) -> None:
        other_loader = arguments.get("autogptq") or arguments.get("gptqmodel")
        if other_loader:
            if self._config_overrides:
                raise SettingError(
                    f"config.{next(iter(self._config_overrides))} cannot be set: autogptq and "
                    "gptqmodel build the model from its own config",
                    hint="load the model without autogptq and gptqmodel",
                )
            super()._create_model(pretrained, **arguments)
            return
        # transformers lays unknown arguments over a config only if it reads that config itself
        for name in [n for n in arguments if n not in LOADER_ARGUMENTS and hasattr(self.config, n)]:
            override_config(self._config, {name: arguments.pop(name)})
        arguments["config"] = self._config
        if self._quantisation is not None:  # lm-eval's own is that of the checkpoint
            arguments["quantization_config"] = read_quantisation(self._quantisation)
        if not self._allow_pickle:
            arguments["use_safetensors"] = True
        loader = self.AUTO_MODEL_CLASS
        self.AUTO_MODEL_CLASS = RecordingLoader(loader, self.loading)
        try:
            super()._create_model(pretrained, **arguments)
        finally:
            self.AUTO_MODEL_CLASS = loader
        for report in self.loading:
            refuse_random_weights(pretrained, report)

    @property
    def own_path(self) -> bool:
        """Whether likelihoods are evalguard's work, not that of lm-eval's own methods."""
        return self.scorer != "harness" and self.backend == "causal"

    def tok_encode(self, string: str, *given: Any, **options: Any) -> list[int]:
        """Encode a text; whole ones, while lm-eval cuts them into windows, as ``rolling_ids``."""
        if self._whole_texts:
            return self.rolling_ids(string)
        return list(super().tok_encode(string, *given, **options))

    def rolling_ids(self, text: str) -> list[int]:
        """Return the ids of a text that are scored; lm-eval puts the prefix token before them.

        Where the tokenizer has added that token by itself, lm-eval scores it given itself, which
        says nothing about the text: "once" leaves it out.
        """
        ids = list(super().tok_encode(text))
        if self._rolling_bos == "once" and ids[:1] == [self.prefix_token_id]:
            return ids[1:]
        return ids

    @property
    def rolling_bos(self) -> RollingBos | None:
        """How whole texts are read; None where the tokenizer adds no BOS: both ways are one."""
        adds = list(super().tok_encode("a"))[:1] == [self.prefix_token_id]
        return self._rolling_bos if adds else None

    def _rolling_pairs(self, text: str) -> list[tuple[list[int], list[int]]]:
        windows = utils.get_rolling_token_windows(
            token_list=self.rolling_ids(text),
            prefix_token=self.prefix_token_id,
            max_seq_len=self.max_length,
            context_len=1,
        )
        return [utils.make_disjoint_window(window) for window in windows]

    def loglikelihood_rolling(
        self, requests: list[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Log-likelihood of whole texts; the windows of all texts share the batches."""
        if not self.own_path:
            return self._rolling_by_harness(requests, disable_tqdm)
        self.encode_ahead(request.args[0] for request in requests)
        windows = [self._rolling_pairs(request.args[0]) for request in requests]
        answers = iter(self.score_pairs([pair for text in windows for pair in text]))
        self.scored = [[next(answers) for _ in text] for text in windows]
        return [text_answer(text) for text in self.scored]

    def _rolling_by_harness(self, requests: list[Instance], disable_tqdm: bool) -> list[float]:
        self.scored = []
        self._whole_texts = True
        try:
            return super().loglikelihood_rolling(  # type: ignore[no-any-return]
                requests, disable_tqdm=disable_tqdm
            )
        finally:
            self._whole_texts = False

    def _loglikelihood_tokens(
        self,
        requests: list[EncodedRequest],
        disable_tqdm: bool = False,  # noqa: ARG002 - lm-eval's signature
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        if not self.own_path:
            self.scored = []
            # always without a bar: rolling texts ask for it at every batch of windows
            return super()._loglikelihood_tokens(  # type: ignore[no-any-return]
                requests, disable_tqdm=True, override_bs=override_bs
            )
        answers = self.score_pairs([(context, cont) for _, context, cont in requests])
        self.scored = [[answer] for answer in answers]
        return [pair_answer(answer) for answer in answers]


# of lm-eval and transformers, never attributes of a config
LOADER_ARGUMENTS = frozenset(
    {
        "revision", "dtype", "trust_remote_code", "parallelize", "gpus", "max_memory_per_gpu",
        "max_cpu_memory", "offload_folder", "tp_plan", "peft", "delta", "autogptq", "gptqmodel",
        "gguf_file", "quantization_config", "subfolder",
    }
)  # fmt: skip
