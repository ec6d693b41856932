"""Checks two loaded models: can they be compared at all, and were they scored alike?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice

import numpy as np

from evalguard.core.document_columns import Rows, column_of, pair_columns
from evalguard.core.findings import Finding, Quote, QuotedSide, quote_ids
from evalguard.core.prompt_difference import PromptDifference, compare_prompts, compare_token_ids
from evalguard.core.redaction import redacted_text
from evalguard.core.repeat_command import as_tokenizer_search
from evalguard.core.scorer import ModelDescription, Request
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError
from evalguard.harness.score_tables import TaskScores

_MOST = 3  # kinds that one sentence says
_OTHER = {"base": "candidate", "candidate": "base"}
_THINKING = {
    "": "not begun",
    "open": "begun by the prompt",
    "closed": "switched off (an empty thinking part)",
    "asked off": "asked off (/no_think)",
}
_TEMPLATE = "give both one chat template (model_args: tokenizer)"
_THINKING_HINT = "give both the same model_args: enable_thinking"
_HINTS = {
    "conversation": "ask both the same way: by a chat endpoint, or with the template here",
    "thinking": _THINKING_HINT,
    "system_prompt": "--system_instruction TEXT gives both one system prompt",
    "text_before": "--system_instruction TEXT gives both one system prompt",
    "date": 'model_args: chat_template_args: {"date_string": "26 Jul 2024"} on both, where the '
    "template takes one",
    "fewshot_turns": "give both the same run: fewshot_as_multiturn",
    "cut_left": "fewer --num_fewshot, or a context length that holds the prompts",
    "double_bos": "leave BOS to the template or to the tokenizer (model_args: add_bos_token)",
    "missing_bos": "leave BOS to the template or to the tokenizer (model_args: add_bos_token)",
    "special_as_text": "the tokenizer has to know the template's marks as special tokens",
}


def prompt_differences_text(found: Sequence[PromptDifference], looked: int) -> str:
    """Say how prompts differ, without words of theirs; "" for nothing.

    >>> one = PromptDifference(kind="missing_bos", only="base", base="<s>", documents=8)
    >>> prompt_differences_text([one], looked=8)
    "only the base's begin with BOS (<s>)"
    """
    parts = []
    for difference in found[:_MOST]:
        some = (
            f", in {difference.documents:,} of {looked:,}" if difference.documents < looked else ""
        )
        parts.append(f"{prompt_difference_text(difference)}{some}")
    if len(found) > _MOST:
        parts.append(f"and {len(found) - _MOST} more")
    return "; ".join(parts)


# What stands on the sides there is a mark that templates write, or no text of the prompts.
_UNQUOTED = frozenset(
    {"role_marks", "double_bos", "missing_bos", "other_bos", "thinking", "tokens"}
    | {"special_as_text", "conversation", "tools", "cut_left", "fewshot_turns", "turn_ends"}
)


def quote_prompts(found: Sequence[PromptDifference]) -> tuple[Quote, ...]:
    """Return what stands on each side where prompts differ."""
    sides: tuple[QuotedSide, ...] = ("base", "candidate")
    return tuple(
        Quote(what="prompt", side=side, text=getattr(difference, side))
        for difference in found[:_MOST]
        if difference.kind not in _UNQUOTED
        for side in sides
        if getattr(difference, side)
    )


def prompt_difference_hint(found: Sequence[PromptDifference]) -> str:
    """What to do about it, once for each thing to do."""
    hints = dict.fromkeys(_HINTS.get(difference.kind, _TEMPLATE) for difference in found[:_MOST])
    return "; ".join(hints)


def prompt_difference_text(one: PromptDifference) -> str:
    """Say one way in which prompts differ."""
    only, opposite = one.only, _OTHER.get(one.only, "")
    own = one.candidate if only == "candidate" else one.base
    match one.kind:
        case "conversation":
            return f"the {only} is sent messages, which its server renders by a template of its own"
        case "role_marks" if only:
            return f"only the {only}'s are made by a chat template: {own}"
        case "role_marks":
            return f"another chat template: {one.base} and {one.candidate}"
        case "double_bos":
            return f"the {only}'s begin with BOS twice ({own})"
        case "missing_bos":
            return f"only the {only}'s begin with BOS ({own})"
        case "other_bos":
            return f"another BOS: {one.base} and {one.candidate}"
        case "generation_prompt" if only:
            return f"the {opposite}'s end without a generation prompt"
        case "generation_prompt":
            return "another generation prompt"
        case "thinking":
            return f"thinking: {_THINKING[one.base]} and {_THINKING[one.candidate]}"
        case "tools":
            return f"the {opposite}'s tell of no tools"
        case "system_prompt" if only:
            return f"only the {only}'s have a system prompt"
        case "system_prompt":
            return "another system prompt"
        case "system_place":
            return f"the system prompt is a turn in the {only}'s, part of the question in the other"
        case "date":
            return "another date in the template"
        case "fewshot_turns":
            return f"examples are turns in the {only}'s, and one text in the {opposite}'s"
        case "turn_ends":
            return f"only the {only}'s close each turn by an end mark"
        case "text_before":
            return f"the {only}'s have more before the first question"
        case "cut_left":
            return f"the {only}'s begin {one.at:,} characters later"
        case "white_space":
            return f"white space alone, first at character {one.at:,}"
        case _:
            return f"they first differ at character {one.at:,}"


def token_difference_text(one: PromptDifference) -> str:
    """Say how the token ids of one text differ."""
    only, opposite = one.only, _OTHER.get(one.only, "")
    match one.kind:
        case "double_bos":
            return f"the {only} reads its first token, BOS, twice"
        case "missing_bos":
            first = (one.base if only == "base" else one.candidate).split()[0]
            return f"only the {only} reads token {first} before each text"
        case "cut_left":
            return f"the {only} leaves out the first {one.at:,} tokens"
        case "special_as_text":
            marks = "mark" if one.at == 1 else "marks"
            return (
                f"the {only} reads {one.at:,} {marks} of the template as text, the {opposite} as "
                "single tokens"
            )
        case _:
            return f"they first differ at token {one.at:,}"


TokenIds = tuple[int, ...]
_BATCH_UNITS = {
    "batch_size": "sequences per pass",
    "token_budget": "padded tokens per pass",
    "shares_prefixes": "shared prefixes",
}
_TOKENIZER_HINT = (
    "give both the same tokenizer (model_args: tokenizer); if the difference is under test, "
    "declare it: --allow-differing tokens, or differs: [tokens] on the pair"
)


def share_vocabulary(base: ModelDescription, candidate: ModelDescription) -> bool:
    """Whether nothing is known against one vocabulary; that of a GGUF's own tokenizer is not."""
    known = base.vocabulary_digest and candidate.vocabulary_digest
    return not known or base.vocabulary_digest == candidate.vocabulary_digest


