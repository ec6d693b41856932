"""Configurations with numbers that JSON has no word for: every command says what it found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from small_world import SmallWorld
from tiny_models import save_mamba2

from evalguard.store.fact_cache import FactCache
from evalguard.store.sealed_files import decode_line, encode_line

LIMIT = "time_step_limit"


@pytest.fixture(scope="module")
def limits(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A Mamba 2 as transformers makes it, and its copy with a limit on time steps."""
    folder = tmp_path_factory.mktemp("infinite")
    unlimited = save_mamba2(folder / "unlimited")
    limited = folder / "limited"
    shutil.copytree(unlimited, limited)
    config = json.loads((limited / "config.json").read_text())
    assert config[LIMIT] != [0.0, 0.004]
    (limited / "config.json").write_text(json.dumps(config | {LIMIT: [0.0, 0.004]}))
    return unlimited, limited


@pytest.mark.parametrize("command", ["compare", "bisect"])
def test_two_models_of_which_one_has_an_infinite_limit_are_compared(
    run: Any, world: SmallWorld, limits: tuple[Path, Path], command: str, tmp_path: Path
) -> None:
    asked = ("--tasks", "sw_word", "--include-path", world.tasks, "--limit", "6", "--quiet")
    sides = ("--base", limits[0], "--cand", limits[1])
    pages = [word for end in ("html", "json", "md", "xml") for word in ("-o", f"page.{end}")]
    ran = run(command, *sides, *asked, "--output-path", tmp_path, *pages)
    assert ran.code in (0, 1), ran.err
    assert LIMIT in ran.out
    document = json.loads(Path("page.json").read_text(), parse_constant=pytest.fail)
    assert document["comparisons"]


def test_a_trace_of_them_names_the_limit_and_its_document_is_json(
    run: Any, limits: tuple[Path, Path], tmp_path: Path
) -> None:
    (tmp_path / "story.txt").write_text("Mara carried the lantern down to the harbour.")
    sides = ("--base", limits[0], "--cand", limits[1], "--text", tmp_path / "story.txt")
    shown = run("trace", *sides, "--quiet").out
    assert f"Likely why: {LIMIT} [0, inf] in the base, [0, 0.004] in the candidate" in shown
    ran = run("trace", *sides, "--quiet", "--json")
    assert ran.code == 1, ran.err
    document = json.loads(ran.out, parse_constant=pytest.fail)
    assert any(one["name"].endswith(LIMIT) for one in document["hyperparameters"])


@pytest.mark.parametrize(
    "written",
    ['{"__float__": "Infinity"}', "Infinity", "1e999", '{"__float__": "NaN"}', "-Infinity", "NaN"],
)
def test_tensors_say_the_difference_however_the_number_is_written(
    run: Any, limits: tuple[Path, Path], tmp_path: Path, written: str
) -> None:
    shutil.copytree(limits[1], tmp_path / "other")
    file = tmp_path / "other/config.json"
    file.write_text(file.read_text().replace("0.004", written))
    ran = run("tensors", limits[1], tmp_path / "other", "--json")
    assert ran.code == 0, ran.err
    text = json.dumps(json.loads(ran.out, parse_constant=pytest.fail))
    assert LIMIT in text
    assert "__float__" not in text


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), [0.0, float("inf")]])
def test_what_only_evalguard_reads_keeps_infinite_numbers(value: Any, tmp_path: Path) -> None:
    facts = FactCache(tmp_path)
    facts.put("models", "d", {"effective": {"limit": value}})
    assert facts.get("models", "d") == {"effective": {"limit": value}}
    assert decode_line(encode_line({"limit": value})) == {"limit": value}
