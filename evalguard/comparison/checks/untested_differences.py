"""Differences of two models that the documents asked for cannot show.

A port without the original's attention window passes on texts that are shorter than the window, and
a wrong end-of-text token passes where no text is generated: every score is equal, and says nothing
of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from evalguard.comparison.checks.side_differences import SideDifference
from evalguard.core.document_columns import column_of, pair_columns
from evalguard.core.findings import Finding, FindingValue
from evalguard.core.settings import Value
from evalguard.engine.scored_side import ScoredSide
from evalguard.page.rounding import format_count

_WINDOWS = frozenset({"sliding_window", "attention_window", "attention_chunk_size"})
_OF_WINDOWS = frozenset({"use_sliding_window", "max_window_layers"})
_POSITIONS = frozenset({"max_position_embeddings", "n_positions"})
_ROPE = frozenset({"rope_type", "factor", "original_max_position_embeddings"})
# Kinds of rotary positions that are alike up to the length trained with.
_ALIKE_BEFORE = frozenset({"default", "dynamic"})
# What would test a difference: texts that are longer, generated, rendered by a chat template, or of
# other tokens.
_Need = Literal["longer", "generated", "chat", "other_tokens"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Untested:
    need: _Need
    why: str
    tokens: int = 0  # of "longer": more than so many


def find_untested_differences(
    found: Sequence[SideDifference], scored: tuple[ScoredSide, ScoredSide]
) -> tuple[Finding, ...]:
    """Say which differences these documents cannot show, in one finding; () if all can be seen.

    Nothing is said of a difference by length where a model does not show how long its texts are.

    Args:
        found: as ``list_side_differences`` lists them.
        scored: both sides with their answers.
    """
    if not found:
        return ()
    longest, configs = _longest_of(scored), [_config(side) for side in scored]
    generates = any(map(_generates, scored))
    untested: dict[str, _Untested] = {}
    for difference in found:
        if difference.part == "tokenizer":
            judged = _judge_tokenizer(difference, generates, scored)
        elif difference.part == "configs":
            judged = _judge_config(difference, longest, generates, configs)
        else:
            continue
        if judged is not None:
            untested.setdefault(difference.name, judged)
    if not untested:
        return ()
    by_reason: dict[str, list[str]] = {}
    for name, of in untested.items():
        by_reason.setdefault(of.why, []).append(name)
    named = "; ".join(f"{', '.join(names)} ({why})" for why, names in by_reason.items())
    values: dict[str, FindingValue] = {
        need: tuple(name for name, entry in untested.items() if entry.need == need)
        for need in get_args(_Need)
    }
    values["longest_text"] = longest or None
    values["beyond"] = max(entry.tokens for entry in untested.values()) or None
    return (Finding(kind="untested_differences", text=f"not tested here: {named}", values=values),)


def note_untested_code(
    found: Sequence[SideDifference], scored: tuple[ScoredSide, ScoredSide]
) -> tuple[str, ...]:
    """Say what other code than the base's is to do too, and is not asked for by these documents."""
    differ = {difference.name for difference in found}
    if not differ & {"class", "model type"}:
        return ()
    notes = []
    longest = _longest_of(scored)
    windows = [] if differ & _WINDOWS else list(_windows(_config(scored[0])))
    if windows and 0 < longest <= min(windows):
        notes.append(
            f"no text is longer than the base's attention window ({format_count(min(windows))} "
            f"tokens; the longest has {format_count(longest)}): how the candidate's code reads "
            "longer ones is not tested"
        )
    if not any(map(_generates, scored)):
        notes.append(
            "no text is generated: what the candidate's code does token by token, with a cache, is "
            "not tested"
        )
    return tuple(notes)


def _longest_of(scored: tuple[ScoredSide, ScoredSide]) -> int:
    """Tokens of the longest text that either side read at once; 0 where that is not known."""
    return 0 if 0 in (sides := [_longest(side) for side in scored]) else max(sides)


