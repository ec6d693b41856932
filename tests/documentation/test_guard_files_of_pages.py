"""Guard files on the pages load, and the command beside each runs it: named where it must be."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from evalguard.comparison.listing import find_model_problems
from evalguard.config.guard import Guard
from evalguard.config.guard_document import Problem
from evalguard.config.guard_loading import ValidatedFile
from evalguard.config.guard_search import load_guards
from evalguard.config.variants import Inherited

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
_BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def guard_files() -> Iterator[tuple[str, str, str]]:
    """Every guard file of a page: the page, the file, and the page's commands."""
    for page in PAGES:
        blocks = _BLOCK.findall(page.read_text("utf-8"))
        commands = "\n".join(text for kind, text in blocks if kind in ("console", "bash", ""))
        for kind, text in blocks:
            if kind == "yaml" and text.startswith("models:"):
                yield str(page.relative_to(ROOT)), text, commands


FILES = list(guard_files())


def loaded(text: str, folder: Path) -> Guard:
    (folder / "evalguard.yaml").write_text(text, "utf-8")
    (guard,) = load_guards(None, cwd=folder, allow_code=False, check=_model_problems).guards
    return guard


def _model_problems(file: ValidatedFile, models: Mapping[str, Inherited]) -> Iterator[Problem]:
    for model in models.values():
        yield from find_model_problems(model, file, note=lambda _: None)


@pytest.mark.parametrize(("page", "text", "commands"), FILES, ids=lambda part: part[:40])
def test_a_guard_file_that_is_refused_when_found_stands_beside_a_command_that_names_it(
    page: str, text: str, commands: str, tmp_path: Path
) -> None:
    guard = loaded(text, tmp_path)
    needing = {name for name, uses in guard.code_uses.items() if uses}
    lines = [line for line in commands.replace("\\\n", " ").splitlines() if "evalguard" in line]
    asked = [shlex.split(line, comments=True) for line in lines]
    named = [words for words in asked if "--config" in words]
    if needing and not page.endswith("torchao.md"):
        assert any(needing & set(words) for words in named), f"{page}: {needing}, {lines}"
    elif needing:  # two files on one page: its command is of the first
        assert named, page


def test_enough_pages_show_guard_files() -> None:
    assert len(FILES) >= 16
    assert len({page for page, _, _ in FILES}) >= 12
