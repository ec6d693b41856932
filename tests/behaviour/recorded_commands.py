"""Command lines over the small world, and what of their answers must stay as it is.

A change of shape changes none of this. Where a change of words is meant, record again, and read the
difference as part of the change: ``EVALGUARD_RECORD=1 python -m pytest tests/behaviour``.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

_COMPARE = ("compare", "--config", "{guard}")
_PAIR = (*_COMPARE, "--base", "orig", "--cand")
_JUDGED = (*_COMPARE, "--base", "orig", "--cand", "sharp")
_ALL_TASKS = ("--tasks", "sw_word,sw_text,sw_choice")
_FEW = ("--limit", "12", "--threads", "1")
_SERVED = ("compare", "--config", "{served}", "--tasks", "sw_word", *_FEW)
_ASKED = ("compare", "--threads", "1", "--requests", "{requests}", "--base", "{chat}", "--cand")
_CHATS = ("--base", "{chat}", "--cand", "{chat}")
_KL_LIMIT = ("--gate-metric", "kl_mean=1")
_NIGHTS = ("--history", "nights.sqlite")
_ORIG = ("--config", "{guard}", "--base", "orig")
_TENSORS = ("tensors", "{models}/llama")
_OTHER = (*_ORIG, "--cand", "other")
_FLOOR = ("floor", *_ORIG, "--limit", "8")
_DUMP = ("dump", "orig", "--config", "{guard}", "--limit", "1", "--points", "model.layers.0:out")

# In this order: later ones read the run folders, files and caches of earlier ones.
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "help": ("--help",),
    "compare help": ("compare", "--help"),
    "no such command": ("comprae",),
    "no such option": (*_PAIR, "same", "--limt", "3"),
    "no such model": (*_PAIR, "shrap"),
    "no such folder": ("compare", "--base", "no/folder", "--cand", "no/other", "--tasks", "t"),
    "no such task": (*_PAIR, "same", "--tasks", "sw_wrod"),
    "same model": (*_PAIR, "same", *_ALL_TASKS, "--output-path", "same"),
    "same model json": (*_PAIR, "same", *_ALL_TASKS, "--json"),
    "regressed": (*_JUDGED, *_ALL_TASKS, "--output-path", "sharp"),
    "regressed verbose": (*_JUDGED, *_ALL_TASKS, "--verbose"),
    "regressed json": (*_JUDGED, *_ALL_TASKS, "--json"),
    "improved": (*_PAIR, "soft", "--json"),
    "other weights": (*_PAIR, "other", *_ALL_TASKS, "--json"),
    "few documents": (*_PAIR, "other", "--limit", "3"),
    "strict": (*_PAIR, "other", "--limit", "3", "--strict"),
    "margin in percent": (*_JUDGED, "--margin", "2%", "--json"),
    "margin in points": (*_JUDGED, "--tasks", "sw_choice", "--margin", "1pp"),
    "one interval rule": (*_JUDGED, "--fail-on", "margin", "--json"),
    "exact distributions": (*_JUDGED, "--distributions", "lockstep", "--json"),
    "no distributions": (*_JUDGED, "--distributions", "off"),
    "sequential": (*_JUDGED, "--tasks", "sw_long", "--sequential", "--json"),
    "bisected": (*_JUDGED, "--bisect", "always", "--output-path", "bisected"),
    "bisected json": (*_JUDGED, "--bisect", "always", "--json"),
    "bisect": ("bisect", "--config", "{guard}", "--base", "orig", "--cand", "sharp"),
    "set back": (*_JUDGED, "--set", "gain=reference"),
    "weights not finite": (*_PAIR, "not-a-number"),
    "other vocabulary": (*_PAIR, "other-vocabulary"),
    "other token ids": (*_PAIR, "other-encoding"),
    "metric that fails": (*_PAIR, "same", "--tasks", "sw_f1"),
    "two candidates": (*_PAIR, "same", "--cand", "sharp", "--output-path", "several"),
    "chain": (*_PAIR, "sharp", "--cand", "soft", "--chain", "--json"),
    "stored base": (*_COMPARE, "--base", "{run:same}", "--cand", "sharp"),
    "report": ("report", "{run:sharp}"),
    "report markdown": ("report", "{run:sharp}", "--format", "markdown"),
    "report junit": ("report", "{run:sharp}", "--format", "junit"),
    "report json": ("report", "{run:bisected}", "--format", "json"),
    "floor": ("floor", "--config", "{guard}", "--base", "orig", "--limit", "8", "--json"),
    "plan": ("plan", "--config", "{guard}", "--base", "orig", "--cand", "sharp"),
    "check": ("check", "{guard}"),
    "models": ("models", "--config", "{guard}"),
    "tasks": ("tasks", "sw_word", "--include_path", "{tasks}"),
    "nightly": ("nightly", "--config", "{guard}", "--history", "nights.sqlite", "--json"),
    "history": ("history", "list", "--history", "nights.sqlite"),
    "cache": ("cache", "ls"),
    "schema": ("schema",),
    "tensors": (*_TENSORS, "{models}/llama"),
    "tensors differ": (*_TENSORS, "{world}/other"),
    "tensors json": (*_TENSORS, "{world}/other", "--json"),
    "tensors not finite": (*_TENSORS, "{world}/nan", "--invariant", "finite"),
    "tensors tolerance": (*_TENSORS, "{world}/other", "--rtol", "9", "--atol", "9"),
    "tensors of no file": (*_TENSORS, "no/folder"),
    "tensors tolerances": ("tensors", "--tolerances"),
    "trace": ("trace", *_OTHER, "--limit", "2", "-o", "trace.json", "-o", "trace.txt"),
    "trace json": ("trace", *_OTHER, "--limit", "2", "--json"),
    "trace of one model": ("trace", *_ORIG, "--cand", "same", "--limit", "2"),
    "trace without documents": ("trace", "--base", "{models}/llama", "--cand", "{world}/other"),
    "dump": (*_DUMP, "-o", "dumped"),
    "trace of a dump": ("trace", *_ORIG, "--cand", "dumped"),
    "dump over a dump": (*_DUMP, "-o", "dumped"),
    "served": (*_SERVED, "--base", "served", "--cand", "port"),
    "served json": (*_SERVED, "--base", "served", "--cand", "port", "--json"),
    "served twice": (*_SERVED, "--base", "served", "--cand", "again"),
    "served by nobody": (*_SERVED, "--base", "served", "--cand", "gone"),
    "served kl limit": (*_SERVED, "--base", "served", "--cand", "port", *_KL_LIMIT),
    "requests": (*_ASKED, "{chat}"),
    "requests regressed": (*_ASKED, "{misnaming}", "--output-path", "asked"),
    "requests json": (*_ASKED, "{misnaming}", "--json"),
    "requests report": ("report", "{run:asked}", "--format", "markdown"),
    "requests of no file": ("compare", "--requests", "no.jsonl", *_CHATS),
    "two candidates json": (*_PAIR, "same", "--cand", "sharp", "--json"),
    "two candidates report": ("report", "{run:several}"),
    "two candidates markdown": ("report", "{run:several}", "--format", "markdown"),
    "chain screen": (*_PAIR, "sharp", "--cand", "soft", "--chain"),
    "one candidate twice": (*_PAIR, "same", "--cand", "same"),
    "card": ("card", "{run:same}", "{run:sharp}"),
    "card metadata": ("card", "{run:same}", "-o", "card.yaml"),
    "card of no run": ("card", "no/run"),
    "nightly screen": ("nightly", "--config", "{guard}", *_NIGHTS),
    "nightly without pairs": ("nightly", "--config", "{served}", "--history", "none"),
    "history trend": ("history", "trend", *_NIGHTS),
    "history trend json": ("history", "trend", *_NIGHTS, "--json"),
    "history flips": ("history", "flips", *_NIGHTS),
    "history flips json": ("history", "flips", *_NIGHTS, "--json"),
    "history check": ("history", "check", *_NIGHTS),
    "history add": ("history", "add", "{run:sharp}", *_NIGHTS),
    "history add again": ("history", "add", "{run:sharp}", *_NIGHTS),
    "history export": ("history", "export", "exported", *_NIGHTS),
    "history prune": ("history", "prune", "--keep-nights", "1", "--dry-run", *_NIGHTS),
    "history of no file": ("history", "list", "--history", "none.sqlite"),
    "floor screen": (*_FLOOR, "--vary", "repeat"),
    "floor of one variation": (*_FLOOR, "--vary", "repeat", "--json"),
    "floor of no model": ("floor", "--config", "{guard}", "--base", "orgi"),
    "floor of no file": (*_JUDGED, "--floor", "floor.json"),
    "compare beside a floor": (*_JUDGED, "--limit", "8"),
    "plan json": ("plan", "--config", "{guard}", "--base", "orig", "--cand", "sharp", "--json"),
    "plan of a run": ("plan", "--run", "{run:sharp}"),
    "plan of a margin": ("plan", "--run", "{run:sharp}", "--margin", "2%", "--power", "0.9"),
    "plan of no run": ("plan", "--run", "no/run"),
    "error json": (*_PAIR, "shrap", "--json"),
    "models json": ("models", "--config", "{guard}", "--json"),
    "tasks json": ("tasks", "sw_word", "--include_path", "{tasks}", "--json"),
    "history list json": ("history", "list", *_NIGHTS, "--json"),
    "history check json": ("history", "check", *_NIGHTS, "--json"),
    "history prune json": ("history", "prune", "--keep-nights", "1", *_NIGHTS, "--json"),
    "cache json": ("cache", "ls", "--json"),
    "cache cleared json": ("cache", "clear", "--all", "--json"),
    "cache command that is gone": ("cache", "prune", "--older-than", "30d"),
}  # fmt: skip

# Their numbers are rounding's, or what a processor makes of it: shapes alone are held.
SHAPES = frozenset(
    {
        "cache cleared json", "cache json", "compare beside a floor",
        "floor of one variation", "floor screen", "trace", "trace json",
        "trace of a dump", "trace of one model",
    }
)  # fmt: skip

# What two runs that say the same may differ in, by key.
_OF_ONE_RUN = {
    "checksum", "command", "created", "digest", "ended", "environment", "finished", "folder",
    "machine", "memory", "pid", "resources", "run_folder", "run_id", "seconds", "started",
    "surroundings", "versions",
}  # fmt: skip
_DIGEST_OR_TIME = re.compile("digest|seconds|per_second")
# What rounding decides: every processor has its own.
_OF_ROUNDING = re.compile(
    r"(distribution_)?shifts\[\d+\]\.(bit_identical|caveats.*|document_sd|largest_.*|method"
    r"|other_answers|paired_stderr)"
    r"|(distribution_)?floors\[\d+\]\.(bit_identical|document_sd|other_answers|variation)"
)
_NUMBER = re.compile(r"(?<![\w.])[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?%?")
_MASKS = (
    (r"\b127\.0\.0\.1[:-]\d{5}\b", "SERVER"),
    (r"\d{8}T\d{6}Z(-\d+)?", "TIME"),
    (r"(-vs-[a-z]+)-\d+\b", r"\1"),  # of several runs in one second
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+)?(Z|\+00:00)?", "TIME"),
    (r"\d{4}-\d\d-\d\d", "DATE"),
    # Markdown holds what a forge would take for a commit in backticks, so not one of digits alone
    (r"`?\b(?=[0-9a-f]*\d)[0-9a-f]{8,64}\b`?", "DIGEST"),
    (r"\b\d+(\.\d+)? ?(s|ms|min|h|seconds?|minutes?|hours?)\b", "DURATION"),
    (r"\b\d+(\.\d+)? (B|kB|MB|GB|KiB|MiB|GiB|bytes)\b", "SIZE"),
    (r"\d+\.\d+\.\d+[\w.+]*", "VERSION"),
    (r"\bLinux-VERSION-[^ |]*", "PLATFORM"),
    (r"\bAVX\d*\b", "VECTORS"),
    (r"\b(\d{1,3}(,\d{3})+),\d{3}\b", r"\1,..."),  # so many digits are rounding
    # Digested files: what Python starts by itself is among them, and every environment has its own
    (r"(?<=  )\d+(?=  +DATE  +files\b)", "COUNT"),
)


def plain(text: str, places: Mapping[str, str]) -> list[str]:
    """Paragraphs of a text without folders, times, digests, durations and versions.

    Each is one line: where a screen's lines break depends on how long a folder's name is.
    """
    text = re.sub(r"(?<=/)\\\n\s*", "", text)  # a path that a typed command breaks
    text = re.sub(r"\s*\\\n\s*", " ", text)
    for place, name in sorted(places.items(), key=lambda pair: -len(pair[0])):
        text = text.replace(place, name)
    for pattern, name in _MASKS:
        text = re.sub(pattern, name, text)
    return [_in_one_line(part) for part in re.split(r"\n\s*\n", text.strip())]


def _in_one_line(part: str) -> str:
    """A paragraph in one line; rows of the cache come in no order, for it is that of use."""
    head, *rows = part.splitlines() or [""]
    if head.split()[:3] == ["model", "kind", "size"]:
        part = " ".join([head, *sorted(row.strip() for row in rows)])
    return " ".join(part.split())


def values(document: Any, places: Mapping[str, str], path: str = "") -> dict[str, Any]:
    """A document's values by path, numbers to three digits, without what belongs to one run."""
    if isinstance(document, Mapping):
        found: dict[str, Any] = {} if document else {path: {}}
        for key, value in document.items():
            if key not in _OF_ONE_RUN and not _DIGEST_OR_TIME.search(key):
                masked = plain(key, places)[0] if key else key
                found |= values(value, places, f"{path}.{masked}" if path else masked)
        return found
    if isinstance(document, list):
        found = {} if document else {path: []}
        for i, value in enumerate(document):
            found |= values(value, places, f"{path}[{i}]")
        return found
    if isinstance(document, float):
        # What is next to nothing is rounding, another on every machine.
        return {path: float(f"{document:.3g}") if abs(document) > 1e-6 else 0.0}
    if isinstance(document, str):
        return {path: "\n".join(plain(document, places))}
    return {path: document}


