"""Finding and loading guard files."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from evalguard.config.checks import check_entry, check_model, check_pairs, check_track, validate
from evalguard.config.documents import (
    Document,
    Inherited,
    absent_paths,
    code_uses,
    inherit,
    read_guard_document,
)
from evalguard.config.entries import resolve_model, resolve_model_args, resolve_path, resolve_value
from evalguard.config.guard import (
    GateOptions,
    Guard,
    GuardSet,
    Origin,
    Pair,
    Problem,
    RunOptions,
    raise_problems,
)
from evalguard.config.schema import (
    BuildEntry,
    GateEntry,
    GuardFile,
    ModelEntry,
    PairEntry,
    ServeEntry,
    setting_target,
)
from evalguard.core.limits import Limit
from evalguard.core.settings import (
    BuildRecipe,
    Constraint,
    OwnEnvironment,
    ServeRecipe,
    Setting,
    Value,
    Variant,
)
from evalguard.core.verdict import Margin
from evalguard.core.waivers import Waiver
from evalguard.errors import EvalguardError, GuardFileError, nearest
from evalguard.plugins import recipe_function

_ENDINGS = (".yaml", ".yml")


def load_guards(config: Path | None, *, cwd: Path, allow_code: bool) -> GuardSet:
    """Load the guard file that was named, else those that are found, else the embedded one.

    Looked for, in this order: ``config``, of which "demo" is the embedded one; ``evalguard.yaml``
    in ``cwd``; every YAML file of ``configs/`` in ``cwd``; the embedded demo. A file that was only
    found may not run code unless ``allow_code``; see ``require_code_allowed``.

    Raises:
        GuardFileError: if a file is missing, unreadable or wrong, or two define one name.
    """
    origin, files = _find(config, cwd)
    loaded: list[tuple[Guard, Document]] = []
    errors: list[GuardFileError] = []
    for file in files:
        label = _label(file, config, cwd)
        embedded = is_embedded(file)
        trusted = allow_code or origin in ("named", "embedded") or embedded
        # A link to the embedded file is that file: relative paths must not start at the link.
        read = file.resolve() if embedded else file
        try:
            loaded.append(load_guard(read, label, origin, code_allowed=trusted))
        except GuardFileError as error:
            if origin != "configs/":
                raise
            errors.append(error)
    if errors:
        raise _joined(errors)
    _refuse_doubles(loaded)
    return GuardSet(guards=tuple(guard for guard, _ in loaded))


def _find(config: Path | None, cwd: Path) -> tuple[Origin, list[Path]]:
    if config is not None:
        file = cwd / os.path.expanduser(config)
        if str(config) == BUILT_IN and not file.is_file():
            return "named", [embedded_folder() / DEMO]
        if not os.path.exists(file):
            raise _no_such_file(file, str(config))
        return "named", [file]
    found_here = cwd / "evalguard.yaml"
    if found_here.exists():
        if not (found_here.is_file() or found_here.is_dir()):
            # Opening a pipe would wait for its other end; one that was named may be one.
            raise GuardFileError("is not a regular file", where=found_here.name)
        return "evalguard.yaml", [found_here]
    folder = cwd / "configs"
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    files = [file for file in found if file.suffix in _ENDINGS and file.is_file()]
    if files:
        return "configs/", files
    return "embedded", [embedded_folder() / DEMO]


def _no_such_file(file: Path, label: str) -> GuardFileError:
    folder = file.parent
    if not folder.is_dir():
        return GuardFileError(f"no such guard file: no folder {folder}", where=label)
    near = [path.name for path in folder.iterdir() if path.suffix in _ENDINGS]
    return GuardFileError(
        f"no such guard file{nearest(file.name, near)}",
        where=label,
        hint="`evalguard init` writes one to start from",
    )


def _label(file: Path, config: Path | None, cwd: Path) -> str:
    if config is not None:
        return str(config)
    try:
        return os.fspath(file.relative_to(cwd))
    except ValueError:
        return str(file)


def _refuse_doubles(loaded: list[tuple[Guard, Document]]) -> None:
    places: dict[str, str] = {}
    problems = []
    for guard, document in loaded:
        for name in guard.variants:
            loc = ("models", name)
            first = places.setdefault(name, document.where(loc))
            if first != document.where(loc):
                problems.append(document.problem(loc, f"model '{name}' is already at {first}"))
    raise_problems(problems)


def _joined(errors: list[GuardFileError]) -> GuardFileError:
    """Return one error for the faults of several files."""
    first, *others = errors
    hints = dict.fromkeys(error.hint for error in errors if error.hint)
    hints["every YAML file of configs/ is read as a guard file; --config FILE reads one"] = None
    return GuardFileError(
        "\n".join([first.what, *map(str, others)]), where=first.where, hint="\n".join(hints)
    )


# The folder of what comes with evalguard: the demo's guard file, tasks and model.


PACKAGE = Path(__file__).resolve().parent.parent
DEMO = Path("configs") / "demo.yaml"
# What ``--config`` calls it, unless a file of this name is there: so printed commands find the
# built-in models, whatever guard file lies where they are run.
BUILT_IN = "demo"


def embedded_folder() -> Path:
    """Return the folder that holds ``configs/``, ``tasks/`` and ``demo/``.

    In an installed wheel that is package data, in a checkout the top of it; relative paths inside
    the files hold in both.

    Raises:
        EvalguardError: if neither is there: the installation is damaged.
    """
    for folder in (PACKAGE / "_embedded", PACKAGE.parent):
        if (folder / DEMO).is_file():
            return folder
    raise EvalguardError(
        f"evalguard's own demo is missing: no {DEMO} in {PACKAGE / '_embedded'}",
        hint="install evalguard again, or name a guard file with --config",
    )


def embedded_tasks() -> tuple[Path, ...]:
    """Return the folder of the tasks that come with evalguard; () where the installation lacks it.

    Whoever names a guard file and other tasks needs none of them.
    """
    try:
        return (embedded_folder() / "tasks",)
    except EvalguardError:
        return ()


def is_embedded(file: Path) -> bool:
    """Whether a guard file is one that came with this evalguard, so that its code is trusted."""
    try:
        return file.resolve().parent == (embedded_folder() / "configs").resolve()
    except EvalguardError:
        return False


# Loading one guard file: text to a Guard, or every problem that it has.


def load_guard(
    file: Path, label: str, origin: Origin, *, code_allowed: bool
) -> tuple[Guard, Document]:
    """Load one guard file; the document says where things stand in it.

    Raises:
        GuardFileError: listing what is wrong, each with its line.
    """
    document = read_guard_document(file, label)
    parsed, problems = validate(document)
    raise_problems([*document.problems, *problems])
    assert parsed is not None
    models = _checked(parsed, document)
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
        include_paths=tuple(resolve_path(path, folder) for path in parsed.include_path),
        include_where=document.where(("include_path",)),
        clusters=dict(parsed.clusters),
        gate=_gate(parsed.gate),
        run=RunOptions(**parsed.run.model_dump()),
        descriptions={name: model.entry.description for name, model in models.items()},
        parents={name: model.entry.extends for name, model in models.items()},
        code_allowed=code_allowed,
        code_uses={name: code_uses(model, document) for name, model in models.items()},
        places=_places(models.values(), document),
        absent=tuple(absent_paths(parsed, models.values(), document)),
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
        limits=tuple(Limit(metric=metric, value=value) for metric, value in limits.items()),
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
        accept=tuple(
            Waiver(
                **{**waiver.model_dump(), "filter": waiver.filter or ""},
                where=document.where(("pairs", place, "accept", number)),
            )
            for number, waiver in enumerate(entry.accept)
        ),
    )


def _checked(parsed: GuardFile, document: Document) -> dict[str, Inherited]:
    """Return every model with what it inherits, once all of them hold together."""
    own = [p for name, entry in parsed.models.items() for p in check_entry(name, entry, document)]
    models, circles = inherit(parsed, document)
    problems: list[Problem] = [*own, *circles, *check_pairs(parsed, document)]
    problems += check_track(parsed, document)
    if not own:
        problems += [p for model in models.values() for p in check_model(model, document)]
    raise_problems(problems)
    return models


# Variants: the models of a validated guard file as domain objects.


def variant_of(model: Inherited, *, folder: Path, code_allowed: bool) -> Variant:
    """Return the variant of a model, every setting at its candidate value.

    Local paths are resolved against ``folder``. Where code is not allowed the variant trusts none,
    whatever the file says; ``require_code_allowed`` tells the user.
    """
    entry = model.entry
    targets = {name: setting_target(name, setting) for name, setting in entry.settings.items()}

    def resolved(name: str, value: Value) -> Value:
        target = targets[name]
        if target.kind in ("weights", "module") and isinstance(value, str):
            return resolve_model(value, folder)
        if target.kind == "module" and isinstance(value, dict):
            return _resolve_module_source(value, folder)
        is_argument = target.kind == "model_args"
        return resolve_value(target.path, value, folder) if is_argument else value

    settings = tuple(
        Setting(
            name=name,
            reference=resolved(name, setting.reference),
            candidate=resolved(name, setting.candidate),
            target=targets[name],
            alternatives=tuple(resolved(name, value) for value in setting.alternatives),
        )
        for name, setting in entry.settings.items()
    )
    constraints = tuple(
        Constraint(
            when={name: resolved(name, value) for name, value in constraint.when.items()},
            then={name: resolved(name, value) for name, value in constraint.then.items()},
        )
        for constraint in entry.constraints
    )
    return Variant(
        name=model.name,
        model=entry.model,
        model_args=resolve_model_args(entry.model_args, folder),
        settings=settings,
        constraints=constraints,
        assignment={setting.name: setting.candidate for setting in settings},
        build=None if entry.build is None else _recipe(entry.build, folder),
        environment=_environment(entry, folder),
        serve=None if entry.serve is None else _server(entry.serve, folder),
        trust_remote_code=entry.trust_remote_code and code_allowed,
        allow_pickle=entry.allow_pickle and code_allowed,
        allow_code=code_allowed,
        code_folder=str(folder),
        revision=entry.revision,
    )


def _environment(entry: ModelEntry, folder: Path) -> OwnEnvironment | None:
    if not entry.python and not entry.requirements:
        return None
    python = entry.python or ""
    if "/" in python:
        # not resolved: the link in a virtual environment says which one it is
        python = str((folder / python).expanduser().absolute())
    return OwnEnvironment(python=python, requirements=tuple(entry.requirements))


def _server(serve: ServeEntry, folder: Path) -> ServeRecipe:
    return ServeRecipe(
        command=tuple(serve.command),
        url=serve.url,
        ready=serve.ready,
        env={
            name: None if value is None else str(int(value) if isinstance(value, bool) else value)
            for name, value in serve.env.items()
        },
        start_limit=float(serve.start_limit),
        folder=str(folder),
    )


def _resolve_module_source(value: dict[str, Value], folder: Path) -> Value:
    """A model that modules are taken from, with local paths resolved; what is odd stays."""
    arguments, edits = value.get("model_args"), value.get("settings")
    found = dict(value)
    if isinstance(arguments, dict):
        found["model_args"] = resolve_model_args(arguments, folder)
    if isinstance(edits, dict):
        found["settings"] = {
            target: resolve_model(one, folder)
            if target.startswith("weights:") and isinstance(one, str)
            else one
            for target, one in edits.items()
        }
    return found


def _recipe(build: BuildEntry, folder: Path) -> BuildRecipe:
    return BuildRecipe(
        command=tuple(build.command),
        call=recipe_function(build.call) if build.call else "",
        output=build.output,
        inputs=dict(build.inputs),
        folder=str(folder),
    )