def check_vocabularies(base: ModelDescription, candidate: ModelDescription) -> None:
    """Refuse two models whose vocabularies differ.

    Raises:
        MisalignedRunsError: with both sizes and what to do.
    """
    if share_vocabulary(base, candidate):
        return
    sizes = f"{base.vocabulary_size:,} and {candidate.vocabulary_size:,} entries"
    if base.vocabulary_size == candidate.vocabulary_size:
        sizes = f"{base.vocabulary_size:,} entries each, and not the same ones"
    raise MisalignedRunsError(
        f"the vocabularies of base and candidate differ ({sizes}): they would read different "
        "tokens",
        of_tokens=True,
        hint=_TOKENIZER_HINT,
    )


def check_encodings(
    requests: Sequence[Request], base: Sequence[TokenIds], candidate: Sequence[TokenIds]
) -> None:
    """Refuse two models that read the same requests as different token ids.

    A sample of requests shows in a second what pairing would show after both models were scored;
    pairing still looks at every document.

    Args:
        requests: what was encoded; ``base`` and ``candidate`` are aligned to them, () is unknown.

    Raises:
        MisalignedRunsError: with the number of requests and the first difference.
    """
    differing = _differing(requests, base, candidate)
    if not differing:
        return
    request, ours, theirs = differing[0]
    how = _difference(*differing[0])
    detail = "" if how is None else f": {token_difference_text(how)}"
    raise MisalignedRunsError(
        f"base and candidate encode {len(differing)} of {len(requests)} requests differently "
        f"(first: {request.task}, doc_id {request.doc_id}, {len(ours):,} and {len(theirs):,} "
        f"token ids){detail}",
        of_tokens=True,
        quotes=(
            *quote_ids(ours, doc_id=request.doc_id, side="base"),
            *quote_ids(theirs, doc_id=request.doc_id, side="candidate"),
        ),
        hint=_bos_hint([(ours, theirs) for _, ours, theirs in differing]) or _TOKENIZER_HINT,
    )


