"""YAML in which every text is quoted, so that each reader (YAML 1.1 or 1.2) reads a text there.

A commit such as 12e4567 or 0012345, a version 1.0 and the word "no" are a number or a truth value
to one parser or the other where they stand bare.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from evalguard.report.words.plain_text import printable

_NO_FOLDING = 2**31


class _Quoted(str):
    __slots__ = ()


class _Dumper(yaml.SafeDumper):
    """Lists below a key are indented, as hub-docs has them; nothing refers to something above."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, False)

    def ignore_aliases(self, _: Any) -> bool:
        return True


_Dumper.add_representer(
    _Quoted, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')
)


def quoted_yaml(content: Mapping[str, Any] | Sequence[Any], *, comments: Sequence[str]) -> str:
    """Return plain values as YAML below comments of a line each."""
    head = "".join(f"# {printable(line)}\n" for line in comments)
    return head + yaml.dump(
        _quote(content), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=_NO_FOLDING
    )


def _quote(value: Any) -> Any:
    if isinstance(value, str):
        return _Quoted(value)
    if isinstance(value, Mapping):
        return {key: _quote(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_quote(inner) for inner in value]
    return value