def are_same(old: Any, new: Any) -> bool:
    """Whether two values of a document are one: numbers to what any processor rounds alike."""
    if isinstance(old, float) and isinstance(new, float):
        return math.isclose(old, new, rel_tol=0.01, abs_tol=1e-3)
    return bool(old == new)


def answer(
    code: int, out: str, err: str, places: Mapping[str, str], *, numbers: bool = True
) -> dict[str, Any]:
    """What must stay of one command's answer: exit code, document or screen, the error.

    Without ``numbers`` it is the keys of the document, or the screen with # for its numbers.
    """
    said = [
        plain(line, places)[0]
        for line in err.splitlines()
        if line.startswith(("error: ", "  hint", "Usage"))
    ]
    kept: dict[str, Any] = {"code": code, "error": said}
    try:
        found = values(json.loads(out), places)
        if not numbers:
            keys = {re.sub(r"\[\d+\]", "[]", key) for key in found}
            return {**kept, "keys": sorted(key for key in keys if not _OF_ROUNDING.search(key))}
        kept["json"] = {key: found[key] for key in found if not _OF_ROUNDING.fullmatch(key)}
    except ValueError:
        screen = plain(out, places)
        kept["screen"] = screen if numbers else [_NUMBER.sub("#", one) for one in screen]
    return kept
