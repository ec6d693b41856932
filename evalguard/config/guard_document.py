"""Document: a guard file as plain data, with the line on which everything in it stands.

The YAML is the 1.2 core schema: only ``true`` and ``false`` are truth values (``yes``, ``no``,
``on``, ``off`` are text) and ``1e-5`` is a number. PyYAML by itself reads YAML 1.1, where an eps
of ``1e-5`` is text and a model called ``no`` is false.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import yaml

from evalguard.errors import GuardFileError
from evalguard.regular_file import open_regular


def dotted_key(loc: Loc) -> str:
    """Return a location as people write it: ``models.orig.settings``, ``pairs[0].base``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return text.lstrip(".") or "the guard file"


# Nobody reads more at once; a file that is none at all has as many as it has lines.
SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Problem:
    """One fault of a guard file. ``line`` counts from 1; 0 means the file as a whole."""

    label: str
    line: int
    message: str
    hint: str = ""

    @property
    def where(self) -> str:
        """``FILE:LINE``, or ``FILE`` for the file as a whole."""
        return f"{self.label}:{self.line}" if self.line else self.label


def raise_problems(problems: Iterable[Problem]) -> None:
    """Raise one error that lists the problems in reading order, one a line.

    At most ``SHOWN`` are listed; the rest is counted. Nothing happens when there is none.

    Raises:
        GuardFileError: if there is any problem; ``where`` is the first one's place.
    """
    ordered = sorted(set(problems))
    if not ordered:
        return
    first, *further = ordered[:SHOWN]
    lines = [f"{problem.where}: {problem.message}" for problem in further]
    if len(ordered) > SHOWN:
        lines.append(f"and {len(ordered) - SHOWN} more")
    hints = dict.fromkeys(problem.hint for problem in ordered[:SHOWN] if problem.hint)
    raise GuardFileError(first.message, where=first.where, others=lines, hint="\n".join(hints))


def refuse(label: str, line: int, message: str, hint: str = "") -> NoReturn:
    """Raise the error of one problem after which nothing more of the file can be read.

    Raises:
        GuardFileError: always.
    """
    raise_problems([Problem(label=label, line=line, message=message, hint=hint)])
    raise AssertionError("one problem is always raised")


Loc = tuple[str | int, ...]
# A guard file of a stranger (a pull request in CI) must not exhaust time or memory: these are far
# above what anybody writes by hand. Nodes are counted after aliases are followed.
MAX_NODES = 20_000
MAX_DEPTH = 40
_PREFIX = "tag:yaml.org,2002:"
_TAGS = {name: _PREFIX + name for name in ("null", "bool", "int", "float", "str", "map", "seq")}
NULL_TAG = _TAGS["null"]
_MERGE = _PREFIX + "merge"
_INT = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_NULL = re.compile(r"~|null|Null|NULL|")
_BOOL = re.compile(r"true|True|TRUE|false|False|FALSE")
_SURROGATE = re.compile("[\ud800-\udfff]")


