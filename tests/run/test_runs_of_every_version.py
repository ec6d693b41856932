"""A run folder of every version is read: its report, its documents, and that none was changed.

Each compares the same two finished runs of twelve documents, written by that version.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from evalguard.comparison.stored_run import read_stored_run
from evalguard.errors import StoreError

STORED = Path(__file__).parent / "stored_runs"
VERSIONS = sorted(folder.name for folder in STORED.iterdir())


@pytest.mark.parametrize("version", VERSIONS)
def test_a_run_says_today_what_it_said_then(version: str) -> None:
    run = read_stored_run(STORED / version)
    assert run.report.version.startswith(version)
    assert run.report.exit_code == 0
    sigmas = {c.key: c.sigma for c in run.report.comparisons}
    assert sigmas["words", "none", "perplexity"] == pytest.approx(0.0016806886, rel=1e-6)
    assert sigmas["texts", "none", "word_perplexity"] == pytest.approx(-2.3801794e-05, rel=1e-6)


@pytest.mark.parametrize("version", VERSIONS)
def test_its_documents_are_those_that_were_asked(version: str) -> None:
    run = read_stored_run(STORED / version)
    assert run.tasks == ("words", "texts")
    run.check_files()
    documents = run.documents("words")
    assert documents is not None
    assert list(documents.doc_ids) == list(range(12))
    assert documents.of("base", "prompt")[3] == "story 3 ends"
    assert len(documents.scores("candidate")) == 12
    assert documents.drifts("none", "perplexity") is not None


def test_a_sample_that_was_changed_since_is_refused(tmp_path: Path) -> None:
    shutil.copytree(STORED / VERSIONS[-1], tmp_path / "run")
    file = tmp_path / "run" / "samples" / "words.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"\0")
    with pytest.raises(StoreError, match="words"):
        read_stored_run(tmp_path / "run").check_files()
