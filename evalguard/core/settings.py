"""Settings (conversion knobs), their targets, and the variants of a model that carry them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, get_args

from evalguard.errors import SettingError, UsageError, nearest

_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


def fold_numbers(name: str) -> str:
    """Return a dotted name with "*" for every part that is a number: "layers.*.mlp"."""
    return _NUMBER.sub("*", name)


Value = None | bool | int | float | str | list["Value"] | dict[str, "Value"]
Assignment = Mapping[str, Value]
TargetKind = Literal[
    "model_args",
    "config",
    "attr",
    "dtype",
    "weights",
    "module",
    "generation",
    "env",
    "build",
    "call",
    "package",
    "serve",
]
TARGET_KINDS: tuple[str, ...] = get_args(TargetKind)
_DOTTED = ("model_args", "config", "generation", "env", "build", "package", "serve")
_GLOBBED = ("dtype", "weights", "module")
_OF_PARTS = ("config", "build")  # a dotted path leads into what a shorter one names
TARGETS_HINT = (
    "targets: model_args.X, config.X, attr:GLOB.X, dtype:GLOB, weights:GLOB, module:GLOB, "
    "generation.X, env.X, build.X, package.X, serve.FLAG, serve.env.X, call:pkg.mod:function"
)
# model_args that change what a tokenizer emits: a setting on one of them declares that base and
# candidate are meant to read different token ids.
ENCODING_ARGS = frozenset(
    {
        "add_bos_token",
        "chat_template_args",
        "enable_thinking",
        "prefix_token_id",
        "tokenizer",
        "truncation",
        "use_fast_tokenizer",
    }
)
# ... of these, those that change what a chat template writes.
PROMPT_ARGS = frozenset({"chat_template_args", "enable_thinking", "tokenizer"})
# ... and those that change where a document too long for the context is cut, and nothing else.
LENGTH_ARGS = frozenset({"max_length"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a setting is applied.

    ``model_args.X``, ``config.X``, ``generation.X``, ``env.X``, ``build.X`` and ``package.X`` (the
    version of a package in the model's own environment) have ``path`` X, as have ``serve.X`` (a
    flag of the server that evalguard starts) and ``serve.env.Y`` (of its environment, X is env.Y);
    ``attr:GLOB.X`` has
    ``path`` GLOB and ``attribute`` X; ``dtype:GLOB``, ``weights:GLOB``, ``module:GLOB`` and
    ``call:pkg.mod:function`` have ``path`` only.
    """

    kind: TargetKind
    path: str
    attribute: str = ""

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read a target as it is written in a guard file.

        Raises:
            UsageError: for an unknown kind or a missing part, with the nearest right name.
        """
        for kind in _DOTTED:
            if text.startswith(kind + "."):
                return cls(kind=kind, path=_required(text[len(kind) + 1 :], text))  # type: ignore[arg-type]
        kind, colon, rest = text.partition(":")
        if colon and kind == "attr":
            path, dot, attribute = rest.rpartition(".")
            if not (path and dot and attribute):
                raise UsageError(
                    f"target '{text}' names no attribute",
                    hint="write attr:GLOB.NAME, e.g. attr:model.layers.*.self_attn.scaling",
                )
            return cls(kind="attr", path=path, attribute=attribute)
        if colon and kind in _GLOBBED:
            return cls(kind=kind, path=_required(rest, text))  # type: ignore[arg-type]
        if colon and kind == "call":
            module, inner, function = rest.rpartition(":")
            if not (module and inner and function.isidentifier()):
                raise UsageError(
                    f"target '{text}' names no function",
                    hint="write call:pkg.mod:function or call:path/to/file.py:function",
                )
            return cls(kind="call", path=rest)
        head = kind if colon else text.partition(".")[0]
        raise UsageError(
            f"unknown target '{text}'{nearest(head, TARGET_KINDS)}",
            hint=TARGETS_HINT,
        )

    def overlaps(self, other: Target) -> bool:
        """Whether both write one place, or one a part of what the other writes."""
        ours, theirs = str(self), str(other)
        parts = self.kind in _OF_PARTS and (f"{ours}.", f"{theirs}.")
        return ours == theirs or bool(
            parts and (ours.startswith(parts[1]) or theirs.startswith(parts[0]))
        )

    def __str__(self) -> str:
        if self.kind in _DOTTED:
            return f"{self.kind}.{self.path}"
        return f"{self.kind}:{self.path}" + (f".{self.attribute}" if self.attribute else "")


def _required(path: str, text: str) -> str:
    if not path:
        raise UsageError(f"target '{text}' ends where a name is needed")
    return path


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One conversion knob: its reference value, its candidate value, and where it is applied.

    ``alternatives`` are further values that would do, in order of preference: what a recommended
    conversion may use in place of the candidate's, if that is guilty. ``follows``: the setting with
    which this one goes, at its reference value where that one is and at its candidate's where that
    one is, because either alone does what neither is meant to; "": it has a value of its own.
    """

    name: str
    reference: Value
    candidate: Value
    target: Target
    alternatives: tuple[Value, ...] = ()
    follows: str = ""

    @property
    def changes_encoding(self) -> bool:
        """Whether this setting is meant to change the token ids that a model reads."""
        return self.target.kind == "model_args" and self.target.path in ENCODING_ARGS

    @property
    def changes_prompt(self) -> bool:
        """Whether this setting is meant to change what a chat template writes."""
        return self.target.kind == "model_args" and self.target.path in PROMPT_ARGS

    @property
    def changes_length(self) -> bool:
        """Whether this setting is meant to change where long documents are cut."""
        return self.target.kind == "model_args" and self.target.path in LENGTH_ARGS


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """Assignments that cannot be built: where ``when`` holds, ``then`` must hold too."""

    when: Mapping[str, Value]
    then: Mapping[str, Value]

    def violated_by(self, assignment: Assignment) -> bool:
        """Return True if the assignment cannot be built under this constraint."""
        applies = all(assignment.get(name) == value for name, value in self.when.items())
        return applies and any(assignment.get(name) != value for name, value in self.then.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildRecipe:
    """Makes a model from settings: a command or a Python call, run in a folder of its own.

    ``command`` is an argument vector whose items may hold ``{name}`` for a build input and
    ``{output}`` for the output path; ``call`` is ``pkg.mod:function`` or ``FILE.py:function``.
    ``output`` is the path, inside the build folder, of what was made. ``inputs`` are fixed build
    inputs that ``build.X`` settings override. ``folder`` is where relative paths are resolved.
    """

    command: tuple[str, ...] = ()
    call: str = ""
    output: str = "output"
    inputs: Mapping[str, Value] = field(default_factory=dict)
    folder: str = "."

    def inputs_with(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        """Return the inputs with ``build.X`` settings laid over them, given as X -> value.

        X is an input, or ``NAME.ENTRY``: an entry of an input that is a mapping, whose key may have
        dots of its own, or by its number an item of a list.

        Raises:
            SettingError: the command never reads X, or the input has no entries.
        """
        inputs = dict(self.inputs)
        used = placeholders(self.command)
        for path, value in settings.items():
            if self.command and path not in used:
                raise SettingError(
                    f"the build command never reads '{path}'"
                    f"{nearest(path, {*inputs, *used} - {'output'})}",
                    hint=f"write {{{path.partition('.')[0]}}} where the command needs it",
                    target=f"build.{path}",
                )
            name, dot, entry = path.partition(".")
            inputs[name] = _with_entry(inputs.get(name), entry, value, path) if dot else value
        return inputs


_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")


def placeholders(command: tuple[str, ...]) -> list[str]:
    """Names in braces in a command's arguments, in order, each once."""
    return list(dict.fromkeys(name for item in command for name in _PLACEHOLDER.findall(item)))


def fill_placeholders(item: str, values: Mapping[str, Value]) -> str:
    """Replace every ``{name}`` of one command argument; names must be in ``values``."""
    return _PLACEHOLDER.sub(lambda match: _as_argument(values[match[1]]), item)


def _as_argument(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _with_entry(held: Value, entry: str, value: Value, path: str) -> Value:
    """Return a mapping or list with another value for one entry."""
    name, dot, rest = entry.partition(".")
    if isinstance(held, list):
        if not (name.isdecimal() and int(name) < len(held)):
            raise _no_entry(path, f"'{name}' is no item of a list of {len(held)}", "0 is the first")
        items = list(held)
        items[int(name)] = _with_entry(items[int(name)], rest, value, path) if dot else value
        return items
    if not isinstance(held, dict | None):
        raise _no_entry(path, f"{held!r} has no entries", "write a mapping in the build's inputs")
    entries = held or {}
    # An entry that is there comes first: keys may have dots, as patterns of tensor names do.
    if entry not in entries and dot and isinstance(entries.get(name), dict | list):
        return {**entries, name: _with_entry(entries[name], rest, value, path)}
    return {**entries, entry: value}


def _no_entry(path: str, reason: str, hint: str) -> SettingError:
    return SettingError(f"build.{path}: {reason}", hint=hint, target=f"build.{path}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRecipe:
    """Starts the server that answers for a model.

    ``command`` is an argument vector, run without a shell in ``folder``; ``{port}`` (a free one),
    ``{python}`` (the interpreter of the model's environment) and ``{build}`` (what its recipe made)
    are filled in, in ``url``, ``ready`` and the values of ``env`` too.

    Attributes:
        url: what becomes the model's ``base_url``.
        ready: path or URL that answers once the server can be asked; "": its list of models.
        env: changes to its environment; None takes a variable away.
        start_limit: seconds that it may take to get ready.
        proofs: digests of what the running server was started from; {} where it was not started,
            or where they prove nothing.
    """

    command: tuple[str, ...]
    url: str
    ready: str = ""
    env: Mapping[str, str | None] = field(default_factory=dict)
    start_limit: float = 600.0
    folder: str = "."
    proofs: Mapping[str, Value] = field(default_factory=dict)

    @property
    def declared(self) -> list[Value]:
        """What the guard file says of it."""
        return [list(self.command), self.url, self.ready, dict(self.env)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnEnvironment:
    """The interpreter in which a model runs, where that is not evalguard's own.

    Attributes:
        python: an interpreter that is there: a path, or a name that is looked for on PATH.
        requirements: packages as pip takes them; a virtual environment is made for them, with
            ``python`` where one is named.
    """

    python: str = ""
    requirements: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A model under a name, with the values that its settings have in this evaluation.

    ``model`` is an lm-eval model type; ``model_args`` go to its constructor (relative local paths
    already resolved). ``assignment`` holds the current value of every setting by name.
    ``code_folder`` is the folder from which ``call:`` files are resolved ("" if the user named no
    file). ``inputs``: files and folders that code of others reads for it, as they are written ->
    where they lie; None: nobody has said. ``trust_remote_code`` and ``allow_pickle`` are off unless
    the user said so for this model. ``environment``: where it runs, None: in evalguard's own
    environment; of a model with ``serve`` where its server runs. ``revision``: by which the user
    vouches for what a server has, "": nobody does.
    """

    name: str
    model: str
    model_args: Mapping[str, Value]
    settings: tuple[Setting, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    assignment: Assignment = field(default_factory=dict)
    build: BuildRecipe | None = None
    environment: OwnEnvironment | None = None
    serve: ServeRecipe | None = None
    trust_remote_code: bool = False
    allow_pickle: bool = False
    allow_code: bool = False
    code_folder: str = ""
    inputs: Mapping[str, str] | None = None
    revision: str = ""

    def assigned(self, changes: Assignment) -> Variant:
        """Return this variant with other values for some of its settings, and what follows them.

        Raises:
            UsageError: for a name that is not a setting of this variant, or an assignment that a
                constraint excludes.
        """
        names = [setting.name for setting in self.settings]
        for name in changes:
            if name not in names:
                raise UsageError(
                    f"'{self.name}' has no setting '{name}'{nearest(name, names)}",
                    hint=f"its settings: {', '.join(names) or 'none'}",
                )
        assignment = {**self.assignment, **changes}
        known = {setting.name: setting for setting in self.settings}
        for setting in (setting for setting in self.settings if setting.follows):
            first = known[setting.follows]
            changed = assignment[first.name] == first.candidate
            assignment[setting.name] = setting.candidate if changed else setting.reference
        for constraint in self.constraints:
            if constraint.violated_by(assignment):
                raise UsageError(
                    f"'{self.name}': a constraint excludes this assignment: if "
                    f"{dict(constraint.when)} then {dict(constraint.then)}"
                )
        return replace(self, assignment=assignment)

    @property
    def digest(self) -> str:
        """Hex digest of what is declared about this variant, but its name and alternatives."""
        build = self.build
        return digest_of(
            {
                "model": self.model,
                "model_args": dict(self.model_args),
                "settings": {
                    s.name: [str(s.target), s.reference, s.candidate] for s in self.settings
                },
                "assignment": dict(self.assignment),
                "build": build
                and [list(build.command), build.call, build.output, dict(build.inputs)],
                "trust_remote_code": self.trust_remote_code,
                **self._environment_facts(),
            }
        )

    def _environment_facts(self) -> dict[str, object]:
        own, serve = self.environment, self.serve
        return {
            **({} if own is None else {"environment": [own.python, *own.requirements]}),
            **({} if serve is None else {"serve": serve.declared}),
            **({"revision": self.revision} if self.revision else {}),
            **({} if self.inputs is None else {"inputs": list(self.inputs)}),
        }


def digest_of(value: object) -> str:
    """Return the first 16 hex digits of the SHA-256 of ``value`` as canonical JSON."""
    return digest_of_json(_CANONICAL.encode(value))


def digest_of_json(text: str) -> str:
    """The same of canonical JSON."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


_CANONICAL = json.JSONEncoder(sort_keys=True, ensure_ascii=False, separators=(",", ":"))