def check_pieces(
    requests: Sequence[Request], base: Sequence[TokenIds], pieces: Mapping[int, str | None]
) -> None:
    """Refuse a model in whose vocabulary the token ids that the base reads are other texts.

    Whatever encodes a text writes nothing else: such a model cannot read it as these ids. Only
    ASCII letters and digits of ASCII texts are held together, which all tokenizers write alike.

    Args:
        requests: what was encoded; ``base`` is aligned to them, () is unknown.
        pieces: texts of the candidate's token ids; None: not known, and nothing is said of it.

    Raises:
        MisalignedRunsError: with the number of requests and the first.
    """
    unlike = [
        request
        for request, ids in zip(requests, base, strict=True)
        if ids and _is_other_text(_text_of(request), ids, pieces)
    ]
    if unlike:
        raise MisalignedRunsError(
            f"the token ids that the base reads are other texts in the vocabulary of the "
            f"candidate, in {len(unlike)} of {len(requests)} requests (first: {unlike[0].task}, "
            f"doc_id {unlike[0].doc_id}): they would read different tokens",
            of_tokens=True,
            hint=_TOKENIZER_HINT,
        )


_NOT_ALPHANUMERIC = re.compile(r"[^A-Za-z0-9]+")


def _is_other_text(text: str, ids: TokenIds, pieces: Mapping[int, str | None]) -> bool:
    if any(token not in pieces for token in ids):
        return True
    texts = [pieces[token] for token in ids]
    if not text.isascii() or None in texts or "" in texts[1:]:  # a mark that a text may spell out
        return False
    written = (_NOT_ALPHANUMERIC.sub("", part).lower() for part in ("".join(map(str, texts)), text))
    return len(set(written)) > 1


def find_other_encodings(
    requests: Sequence[Request], base: Sequence[TokenIds], candidate: Sequence[TokenIds]
) -> Iterator[Finding]:
    """Say how two models read the same requests as other token ids, where they may.

    Args:
        requests: as of ``check_encodings``.
    """
    differing = _differing(requests, base, candidate)
    how = _difference(*differing[0]) if differing else None
    if how is not None:
        count = f"{len(differing)} of {len(requests)} requests that were looked at"
        yield Finding(
            kind="prompts_differ",
            text=f"token ids differ, as declared, in {count}: {token_difference_text(how)}",
            values={"kinds": (how.kind,), "only": (how.only,), "requests": len(differing)},
        )


_Differing = tuple[Request, TokenIds, TokenIds]


def _differing(
    requests: Sequence[Request], base: Sequence[TokenIds], candidate: Sequence[TokenIds]
) -> list[_Differing]:
    return [
        (request, ours, theirs)
        for request, ours, theirs in zip(requests, base, candidate, strict=True)
        if ours and theirs and ours != theirs
    ]


def _difference(request: Request, base: TokenIds, candidate: TokenIds) -> PromptDifference | None:
    return compare_token_ids(_text_of(request), base, candidate)


def _text_of(request: Request) -> str:
    return "".join(part for part in request.arguments[:2] if isinstance(part, str))


