"""Generation by a Hugging Face model, made independent of what shares a batch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from itertools import accumulate, takewhile
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from lm_eval.models.utils import has_bos_prefix
from lm_eval.models.utils_hf import stop_sequences_criteria

from evalguard.core.scorer import Ending, PaddingEffect, ScoringPath
from evalguard.errors import EvaluationError, FallbackError
from evalguard.models.generated_texts import GeneratedText
from evalguard.models.hf.attention_reach import TreeBatch
from evalguard.models.hf.encoded_once import EncodingCacheHFLM
from evalguard.models.hf.last_layer_probe import (
    build_scored_rows,
    check_longest_piece,
    detect_batch_too_large,
    fall_back_to_full_logits,
)
from evalguard.models.hf.moved_batch import (
    DeviceBatch,
    PackedBatch,
    PieceRead,
    pick_target_logprobs,
    split_by_piece,
)
from evalguard.models.hf.padding import measure_padding
from evalguard.models.hf.prefix_sharing import PrefixSharing
from evalguard.models.hf.scored_rows import ScoredRows
from evalguard.models.hf.scored_tokens import (
    InputTokens,
    ScoredTokens,
    generated_length,
    longrope_switch_length,
    refuse_without_room,
)

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance


class GuardedGeneration(EncodingCacheHFLM):
    """HFLM that generates one text at a time where a batch would change the answers.

    lm-eval pads the contexts of a batch on the left. A model that does not mask the padding (most
    recurrent ones), that has no embedding for it, or whose rotary frequencies follow the longest
    sequence, would answer otherwise than alone. Encoder-decoder models generate as in lm-eval.
    Where the user fixed a batch size, texts are generated in such batches all the same, so that
    what padding does to them is scored; not those of a model that keeps a state, for which padding
    is no fault of a conversion.

    Attributes:
        sequences: in a batch, where the user fixed their number; None: as many as there is room
            for.
    """

    batch_size_per_gpu: Any
    sequences: int | None = None
    _padding: PaddingEffect | None = None
    _padding_measured = False
    # of the requests of a call, by their place in it; and the places that a batch's rows are of
    _endings: dict[int, Ending] | None = None
    _numbers: Sequence[int | None] = ()

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Generate a text for every request, in the order asked.

        Raises:
            EvaluationError: the tokenizer has no EOS token, or no room is left for a context.
        """
        if self.eot_token_id is None:
            raise EvaluationError(
                "the tokenizer has no EOS token, so that no generation could end with one",
                hint="give it an eos_token (tokenizer_config.json)",
            )
        self._check_room([request.args[1] for request in requests])
        requests = [_with_number(one, at) for at, one in enumerate(requests)]
        ended = self._endings = {}
        together = self.batch_size_per_gpu
        if together != 1 and self._share_no_batch(requests):
            self.batch_size_per_gpu = 1
        try:
            texts = super().generate_until(requests, disable_tqdm)
        finally:
            self.batch_size_per_gpu = together
        return [GeneratedText(text, ended.get(at, "")) for at, text in enumerate(texts)]

    def tok_batch_encode(self, strings: list[str], **options: Any) -> Any:
        """Encode contexts for generation, refusing ids that the model does not know.

        HFLM asks the first context of a batch whether it begins with BOS, and gives all of them
        another one or none: here each gets what it would get alone.
        """
        self._numbers = [getattr(text, "number", None) for text in strings]
        strings = [str(text) for text in strings]
        begun = [has_bos_prefix(text, self.tokenizer.bos_token) for text in strings]
        parts = [[i for i, own in enumerate(begun) if own is kind] for kind in (False, True)]
        encode = super().tok_batch_encode
        encoded = [(own, *encode([strings[i] for i in own], **options)) for own in parts if own]
        ids, mask = _join_batches(encoded, self.tokenizer.pad_token_id)
        self.check_known(int(ids.max()))
        return ids, mask

    def _model_generate(
        self, context: torch.Tensor, max_length: int, stop: list[str], **options: Any
    ) -> torch.Tensor:
        """Generate for a batch; every text ends where it would alone."""
        ids: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        if self.backend != "causal":
            return ids
        begin = context.shape[1]
        if len(context) > 1:
            ids = pad_after_stop(self.tokenizer, ids, begin, stop)
        ended = find_endings(self.tokenizer, ids[:, begin:], stop, most=max_length - begin)
        if self._endings is not None and len(self._numbers) == len(ids):
            numbered = zip(self._numbers, ended, strict=True)
            self._endings |= {number: one for number, one in numbered if number is not None}
        return ids

    def check_known(self, largest: int) -> None:
        """Refuse a token id beyond the embedding, before a GPU does so without words.

        Raises:
            EvaluationError: naming the token.
        """
        if not self._knows(largest):
            raise EvaluationError(
                f"token id {largest} ({self.tokenizer.convert_ids_to_tokens(largest)!r}) is beyond "
                f"the {self.model.get_input_embeddings().num_embeddings} tokens that the model "
                "embeds",
                hint="this tokenizer does not fit the model; model_args.tokenizer names another",
            )

    @property
    def embedded(self) -> int | None:
        """Number of token ids that the model has an embedding for; None where it does not say."""
        rows = getattr(self.model.get_input_embeddings(), "num_embeddings", None)
        return rows if isinstance(rows, int) else None

    def _knows(self, token_id: int) -> bool:
        rows = self.embedded
        return rows is None or token_id < rows

    def _check_room(self, options: Sequence[Mapping[str, Any]]) -> None:
        longest = max((generated_length(o, self.max_gen_toks) for o in options), default=0)
        if self.backend == "causal":
            refuse_without_room(
                longest,
                self.max_length,
                hint="fewer: --gen_kwargs max_gen_toks=N; or raise model_args.max_length if the "
                "model allows it",
            )

    @property
    def padding(self) -> PaddingEffect | None:
        """What padding does to a causal model's answers; None where it cannot be asked."""
        if not self._padding_measured:
            causal = self.backend == "causal"
            self._padding, self._padding_measured = measure_padding(self) if causal else None, True
        return self._padding

    @property
    def unpadded(self) -> bool:
        """Whether texts are generated one by one, because padding would change them."""
        found = self.padding
        if self.sequences is not None and not (found is not None and found.keeps_state):
            return False
        return found is None or found.before_matters

    def forget_padding(self) -> None:
        """Measure anew what padding does: the model computes something else from now on."""
        self._padding, self._padding_measured = None, False

    def _share_no_batch(self, requests: Sequence[Instance]) -> bool:
        if self.backend != "causal":
            return False
        switch = longrope_switch_length(self.config)
        return (
            not self._knows(self.tokenizer.pad_token_id)
            or self.unpadded
            or (
                switch is not None
                and any(
                    len(self.tok_encode(context)) + generated_length(options, self.max_gen_toks)
                    > switch
                    for context, options in (request.args for request in requests)
                )
            )
        )


