"""Generation by a Hugging Face model, made independent of what shares a batch."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lm_eval.models.utils import Collator, has_bos_prefix
from lm_eval.models.utils_hf import stop_sequences_criteria
from numpy.typing import NDArray
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerationMixin

from evalguard.core.loops import EarlyEnd, find_loop, next_look
from evalguard.core.scorer import Ending, PaddingEffect
from evalguard.core.shown_tokens import UNKNOWN_TOKEN, GeneratedTokens
from evalguard.errors import EvaluationError
from evalguard.models.generated_texts import GeneratedText
from evalguard.models.hf.encoded_once import EncodingCacheHFLM
from evalguard.models.hf.longrope import longrope_switch_length
from evalguard.models.hf.padding import measure_padding
from evalguard.models.scored_tokens import TOKENS_OF_A_PART, generated_length, refuse_without_room

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

_NO_TOKEN = -1


class RowEnds(StoppingCriteria):  # type: ignore[misc]
    """Ends rows of a batch early, and knows where.

    Args:
        rules: of each row; None: it ends as the model ends it.
        begin: tokens before the generated ones; None: all but the one that comes first.
    """

    def __init__(self, tokenizer: Any, rules: Sequence[EarlyEnd | None], begin: int | None) -> None:
        self._tokenizer = tokenizer
        self._begin = begin
        self._looking = [row for row, rule in enumerate(rules) if rule is not None and rule.loop]
        self._look_at = next_look(0)
        self._loops: dict[int, int] = {}  # generated tokens of the rows that loop
        self._expected = [
            None if rule is None or rule.other_than is None else list(rule.other_than)
            for rule in rules
        ]
        self._wanted: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, _scores: Any, **_: Any) -> torch.Tensor:
        """Which rows are over, shape (rows,)."""
        if self._begin is None:
            self._begin = input_ids.shape[1] - 1
        done = self._others(input_ids).any(1)
        if self._looking and input_ids.shape[1] - self._begin >= self._look_at:
            self._look_for_loops(input_ids[:, self._begin :], done.tolist())
        if self._loops:
            done[[*self._loops]] = True
        return done

    def _look_for_loops(self, made: torch.Tensor, done: Sequence[bool]) -> None:
        length = made.shape[1]
        self._look_at = next_look(length)
        for row in [row for row in self._looking if not done[row] and row not in self._loops]:
            text = self._tokenizer.decode(made[row].tolist(), skip_special_tokens=True)
            if find_loop(text) is not None:
                self._loops[row] = length

    def lengths(self, ids: torch.Tensor, begin: int) -> dict[int, int]:
        """Generated tokens of the rows that ended early, from what ``generate`` returned."""
        if self._begin is None:
            self._begin = begin
        differing = self._others(ids)
        ended_at = {
            row: int(differing[row].int().argmax()) + 1
            for row in torch.nonzero(differing.any(1)).flatten().tolist()
        }
        # Of both rules the one that was met first.
        return {**self._loops, **ended_at} | {
            row: min(length, ended_at[row])
            for row, length in self._loops.items()
            if row in ended_at
        }

    def _others(self, ids: torch.Tensor) -> torch.Tensor:
        """Whether a generated token is another than is wanted there, shape (rows, tokens)."""
        assert self._begin is not None
        made = ids[:, self._begin :]
        if self._wanted is None or self._wanted.shape[1] < made.shape[1]:
            width = max(2 * made.shape[1], 64)
            rows = [(of or [])[:width] for of in self._expected]
            self._wanted = torch.tensor(
                [[*of, *[_NO_TOKEN] * (width - len(of))] for of in rows], device=made.device
            )
            self._ruled = torch.tensor(
                [[of is not None] for of in self._expected], device=made.device
            )
        return (made != self._wanted[:, : made.shape[1]]) & self._ruled


@dataclass(frozen=True, slots=True, kw_only=True)
class TextEnds:
    """What ends the texts of a batch.

    Attributes:
        begin: length of the contexts, padded.
        stops: strings that end a text; ``tokens``: ids of tokens that do.
    """

    tokenizer: Any
    begin: int
    stops: Sequence[str]
    tokens: Collection[int] = ()

    def stops_in(self, made: Sequence[int]) -> list[str]:
        """The strings that stand in what was generated."""
        text = self.tokenizer.decode(made)
        return [stop for stop in self.stops if stop and stop in text]


def count_generated(ids: torch.Tensor, ends: TextEnds) -> list[int]:
    """Number of tokens that each text of a batch would have alone, the one that ended it included.

    Args:
        ids: contexts and what was generated, shape (texts, tokens).
    """
    lengths = []
    for row, made in enumerate(ids[:, ends.begin :].tolist()):
        length = next((n for n, token in enumerate(made, start=1) if token in ends.tokens), None)
        if own := ends.stops_in(made):
            stopped = _length_until_stop(ends.tokenizer, ids[row : row + 1], ends.begin, own)
            length = min(stopped - ends.begin, length or len(made))
        lengths.append(length or len(made))
    return lengths


def pad_after(ids: torch.Tensor, begin: int, lengths: Sequence[int], padding: int) -> torch.Tensor:
    """Replace by padding what texts of a batch went on with after their ends.

    lm-eval ends a batch when all its texts have met a stop string, and cuts the texts where they
    hold it. A string that is a special token, such as ``<|im_end|>``, is not in the text any more
    then, and what was generated for the others' sake stays.
    """
    if all(begin + length >= ids.shape[1] for length in lengths):
        return ids
    ended = ids.clone()
    for row, length in enumerate(lengths):
        ended[row, begin + length :] = padding
    return ended


def find_endings(
    ids: torch.Tensor,
    ends: TextEnds,
    *,
    lengths: Sequence[int],
    most: int,
    early: Collection[int] = (),
) -> list[Ending]:
    """Say which texts of a batch ended at the token limit: as many tokens, and no end among them.

    Args:
        ids, lengths: as of ``count_generated``.
        most: tokens that were allowed.
        early: rows that were ended before; of these it is not known how they would have.
    """
    endings: list[Ending] = []
    for row, length in enumerate(lengths):
        made = ids[row, ends.begin : ends.begin + length].tolist()
        if made and (made[-1] in ends.tokens or ends.stops_in(made)):
            endings.append("stop")
        elif row in early:
            endings.append("")
        else:
            endings.append("stop" if length < most else "length")
    return endings


def _length_until_stop(tokenizer: Any, ids: torch.Tensor, begin: int, stops: Sequence[str]) -> int:
    """Number of tokens after which lm-eval would have stopped this text alone."""
    met = stop_sequences_criteria(tokenizer, list(stops), begin, 1)
    total = ids.shape[1]
    return next((end for end in range(begin + 1, total) if met(ids[:, :end], None).any()), total)


Margins = tuple[NDArray[np.float32], NDArray[np.int32]]


class TokenRecorder(LogitsProcessor):  # type: ignore[misc]
    """Reads the scores that ``generate`` chooses tokens from, and leaves them as they are.

    It stands behind the processors of scores (repetition penalties, forbidden tokens) and before
    what only sampling does (temperature, top-k): ``generate`` puts those of its caller there. Of a
    step it keeps the two most probable tokens, and from the next step on the score of the one that
    was chosen, all on the model's device; nothing waits for a GPU before the text is there.

    Steps are told apart by the tokens before them: decoding that proposes several tokens and takes
    some back (assisted generation) asks for a step again, and the last time counts.

    Attributes:
        begin: tokens before the first step; None: there was no step.
    """

    def __init__(self) -> None:
        self.begin: int | None = None
        self._steps: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._chosen: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._last: tuple[int, torch.Tensor] | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Take note of a step: scores of all tokens, shape (rows, vocabulary)."""
        before = input_ids.shape[1]
        self._look_up_chosen(input_ids)
        if self.begin is None:
            self.begin = before
        self._steps[before] = _two_largest(scores)
        self._last = (before, scores)
        return scores

    def _look_up_chosen(self, ids: torch.Tensor) -> None:
        """Keep the score of the token that was chosen at the last step."""
        if self._last is None:
            return
        (at, scores), self._last = self._last, None
        if ids.shape[1] <= at or len(ids) != len(scores):
            return
        chosen = ids[:, at : at + 1].to(scores.device)
        # Padding of a text that has ended may be beyond the vocabulary.
        value = scores.gather(1, chosen.clamp(0, scores.shape[1] - 1))
        self._chosen[at] = chosen, value

    def tokens(
        self, ids: torch.Tensor, begin: int, lengths: Sequence[int]
    ) -> list[GeneratedTokens]:
        """What was generated in each row.

        Args:
            ids: what ``generate`` returned, shape (rows, tokens).
            begin: tokens before the generated ones; ``lengths``: generated tokens of each row.
        """
        self._look_up_chosen(ids)
        made = ids[:, begin:].cpu().numpy().astype(np.int32)
        margins, runners_up = self._margins(made, begin)
        return [
            GeneratedTokens(
                ids=own[:length].copy(),
                margins=margins[row, :length].copy(),
                others=runners_up[row, :length].copy(),
            )
            for row, (own, length) in enumerate(zip(made, lengths, strict=True))
        ]

    def _margins(self, made: NDArray[np.int32], begin: int) -> Margins:
        margins = np.full(made.shape, np.nan, np.float32)
        runners_up = np.full(made.shape, UNKNOWN_TOKEN, np.int32)
        rows, width = made.shape
        steps = [at for at in range(width) if len(self._step(begin + at)) == rows]
        if not steps:
            return margins, runners_up
        values, tops = (
            torch.stack([self._steps[begin + at][part] for at in steps], 1).cpu().numpy()
            for part in (0, 1)
        )
        first, second = tops[..., 0], tops[..., 1]
        own = made[:, steps]
        gap = values[..., 0] - values[..., 1]
        looked_up, scores = self._looked_up(own, begin, steps)
        with np.errstate(invalid="ignore"):
            below = scores - values[..., 0]
        margins[:, steps] = np.select(
            [own == first, own == second, looked_up], [gap, -gap, below], np.nan
        )
        runners_up[:, steps] = np.select(
            [own == first, (own == second) | looked_up], [second, first], UNKNOWN_TOKEN
        )
        return margins, runners_up

    def _step(self, at: int) -> Sequence[Any] | torch.Tensor:
        return self._steps[at][0] if at in self._steps else ()

    def _looked_up(
        self, own: NDArray[np.int32], begin: int, steps: Sequence[int]
    ) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Whether the score of a token was looked up, and the score."""
        known = np.zeros(own.shape, np.bool_)
        scores = np.full(own.shape, np.nan, np.float32)
        there = [(n, begin + at) for n, at in enumerate(steps) if begin + at in self._chosen]
        if there:
            columns = [n for n, _ in there]
            ids, values = (
                torch.cat([self._chosen[at][part] for _, at in there], 1).cpu().numpy()
                for part in (0, 1)
            )
            known[:, columns] = own[:, columns] == ids
            scores[:, columns] = values
        return known, scores


def _two_largest(scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The two largest scores of each row and their tokens, shape (rows, 2)."""
    values, ids = scores.topk(2, dim=1)
    return values, ids


