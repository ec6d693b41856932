"""Name maps on disk: YAML files that say which tensor of the candidate is which of the base."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from evalguard.core.name_map import NameMap, parse_name_map
from evalguard.errors import UsageError
from evalguard.regular_file import read_regular_text

_LARGEST_BYTES = 10_000_000  # far above what anybody writes: not a checkpoint given by mistake


def read_name_map(path: Path) -> NameMap:
    """Read a name map; its format stands in ``core/name_map.py``.

    Raises:
        UsageError: the file cannot be read, is not YAML, or not a name map.
    """
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise UsageError(f"{path} is too large for a name map", hint="name a YAML file")
        text = read_regular_text(path)
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{path} cannot be read: {reason}", hint="name a YAML file") from error
    try:
        content = yaml.load(text, Loader=_Loader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise UsageError(
            f"{path} is not YAML: {_one_line(error)}", hint="see docs/tensors"
        ) from error
    return parse_name_map(content, where=str(path))


class _Loader(yaml.SafeLoader):
    """Refuses a key that is there twice, which PyYAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.MarkedYAMLError(
                    problem=f"key '{key.value}' is there twice", problem_mark=key.start_mark
                )
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        return f"line {error.problem_mark.line + 1}: {error.problem or error.context}"
    return str(error).splitlines()[0] if str(error) else type(error).__name__
