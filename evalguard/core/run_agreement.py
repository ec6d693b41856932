"""Agreement of two runs on lm-eval's hashes and on the token ids that were fed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from evalguard.core.document_columns import Texts
from evalguard.core.scores import ScoreTable
from evalguard.core.settings import Value
from evalguard.errors import MisalignedRunsError

Names = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """What was found, and what the user can do about it ("" where nothing special).

    ``of_prompts``: prompts are what differs.
    """

    found: str
    hint: str = ""
    of_prompts: bool = False


def names_of(base: ScoreTable, candidate: ScoreTable) -> Names:
    """What to call the two runs in a message."""
    return base.source or "the base run", candidate.source or "the candidate run"


def refuse_if_any(table: ScoreTable, names: Names, mismatches: Iterable[Mismatch]) -> None:
    """Raise one error with all mismatches, if there are any.

    Raises:
        MisalignedRunsError: naming the metric, both runs and every mismatch.
    """
    listed = list(mismatches)
    if not listed:
        return
    hints = dict.fromkeys(mismatch.hint for mismatch in listed if mismatch.hint)
    raise MisalignedRunsError(
        f"{names[0]} and {names[1]} cannot be paired: "
        f"{'; '.join(mismatch.found for mismatch in listed)}",
        of_prompts=any(mismatch.of_prompts for mismatch in listed),
        of=f"{table.task} ({table.filter}) {table.metric}",
        hint="; ".join(hints) or "score both models on the same documents, in the same way",
    )


_SHOWN_DIGITS = 12
_UNKNOWN_HINT = (
    "without these hashes it cannot be known whether both answered the same documents: make that "
    "run once more"
)
_MAY_DIFFER = "so that the token ids, which are not shown, may differ"
_PROMPTS_MAY_DIFFER = (
    "so that prompts may have been built or cut otherwise, and their token ids are not shown"
)
_IF_KNOWN = "declare that both read the same tokens: --allow-differing tokens"
# Which examples stand in a prompt; a declared difference of prompts does not cover it.
_SHOTS = ("num_fewshot", "fewshot_seed")
_TEMPLATES = {"chat_template": "chat template", "system_instruction": "system instruction"}
_READING_HINTS = {
    "prefix_token": "give both the same tokenizer",
    "max_length": "give both the same max_length",
    "rolling_bos": "leave out rolling_bos: once",
}
# lm-eval's names of one option, the first wins; what an option is where it changes nothing.
_LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_WITHOUT_EFFECT: Mapping[str, tuple[Value, ...]] = {
    "top_p": (1.0,),
    "min_p": (0.0,),
    "num_beams": (1,),
    "repetition_penalty": (1.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "use_cache": (True,),
    "top_k": (-1, 0),
}
_OF_SAMPLING = frozenset({"temperature", "top_p", "top_k", "min_p", "typical_p", "seed"})


def canonical_generation(options: Value) -> dict[str, Value]:
    """Options of generation in one form: two that let a model write alike are equal.

    ``{do_sample: false}`` and ``{temperature: 0.0}`` are one, as lm-eval 0.4.13 reads them
    (``normalize_gen_kwargs``), and so are stop sequences in any order. What is not an option is {}.
    """
    if not isinstance(options, Mapping):
        return {}
    canonical: dict[str, Value] = {
        name: _number(value) for name, value in options.items() if value is not None
    }
    lengths = [canonical.pop(name) for name in _LENGTHS if name in canonical]
    until = canonical.pop("until", [])
    stops = until if isinstance(until, list) else [until]
    drawn, temperature = canonical.pop("do_sample", None), canonical.get("temperature", 0.0)
    greedy = drawn is False or (drawn is None and temperature == 0.0)
    canonical = {
        name: value
        for name, value in canonical.items()
        if value not in _WITHOUT_EFFECT.get(name, ()) and not (greedy and name in _OF_SAMPLING)
    }
    if not greedy:
        canonical["do_sample"] = True
    if lengths:
        canonical["max_gen_toks"] = lengths[0]
    if stops:
        canonical["until"] = [*sorted({str(stop) for stop in stops})]
    return canonical


def _number(value: Value) -> Value:
    """A number or a truth value that was given as text, as a command line gives it."""
    if not isinstance(value, str):
        return value
    if value.lower() in ("true", "false"):
        return value.lower() == "true"
    try:
        return float(value)
    except ValueError:
        return value


@dataclass(frozen=True, slots=True)
class _Kind:
    """A kind of hash, known for both tables.

    Attributes:
        noun: what it is called.
        permission: the item of ``allow`` that lets it differ; "": none does.
        required: whether a hash that a run does not show forbids pairing.
        follows: whether another document, target or prompt changes it too, which then says enough.
    """

    noun: str
    permission: str
    base: Sequence[str]
    candidate: Sequence[str]
    required: bool = True
    follows: bool = False

    @property
    def unknown(self) -> int:
        """Documents whose hash either run does not show."""
        if _is_filled(self.base) and _is_filled(self.candidate):
            return 0
        pairs = zip(self.base, self.candidate, strict=True)
        return sum(not (ours and theirs) for ours, theirs in pairs)

    def differing(self) -> NDArray[np.bool_]:
        """Where both hashes are known and not the same; shape (n,)."""
        if self.base == self.candidate:
            return np.zeros(len(self.base), dtype=np.bool_)
        pairs = zip(self.base, self.candidate, strict=True)
        return np.array(
            [bool(ours and theirs and ours != theirs) for ours, theirs in pairs], dtype=bool
        )


def _is_filled(hashes: Sequence[str]) -> bool:
    return hashes.is_filled if isinstance(hashes, Texts) else all(hashes)


def compare_hashes(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> tuple[list[Mismatch], list[str]]:
    """Compare all hashes of two tables with the same doc_ids.

    Returns:
        The mismatches, and the caveats: what differs as declared, what could not be compared.
    """
    mismatches, caveats = _compare_readings(base, candidate, allow)
    explained = np.zeros(base.n, dtype=np.bool_)
    for kind in _kinds(base, candidate):
        if kind.unknown:
            unknown = _not_compared(kind, base, candidate)
            if kind.required and kind.permission not in allow:
                mismatches.append(Mismatch(unknown, _UNKNOWN_HINT))
            else:
                caveats.append(unknown)
        differs = kind.differing()
        if kind.follows:
            differs &= ~explained
        else:
            explained |= differs
        if kind.permission == "tokens" and "length" in allow - {"tokens"}:
            differs, caveat = _without_cut_documents(differs, base, candidate)
            caveats += caveat
        if not bool(np.any(differs)):
            continue
        count = f"{kind.noun} differ in {int(np.sum(differs)):,} of {base.n:,} documents"
        one_sided = _bos_of_one_side(base, candidate) if kind.permission == "tokens" else ""
        if kind.permission in allow:
            tail = "" if kind.follows else "; their token ids are not compared"
            caveats.append(f"{count}, as declared{tail}{one_sided}")
            continue
        first = int(np.argmax(differs))
        if kind.permission != "prompt":
            mismatches.append(_mismatch(kind, base, first, count + one_sided))
            continue
        mismatch = _mismatch(kind, base, first, count + _prompt_cause(base, candidate))
        known = (key for key in _SHOTS if key in base.run and key in candidate.run)
        shots = any(base.run[key] != candidate.run[key] for key in known)
        mismatches.append(replace(mismatch, hint="") if shots else mismatch)
    return mismatches, caveats


def _prompt_cause(base: ScoreTable, candidate: ScoreTable) -> str:
    """Say which templates of two finished runs differ, as far as they record them."""
    ours, theirs = base.reading or {}, candidate.reading or {}
    if not (ours.get("finished") and theirs.get("finished")):
        return ""
    names, causes = names_of(base, candidate), []
    for key, noun in _TEMPLATES.items():
        our_template, their_template = ours.get(key), theirs.get(key)
        if our_template and their_template and our_template != their_template:
            causes.append(f"another {noun} on each side")
        elif our_template != their_template:
            causes.append(f"a {noun} in {names[0 if our_template else 1]} only")
    return f" ({', '.join(causes)})" if causes else ""


def _compare_readings(
    base: ScoreTable, candidate: ScoreTable, allow: frozenset[str]
) -> tuple[list[Mismatch], list[str]]:
    """Compare what token ids follow from, where a side does not show them.

    A setting under test ("tokens") brings other arguments, and no other lm-eval: that has to be
    declared ("reading"). Of generated texts too: versions build and cut prompts differently.
    """
    shown = bool(base.token_hashes and candidate.token_hashes)
    if shown or (base.reading is None and candidate.reading is None):
        return [], []
    may_differ = _PROMPTS_MAY_DIFFER if _is_generated(base, candidate) else _MAY_DIFFER
    mismatches: list[Mismatch] = []
    caveats: list[str] = []
    for difference, permissions, hint in _reading_differences(base, candidate):
        if permissions & allow:
            caveats.append(f"{difference}, as declared")
        else:
            mismatches.append(Mismatch(f"{difference}, {may_differ}", f"{hint}, or {_IF_KNOWN}"))
    return mismatches, caveats


def _is_generated(base: ScoreTable, candidate: ScoreTable) -> bool:
    return "generate_until" in (base.run.get("output_type"), candidate.run.get("output_type"))


def _reading_differences(
    base: ScoreTable, candidate: ScoreTable
) -> list[tuple[str, frozenset[str], str]]:
    """(what differs, the permissions that let it, what to do) of two readings."""
    ours, theirs = base.reading or {}, candidate.reading or {}
    names = names_of(base, candidate)
    differences = []
    our_value, their_value = (str(side.get("lm_eval") or "") for side in (ours, theirs))
    if not our_value or our_value != their_value:
        text = _of_both("the version of lm-eval", our_value, their_value, names, "not recorded")
        newest = max(our_value, their_value, key=_version) or "one version"
        again = f"run lm_eval again with {newest} on both sides"
        differences.append((text, frozenset({"reading"}), again))
    if not (ours.get("finished") or theirs.get("finished")):
        return differences  # what two models were told to read alike, each in its own words
    generated = _is_generated(base, candidate)
    for key in ("add_bos_token",) if generated else ("add_bos_token", "prefix_token_id"):
        our_value, their_value = (str(side.get(key, "")).lower() for side in (ours, theirs))
        if our_value != their_value:
            text = _of_both(key, our_value, their_value, names, "not given")
            differences.append((text, frozenset({"tokens", "reading"}), "give both the same"))
    rolling = base.run.get("output_type") == "loglikelihood_rolling"
    for key, hint in () if generated else _READING_HINTS.items():
        our_value, their_value = (str(side.get(key, "")) for side in (ours, theirs))
        if (
            our_value
            and their_value
            and our_value != their_value
            and (rolling or key == "prefix_token")
        ):
            permission = "length" if key == "max_length" else "tokens"
            text = _of_both(key, our_value, their_value, names, "")
            differences.append((text, frozenset({permission, "reading"}), hint))
    return differences


def _of_both(noun: str, one: str, other: str, names: tuple[str, str], absent: str) -> str:
    """Say a value of both sides, or that neither has one."""
    if not one and not other:
        return f"{noun} is {absent} in {names[0]} and {names[1]}"
    return f"{noun} is {one or absent} in {names[0]} and {other or absent} in {names[1]}"


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _without_cut_documents(
    differs: NDArray[np.bool_], base: ScoreTable, candidate: ScoreTable
) -> tuple[NDArray[np.bool_], list[str]]:
    """Excuse the documents that either side's context length cuts; say how many these are."""
    cut = np.zeros(base.n, dtype=np.bool_)
    for table in (base, candidate):
        if table.cut:
            cut |= np.array(table.cut, dtype=np.bool_)
    excused = int(np.sum(differs & cut))
    if not excused:
        return differs, []
    return differs & ~cut, [
        f"token ids differ in {excused:,} of {base.n:,} documents that do not fit a context "
        "length under test"
    ]


