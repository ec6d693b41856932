"""YAML nodes: text to plain data, with the line on which everything stands.

The YAML is the 1.2 core schema: only ``true`` and ``false`` are truth values (``yes``, ``no``,
``on``, ``off`` are text) and ``1e-5`` is a number. PyYAML by itself reads YAML 1.1, where an eps
of ``1e-5`` is text and a model called ``no`` is false.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

import yaml

from evalguard.config.problems import Problem, refuse

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
        said = ": ".join(part for part in (error.context, error.problem) if part)
        if r"'\t' that cannot start" in said:
            refuse(
                label,
                mark.line + 1 if mark else 0,
                "is not YAML: a tab stands where only blanks may",
            )
        begun = error.context_mark
        said += f" (begun on line {begun.line + 1})" if begun and error.problem_mark else ""
        refuse(label, mark.line + 1 if mark else 0, f"is not YAML: {said}")
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
