"""Checks two loaded models: can they be compared at all, and were they scored alike?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from evalguard.core.prompt_difference import PromptDifference, compare_token_ids
from evalguard.core.redaction import redacted_text
from evalguard.core.repeat_command import as_tokenizer_search
from evalguard.core.reports.findings import Finding, quote_ids
from evalguard.core.scorer import ModelDescription, Request
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError
from evalguard.report.words.prompt_texts import token_difference_text

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
    told = "" if how is None else f": {token_difference_text(how)}"
    raise MisalignedRunsError(
        f"base and candidate encode {len(differing)} of {len(requests)} requests differently "
        f"(first: {request.task}, doc_id {request.doc_id}, {len(ours):,} and {len(theirs):,} "
        f"token ids){told}",
        of_tokens=True,
        quotes=(
            *quote_ids(ours, doc_id=request.doc_id, side="base"),
            *quote_ids(theirs, doc_id=request.doc_id, side="candidate"),
        ),
        hint=_bos_hint([(ours, theirs) for _, ours, theirs in differing]) or _TOKENIZER_HINT,
    )


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
    text = "".join(part for part in request.arguments[:2] if isinstance(part, str))
    return compare_token_ids(text, base, candidate)


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
    one, two = base.computation, candidate.computation
    if one.get("scorer") is None or two.get("scorer") is None:
        return ()
    apart = [
        f"{name}: {_plain_text(one.get(key))} and {_plain_text(two.get(key))}"
        for key, name in _BATCH_UNITS.items()
        if one.get(key) != two.get(key)
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