def _kinds(base: ScoreTable, candidate: ScoreTable) -> list[_Kind]:
    """All kinds of hash, first those that others follow from."""
    unknown = ("",) * base.n
    kinds = [
        _Kind("documents (doc_hash)", "", base.doc_hashes, candidate.doc_hashes),
        _Kind("targets (target_hash)", "", base.target_hashes, candidate.target_hashes),
        _Kind("prompts (prompt_hash)", "prompt", base.prompt_hashes, candidate.prompt_hashes),
    ]
    if base.asked_hashes and candidate.asked_hashes:
        ours, theirs = base.asked_hashes, candidate.asked_hashes
        noun = "requests (prompts with what is scored after them)"
        kinds.append(_Kind(noun, "prompt", ours, theirs, required=False, follows=True))
    ours, theirs = base.token_hashes or unknown, candidate.token_hashes or unknown
    kinds.append(_Kind("token ids", "tokens", ours, theirs, required=False, follows=True))
    return kinds


def _mismatch(kind: _Kind, base: ScoreTable, first: int, count: str) -> Mismatch:
    ours, theirs = (side[first][:_SHOWN_DIGITS] for side in (kind.base, kind.candidate))
    message = f"{count} (first: doc_id {base.doc_ids[first]}, {ours} and {theirs})"
    if not kind.permission:
        return Mismatch(message, "these are not the same documents: check the task's data")
    return Mismatch(
        message,
        f"if this difference is under test, declare it: --allow-differing {kind.permission}, or "
        f"differs: [{kind.permission}] on the pair",
        of_prompts=kind.permission == "prompt",
    )


def _bos_of_one_side(base: ScoreTable, candidate: ScoreTable) -> str:
    """Where lm-eval's way with whole texts makes a BOS that one side lacks look like a drift."""
    counting = [table.run.get("rolling_bos") == "lm-eval" for table in (base, candidate)]
    if sum(counting) != 1:
        return ""
    name = names_of(base, candidate)[counting.index(True)]
    return (
        f"; in whole texts only {name} counts the likelihood of BOS given BOS, which alone looks "
        "like a drift (rolling_bos: once leaves it out)"
    )


def _not_compared(kind: _Kind, base: ScoreTable, candidate: ScoreTable) -> str:
    silent = [
        name
        for name, side in zip(names_of(base, candidate), (kind.base, kind.candidate), strict=True)
        if not _is_filled(side)
    ]
    verb = "does" if len(silent) == 1 else "do"
    return (
        f"{kind.noun} not compared in {kind.unknown:,} of {base.n:,} documents: "
        f"{' and '.join(silent)} {verb} not show them"
    )