class _NumberedText(str):
    """A context that knows its place among the requests: lm-eval sorts them and keeps no list."""

    __slots__ = ("number",)
    number: int


def _with_number(request: Instance, number: int) -> Instance:
    context = _NumberedText(request.args[0])
    context.number = number
    return replace(request, arguments=(context, *request.args[1:]))


def _join_batches(
    parts: Sequence[tuple[list[int], torch.Tensor, torch.Tensor]], padding: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Put parts of a batch (its rows, their ids and mask) together, padded on the left."""
    if len(parts) == 1:
        return parts[0][1:]
    rows, width = sum(len(own) for own, _, _ in parts), max(ids.shape[1] for _, ids, _ in parts)
    whole = torch.full((rows, width), padding)
    mask = torch.zeros_like(whole)
    for own, ids, seen in parts:
        whole[own, width - ids.shape[1] :] = ids
        mask[own, width - ids.shape[1] :] = seen
    return whole, mask


# One forward pass after another: log-probabilities where a batch is read, and what they say.


class BatchScoring(GuardedGeneration):
    """HFLM that reads a model's answers off a batch.

    The output embedding sees the positions that are read and no others, where that gives the
    model's own logits; else logits are computed at all positions, and ``rows_reason`` says why.

    Attributes:
        scorer: "full logits" has logits computed at all positions without trying.
        sharing: how prefixes that several pieces share are read once; None: they are not.
        gave_up: what real documents showed that the model cannot do; None: nothing.
    """

    scorer: ScoringPath

    rows_reason = ""
    sharing: PrefixSharing | None = None
    gave_up: FallbackError | None = None
    _rows: ScoredRows | None = None
    _settled = False

    def settle(self) -> None:
        """Try, once, whether the model can be scored at chosen positions only."""
        if not self._settled:
            if self.scorer == "fast":
                self._rows, self.rows_reason = build_scored_rows(self)
            self._settled = True

    def unsettle(self) -> None:
        """Forget what was tried: the model computes something else from now on."""
        self.forget_padding()
        self._rows, self.rows_reason, self.gave_up = None, "", None
        self._settled = False

    @property
    def only_scored_positions(self) -> bool:
        """Whether logits are computed at the scored positions only."""
        self.settle()
        return self._rows is not None

    def check_rows(self, pieces: Iterable[InputTokens]) -> None:
        """Hold the longest piece's logits against those at all positions, if none as long was.

        Raises:
            FallbackError: they differ by more than rounding.
        """
        self.settle()
        if self._rows is not None:
            with self.giving_up():
                check_longest_piece(self, self._rows, pieces)

    @contextmanager
    def giving_up(self) -> Iterator[None]:
        """Note, for later runs, what this model turns out to be unable to do."""
        try:
            yield
        except FallbackError as error:
            # without the traceback, whose frames hold memory
            self.gave_up = FallbackError(str(error), giving_up=error.giving_up, hint=error.hint)
            raise

    def score_batches(self, batches: Iterator[PackedBatch]) -> list[ScoredTokens]:
        """Score batches; nothing waits for a GPU before the last one is on its way."""
        reads: list[PieceRead] = []
        logprobs, greedy = [], []
        for group in self.groups(batches):
            reads += [read for batch in group for read in batch.reads]
            for rows, targets in self._blocks(group):
                told, flags = pick_target_logprobs(rows, targets)
                logprobs.append(told)
                greedy.append(flags)
        return split_by_piece(reads, torch.cat(logprobs), torch.cat(greedy)) if reads else []

    def groups(self, batches: Iterable[PackedBatch]) -> Iterator[list[PackedBatch]]:
        """Put batches together, in order, that have their logits made at once."""
        self.settle()
        most = self._rows.together if self._rows else 0
        group: list[PackedBatch] = []
        for batch in batches:
            if group and sum(one.n_read for one in (*group, batch)) > most:
                yield group
                group = []
            group.append(batch)
        if group:
            yield group

    def scored_batch(self, batch: PackedBatch) -> Iterator[tuple[ScoredTokens, torch.Tensor]]:
        """Run one batch; yield each piece's answer and its rows.

        Rows are natural log-probabilities of all tokens at the scored positions, in the dtype of
        the softmax, shape (n_scored, vocabulary), on the model's device; each is made when it is
        asked for.
        """
        for part in self.scored_parts([batch]):
            yield from part

    def scored_parts(
        self, group: Sequence[PackedBatch]
    ) -> Iterator[list[tuple[ScoredTokens, torch.Tensor]]]:
        """Run one of ``groups`` as ``scored_batch``; yield what is finished, many at a time."""
        reads, waiting = [read for batch in group for read in batch.reads], []
        for rows, targets in self._blocks(group):
            waiting.append((rows, *pick_target_logprobs(rows, targets)))
            lengths = _lengths_read_by(reads, sum(part[0].shape[0] for part in waiting))
            if not lengths:
                continue
            rows, told, greedy = (
                torch.cat(parts) if len(parts) > 1 else parts[0]
                for parts in zip(*waiting, strict=True)
            )
            n, done = sum(lengths), reads[: len(lengths)]
            reads, waiting = reads[len(lengths) :], [(rows[n:], told[n:], greedy[n:])]
            found = split_by_piece(done, told[:n], greedy[:n])
            yield list(zip(found, rows[:n].split(lengths), strict=True))

    def full_logits(self, moved: DeviceBatch) -> torch.Tensor:
        """Return the logits where a batch is read, from logits at all positions."""
        if isinstance(moved.batch, TreeBatch):
            return moved.at_places(self._run(moved, unread=self.forward))
        return moved.at_places(self._model_call(moved.input_ids))

    def _run(self, moved: DeviceBatch, *, unread: Callable[..., object]) -> torch.Tensor:
        """One forward pass; ``unread`` is one of which no logits are wanted."""
        if self.sharing is None or not isinstance(moved.batch, TreeBatch):
            return self.forward(input_ids=moved.input_ids)
        return self.sharing.run(self.forward, unread, moved.batch, self.device)

    def forward(self, *, cache: Any = None, **inputs: Any) -> torch.Tensor:
        """Return the model's logits, without what only generation or training needs.

        Args:
            cache: keys and values that are read, and added to; None: none.
        """
        if cache is not None:
            inputs |= {self._cache_name: cache, "use_cache": True}
        with torch.inference_mode(), self._precision():
            logits: torch.Tensor = self.model(**{**self._without_cache, **inputs}).logits
            return logits

    def _precision(self) -> AbstractContextManager[object]:
        """The precision that was asked for, as lm-eval has it; nothing to enter for the model's."""
        dtype, device = self.mixed_precision_dtype, self.device.type
        if dtype is None and not torch.is_autocast_enabled(device):
            return nullcontext()
        return torch.autocast(device_type=device, dtype=dtype, enabled=dtype is not None)

    def _blocks(self, group: Sequence[PackedBatch]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Run a group of batches; yield log-probabilities and targets, block by block of places."""
        *early, last = group
        held = [self._hidden(batch) for batch in early]
        with detect_batch_too_large(last):
            moved, done = DeviceBatch.of(last, self.device), 0
            wanted = torch.cat([*(targets for _, targets in held), moved.targets])
            for logits in self._logits(moved, [rows for rows, _ in held]):
                start, done = done, done + logits.shape[0]
                targets = wanted[start:done].to(logits.device)
                yield F.log_softmax(logits, dim=-1, dtype=self.softmax_dtype), targets

    def _hidden(self, batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
        """The rows that a batch's logits can be made of, and its targets."""
        rows = self._rows
        assert rows is not None
        with detect_batch_too_large(batch), self.giving_up(), fall_back_to_full_logits():
            moved = DeviceBatch.of(batch, self.device)
            return rows.hidden(moved, lambda: self._run(moved, unread=rows.unread)), moved.targets

    def _logits(self, moved: DeviceBatch, before: Sequence[torch.Tensor]) -> Iterator[torch.Tensor]:
        rows = self._rows
        with self.giving_up(), fall_back_to_full_logits():
            if rows is None:
                yield self.full_logits(moved)
            else:
                run = partial(self._run, moved, unread=rows.unread)
                yield from rows.logits(moved, run, before)

    @cached_property
    def _cache_name(self) -> str:
        """What the model calls its cache: transformers has renamed it in 5.24."""
        return "cache" if "cache" in self._forward_arguments else "past_key_values"

    @cached_property
    def _without_cache(self) -> dict[str, Any]:
        """No cache of keys and values where the model can do without: it would be thrown away."""
        return {"use_cache": False} if "use_cache" in self._forward_arguments else {}

    @cached_property
    def _forward_arguments(self) -> Mapping[str, object]:
        model = self.model.get_base_model() if hasattr(self.model, "get_base_model") else self.model
        return inspect.signature(model.forward).parameters


def _lengths_read_by(reads: Sequence[PieceRead], positions: int) -> list[int]:
    """How many positions each of the first pieces has that end within so many positions."""
    ends = accumulate(len(read.positions) for read in reads)
    return [
        len(read.positions)
        for read, _ in takewhile(lambda one: one[1] <= positions, zip(reads, ends, strict=True))
    ]


# Where a generated text ends: at its own stop string, whatever else its batch still generates.


def pad_after_stop(
    tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]
) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after a stop string.

    lm-eval ends a batch when all its texts have met the string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.

    Args:
        tokenizer: that of the model.
        ids: contexts and what was generated, shape (texts, tokens).
        begin: length of the contexts, padded.
        stops: what ends a text.
    """
    ended = ids.clone()
    for row, text in enumerate(tokenizer.batch_decode(ids[:, begin:])):
        own = [stop for stop in stops if stop in text]
        if own:
            ended[row, _length_until_stop(tokenizer, ids[row : row + 1], begin, own) :] = (
                tokenizer.pad_token_id
            )
    return ended


def find_endings(
    tokenizer: Any, made: torch.Tensor, stops: Sequence[str], *, most: int
) -> list[Ending]:
    """Say which texts of a batch ended at the token limit: as many tokens, and no end among them.

    Args:
        made: what was generated, padded, shape (texts, tokens).
        most: tokens that were allowed.
    """
    if made.shape[1] < most:
        return ["stop"] * len(made)
    marks = {tokenizer.eos_token_id, tokenizer.pad_token_id}
    return [
        "stop" if marks & set(ids) or any(stop and stop in text for stop in stops) else "length"
        for ids, text in zip(made.tolist(), tokenizer.batch_decode(made), strict=True)
    ]


def _length_until_stop(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)
