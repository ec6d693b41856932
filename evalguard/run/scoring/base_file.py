"""A base that is not loaded, because a file says what it answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from evalguard.core.scorer import ModelDescription, Request
from evalguard.errors import UsageError


class _Closing(Protocol):
    def close(self) -> None: ...


class BaseFile:
    """What a file of answers says of its model, and what no such file can say; part of a Scorer.

    Attributes:
        path: the file.
    """

    def __init__(self, path: Path, file: _Closing, description: ModelDescription) -> None:
        self.path = path
        self._opened, self._described = file, description

    def describe(self) -> ModelDescription:
        """Return what the file says of its model."""
        return self._described

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        """Token ids of contexts are in no such file."""
        return [() for _ in requests]

    def render_chat(
        self,
        messages: Sequence[Mapping[str, str]],  # noqa: ARG002 - a Scorer's
        add_generation_prompt: bool,  # noqa: ARG002
    ) -> str:
        """There is no chat template in such a file."""
        raise chat_template_missing(self.path)

    def close(self) -> None:
        """Close the file. May be called twice."""
        self._opened.close()


def chat_template_missing(path: Path) -> UsageError:
    """A file of a base holds no chat template."""
    return UsageError(
        f"a chat template is to be applied, and {path} holds none",
        hint="name the base's model with --base, or leave out --apply_chat_template",
    )
