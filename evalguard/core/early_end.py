"""EarlyEnd: where a text may end before its model ends it, because the question is answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from evalguard.core.scorer import Request
from evalguard.core.settings import Value
from evalguard.errors import EvaluationError

END_AT = "end_at"
"""The generation argument of a request that says it; evalguard's own models know it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlyEnd:
    """What ends a text, whichever comes first.

    Such a text is the beginning of what the model writes otherwise, and nobody can say why that
    would have ended.

    Attributes:
        loop: it repeats itself, as the figure ``loops`` has it.
        other_than: token ids; the first token that is another than these ends it, and is kept.
            None: no token does.
    """

    loop: bool = False
    other_than: tuple[int, ...] | None = None

    @classmethod
    def of(cls, request: Request) -> EarlyEnd | None:
        """What a request for a text says; None where it says nothing.

        Raises:
            EvaluationError: it says something else.
        """
        options = request.arguments[-1] if request.kind == "generate_until" else None
        told = options.get(END_AT) if isinstance(options, Mapping) else None
        return None if told is None else _read(told)

    def is_other(self, made: Sequence[int]) -> bool:
        """Whether the last of the generated tokens is another than was to be there."""
        if self.other_than is None or not made:
            return False
        return tuple(made[-1:]) != self.other_than[len(made) - 1 : len(made)]


def next_look(made: int) -> int:
    """After how many tokens to look for a loop again, after ``made``.

    That reads the whole text: looked at every 16 tokens, and of long texts every eighth of them, it
    is read about nine times in all, and a loop is noticed an eighth late at most.
    """
    return made + max(16, made // 8)


def without_early_end(options: Mapping[str, Value]) -> dict[str, Value]:
    """Generation arguments as lm-eval knows them."""
    return {name: value for name, value in options.items() if name != END_AT}


def _read(told: Value) -> EarlyEnd:
    if isinstance(told, Mapping) and told and told.keys() <= {"loop", "other_than"}:
        loop, ids = told.get("loop", False), told.get("other_than")
        if isinstance(loop, bool) and ids is None:
            return EarlyEnd(loop=loop)
        if isinstance(loop, bool) and isinstance(ids, (list, tuple)):
            numbers = tuple(one for one in ids if isinstance(one, int))
            if len(numbers) == len(ids):
                return EarlyEnd(loop=loop, other_than=numbers)
    raise EvaluationError(
        f"{END_AT} is {told!r}",
        hint=f"{END_AT}: {{loop: true}} or {{other_than: [token ids]}}",
    )
