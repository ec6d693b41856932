"""Loading one guard file: text to a Guard, or every problem that it has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from evalguard.config.answer_entry import expected_answers
from evalguard.config.checks import check_entry, check_model, check_pairs, check_track
from evalguard.config.gate_entry import GateEntry
from evalguard.config.guard import GateOptions, Guard, Origin, Pair, RunOptions
from evalguard.config.guard_document import Document, read_guard_document
from evalguard.config.guard_shape import PairEntry
from evalguard.config.guard_variants import variant_of
from evalguard.config.inheritance import Inherited, inherit
from evalguard.config.local_paths import (
    resolve_path,
)
from evalguard.config.problems import Problem, raise_problems
from evalguard.config.trust import file_uses, model_uses, surroundings_of
from evalguard.config.validation import ValidatedFile, validate
from evalguard.core.figure_names import figure_named
from evalguard.core.limits import Limit
from evalguard.core.verdict import Margin
from evalguard.core.waivers import Waiver

# What else is checked of a file as far as it is sound, with its models and what they inherit.
FurtherCheck = Callable[[ValidatedFile, Mapping[str, Inherited]], Iterable[Problem]]


def load_guard(
    file: Path,
    label: str,
    origin: Origin,
    *,
    code_allowed: bool,
    check: FurtherCheck = lambda _file, _models: (),
) -> tuple[Guard, Document]:
    """Load one guard file; the document says where things stand in it.

    Raises:
        GuardFileError: listing all that is wrong, each with its line: of its shape, of what has to
            fit together, and what ``check`` finds.
    """
    validated = validate(read_guard_document(file, label))
    parsed, document = validated.file, validated.document
    problems = [*document.problems, *validated.problems]
    if parsed is None:
        raise_problems(problems)
    assert parsed is not None
    around = surroundings_of(file, in_configs=origin == "configs/")
    answers, of_answers = expected_answers(
        parsed.answers,
        document,
        may_read=lambda named: code_allowed or not around.path_danger(named),
    )
    models, of_models = _inherited(validated)
    raise_problems([*problems, *of_answers, *of_models, *check(validated, models)])
    folder = document.folder
    guard = Guard(
        file=file.absolute(),
        label=label,
        origin=origin,
        variants={
            name: variant_of(model, folder=folder, code_allowed=code_allowed)
            for name, model in models.items()
        },
        pairs=tuple(
            _pair(pair, name, place, document, parsed.gate)
            for place, pair in enumerate(parsed.pairs)
            for name in pair.cand
        ),
        tasks=tuple(parsed.tasks),
        requests=_file(parsed.requests, folder),
        include_paths=tuple(resolve_path(path, folder) for path in parsed.include_path),
        include_where=document.where(("include_path",)),
        clusters=dict(parsed.clusters),
        answers=answers,
        gate=_gate(parsed.gate),
        run=RunOptions(**parsed.run.model_dump()),
        descriptions={name: model.entry.description for name, model in models.items()},
        parents={name: model.entry.extends for name, model in models.items()},
        code_allowed=code_allowed,
        code_uses={name: model_uses(model, document) for name, model in models.items()},
        file_uses=file_uses(parsed, document, around),
        places=_places(models.values(), document),
    )
    return guard, document


def _places(models: Iterable[Inherited], document: Document) -> dict[tuple[str, ...], str]:
    places: dict[tuple[str, ...], str] = {}
    for model in models:
        places[model.name,] = document.where(("models", model.name))
        for setting in model.entry.settings:
            places[model.name, setting] = document.where(model.place("settings", setting))
    return places


def _gate(entry: GateEntry) -> GateOptions:
    margin = Margin.parse(entry.margin)
    margins = entry.metrics.__pydantic_extra__ or {}
    limits = entry.metrics.model_dump(by_alias=True, exclude_none=True, exclude=set(margins))
    return GateOptions(
        margin=margin.value if margin.unit == "sigma" else margin,
        margins=tuple((name, one.margin) for name, one in margins.items() if one.margin),
        directions=tuple(
            (name, one.higher_is_better)
            for name, one in margins.items()
            if one.higher_is_better is not None
        ),
        fail_on=entry.fail_on,
        confidence=entry.confidence,
        undecided=entry.undecided,
        broken_documents=entry.broken_documents,
        subtasks=entry.subtasks,
        gate_metrics=tuple(entry.only),
        advisory=tuple(entry.advisory),
        figures=tuple(
            name
            for name, one in margins.items()
            if figure_named(name) is not None and (one.limit is None or one.margin is not None)
        ),
        limits=(
            *(Limit(metric=metric, value=value) for metric, value in limits.items()),
            *(
                Limit.parse(name, one.limit)
                for name, one in margins.items()
                if one.limit is not None
            ),
        ),
    )


def _gate_of_pair(entry: GateEntry, of_file: GateEntry) -> GateOptions:
    """A pair's gate: what it says itself, and the file's gate for the rest."""
    said = {name: getattr(entry, name) for name in entry.model_fields_set}
    return _gate(of_file.model_copy(update=said))


def _pair(
    entry: PairEntry, candidate: str, place: int, document: Document, of_file: GateEntry
) -> Pair:
    return Pair(
        gate=None if entry.gate is None else _gate_of_pair(entry.gate, of_file),
        base=entry.base,
        candidate=candidate,
        differs=frozenset(entry.differs),
        tasks=tuple(entry.tasks),
        requests=_file(entry.requests, document.folder),
        accept=tuple(
            Waiver(
                **{**waiver.model_dump(), "filter": waiver.filter or ""},
                where=document.where(("pairs", place, "accept", number)),
            )
            for number, waiver in enumerate(entry.accept)
        ),
    )


def _file(named: str | None, folder: Path) -> Path | None:
    return None if named is None else resolve_path(named, folder)


def _inherited(validated: ValidatedFile) -> tuple[dict[str, Inherited], list[Problem]]:
    """Return every model with what it inherits, and what does not hold together.

    Of a model that has faults of its own, or from one that it extends, only these are told.
    """
    parsed, document = validated.file, validated.document
    assert parsed is not None
    own = {name: [*check_entry(name, one, document)] for name, one in parsed.models.items()}
    models, circles = inherit(parsed, document)
    problems = [*circles, *check_pairs(parsed, document), *check_track(parsed, document)]
    for name, found in own.items():
        problems += found
        if name in models and not (
            validated.lacks(name) or any(own.get(one) for one in validated.lineage(name))
        ):
            problems += check_model(models[name], document)
    return models, problems
