"""What stands beside the tensors of how texts become tokens: a folder's tokenizer, a GGUF's own.

What one side alone says is a difference only where its absence says something too: a chat template
or a token that the other side lacks.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeGuard

from evalguard.core.hyperparameters import ABSENT, HyperparameterDelta
from evalguard.core.settings import Value
from evalguard.regular_file import read_regular_text
from evalguard.tensor_files.opening import TensorFiles
from evalguard.tensor_files.packed.declared_quantisation import read_json_object

_BLANK = "\u2581"  # sentencepiece's
_GGML = "tokenizer.ggml."
_KINDS = ("llama", "gpt2")  # whose defaults in llama.cpp are known here
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown"}  # and in GGUF files
_GGUF_FLAGS = {
    "puts_bos_first": "add_bos_token",
    "puts_eos_last": "add_eos_token",
    "puts_blank_first": "add_space_prefix",
}
_NORMAL, _CONTROL = 1, 3  # types of a GGUF file's tokens: matched as text, never made of text


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenTables:
    """How a side makes tokens of texts. None and what is empty: it does not say.

    Attributes:
        gguf: whether llama.cpp's converter wrote it, in its own ways.
        kind: "llama" (sentencepiece), "gpt2" (byte-level BPE), as llama.cpp calls them.
        types: of tokens, as GGUF files number them.
        special: ids that are never made of text.
        named: the texts of bos, eos and unk.
        ends: ids that end a generated text.
        flags: what is put around a text, by name.
        rules: how a text is cut up before its merges, by name.
        template: digest of the chat template, or that there is none.
    """

    gguf: bool
    kind: str = ""
    tokens: Mapping[int, str] = field(default_factory=dict)
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    types: Mapping[int, int] = field(default_factory=dict)
    special: frozenset[int] = frozenset()
    named: Mapping[str, str] = field(default_factory=dict)
    ends: tuple[int, ...] = ()
    flags: Mapping[str, bool] = field(default_factory=dict)
    rules: Mapping[str, Any] = field(default_factory=dict)
    template: str = ""


def read_token_tables(side: TensorFiles) -> TokenTables:
    """Read what a side says of tokens; one that says nothing has empty tables."""
    if side.kind == "gguf":
        return _read_gguf(side.metadata)
    return _read_folder(side.files[0].parent)


def compare_token_tables(base: TokenTables, candidate: TokenTables) -> list[HyperparameterDelta]:
    """List where two sides make other tokens of a text, or end it elsewhere."""
    tables = (base, candidate)
    alike = base.gguf == candidate.gguf
    scores = (dict(enumerate(side.scores)) for side in tables)
    types = (base.types, candidate.types) if alike else _types_of_special(*tables)
    rows = [
        _compare_entries("tokens", *(_align_tokens(*tables) if not alike else _tokens(*tables))),
        _compare_entries("merges", *(dict(enumerate(side.merges)) for side in tables)),
        _compare_entries("token_scores", *_of_both(*scores)),
        _compare_entries("token_types", *_of_both(*types)),
        _compare("tokenizer_kind", base.kind, candidate.kind),
        _compare("chat_template", base.template, candidate.template),
    ]
    for name in sorted(base.named.keys() & candidate.named.keys()):
        rows.append(_compare(name, base.named[name], candidate.named[name]))
    for name in sorted(base.flags.keys() & candidate.flags.keys()):
        rows.append(_compare(name, base.flags[name], candidate.flags[name]))
    if alike:
        for name in sorted(base.rules.keys() & candidate.rules.keys()):
            ours, theirs = base.rules[name], candidate.rules[name]
            if not _agree(ours, theirs):
                rows.append(_compare(name, _describe_rule(ours), _describe_rule(theirs)))
    elif base.kind == candidate.kind == "gpt2":
        # without one llama.cpp cuts a text as "default" does, and warns of it
        names = [side.rules["pre_tokenizer"] if side.gguf else "by its file" for side in tables]
        if "default" in names:
            rows.append(_compare("pre_tokenizer", *names))
    if not _share(base.ends, candidate.ends):
        rows.append(_compare("generation_eos_token_id", [*base.ends], [*candidate.ends]))
    return [row for row in rows if row is not None]


def _tokens(base: TokenTables, candidate: TokenTables) -> tuple[Mapping[int, str], ...]:
    return base.tokens, candidate.tokens


def _align_tokens(*tables: TokenTables) -> tuple[Mapping[int, str], ...]:
    """Return the tokens that a folder names: llama.cpp's converter fills the rest of the embedding
    up, and writes added tokens as they are decoded."""
    known = next(side.tokens.keys() for side in tables if not side.gguf)
    return tuple(
        {at: text.replace(_BLANK, " ") for at, text in side.tokens.items() if at in known}
        for side in tables
    )


def _of_both(*tables: Mapping[int, Value]) -> tuple[Mapping[int, Value], ...]:
    """Return what both sides have an entry of: which tokens one side lacks is said of tokens."""
    both = tables[0].keys() & tables[1].keys()
    return tuple({at: table[at] for at in both} for table in tables)


def _types_of_special(*tables: TokenTables) -> tuple[Mapping[int, int], ...]:
    """Return special tokens of a folder that its GGUF file matches as text, on both sides."""
    special = next(side.special for side in tables if not side.gguf)
    types = next(side.types for side in tables if side.gguf)
    plain = [at for at in special if types.get(at) == _NORMAL]
    return tuple(dict.fromkeys(plain, _NORMAL if side.gguf else _CONTROL) for side in tables)


def _share(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether two lists of ends are the same, or a side names a single one of the other's."""
    ends, other_ends = {*one}, {*other}
    single = min(len(ends), len(other_ends)) == 1 and bool(ends & other_ends)
    return not ends or not other_ends or ends == other_ends or single


