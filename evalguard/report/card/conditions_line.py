"""The line under a table that says how it was made, like sacrebleu's signature: short, and parsed
by splitting at ``|``, then at the first ``:``; of a task at ``,``. Names are percent-encoded.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from urllib.parse import quote

from evalguard.core.reports.asked_task import AskedTask
from evalguard.core.reports.compare_report import CompareReport, RunIdentity
from evalguard.report.card.documents_asked import list_tasks

_UNKNOWN = "?"
_DIGITS = 8  # of a digest or a commit
_MOST_TASKS = 8
_SAFE = "/._-+=()?"
_LONGEST = 120  # letters of a name
_PACKAGES = ("lm_eval", "torch", "transformers")


def conditions_line(reports: Sequence[CompareReport]) -> str:
    """Return the conditions of runs that may stand in one table; "?" for what is not known.

    ``base`` and every ``cand`` are ``name@commit#digest``, the digest over all that can change a
    score; ``task`` has its name, v(ersion), shots, seed of the examples, n(umber of documents, of
    how many) and digests of docs, prompts and, where there is one, chat template, of base/cand
    where they differ; more than eight tasks are one digest over these.
    """
    fields = [
        ("evalguard", _joined(_encoded(one.version) for one in reports)),
        *((name, _joined(_package(one, name) for one in reports)) for name in _PACKAGES),
        ("base", _model(reports[0].base)),
        *(("cand", _model(one.candidate)) for one in reports),
        *_tasks(reports),
        ("batch", _joined(_batches(one) for one in reports)),
        ("gate", _joined(_gate(one) for one in reports)),
    ]
    seeds = [str(one.sequential.seed) for one in reports if one.sequential is not None]
    if seeds:
        fields.append(("order", _joined(f"seed={seed}" for seed in seeds)))
    return "|".join(f"{key}:{value}" for key, value in fields)


def task_conditions(report: CompareReport) -> tuple[str, ...]:
    """Return what the line has of each task."""
    return tuple(_task(one) for one in list_tasks(report))


def _tasks(reports: Sequence[CompareReport]) -> Iterator[tuple[str, str]]:
    """Of the run that asked most: one that stopped early asked a part of them."""
    whole = max(reports, key=lambda one: sum(task.n for task in list_tasks(one)))
    tasks = task_conditions(whole)
    if len(tasks) <= _MOST_TASKS:
        yield from (("task", one) for one in tasks)
        return
    digest = hashlib.sha256("\n".join(tasks).encode()).hexdigest()
    yield "tasks", f"{len(tasks)}#{digest[:_DIGITS]}"


def _task(one: AskedTask) -> str:
    shots = _UNKNOWN if one.num_fewshot is None else str(one.num_fewshot)
    fields = {
        "v": _encoded(one.version) or _UNKNOWN,
        "shots": shots,
        "seed": "" if one.fewshot_seed is None else str(one.fewshot_seed),
        "n": f"{one.n}/{one.n_total or _UNKNOWN}",
        "docs": _encoded(one.documents[:_DIGITS]) or _UNKNOWN,
        "prompts": _encoded(one.prompts[:_DIGITS]) or _UNKNOWN,
        "template": "/".join(
            dict.fromkeys(
                _encoded(told.partition("#")[2][:_DIGITS] or told) or _UNKNOWN
                for told in (one.base_template, one.candidate_template)
            )
        )
        if one.base_template or one.candidate_template
        else "",
        "data": _at_commit(one.dataset, one.revision) if one.dataset else "",
    }
    return ",".join(
        [_encoded(one.task), *(f"{key}={told}" for key, told in fields.items() if told)]
    )


def _model(side: RunIdentity) -> str:
    """``name@commit#digest``; the commit where the model is one of the hub."""
    name = _at_commit(side.model or side.name, side.revision)
    return f"{name}#{_encoded(side.digest[:_DIGITS])}"


def _at_commit(name: str, commit: str) -> str:
    return _encoded(name) + (f"@{_encoded(commit[:_DIGITS])}" if commit else "")


def _batches(report: CompareReport) -> str:
    """How many sequences, or padded tokens, each pass had, of base and candidate."""
    sides = (("base", report.base), ("candidate", report.candidate))
    return "/".join(dict.fromkeys(_batch(report, side, name) for name, side in sides))


def _batch(report: CompareReport, side: RunIdentity, name: str) -> str:
    computed = side.computation
    if not computed:
        recorded = report.environment.get(name)
        computed = recorded if isinstance(recorded, Mapping) else {}
    if computed.get("token_budget"):
        return _encoded(f"{computed['token_budget']}tokens")
    size = computed.get("batch_size")
    return _UNKNOWN if size is None else _encoded(str(size))


def _gate(report: CompareReport) -> str:
    gate = report.gate
    margin = gate.margin_text or f"{gate.margin:.6g} sigma"
    confidence = f"{100 * gate.confidence:.6g}%"
    return ",".join(map(_encoded, (gate.fail_on, margin.replace(" ", ""), confidence)))


def _package(report: CompareReport, name: str) -> str:
    """A package's version of the base's process, else of the one that compared."""
    places = (report.environment.get("base"), report.environment)
    for place in places:
        packages = place.get("packages") if isinstance(place, Mapping) else None
        version = packages.get(name) if isinstance(packages, Mapping) else None
        if version is None and isinstance(place, Mapping):
            version = place.get(f"{name}_version")
        if version is not None:
            return _encoded(str(version))
    return ""


def _joined(found: Iterable[str]) -> str:
    """All that the runs have, each once; the parts are encoded."""
    return "&".join(dict.fromkeys(one for one in found if one)) or _UNKNOWN


def _encoded(text: str) -> str:
    return quote(text[:_LONGEST], safe=_SAFE, errors="replace")