def follows_processors(model: Any) -> bool:
    """Whether ``generate`` is transformers' own, which asks every processor at every step."""
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model  # of an adapter
    replaced = "generate" in vars(model) or "generate" in vars(inner)
    return not replaced and getattr(type(inner), "generate", None) is GenerationMixin.generate


@contextmanager
def watch_generation(
    model: Any, recorder: TokenRecorder, ends: Sequence[StoppingCriteria] = ()
) -> Iterator[None]:
    """Let ``model.generate`` show its scores to ``recorder``, and end rows by ``ends`` too.

    A model with a ``generate`` of its own is left alone: what that does is not known.
    """
    if not follows_processors(model):
        yield
        return
    generate = model.generate

    def generate_watched(*arguments: Any, **options: Any) -> Any:
        options["logits_processor"] = [*(options.get("logits_processor") or []), recorder]
        if ends:
            own = options.get("stopping_criteria") or []
            options["stopping_criteria"] = StoppingCriteriaList([*own, *ends])
        return generate(*arguments, **options)

    model.generate = generate_watched
    try:
        yield
    finally:
        del model.generate


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
        requests = [_with_number(request, at) for at, request in enumerate(requests)]
        made = self._made = {}
        together = self.batch_size_per_gpu
        if together != 1 and self._share_no_batch([request.args for request in requests]):
            self.batch_size_per_gpu = 1
        try:
            texts = super().generate_until(requests, disable_tqdm)
        finally:
            self.batch_size_per_gpu, self.early_ends = together, ()
        nothing: _Made = ("", None)
        outcomes = (made.get(at, nothing) for at in range(len(texts)))
        return [
            GeneratedText(text, ended, tokens=tokens, message=self._thought(tokens))
            for text, (ended, tokens) in zip(texts, outcomes, strict=True)
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
            places = [at for at, token_id in enumerate(ids) if token_id == end]
            thought, closed = self.tok_decode(ids[: places[-1]] if places else []), bool(places)
        else:
            thought, mark, _ = str(self.tok_decode(ids)).rpartition(end)
            closed = bool(mark)
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
        longest = max((generated_length(given, self.max_gen_toks) for given in options), default=1)
        at_once = max(1, TOKENS_OF_A_PART // max(longest, 1))
        if len(arguments) <= at_once:
            return whole
        if size != 1 and self._share_no_batch(arguments):
            size = 1
        if len(arguments) <= at_once * size:
            return whole
        ordered = Collator(
            [(_numbered(context, at), given) for at, (context, given) in enumerate(arguments)],
            sort_fn=lambda entry: (-len(self.tok_encode(str(entry[0]))), str(entry[0])),
            group_by="gen_kwargs",
            group_fn=lambda entry: entry[1],
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
        end_ids = options.get("eos_token_id")
        if end_ids is None:
            end_ids = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        listed = end_ids if isinstance(end_ids, (list, tuple)) else [end_ids]
        return frozenset(token_id for token_id in listed if isinstance(token_id, int))

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
        padding = self.padding
        if self.sequences is not None and not (padding is not None and padding.keeps_state):
            return False
        return padding is None or padding.before_matters

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