def _compare(name: str, base: Value, candidate: Value) -> HyperparameterDelta | None:
    if "" in (base, candidate) or base == candidate:
        return None
    return _row(name, base, candidate)


def _compare_entries(
    name: str, base: Mapping[int, Value], candidate: Mapping[int, Value]
) -> HyperparameterDelta | None:
    """Compare two tables by number; the first entry that differs stands for all."""
    if not base or not candidate:
        return None
    differing = sorted(at for at in {*base, *candidate} if base.get(at) != candidate.get(at))
    if not differing:
        return None
    at, size = differing[0], max(len(base), len(candidate))
    where = f"number {at:,}; {len(differing):,} of {size:,} differ"
    return _row(name, base.get(at, ABSENT), candidate.get(at, ABSENT), where)


def _row(name: str, base: Value, candidate: Value, where: str = "") -> HyperparameterDelta:
    return HyperparameterDelta(
        name=name, base=base, candidate=candidate, verdict="differs", where=where,
        base_source=name, candidate_source=name,
    )  # fmt: skip


def _agree(one: object, other: object) -> bool:
    """Whether two rules say the same where both say something: versions add keys."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(_agree(one[key], other[key]) for key in one.keys() & other.keys())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_agree, one, other))
    return one == other


def _describe_rule(rule: object) -> str:
    if isinstance(rule, str):
        return rule
    kind = str(rule.get("type", "")) if isinstance(rule, Mapping) else ""
    return f"{kind} {_digest(json.dumps(rule, sort_keys=True))}".strip()


def _digest(text: str) -> str:
    return f"#{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _describe_template(text: object) -> str:
    if not isinstance(text, str) or not text.strip():
        return ABSENT
    return f"{len(text.strip()):,} characters {_digest(text.strip())}"


def _read_gguf(metadata: Mapping[str, Any]) -> TokenTables:
    entries = {
        key.removeprefix(_GGML): value for key, value in metadata.items() if key.startswith(_GGML)
    }
    tokens = entries.get("tokens")
    if not isinstance(tokens, list):
        return TokenTables(gguf=True)
    kind, pre = str(entries.get("model", "")), str(entries.get("pre") or "default")
    flags: dict[str, bool] = {}
    if kind in _KINDS:  # what llama.cpp does where the file does not say it
        flags = {
            "puts_bos_first": kind == "llama" or pre.startswith(("llama-bpe", "llama3", "llama4")),
            "puts_eos_last": False,
        }
    if kind == "llama":
        flags["puts_blank_first"] = True
    for name, key in _GGUF_FLAGS.items():
        if isinstance(entries.get(key), bool):
            flags[name] = entries[key]
    named = {}
    for name, key in _NAMED.items():
        number = entries.get(
            f"{key}_token_id", entries.get(f"{name.removesuffix('_token')}_token_id")
        )
        if isinstance(number, int) and 0 <= number < len(tokens):
            named[name] = str(tokens[number])
    return TokenTables(
        gguf=True,
        kind=kind if kind in _KINDS else "",
        tokens=dict(enumerate(map(str, tokens))),
        merges=[str(merge) for merge in _as_list(entries.get("merges"))],
        scores=[float(score) for score in _as_list(entries.get("scores"))],
        types={at: int(code) for at, code in enumerate(_as_list(entries.get("token_type")))},
        named=named,
        flags=flags,
        rules={"pre_tokenizer": pre} if kind == "gpt2" else {},
        template=_describe_template(metadata.get("tokenizer.chat_template")),
    )


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _read_folder(folder: Path) -> TokenTables:
    whole = read_json_object(folder / "tokenizer.json") or {}
    config = read_json_object(folder / "tokenizer_config.json")
    generation = read_json_object(folder / "generation_config.json") or {}
    ends = generation.get("eos_token_id")
    held = TokenTables(
        gguf=False,
        ends=tuple(filter(_is_id, ends if isinstance(ends, list) else [ends])),
        template=_read_template(folder, config),
        named=_read_named(folder, config or {}),
    )
    model = whole.get("model")
    if not isinstance(model, dict):
        return held
    vocabulary, scores = _read_vocabulary(model.get("vocab"))
    added = [token for token in _as_list(whole.get("added_tokens")) if isinstance(token, dict)]
    vocabulary |= {
        token["id"]: str(token.get("content")) for token in added if _is_id(token.get("id"))
    }
    special = frozenset(
        token["id"] for token in added if token.get("special") and _is_id(token.get("id"))
    )
    kind = _kind(model, whole)
    own = {"byte_fallback", "ignore_merges", "fuse_unk"} & model.keys()
    return replace(
        held,
        kind=kind,
        tokens=vocabulary,
        merges=[_merge_text(merge) for merge in _as_list(model.get("merges"))],
        scores=scores,
        types={at: _CONTROL if at in special else _NORMAL for at in vocabulary},
        special=special,
        flags=_read_flags(whole, config or {}, kind),
        rules={name: whole.get(name) for name in ("normalizer", "pre_tokenizer") if name in whole}
        | {name: str(bool(model[name])) for name in own},
    )


def _is_id(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _read_vocabulary(told: object) -> tuple[dict[int, str], list[float]]:
    """Return the tokens of a model and, of a unigram one, their scores."""
    if isinstance(told, dict):
        return {at: text for text, at in told.items() if _is_id(at)}, []
    pairs = [pair for pair in _as_list(told) if isinstance(pair, list) and len(pair) == 2]
    scores = [float(score) for _, score in pairs if isinstance(score, int | float)]
    return {at: str(text) for at, (text, _) in enumerate(pairs)}, scores


def _merge_text(merge: object) -> str:
    """Return a merge as GGUF files have it, where a blank within a part is byte-level BPE's."""
    if isinstance(merge, list):
        return " ".join(str(part).replace(" ", "\u0120") for part in merge)
    return str(merge)