class _Loader(yaml.SafeLoader):
    """Parses and composes only; ``Walk`` turns nodes into data."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own shape
    _depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested over {MAX_DEPTH} deep", problem_mark=mark)
        try:
            return super().compose_node(parent, index)
        finally:
            self._depth -= 1


for _tag, _pattern in (
    (_TAGS["bool"], _BOOL),
    (_TAGS["int"], _INT),
    (_TAGS["float"], _FLOAT),
    (_TAGS["null"], _NULL),
    (_MERGE, re.compile("<<")),
):
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern.pattern})\Z"), None)


def compose(text: str, label: str) -> yaml.Node | None:
    """Return the root node of a YAML text, None for an empty one.

    Raises:
        GuardFileError: if the text is not YAML.
    """
    try:
        loader = _Loader(text)
        root: yaml.Node | None = loader.get_single_node()
        return root
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        message = ": ".join(part for part in (error.context, error.problem) if part)
        if r"'\t' that cannot start" in message:
            refuse(
                label,
                mark.line + 1 if mark else 0,
                "is not YAML: a tab stands where only blanks may",
            )
        begun = error.context_mark
        message += f" (begun on line {begun.line + 1})" if begun and error.problem_mark else ""
        refuse(label, mark.line + 1 if mark else 0, f"is not YAML: {message}")
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        refuse(label, line, f"is not YAML: character {error.character!r} is not allowed")


def line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@dataclass(slots=True, kw_only=True)
class Walk:
    """Turns nodes into data, noting lines and problems on the way."""

    label: str
    lines: dict[Loc, int] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    _open: set[int] = field(default_factory=set)
    _visited: int = 0

    def value(self, node: yaml.Node, loc: Loc, line: int) -> object:
        """Return the data of a node; ``line`` is where its key or list item stands."""
        self._count(line)
        if isinstance(node, yaml.ScalarNode):
            # An alias stands on its own line, not where its anchor is; an empty value nowhere.
            own = line_of(node)
            line = own if own >= line and node.value else line
            self.lines[loc] = line
            return self._scalar(node, line)
        self.lines[loc] = line
        if node.tag not in _TAGS.values():
            self._problem(line, f"YAML tag '{node.tag}' is not allowed in a guard file")
            return None
        if id(node) in self._open:
            refuse(self.label, line, "an alias contains itself")
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                pairs = self._pairs(node)
                return {
                    key: self.value(value, (*loc, key), key_line)
                    for key, (key_line, value) in pairs.items()
                }
            return [
                self.value(item, (*loc, index), max(line, line_of(item)))
                for index, item in enumerate(node.value)
            ]
        finally:
            self._open.discard(id(node))

    def _pairs(self, node: yaml.MappingNode) -> dict[str, tuple[int, yaml.Node]]:
        """Return key -> (line, value node); keys of a merge (``<<``) come after own keys."""
        own: dict[str, tuple[int, yaml.Node]] = {}
        merged: list[yaml.Node] = []
        for key_node, value_node in node.value:
            line = line_of(key_node)
            self._count(line)
            if key_node.tag == _MERGE:
                listed = isinstance(value_node, yaml.SequenceNode)
                merged += value_node.value if listed else [value_node]
            elif not isinstance(key_node, yaml.ScalarNode):
                self._problem(line, f"a {key_node.id} cannot be a key")
            elif _SURROGATE.search(key_node.value):
                self._problem(line, "a key with half a character (a surrogate escape)")
            elif key_node.tag != _TAGS["str"] and key_node.value not in own:
                self._problem(line, f"key {key_node.value} is not text", "write it in quotes")
                own[key_node.value] = (line, value_node)
            elif key_node.value in own:
                first = own[key_node.value][0]
                self._problem(line, f"key '{key_node.value}' is already on line {first}")
            else:
                own[key_node.value] = (line, value_node)
        for source in merged:
            self._merge(source, own, line_of(node))
        return own

    def _merge(self, source: yaml.Node, into: dict[str, tuple[int, yaml.Node]], line: int) -> None:
        if not isinstance(source, yaml.MappingNode):
            self._problem(line, "'<<' merges mappings only")
            return
        if id(source) in self._open:
            refuse(self.label, line, "an alias contains itself")
        self._open.add(id(source))
        for key, pair in self._pairs(source).items():
            into.setdefault(key, pair)
        self._open.discard(id(source))

    def _scalar(self, node: yaml.ScalarNode, line: int) -> object:
        text = str(node.value)
        if node.tag == _TAGS["str"]:
            if not _SURROGATE.search(text):
                return text
            self._problem(line, "text with half a character (a surrogate escape)")
            return None
        if node.tag == _TAGS["null"] and _NULL.fullmatch(text):
            return None
        if node.tag == _TAGS["bool"] and _BOOL.fullmatch(text):
            return text.lower() == "true"
        if node.tag == _TAGS["int"] and _INT.fullmatch(text) and len(text) < 100:
            base = {"0o": 8, "0x": 16}.get(text[:2], 10)
            return int(text, base)
        if node.tag == _TAGS["float"] and _FLOAT.fullmatch(text):
            return self._number(text, line)
        if node.tag in _TAGS.values():
            self._problem(line, f"'{text[:60]}' is not what its tag '{node.tag}' says")
        else:
            self._problem(line, f"YAML tag '{node.tag}' is not allowed in a guard file")
        return None

    def _number(self, text: str, line: int) -> float | None:
        words = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
        number = float(words.get(text.lower(), text))
        if math.isfinite(number):
            return number
        self._problem(line, f"{text} is not a finite number")
        return None

    def _count(self, line: int) -> None:
        self._visited += 1
        if self._visited > MAX_NODES:
            refuse(self.label, line, f"holds over {MAX_NODES} values once aliases are followed")

    def _problem(self, line: int, message: str, hint: str = "") -> None:
        self.problems.append(Problem(label=self.label, line=line, message=message, hint=hint))


# Far above what anybody writes by hand; a stranger's file must not exhaust time or memory.
MAX_BYTES = 512 * 1024
MODEL_HINT = "a model needs none: evalguard compare --base MODEL --cand MODEL takes it as it is"


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One guard file's data.

    ``label`` is the file as messages name it, ``folder`` where its relative paths start.
    ``lines`` maps a location (keys and list positions) to its line. ``problems`` are those that
    leave the rest readable, duplicate keys for one.
    """

    label: str
    folder: Path
    data: Mapping[str, object]
    lines: Mapping[Loc, int]
    problems: tuple[Problem, ...] = ()

    def line(self, loc: Loc) -> int:
        """Return the line of a location, or of what holds it where it does not exist."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def where(self, loc: Loc) -> str:
        """Return ``FILE:LINE`` of a location."""
        return f"{self.label}:{self.line(loc)}"

    def without(self, parts: Collection[Loc]) -> Document:
        """Return the document without some parts; a model that is no mapping stays, empty."""
        lines: dict[Loc, int] = {}

        def kept(value: object, old: Loc, new: Loc) -> object:
            lines[new] = self.line(old)
            if isinstance(value, Mapping):
                return {
                    key: kept({} if (*old, key) in parts else inner, (*old, key), (*new, key))
                    for key, inner in value.items()
                    if (*old, key) not in parts
                    or (old == ("models",) and not isinstance(inner, Mapping))
                }
            if isinstance(value, list):
                remaining = [at for at in range(len(value)) if (*old, at) not in parts]
                return [kept(value[at], (*old, at), (*new, to)) for to, at in enumerate(remaining)]
            return value

        data = kept(self.data, (), ())
        assert isinstance(data, dict)
        return replace(self, data=data, lines=lines) if parts else self

    def problem(self, loc: Loc, message: str, hint: str = "") -> Problem:
        """Return a problem that stands at a location."""
        return Problem(label=self.label, line=self.line(loc), message=message, hint=hint)


def read_guard_document(path: Path, label: str) -> Document:
    """Read a guard file.

    Raises:
        GuardFileError: if it cannot be read, is not UTF-8, not YAML, empty, or not a mapping.
    """
    text = _read_text(path, label)
    node = compose(text, label)
    if node is None or node.tag == NULL_TAG:
        refuse(label, 0, "the guard file is empty", "`evalguard init` writes one to start from")
    if not isinstance(node, yaml.MappingNode):
        refuse(label, line_of(node), "a guard file is a mapping that starts with 'models:'")
    walk = Walk(label=label)
    data = walk.value(node, (), 1)
    assert isinstance(data, dict)
    return Document(
        label=label,
        folder=path.absolute().parent,
        data=data,
        lines=walk.lines,
        problems=tuple(walk.problems),
    )


def _read_text(path: Path, label: str) -> str:
    if path.is_dir():
        refuse(label, 0, "is a folder, not a guard file", MODEL_HINT)
    try:
        with open_regular(path) as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        refuse(label, 0, f"cannot be read: {error.strerror}")
    if len(raw) > MAX_BYTES:
        refuse(
            label,
            0,
            f"is larger than {MAX_BYTES // 1024} KiB, so it is not a guard file",
            MODEL_HINT,
        )
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        byte = f"0x{raw[error.start]:02x}"
        refuse(label, line, f"is not UTF-8 (byte {byte})", "save the file as UTF-8")
