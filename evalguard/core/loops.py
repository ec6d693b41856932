"""Loops: whether a generated text repeats itself until its end, by a definition in characters.

**Definition.** A run of period p is the longest end of the text in which every character is the one
p places before it. Its length is L, its number of repeats L / p. A text loops where such a run is
too long to be meant, for the smallest p of which that is true:

| the text | a period says something | it does not |
|---|---|---|
| was cut at the token limit | 3 repeats, L >= 80 | 3 repeats, L >= 120 |
| cut, and half of it is the run | 3 repeats, L >= 40 | 3 repeats, L >= 40 |
| ended by itself, or nobody says | 4 repeats, L >= 200 | 4 repeats, L >= 300 |

A period says something if it has three letters or more and, where all are ASCII, a character
between words. Rules of dashes, borders of tables, zeros, base64, DNA and white space do not: they
repeat honestly, but not for long.

Why so:

- The end of the text decides. A model in a loop seldom leaves it, so a cut text ends within one;
  honest repeats (lists, rules, refrains, arrays of zeros) are followed by something. A repeat in
  the middle that the text escapes from is none.
- Characters, not tokens: they are known of every model, and two models' tokens differ. A text
  that shows nothing (special tokens, white space) is judged by its tokens where they are known.
- A loop that ends by itself may close what it was in: a bracket, a quote, a full stop. They are
  left out where the run before them is twice as long as asked for and half of the text.
- Of a cut text, loops that count ("Step 12: wait. Step 13: wait."): with each number taken for one
  character, at least 8 repeats of 12 letters or more, each number a step further than in the repeat
  before, or the same. A table's numbers go no such way; songs that count down end by themselves.
- Of a cut text, loops that vary: its last 400 characters or more hold nothing new. Of every 20
  characters in a row 90% stand in the text four times or more. Copying a paragraph once is none.
- Not found: a loop that puts new words into one frame.

Others stop at an exact repeat of tokens whatever it says: vLLM's ``RepetitionDetectionParams``
(N-gram sizes and a count, given by the user), llama.cpp pull request 26039 (16 to 1,024 tokens, 4
times); a rule of dashes or a table of zeros is one, too. Whisper takes gzip's ratio, which honest
lists and code have as well, and which does not say where a loop begins; rep-n (Welleck et al. 2020)
is a share of repeated n-grams anywhere in the text.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from evalguard.core.scorer import Ending, Request
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
        end_at = options.get(END_AT) if isinstance(options, Mapping) else None
        return None if end_at is None else _read(end_at)

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
            numbers = tuple(number for number in ids if isinstance(number, int))
            if len(numbers) == len(ids):
                return EarlyEnd(loop=loop, other_than=numbers)
    raise EvaluationError(
        f"{END_AT} is {told!r}",
        hint=f"{END_AT}: {{loop: true}} or {{other_than: [token ids]}}",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Asked:
    """Repeats, and length of a run whose period says something, and of one that says nothing."""

    repeats: int
    meaningful: int
    empty: int


_SURE = _Asked(repeats=3, meaningful=80, empty=120)
_LIKELY = _Asked(repeats=4, meaningful=200, empty=300)
_HALF_OF_TEXT = 40
_DOMINANT = 60
_DOMINANT_REPEATS = 6
_COUNTED_REPEATS, _COUNTED_LETTERS = 8, 12
_STRETCH, _TIMES, _NOTHING_NEW, _KNOWN = 20, 4, 400, 0.9
_CHARACTERS_OF_TOKEN = 4
_CLOSERS = "\"'`)]}>.!?,;:*_|。”」 \t\r\n"
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loop:
    """Where a text begins to repeat itself.

    Attributes:
        start: of the first repeat, in characters from 0.
        period: length of one repeat, in characters; of a loop that counts, of the last one; 0 of
            one that varies.
        repeats: how many there are, the last one in part; of one that varies, at least.
        kind: "counts": each repeat has its own numbers; "varies": nothing new is said.
    """

    start: int
    period: int
    repeats: float
    kind: Literal["exact", "counts", "varies"] = "exact"


def find_loop(text: str, ended: Ending = "") -> Loop | None:
    """Return the loop that a text ends in; None where it ends in none.

    Linear in the text's length. Of a text that is still being written, ``ended`` is "": it may go
    on to something else, so that more is asked for; whatever loops so, loops as a cut text too.

    Args:
        ended: "length": it was cut at the token limit.
    """
    text = text.rstrip("\ufffd")  # half a character, where tokens are bytes
    if ended == "length":
        half = max(_HALF_OF_TEXT, (len(text) + 1) // 2)
        shorter = _Asked(
            repeats=_SURE.repeats,
            meaningful=min(_SURE.meaningful, half),
            empty=min(_SURE.empty, half),
        )
        return _shortest(text, shorter) or _counting(text) or _varying(text)
    loop = _shortest(text, _LIKELY)
    closed = text.rstrip(_CLOSERS)
    if loop is not None or len(closed) == len(text):
        return loop
    twice = _Asked(repeats=_LIKELY.repeats, meaningful=2 * _LIKELY.meaningful, empty=len(text) + 1)
    loop = _shortest(closed, twice)
    return loop if loop is not None and 2 * loop.start <= len(text) else None


def find_dominant_loop(text: str, ended: Ending = "") -> Loop | None:
    """Return the loop that a text ends in, or that is half of it; for what many texts share.

    One short text that repeats itself six times may be meant, so that ``find_loop`` asks for more;
    of a good part of all texts it is not. Nobody has to know of these whether a limit cut them.
    """
    loop = find_loop(text, ended)
    if loop is not None or ended == "length":
        return loop
    half = max(_DOMINANT, (len(text) + 1) // 2)
    closed = text.rstrip(_CLOSERS)
    asked = _Asked(repeats=_DOMINANT_REPEATS, meaningful=half, empty=half)
    loop = _shortest(text, asked) or _shortest(closed, asked) or _counting(closed)
    return loop if loop is not None and 2 * loop.start <= len(text) else None


def find_token_loop(ids: Sequence[int], ended: Ending = "") -> Loop | None:
    """Return the loop that tokens end in, which show as nothing; None where they end in none.

    The one that ended the text is left out where it is another. Places are in tokens.
    """
    text = "".join(map(chr, ids if ended == "length" else ids[:-1]))
    asked = _SURE if ended == "length" else _LIKELY
    length = asked.empty // _CHARACTERS_OF_TOKEN
    return _shortest(text, _Asked(repeats=asked.repeats, meaningful=length, empty=length))


def _shortest(text: str, asked: _Asked) -> Loop | None:
    """The run of the smallest period that is as long as asked for."""
    n = len(text)
    least = min(asked.meaningful, asked.empty)
    # Of a run all but its first repeat stands in it once more; of most texts' ends that is not so.
    again = least * (asked.repeats - 1) // asked.repeats
    if n < least or text.find(text[n - again :], 0, n - 1) < 0:
        return None
    period = _Period()
    for matching, character in zip(_matches(text[::-1]), reversed(text), strict=False):
        period.add(character)
        run = period.length + matching
        if asked.repeats * period.length > n:
            break
        if run < max(least, asked.repeats * period.length):
            continue
        if run >= (asked.meaningful if period.says_something else asked.empty):
            return Loop(start=n - run, period=period.length, repeats=run / period.length)
    return None


@dataclass(slots=True)
class _Period:
    """What the last characters of a text are, counted one by one."""

    length: int = 0
    letters: int = 0
    between: bool = False

    def add(self, character: str) -> None:
        self.length += 1
        self.letters += character.isalpha()
        self.between = self.between or not (character.isalnum() and character.isascii())

    @property
    def says_something(self) -> bool:
        return self.letters >= 3 and self.between


def _matches(text: str) -> list[int]:
    """For each shift from 1 how many characters of the shifted text are as those of its beginning.

    The Z function (Gusfield 1997, section 1.4), in linear time.
    """
    n = len(text)
    matching = [0] * n
    left = right = 0
    for shift in range(1, n):
        same = min(right - shift, matching[shift - left]) if shift < right else 0
        while shift + same < n and text[same] == text[shift + same]:
            same += 1
        matching[shift] = same
        if shift + same > right:
            left, right = shift, shift + same
    return matching[1:]


def _counting(text: str) -> Loop | None:
    """A loop of which each repeat has its own number."""
    numbers = list(_DIGITS.finditer(text))
    if len(numbers) < _COUNTED_REPEATS:
        return None
    folded = _DIGITS.sub("0", text)
    least = _SURE.meaningful
    loop = _shortest(folded, _Asked(repeats=_COUNTED_REPEATS, meaningful=least, empty=least))
    if loop is None:
        return None
    period = folded[-loop.period :]
    slots = period.count("0")
    if not slots or sum(map(str.isalpha, period)) < _COUNTED_LETTERS:
        return None
    # The last number may be cut; numbers of whole repeats only.
    whole = int(loop.repeats) * slots
    values = [_value(match[0]) for match in numbers[:-1][-whole:]]
    for slot in range(slots):
        own = values[slot::slots]
        steps = {later - earlier for earlier, later in pairwise(own)}
        if len(steps) > 1:
            return None
    last = numbers[-1 - slots].start() if len(numbers) > slots else 0
    start = _unfolded(text, loop.start)
    return Loop(start=start, period=numbers[-1].start() - last, repeats=loop.repeats, kind="counts")


def _value(digits: str) -> int:
    """A number; of one with more digits than any counter, its last ones."""
    return int(digits[-18:])


def _unfolded(text: str, place: int) -> int:
    """Where a place of the folded text is in the text itself."""
    shorter = 0
    for number in _DIGITS.finditer(text):
        if number.start() - shorter >= place:
            break
        shorter += len(number[0]) - 1
    return place + shorter


def _varying(text: str) -> Loop | None:
    """A loop without a period: the end of the text holds nothing new."""
    stretches = len(text) - _STRETCH + 1
    if len(text) < _NOTHING_NEW:
        return None
    times = Counter(text[i : i + _STRETCH] for i in range(stretches))
    start, new = None, 0
    for index in range(stretches - 1, -1, -1):
        new += times[text[index : index + _STRETCH]] < _TIMES
        length = stretches - index
        if new > (1.0 - _KNOWN) * max(length, _NOTHING_NEW):
            break
        if length + _STRETCH - 1 >= _NOTHING_NEW:
            start = index
    return None if start is None else Loop(start=start, period=0, repeats=_TIMES, kind="varies")
