"""The benchmark of speed runs, and what it measures on is what it says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.row import at_least, at_most, table
from benchmarks.speed.vocabulary import save_tokenizer, words

ROOT = Path(__file__).parent.parent


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.speed", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_its_help_names_every_row() -> None:
    done = run("--help")
    assert done.returncode == 0, done.stderr
    for row in ("same", "alone", "choice", "limit", "small", "large", "overhead", "growth"):
        assert row in done.stdout


def test_a_vocabulary_has_its_size_and_words_take_one_or_two_tokens(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    save_tokenizer(tmp_path, 32_000)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert len(tokenizer) == 32_000
    drawn = words(np.random.default_rng(5), 600)
    text = " ".join(["bakomi", *drawn])
    ids = tokenizer(text)["input_ids"]
    assert ids[0] == 0
    assert tokenizer.decode(ids[1:]) == text
    lengths = [len(tokenizer(f" {word}", add_special_tokens=False)["input_ids"]) for word in drawn]
    assert set(lengths) == {1, 2}
    assert 1.25 < np.mean(lengths) < 1.42


def test_a_row_says_whether_its_target_is_met() -> None:
    rows = [
        at_least(6.4, 6.0, benchmark="whole"),
        at_most(1.3, 1.15, "x", benchmark="limit", how="once"),
    ]
    lines = list(table(rows))
    assert lines[2] == "| whole | 6.40x | >= 6x | met |  |  |"
    assert lines[3] == "| limit | 1.3x | <= 1.15x | **missed** |  | once |"


@pytest.mark.slow
@pytest.mark.nightly
def test_its_rows_run_on_a_few_documents(tmp_path: Path) -> None:
    output = tmp_path / "speed.md"
    done = run("--rows", "choice", "--quick", "--output", str(output))
    assert done.returncode == 0, done.stderr
    written = output.read_text(encoding="utf-8")
    assert "multiple choice, 4 continuations on 200 shared tokens" in written
    assert "lm_eval 0." in written