def _bos_hint(differing: Sequence[tuple[TokenIds, TokenIds]]) -> str:
    """Name the side that reads one token before every text; "" where that is not all there is."""
    sides = {
        (side, longer[0])
        for ours, theirs in differing
        for side, longer, shorter in (("base", ours, theirs), ("candidate", theirs, ours))
        if longer[1:] == shorter
    }
    every = all(ours[1:] == theirs or theirs[1:] == ours for ours, theirs in differing)
    if not every or len(sides) != 1:
        return ""
    ((with_bos, bos),) = sides
    without = "candidate" if with_bos == "base" else "base"
    return (
        f"only the {with_bos} reads token {bos} before each text: set model_args: "
        f"{{add_bos_token: true}} on the {without}, or false on the {with_bos}; if that is under "
        "test, declare it: --allow-differing tokens, or differs: [tokens] on the pair"
    )


@contextmanager
def lead_to_tokenizer(command: str) -> Iterator[None]:
    """Put the command that searches the tokenizer into the hint where token ids differ.

    Args:
        command: as it was typed; "" for a call from Python.
    """
    try:
        yield
    except MisalignedRunsError as error:
        search = redacted_text(as_tokenizer_search(command)) if error.of_tokens else ""
        if search:
            error.hint = f"{error.hint}; what part of the tokenizer costs: {search}"
        raise


def note_batch_differences(
    base: ModelDescription | None, candidate: ModelDescription | None
) -> tuple[str, ...]:
    """Say where two models that have answered were not scored in the same batches.

    Memory that runs out for one of them has it scored in smaller ones. Empty where they were, or
    where one does not show it.
    """
    if base is None or candidate is None:
        return ()
    ours, theirs = base.computation, candidate.computation
    if ours.get("scorer") is None or theirs.get("scorer") is None:
        return ()
    apart = [
        f"{name}: {_plain_text(ours.get(key))} and {_plain_text(theirs.get(key))}"
        for key, name in _BATCH_UNITS.items()
        if ours.get(key) != theirs.get(key)
    ]
    if not apart:
        return ()
    return (
        f"base and candidate were not scored in the same batches ({'; '.join(apart)}), so that "
        "rounding differs between them",
    )


def _plain_text(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:,}" if isinstance(value, int) else str(value or "not fixed")


# Documents whose prompts are looked at: a template does the same to all of them.
_LOOKED = 64
_KEPT = 8
DECLARE_PROMPTS = (
    "if this difference is under test, declare it: --allow-differing prompt, or differs: [prompt] "
    "on the pair"
)
RequestPlace = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedPrompt:
    """What the first model of a run is asked, and the token ids of it; () where unknown."""

    prompt: str
    ids: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherPrompts:
    """How the prompts of one task differ.

    Attributes:
        documents: whose prompts differ; ``looked``: how many of these were looked at.
        differences: by kind, the most frequent first; () where the prompts are not at hand.
    """

    documents: int
    looked: int
    differences: tuple[PromptDifference, ...]

    @property
    def text(self) -> str:
        """All of it, in words."""
        return prompt_differences_text(self.differences, self.looked)

    @property
    def quotes(self) -> tuple[Quote, ...]:
        """What stands in the prompts there."""
        return quote_prompts(self.differences)

    @property
    def hint(self) -> str:
        """What to do about it."""
        return prompt_difference_hint(self.differences)


def find_other_prompts(
    base: Mapping[str, TaskScores], candidate: Mapping[str, TaskScores]
) -> dict[str, OtherPrompts]:
    """Say how prompts differ, of the tasks of which both sides show some that do."""
    prompts = {}
    for task in base:
        if task in candidate:
            difference = _other_prompts(base[task].samples, candidate[task].samples)
            if difference is not None:
                prompts[task] = difference
    return prompts