def _kind(model: Mapping[str, Any], whole: Mapping[str, Any]) -> str:
    if model.get("type") != "BPE":
        return ""
    blanks = _BLANK in json.dumps([whole.get("normalizer"), whole.get("pre_tokenizer")],
                                  ensure_ascii=False)  # fmt: skip
    return "llama" if model.get("byte_fallback") and blanks else "gpt2"


def _read_flags(whole: Mapping[str, Any], config: Mapping[str, Any], kind: str) -> dict[str, bool]:
    """Return what a tokenizer puts around a text: by its config, else by its post-processor."""
    parts = [
        part
        for processor in _walk(whole.get("post_processor"))
        for part in _as_list(processor.get("single"))
    ]
    around = ["SpecialToken" in part for part in parts if isinstance(part, dict)] or [False]
    flags = {"puts_bos_first": around[0], "puts_eos_last": around[-1]}
    for name, key in (("puts_bos_first", "add_bos_token"), ("puts_eos_last", "add_eos_token")):
        if isinstance(config.get(key), bool):
            flags[name] = config[key]
    if kind == "llama":
        rules = [*_walk(whole.get("normalizer")), *_walk(whole.get("pre_tokenizer"))]
        flags["puts_blank_first"] = any(
            rule.get("type") == "Prepend"
            or (
                rule.get("type") == "Metaspace"
                and rule.get("prepend_scheme") != "never"
                and rule.get("add_prefix_space") is not False
            )
            for rule in rules
        )
    return flags


def _walk(rule: object) -> Iterator[Mapping[str, Any]]:
    """Yield a rule, and those of a sequence of them."""
    if isinstance(rule, Mapping):
        yield rule
        for key in ("normalizers", "pretokenizers", "processors"):
            for inner in _as_list(rule.get(key)):
                yield from _walk(inner)


def _read_template(folder: Path, config: Mapping[str, Any] | None) -> str:
    """Return the chat template in words; "" where nothing says how texts become tokens."""
    try:
        return _describe_template(read_regular_text(folder / "chat_template.jinja"))
    except (OSError, ValueError):
        pass
    text = (config or {}).get("chat_template")
    if isinstance(text, list):  # several by name
        text = next((row.get("template") for row in text
                     if isinstance(row, dict) and row.get("name") == "default"), None)  # fmt: skip
    return "" if config is None else _describe_template(text)


def _read_named(folder: Path, config: Mapping[str, Any]) -> dict[str, str]:
    special = {**(read_json_object(folder / "special_tokens_map.json") or {}), **config}
    named = {}
    for name in _NAMED:
        held = special.get(name)
        text = held.get("content") if isinstance(held, dict) else held
        if isinstance(text, str):
            named[name] = text
    return named
