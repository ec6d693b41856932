"""What the documentation tells to type and says that one will see is what there is."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest
from small_world import run_here

from benchmarks.gate_policies import gate_of, policies, state
from benchmarks.tables import scored
from evalguard.cli.main import cli
from evalguard.report.compare_document import compare_schema

ROOT = Path(__file__).parent.parent.parent

SKILL = ROOT / "skills" / "evalguard" / "SKILL.md"
PAGES = [ROOT / "README.md", ROOT / "AGENTS.md", SKILL, *sorted((ROOT / "docs").rglob("*.md"))]
_PLACEHOLDER = re.compile(r"\.\.\.|\[|<|\bOPTIONS\b|…")


def command_lines(page: Path) -> Iterator[str]:
    """Every line of a code block that calls evalguard, continued lines joined."""
    for _, block in re.findall(r"```(\w*)\n(.*?)```", page.read_text("utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"\s*(?:\$ )?(evalguard [a-z].*)", line)
            if found:
                yield found[1]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_line_in_the_documentation_parses(page: Path) -> None:
    for line in command_lines(page):
        words = shlex.split(line, comments=True)[1:]
        if _PLACEHOLDER.search(" ".join(words)):
            continue
        words = words[: next((i for i, w in enumerate(words) if w in "|>;&&"), len(words))]
        command: click.Command = cli
        context = click.Context(cli, **cli.context_settings)
        while isinstance(command, click.Group):
            assert words, line
            _, command, words = command.resolve_command(context, words)  # type: ignore[assignment]
            context = click.Context(
                command,
                parent=context,
                token_normalize_func=lambda token: token.replace("_", "-"),
            )
        try:
            command.make_parser(context).parse_args(list(words))
        except click.UsageError as error:
            pytest.fail(f"{page.name}: {line}: {error.message}")


# Options of lm-eval, servers, sbatch, pytest and benchmarks/ that pages name.
_OF_OTHERS = re.compile(
    r"--(log_samples|predict_only|model_args|evalguard-\w+|junit-xml|array|constraint|dependency"
    r"|parsable|dtype|kv-cache-dtype|max-logprobs|max-model-len|model-path|port|project|token|only"
    r"|return-tokens-as-token-ids|no-enable-prefix-caching|disable-radix-cache"
    r"|kl-divergence(-base)?|tensor-type|pure|FLAG|enable-auto-tool-choice|tool-call-parser|jinja)$"
)


def options_of(group: click.Group) -> Iterator[str]:
    for command in group.commands.values():
        for parameter in command.params:
            yield from (*parameter.opts, *parameter.secondary_opts)
        if isinstance(command, click.Group):
            yield from options_of(command)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_that_a_page_names_is_one_of_a_command(page: Path) -> None:
    known = {*options_of(cli), "--help", "--version"}
    named = set(re.findall(r"(?<![\w-])--[A-Za-z][\w-]*\b(?!\.)", page.read_text("utf-8")))
    unknown = {one for one in named if one.replace("_", "-") not in known}
    assert {one for one in unknown if not _OF_OTHERS.match(one)} == set()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_of_the_repository(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    for link in re.findall(r"\]\(([^)\s#]+)[^)]*\)", prose):
        assert link.startswith("https://") or (page.parent / link).exists(), link


def told() -> str:
    """All string constants of the package, which its messages are made of."""
    texts = []
    for file in sorted((ROOT / "evalguard").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.append(node.value)
    return "\n".join(texts)


def test_every_message_on_the_page_of_troubleshooting_exists() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text("utf-8")
    messages = re.findall(r"^\| `([^`]+)` \|", page, re.MULTILINE)
    assert len(messages) > 20
    sources = told()
    for message in messages:
        for piece in re.split("…", message):
            assert piece.strip(" :") in sources, message


def test_the_page_of_security_names_all_that_is_written_and_whom_documents_are_sent_to() -> None:
    page = (ROOT / "docs/security.md").read_text("utf-8")
    layout = (ROOT / "docs/cache.md").read_text("utf-8").partition("## Layout\n")[2]
    folders = set(re.findall(r"^(\w+/)", layout.partition("```\n")[2], re.MULTILINE))
    assert {"scores/", "facts/"} <= folders
    places = ("-o FILE", "--history FILE", "--save-reference FILE", "--output-path", "wandb/")
    for word in (*folders, *places, "W&B", "trackio", "MLflow", "--track none"):
        assert word in page, word


def test_the_help_of_bisect_says_that_undeclared_settings_are_not_searched_by_themselves() -> None:
    helps = {
        parameter.help
        for command in cli.commands.values()
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name == "bisect"
    }
    assert helps
    for text in helps:
        assert "declares settings" in str(text)


@pytest.mark.parametrize("name", policies())
def test_every_policy_on_the_page_of_the_gate_is_short_loads_and_judges(name: str) -> None:
    text = policies()[name]
    assert len(text.splitlines()) <= 10
    rng = np.random.default_rng(1)
    right = (rng.random(400) < 0.7).astype(float)
    wrong = np.where(rng.random(400) < 0.3, 0.0, right)
    names = [("evalguard_lastword", "acc"), ("evalguard_choice", "acc"), ("any", "acc_norm")]
    for candidate, expected in ((right, "passed"), (wrong, "regressed")):
        metrics = [scored(right, candidate, "mean", task=t, metric=m) for t, m in names]
        assert state(gate_of(text), metrics) == expected


def test_the_page_for_agents_is_what_the_command_prints(
    capfd: pytest.CaptureFixture[str],
) -> None:
    page = SKILL.read_text("utf-8")
    assert run_here(["skill"], capfd).out == page
    front = page.split("---\n")[1]
    assert [line.partition(":")[0] for line in front.splitlines()] == ["name", "description"]
    codes = re.findall(r"^\| (\d) \|", page, re.MULTILINE)
    assert [int(one) for one in codes] == [0, 1, 2, 3, 4]


def properties_of(whole: dict[str, Any], part: dict[str, Any]) -> dict[str, Any]:
    """The keys of an object of a schema, or of the objects in a list."""
    if "$ref" in part:
        return properties_of(whole, whole["$defs"][part["$ref"].rpartition("/")[2]])
    for inside in ("items", "anyOf"):
        if inside in part:
            first = part[inside]
            return properties_of(whole, first[0] if isinstance(first, list) else first)
    found: dict[str, Any] = part["properties"]
    return found


def test_every_key_that_the_page_for_agents_names_is_one_of_a_comparison() -> None:
    known = compare_schema()
    first = "|".join(known["properties"])
    named = re.findall(rf"`((?:{first})(?:\[\])?(?:\.\w+)*)`", SKILL.read_text("utf-8"))
    assert len(named) >= 10
    for key in named:
        place: Any = known
        for name in key.replace("[]", "").split("."):
            place = properties_of(known, place)[name]