def _longest(side: ScoredSide) -> int:
    tasks = [of.longest for of in side.samples.values()]
    if not tasks or 0 in tasks:
        return 0
    room = 0 if side.description is None else side.description.max_length
    return min(max(tasks), room) if room else max(tasks)


def _config(side: ScoredSide) -> Mapping[str, Value]:
    config = None if side.description is None else side.description.configuration.get("config")
    return config if isinstance(config, Mapping) else {}


def _judge_tokenizer(
    one: SideDifference, generates: bool, scored: tuple[ScoredSide, ScoredSide]
) -> _Untested | None:
    if one.path == "chat template":
        applied = any(map(_renders_chat, scored))
        return None if applied else _Untested(need="chat", why="none is applied")
    if (one.path == "EOS" and generates) or not _same_tokens(scored):
        return None
    return _Untested(need="other_tokens", why="all texts have the same tokens")


def _judge_config(
    one: SideDifference, longest: int, generates: bool, configs: Sequence[Mapping[str, Value]]
) -> _Untested | None:
    name = one.path.rpartition(".")[2]
    if name == "eos_token_id" or one.path.startswith("generation."):
        return None if generates else _Untested(need="generated", why="no text is generated")
    limits = [tokens for tokens in _limits(one, name, configs) if tokens > 0]
    if not limits or not 0 < longest <= min(limits):
        return None
    why = f"beyond {format_count(min(limits))} tokens; the longest text has {format_count(longest)}"
    return _Untested(need="longer", why=why, tokens=min(limits))


def _limits(
    one: SideDifference, name: str, configs: Sequence[Mapping[str, Value]]
) -> Iterator[int]:
    """Numbers of tokens up to which a difference changes nothing; none where it always may."""
    if name in _WINDOWS:
        yield from _numbers(one.base, one.candidate)
    elif name in _OF_WINDOWS:
        yield from (tokens for config in configs for tokens in _windows(config))
    elif name in _POSITIONS and _rope_kinds(configs) <= _ALIKE_BEFORE:
        yield from _numbers(one.base, one.candidate)
    elif name in _ROPE and "rope" in one.path:
        if _rope_kinds(configs) <= _ALIKE_BEFORE:
            yield from _trained_lengths(configs)
    elif name == "long_factor" and _rope_kinds(configs) == {"longrope"}:
        yield from _trained_lengths(configs, "original_max_position_embeddings")


def _windows(config: Mapping[str, Value]) -> Iterator[int]:
    for path, value in config.items():
        if path.rpartition(".")[2] in _WINDOWS:
            yield from _numbers(value)


def _rope_kinds(configs: Sequence[Mapping[str, Value]]) -> set[str]:
    return {
        str(value)
        for config in configs
        for path, value in config.items()
        if "rope" in path and path.rpartition(".")[2] in ("rope_type", "type") and value
    }


def _trained_lengths(configs: Sequence[Mapping[str, Value]], *names: str) -> Iterator[int]:
    wanted = names or ("original_max_position_embeddings", *_POSITIONS)
    for config in configs:
        for path, value in config.items():
            if path.rpartition(".")[2] in wanted:
                yield from _numbers(value)


def _numbers(*values: Value) -> Iterator[int]:
    for value in values:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            yield int(value)


def _generates(side: ScoredSide) -> bool:
    answers = (texts for of in side.samples.values() for texts in column_of(of.samples, "text"))
    return any(
        text is not None for texts in answers if isinstance(texts, Sequence) for text in texts
    )


def _same_tokens(scored: tuple[ScoredSide, ScoredSide]) -> bool:
    """Whether both sides read the same tokens of every document; False where that is not known."""
    pairs = [
        pair_columns(of.samples, scored[1].samples[task].samples, "token_hash")
        for task, of in scored[0].samples.items()
        if task in scored[1].samples
    ]
    return bool(pairs) and all(
        len(ours) > 0
        and all(
            base_hash and base_hash == candidate_hash
            for base_hash, candidate_hash in zip(ours, theirs, strict=True)
        )
        for ours, theirs in pairs
    )


def _renders_chat(side: ScoredSide) -> bool:
    return any((table.reading or {}).get("chat_template") for table in side.tables)
