"""Generation by a Hugging Face model, made independent of what shares a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from lm_eval.models.utils import Collator, has_bos_prefix

from evalguard.core.early_end import EarlyEnd
from evalguard.core.generated_tokens import GeneratedTokens
from evalguard.core.scorer import Ending, PaddingEffect
from evalguard.errors import EvaluationError
from evalguard.models.generated_texts import GeneratedText
from evalguard.models.hf.encoded_once import EncodingCacheHFLM
from evalguard.models.hf.generated_length import (
    TOKENS_OF_A_PART,
    generated_length,
    refuse_without_room,
)
from evalguard.models.hf.longrope import longrope_switch_length
from evalguard.models.hf.padding import measure_padding
from evalguard.models.hf.row_ends import RowEnds
from evalguard.models.hf.text_ends import TextEnds, count_generated, find_endings, pad_after
from evalguard.models.hf.token_record import TokenRecorder, watch_generation

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
        early_ends: of the requests that are asked next, in their order; () where all texts end as
            the model ends them.
    """

    batch_size_per_gpu: Any
    sequences: int | None = None
    think_end_token: str | int | None
    early_ends: Sequence[EarlyEnd | None] = ()
    _padding: PaddingEffect | None = None
    _padding_measured = False
    # of the requests of a call, by their place in it; and the places that a batch's rows are of
    _made: dict[int, _Made] | None = None
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
        made = self._made = {}
        together = self.batch_size_per_gpu
        if together != 1 and self._share_no_batch([request.args for request in requests]):
            self.batch_size_per_gpu = 1
        try:
            texts = super().generate_until(requests, disable_tqdm)
        finally:
            self.batch_size_per_gpu, self.early_ends = together, ()
        nothing: _Made = ("", None)
        found = (made.get(at, nothing) for at in range(len(texts)))
        return [
            GeneratedText(text, ended, tokens=tokens, message=self._thought(tokens))
            for text, (ended, tokens) in zip(texts, found, strict=True)
        ]

    def _thought(self, tokens: GeneratedTokens | None) -> str:
        """What lm-eval cuts off as a closed thinking part, as ``Response.message``; "": nothing.

        Without it nobody could tell a text that was cut inside of one from an answer.
        """
        end = self.think_end_token
        if end is None or tokens is None:
            return ""
        ids = tokens.ids.tolist()
        if isinstance(end, int):
            places = [at for at, one in enumerate(ids) if one == end]
            thought, closed = self.tok_decode(ids[: places[-1]] if places else []), bool(places)
        else:
            thought, found, _ = str(self.tok_decode(ids)).rpartition(end)
            closed = bool(found)
        return json.dumps({"reasoning_content": thought.strip()}) if closed else ""

    def generation_parts(self, arguments: Sequence[tuple[Any, ...]]) -> list[tuple[int, ...]]:
        """Places of requests in whole batches, in the order in which lm-eval generates them.

        As many batches to a part as ``TOKENS_OF_A_PART`` has room for, one after the other.

        Args:
            arguments: context and generation arguments of each request.
        """
        whole = [tuple(range(len(arguments)))]
        size = self.batch_size_per_gpu
        options = [given for _, given in arguments]
        if self.backend != "causal" or not isinstance(size, int) or any(map(_draws, options)):
            return whole
        longest = max((generated_length(one, self.max_gen_toks) for one in options), default=1)
        at_once = max(1, TOKENS_OF_A_PART // max(longest, 1))
        if len(arguments) <= at_once:
            return whole
        if size != 1 and self._share_no_batch(arguments):
            size = 1
        if len(arguments) <= at_once * size:
            return whole
        ordered = Collator(
            [(_numbered(context, at), given) for at, (context, given) in enumerate(arguments)],
            sort_fn=lambda one: (-len(self.tok_encode(str(one[0]))), str(one[0])),
            group_by="gen_kwargs",
            group_fn=lambda one: one[1],
        )
        batches = [tuple(c.number for c, _ in chunk) for chunk in ordered.get_batched(n=size)]
        starts = range(0, len(batches), at_once)
        return [tuple(chain.from_iterable(batches[at : at + at_once])) for at in starts]

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
        recorder, row_ends = TokenRecorder(), self._row_ends(context)
        with watch_generation(self.model, recorder, [] if row_ends is None else [row_ends]):
            ids: torch.Tensor = super()._model_generate(context, max_length, stop, **options)
        causal = self.backend == "causal"
        begin = context.shape[1] if causal else recorder.begin or 1
        ends = TextEnds(
            tokenizer=self.tokenizer, begin=begin, stops=stop, tokens=self._end_tokens(options)
        )
        lengths = count_generated(ids, ends)
        early = {} if row_ends is None else row_ends.lengths(ids, begin)
        early = {row: length for row, length in early.items() if length <= lengths[row]}
        lengths = [early.get(row, length) for row, length in enumerate(lengths)]
        tokens = recorder.tokens(ids, begin, lengths)
        if causal or early:
            cut = lengths if causal else [early.get(row, ids.shape[1]) for row in range(len(ids))]
            ids = pad_after(ids, begin, cut, self.tokenizer.pad_token_id)
        ended: list[Ending] = [""] * len(ids)
        if causal:
            ended = find_endings(
                ids, ends, lengths=lengths, most=max_length - begin, early={*early}
            )
        if self._made is not None and len(self._numbers) == len(ids):
            rows = zip(self._numbers, ended, tokens, strict=True)
            self._made |= {number: (end, of) for number, end, of in rows if number is not None}
        return ids

    def _row_ends(self, context: torch.Tensor) -> RowEnds | None:
        """What ends rows of this batch early; None where nothing does."""
        if len(self._numbers) != len(context) or not any(self.early_ends):
            return None
        rules = [None if number is None else self.early_ends[number] for number in self._numbers]
        begin = context.shape[1] if self.backend == "causal" else None
        return RowEnds(self.tokenizer, rules, begin) if any(rules) else None

    def _end_tokens(self, options: Mapping[str, Any]) -> frozenset[int]:
        """Ids of the tokens at which ``generate`` ends a text."""
        told = options.get("eos_token_id")
        if told is None:
            told = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        listed = told if isinstance(told, (list, tuple)) else [told]
        return frozenset(one for one in listed if isinstance(one, int))

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

    def _share_no_batch(self, arguments: Sequence[tuple[Any, ...]]) -> bool:
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
                    for context, options in arguments
                )
            )
        )


_Made = tuple[Ending, GeneratedTokens | None]


class _NumberedText(str):
    """A context that knows its place among the requests: lm-eval sorts them and keeps no list."""

    __slots__ = ("number",)
    number: int


def _with_number(request: Instance, number: int) -> Instance:
    return replace(request, arguments=(_numbered(request.args[0], number), *request.args[1:]))


def _numbered(text: str, number: int) -> _NumberedText:
    context = _NumberedText(text)
    context.number = number
    return context


def _draws(options: Mapping[str, Any]) -> bool:
    """Whether texts are drawn at random: from generators that a call seeds once."""
    return bool(options.get("do_sample")) or float(options.get("temperature") or 0.0) > 0.0


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