def find_declared_differences(found: Mapping[str, OtherPrompts]) -> Iterator[Finding]:
    """Say once for all tasks alike how prompts differ, as was declared."""
    alike: dict[tuple[tuple[str, str], ...], list[str]] = {}
    for task, prompts in found.items():
        key = tuple(
            sorted((difference.kind, difference.only) for difference in prompts.differences)
        )
        alike.setdefault(key, []).append(task)
    for tasks in alike.values():
        first = found[tasks[0]]
        many = "" if len(tasks) == 1 else f" ({len(tasks):,} tasks)"
        yield Finding(
            kind="prompts_differ",
            text=f"prompts differ, as declared{many}: {first.text}",
            task=tasks[0] if len(tasks) == 1 else "",
            values={
                "tasks": tuple(tasks),
                "documents": sum(found[task].documents for task in tasks),
                "kinds": tuple(difference.kind for difference in first.differences),
                "only": tuple(difference.only for difference in first.differences),
            },
            quotes=first.quotes,
        )


def refuse_other_prompts(
    base: Mapping[RequestPlace, AskedPrompt], candidate: Sequence[Request]
) -> None:
    """Refuse two models whose templates make other prompts of the same documents.

    Args:
        base: what the first model is asked.
        candidate: what the second is asked; what the first was not is left out.

    Raises:
        MisalignedRunsError: with the first document, how they differ, and what to do.
    """
    pairs = [
        (request, base[place_of(request)].prompt, prompt_of(request))
        for request in candidate
        if place_of(request) in base
    ]
    apart = [(request, ours, theirs) for request, ours, theirs in pairs if ours != theirs]
    if not apart:
        return
    kinds = compare_prompts((ours, theirs) for _, ours, theirs in apart)
    first = apart[0][0]
    raise MisalignedRunsError(
        f"prompts of base and candidate differ in {len(apart):,} of {len(pairs):,} requests (first:"
        f" {first.task}, doc_id {first.doc_id}): {prompt_differences_text(kinds, len(apart))}",
        of_prompts=True,
        quotes=quote_prompts(kinds),
        hint=f"{prompt_difference_hint(kinds)}; {DECLARE_PROMPTS}",
    )


def place_of(request: Request) -> RequestPlace:
    """Where a request belongs: task, document and number."""
    return request.task, request.doc_id, request.index


def read_asked_prompts(
    rows: Mapping[str, Rows], tasks: Iterable[str]
) -> dict[RequestPlace, AskedPrompt]:
    """What a finished run was asked first, of the tasks whose prompts are kept."""
    asked = {}
    for task in tasks:
        stored = rows.get(task, ())
        prompts = zip(column_of(stored, "doc_id"), column_of(stored, "prompt"), strict=True)
        for doc_id, prompt in islice(prompts, _KEPT):
            if isinstance(doc_id, int) and isinstance(prompt, str):
                asked[task, doc_id, 0] = AskedPrompt(prompt=prompt, ids=())
    return asked


def prompt_of(request: Request) -> str:
    """The text that a request begins with."""
    return str(request.arguments[0]) if request.arguments else ""


def _other_prompts(base: Rows, candidate: Rows) -> OtherPrompts | None:
    ours, theirs = pair_columns(base, candidate, "prompt_hash")
    if ours == theirs:
        return None
    pairs = zip(ours, theirs, strict=True)
    differing = [
        at
        for at, (base_hash, candidate_hash) in enumerate(pairs)
        if base_hash and candidate_hash and base_hash != candidate_hash
    ]
    if not differing:
        return None
    chosen = sorted({differing[at] for at in _spread(len(differing))})
    prompts = pair_columns(base, candidate, "prompt")
    shown = [(prompts[0][at], prompts[1][at]) for at in chosen]
    texts = [(a, b) for a, b in shown if isinstance(a, str) and isinstance(b, str)]
    return OtherPrompts(
        documents=len(differing), looked=len(texts), differences=compare_prompts(texts)
    )


def _spread(n: int) -> list[int]:
    """Places from the first to the last of n, evenly."""
    places: list[int] = np.linspace(0, n - 1, min(n, _LOOKED)).astype(int).tolist()
    return places
