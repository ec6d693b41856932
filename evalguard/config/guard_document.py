"""Document: a guard file as plain data, with the line on which everything in it stands."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from evalguard.config.problems import Problem, refuse
from evalguard.config.yaml_nodes import NULL_TAG, Loc, Walk, compose, line_of
from evalguard.regular_file import open_regular

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
                    key: kept({} if (*old, key) in parts else one, (*old, key), (*new, key))
                    for key, one in value.items()
                    if (*old, key) not in parts
                    or (old == ("models",) and not isinstance(one, Mapping))
                }
            if isinstance(value, list):
                left = [at for at in range(len(value)) if (*old, at) not in parts]
                return [kept(value[at], (*old, at), (*new, to)) for to, at in enumerate(left)]
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
