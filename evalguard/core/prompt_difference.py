"""How the prompts of two models differ that were to be asked the same, as facts with kinds."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from difflib import SequenceMatcher
from itertools import groupby
from typing import Literal

from evalguard.core.chat import (
    RenderedPrompt,
    Turn,
    begins_a_turn,
    split_begins,
    take_apart,
    without_thinking,
)

# conversation        one side is sent messages, which its server renders by a template of its own
# role_marks          another template's marks, or none on one side
# double_bos          the token that begins a text stands there twice
# missing_bos         one side has none
# other_bos           another token
# generation_prompt   one side does not open the assistant's turn
# thinking            opened, closed (switched off) or not begun
# tools               one side is told no tools
# system_prompt       another one, or one on one side only: some templates add their own
# system_place        the same text, as a turn of its own and inside of the user's
# date                another date in the template
# fewshot_turns       examples as turns of the conversation, and as one text
# turn_ends           one side closes its turns by an end mark, the other does not
# text_before         one side's first question has more before it: a system prompt, say
# cut_left            one side's begins later
# white_space         nothing but white space
# special_as_text     the marks of the template are single tokens on one side and text on the other
# tokens              the same text as other token ids
# text                anything else
PromptDifferenceKind = Literal[
    "conversation",
    "role_marks",
    "double_bos",
    "missing_bos",
    "other_bos",
    "generation_prompt",
    "thinking",
    "tools",
    "system_prompt",
    "system_place",
    "date",
    "fewshot_turns",
    "turn_ends",
    "text_before",
    "cut_left",
    "white_space",
    "special_as_text",
    "tokens",
    "text",
]
PromptSide = Literal["", "base", "candidate"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDifference:
    """One way in which prompts differ.

    Attributes:
        only: the side that has it, where the other has not: the second BOS, a system prompt, the
            template's marks, a generation prompt; the side that is cut. "" where both have one.
        base, candidate: what stands there on each side, shortened; "" for nothing.
        at: characters (of ``cut_left``: how many are missing; of ``text``: from where on) or, of
            token ids, positions; marks of ``special_as_text``.
        documents: how many of those that were looked at differ in this way.
    """

    kind: PromptDifferenceKind
    only: PromptSide = ""
    base: str = ""
    candidate: str = ""
    at: int = 0
    documents: int = 1


def compare_prompts(pairs: Iterable[tuple[str, str]]) -> tuple[PromptDifference, ...]:
    """Say how prompts differ, those ways first in which most documents do.

    Args:
        pairs: of base and candidate, of the same documents; equal ones differ in nothing.
    """
    examples: dict[tuple[PromptDifferenceKind, PromptSide], PromptDifference] = {}
    count: Counter[tuple[PromptDifferenceKind, PromptSide]] = Counter()
    for base, candidate in pairs:
        for difference in _differences(base, candidate):
            key = (difference.kind, difference.only)
            examples.setdefault(key, difference)
            count[key] += 1
    ranked = sorted(examples, key=lambda key: -count[key])
    return tuple(replace(examples[key], documents=count[key]) for key in ranked)


def compare_token_ids(
    text: str, base: Sequence[int], candidate: Sequence[int]
) -> PromptDifference | None:
    """Say how two encodings of one text differ; None where they do not.

    >>> found = compare_token_ids("Hi", [1, 1, 7], [1, 7])
    >>> found.kind, found.only
    ('double_bos', 'base')
    """
    if list(base) == list(candidate):
        return None
    sides: tuple[tuple[PromptSide, Sequence[int], Sequence[int]], ...] = (
        ("base", base, candidate),
        ("candidate", candidate, base),
    )
    for name, longer, shorter in sides:
        if longer and list(longer[1:]) == list(shorter):
            kind: PromptDifferenceKind = "missing_bos"
            if shorter and shorter[0] == longer[0]:
                kind = "double_bos"
            return _of_ids(kind, base, candidate, 0, only=name)
    for name, longer, shorter in sides:
        if shorter and list(longer[len(longer) - len(shorter) :]) == list(shorter):
            missing = len(longer) - len(shorter)
            cut_side: PromptSide = "candidate" if name == "base" else "base"
            return _of_ids("cut_left", base, candidate, missing, only=cut_side)
    for name, split, whole in sides:
        marks = _split_marks(text, split, whole)
        if marks:
            return _of_ids("special_as_text", base, candidate, marks, only=name)
    return _of_ids("tokens", base, candidate, _first_other(base, candidate))


_SHOWN = 48  # characters of an excerpt, and of those before what differs
_BEFORE = 16
_SHOWN_IDS = 8
_MOST_COMPARED = 4096
_MARK = re.compile(r"<[|｜][^|｜<>\n]{1,40}[|｜]>|</?[a-z_]{1,20}>|\[/?[A-Z_]{2,20}\]")
_MONTHS = (
    r"(?:Jan(?:uary)?|Feb(?:ruary)?|Mar(?:ch)?|Apr(?:il)?|May|June?|July?|Aug(?:ust)?|"
    r"Sep(?:t(?:ember)?)?|Oct(?:ober)?|Nov(?:ember)?|Dec(?:ember)?)"
)
_DATE = re.compile(
    rf"\b(?:\d{{1,2}} {_MONTHS} \d{{4}}|{_MONTHS} \d{{1,2}}, \d{{4}}|\d{{4}}-\d\d-\d\d)\b"
)
_TOOLS = re.compile(
    r"<tools>|\[AVAILABLE_TOOLS\]|^#\s+Tools\b|<\|tools?\|>|\"type\":\s*\"function\"|"
    r"^namespace\s+functions\b",
    re.MULTILINE,
)


def _of_ids(
    kind: PromptDifferenceKind,
    base: Sequence[int],
    candidate: Sequence[int],
    at: int,
    *,
    only: PromptSide = "",
) -> PromptDifference:
    start = at if kind == "tokens" else 0
    shown = (_ids_text(of[start:]) for of in (base, candidate))
    return PromptDifference(kind=kind, only=only, base=next(shown), candidate=next(shown), at=at)


def _ids_text(ids: Sequence[int]) -> str:
    return " ".join(map(str, ids[:_SHOWN_IDS])) + (" ..." if len(ids) > _SHOWN_IDS else "")


def _split_marks(text: str, split: Sequence[int], whole: Sequence[int]) -> int:
    """How many ids of ``whole`` are several of ``split``; 0 unless marks explain all of them."""
    if len(split) > _MOST_COMPARED:  # aligning them takes time of the square
        return 0
    steps = SequenceMatcher(None, whole, split, autojunk=False).get_opcodes()
    changed = [step for step in steps if step[0] != "equal"]
    marks = len(_MARK.findall(text))
    # A mark is three tokens at least; text beside it may be merged with them.
    grown = [s for s in changed if s[2] - s[1] <= 2 and s[4] - s[3] >= s[2] - s[1] + 2]
    return len(changed) if changed and grown == changed and len(changed) <= marks else 0


def _differences(base: str, candidate: str) -> Iterator[PromptDifference]:
    if base == candidate:
        return
    ours, theirs = take_apart(base), take_apart(candidate)
    cut = _cut_left(base, candidate)
    if cut is not None:
        yield from (*_in_begins(ours.begins, theirs.begins), cut)
        return
    differences = [*_around_the_words(ours, theirs), *_in_system_prompts(ours, theirs)]
    differences += _in_questions(
        ours, theirs, {difference.kind for difference in differences}, (base, candidate)
    )
    yield from differences
    if differences and not _differ_in_space(
        ours, theirs, {difference.kind for difference in differences}
    ):
        return
    only_space = bool(differences) or _words(base) == _words(candidate)
    yield _first_difference(base, candidate, "white_space" if only_space else "text")


def _cut_left(base: str, candidate: str) -> PromptDifference | None:
    """Whether one side begins later, and not where a turn does."""
    bare = [split_begins(prompt)[1] for prompt in (base, candidate)]
    sides: tuple[tuple[PromptSide, str, str], ...] = (
        ("base", bare[0], bare[1]),
        ("candidate", bare[1], bare[0]),
    )
    for side, own, whole in sides:
        missing = len(whole) - len(own)
        if missing > 0 and own and whole.endswith(own) and not begins_a_turn(own):
            return replace(_of("cut_left", bare[0], bare[1]), only=side, at=missing)
    return None


def _around_the_words(
    base: RenderedPrompt, candidate: RenderedPrompt
) -> Iterator[PromptDifference]:
    """What the template puts around the conversation."""
    if base.is_conversation != candidate.is_conversation:
        yield PromptDifference(
            kind="conversation", only="base" if base.is_conversation else "candidate"
        )
    else:
        if base.marks != candidate.marks:
            yield _of("role_marks", base.marks, candidate.marks)
        yield from _in_begins(base.begins, candidate.begins)
        one_opens = base.marks and candidate.marks and bool(base.opened) != bool(candidate.opened)
        if one_opens or (base.marks == candidate.marks and _opening(base) != _opening(candidate)):
            yield _of("generation_prompt", base.opened, candidate.opened)
        if base.thinking != candidate.thinking:
            yield PromptDifference(
                kind="thinking", base=base.thinking, candidate=candidate.thinking
            )
        if base.marks == candidate.marks:
            yield from _in_turn_ends(base.turns, candidate.turns)
    tools = [_tools_of(of) for of in (base, candidate)]
    if bool(tools[0]) != bool(tools[1]):
        yield _of("tools", *tools)
    dates = [_DATE.findall("\n".join(turn.text for turn in of.turns)) for of in (base, candidate)]
    if len(dates[0]) == len(dates[1]) and dates[0] != dates[1]:
        our_date, their_date = next((a, b) for a, b in zip(*dates, strict=True) if a != b)
        yield PromptDifference(kind="date", base=our_date, candidate=their_date)


def _opening(prompt: RenderedPrompt) -> str:
    return _words(without_thinking(prompt.opened))


def _in_begins(base: Sequence[str], candidate: Sequence[str]) -> Iterator[PromptDifference]:
    shown = ("".join(base), "".join(candidate))
    repeated = [
        max((len([*of]) for _, of in groupby(tokens)), default=0) for tokens in (base, candidate)
    ]
    if max(repeated) > 1 and repeated[0] != repeated[1]:
        only: PromptSide = "base" if repeated[0] > repeated[1] else "candidate"
        yield replace(_of("double_bos", *shown), only=only)
    if bool(base) != bool(candidate):
        yield _of("missing_bos", *shown)
    elif set(base) != set(candidate):
        yield _of("other_bos", *shown)


def _in_turn_ends(base: Sequence[Turn], candidate: Sequence[Turn]) -> Iterator[PromptDifference]:
    """Whether one side closes turns of a role that the other side has, and never closes."""
    closed, had = (
        [{turn.role for turn in of if turn.closed or not ends} for of in (base, candidate)]
        for ends in (True, False)
    )
    lacks = (bool(closed[0] & had[1] - closed[1]), bool(closed[1] & had[0] - closed[0]))
    if lacks[0] != lacks[1]:
        yield PromptDifference(kind="turn_ends", only="base" if lacks[0] else "candidate")


def _tools_of(prompt: RenderedPrompt) -> str:
    """What a prompt tells of tools, from there on; "" where it tells of none."""
    for turn in prompt.turns:
        match = _TOOLS.search(turn.text)
        if turn.role == "tools" or match is not None:
            return turn.text[0 if match is None else match.start() :]
    return ""


def _in_system_prompts(
    base: RenderedPrompt, candidate: RenderedPrompt
) -> Iterator[PromptDifference]:
    ours, theirs = _system_of(base), _system_of(candidate)
    if _squeezed(ours) == _squeezed(theirs):
        return
    if _is_inside(ours, candidate) or _is_inside(theirs, base):
        yield _of("system_place", ours, theirs)
    elif all(of.turns and of.turns[0].role for of in (base, candidate)):
        # Of a prompt without marks it is unknown where a system prompt would end.
        yield _of("system_prompt", ours, theirs)


def _system_of(prompt: RenderedPrompt) -> str:
    """The system prompt up to the tools, with every date as the same one."""
    texts = []
    for turn in prompt.turns:
        if turn.role == "system":
            tools = _TOOLS.search(turn.text)
            texts.append(turn.text[: None if tools is None else tools.start()])
    return _DATE.sub("<date>", "\n".join(texts)).strip()


def _is_inside(system: str, other: RenderedPrompt) -> bool:
    """Whether the other side has a system prompt in its first question instead."""
    first = next((turn.text for turn in other.turns if turn.role == "user"), "")
    return bool(system) and not _system_of(other) and _words(first).startswith(_words(system))


def _in_questions(
    base: RenderedPrompt,
    candidate: RenderedPrompt,
    kinds: set[PromptDifferenceKind],
    prompts: tuple[str, str],
) -> Iterator[PromptDifference]:
    """What differs in the turns of user and assistant."""
    turns = [_questions(of) for of in (base, candidate)]
    words = ["".join(of) for of in turns]
    if "system_prompt" not in kinds:
        pairs = zip((base, candidate), words, strict=True)
        words = [_words(_system_of(of)) + asked for of, asked in pairs]
    if words[0] == words[1]:
        if len(turns[0]) != len(turns[1]) and min(map(len, turns)) == 1:
            yield PromptDifference(
                kind="fewshot_turns",
                only="base" if len(turns[0]) > len(turns[1]) else "candidate",
                at=max(map(len, turns)),
            )
        return
    sides: tuple[tuple[PromptSide, int, int], ...] = (("base", 0, 1), ("candidate", 1, 0))
    for side, own, against in sides:
        if words[own].endswith(words[against]):
            if "tools" not in kinds:
                firsts = map(_first_question, (base, candidate))
                yield replace(_of("text_before", *firsts), only=side)
            return
    yield _first_difference(*prompts, "text")


def _questions(prompt: RenderedPrompt) -> list[str]:
    """Words of the turns but for system prompt and tools, and of what the template fills in."""
    questions = [
        _words(without_thinking(_DATE.sub("<date>", turn.text)))
        for turn in prompt.turns
        if turn.role not in ("system", "tools")
    ]
    return [words for words in questions if words]


def _first_question(prompt: RenderedPrompt) -> str:
    return next((turn.text for turn in prompt.turns if turn.role not in ("system", "tools")), "")


def _differ_in_space(
    base: RenderedPrompt, candidate: RenderedPrompt, kinds: set[PromptDifferenceKind]
) -> bool:
    """Whether texts have other white space, where nothing that is known brings it along."""
    if kinds - {"double_bos", "missing_bos", "other_bos", "thinking", "date"}:
        return False
    shown = [
        [_DATE.sub("", without_thinking(text)) for text in (*(t.text for t in of.turns), of.opened)]
        for of in (base, candidate)
    ]
    return shown[0] != shown[1] and [*map(_words, shown[0])] == [*map(_words, shown[1])]


def _of(kind: PromptDifferenceKind, base: str, candidate: str) -> PromptDifference:
    only: PromptSide = "" if base and candidate else "base" if base else "candidate"
    return PromptDifference(kind=kind, only=only, base=_shown(base), candidate=_shown(candidate))


def _first_difference(base: str, candidate: str, kind: PromptDifferenceKind) -> PromptDifference:
    """Where two texts first differ, with what stands around it."""
    at = _first_other(base, candidate)
    start = max(0, at - _BEFORE)
    shown = (_quoted(of[start : start + _SHOWN], start, len(of)) for of in (base, candidate))
    return PromptDifference(kind=kind, base=next(shown), candidate=next(shown), at=at)


def _first_other(base: Sequence[object], candidate: Sequence[object]) -> int:
    pairs = enumerate(zip(base, candidate, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(base), len(candidate)))


def _quoted(part: str, start: int, length: int) -> str:
    """An excerpt in which white space can be seen, with dots where it is cut."""
    shown = json.dumps(part, ensure_ascii=False)[1:-1]
    return f"{'...' if start else ''}{shown}{'...' if start + len(part) < length else ''}"


def _shown(text: str) -> str:
    return _quoted(text[:_SHOWN], 0, len(text))


def _squeezed(text: str) -> str:
    return " ".join(text.split())


def _words(text: str) -> str:
    """A text without white space: templates trim and join in their own ways."""
    return "".join(text.split())
