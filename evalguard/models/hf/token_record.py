"""TokenRecorder: what a model chose at every step of a generation, and how sure it was."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import LogitsProcessor, StoppingCriteria, StoppingCriteriaList
from transformers.generation import GenerationMixin

from evalguard.core.generated_tokens import UNKNOWN_TOKEN, GeneratedTokens

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
        margins, others = self._margins(made, begin)
        return [
            GeneratedTokens(
                ids=own[:length].copy(),
                margins=margins[row, :length].copy(),
                others=others[row, :length].copy(),
            )
            for row, (own, length) in enumerate(zip(made, lengths, strict=True))
        ]

    def _margins(self, made: NDArray[np.int32], begin: int) -> Margins:
        margins = np.full(made.shape, np.nan, np.float32)
        others = np.full(made.shape, UNKNOWN_TOKEN, np.int32)
        rows, width = made.shape
        steps = [at for at in range(width) if len(self._step(begin + at)) == rows]
        if not steps:
            return margins, others
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
        others[:, steps] = np.select(
            [own == first, (own == second) | looked_up], [second, first], UNKNOWN_TOKEN
        )
        return margins, others

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
