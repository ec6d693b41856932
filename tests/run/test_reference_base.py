"""A base that is not loaded: its reference file says what it answered."""

from __future__ import annotations

import functools
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scored_models import Score, kl, values

from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError


@pytest.fixture
def score(score: Score, loads: list[str]) -> Score:
    """Scores of neither task are cached."""
    return functools.partial(score, tasks=("sw_word", "sw_text"), use_cache=False)


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the one file is kept, once there is one."""
    return tmp_path_factory.mktemp("kept") / "llama.reference"


@pytest.fixture
def file(score: Score, tmp_path: Path, kept: Path, loads: list[str]) -> Path:
    """A copy of its own for each test."""
    if not kept.exists():
        score("llama", "other", save_reference=kept)
        loads.clear()
    return Path(shutil.copy(kept, tmp_path))


def test_the_file_takes_the_place_of_the_base(score: Score, file: Path, loads: list[str]) -> None:
    whole = score("llama", "other", distributions="reference")
    loads.clear()
    stored = score(file, "other")
    assert loads == ["other"]
    assert values(stored) == values(whole)
    for task in ("sw_word", "sw_text"):
        assert kl(stored, task).tobytes() == kl(whole, task).tobytes()
    assert stored[0].description.identity == whole[0].description.identity


def test_the_file_serves_several_candidates_and_keeps_their_divergences(
    score: Score, file: Path, tmp_path: Path
) -> None:
    for candidate in ("other", "llama"):
        first = score(file, candidate, use_cache=True)
        again = score(file, candidate, use_cache=True)
        assert kl(first, "sw_text").tobytes() == kl(again, "sw_text").tobytes()
    assert not kl(first, "sw_text").any()
    assert len(list((tmp_path / "divergences").rglob("*.parquet"))) == 4
    assert not (tmp_path / "references").exists()


def test_tokens_of_the_file_are_as_many_as_were_asked_for(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "k.reference"
    score("llama", "other", save_reference=path, reference_top_k=10_000)
    exact = score("llama", "other", distributions="lockstep")
    stored = score(path, "other")
    np.testing.assert_allclose(kl(stored, "sw_text"), kl(exact, "sw_text"), atol=1e-9)
    with pytest.raises(UsageError, match="keeps its own tokens"):
        score(path, "other", reference_top_k=7)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"batch_size": 3}, UsageError, "other options: batch_size was None, and is 3 here"),
        ({"tasks": ("sw_choice",)}, UsageError, "has no answers to sw_choice"),
        ({"limit": 7}, EvaluationError, "answers to documents 0 to 6 of task 'sw_word'"),
        ({"apply_chat_template": True}, UsageError, "chat template is to be applied"),
        (
            {"distributions": "lockstep"},
            UsageError,
            "which distributions lockstep does not compare",
        ),
        ({"distributions": "off"}, UsageError, "which distributions off does not compare"),
        ({"save_reference": Path("b")}, UsageError, "nothing is kept of it once more"),
    ],
)
def test_what_the_file_cannot_give_is_refused_before_a_model_is_loaded(
    score: Score, file: Path, loads: list[str], given: Any, error: type[Exception], message: str
) -> None:
    loads.clear()
    with pytest.raises(error, match=message):
        score(file, "other", **given)
    assert loads == []


def test_a_file_that_is_there_is_not_written_over(score: Score, file: Path) -> None:
    with pytest.raises(UsageError, match="is there already") as raised:
        score("llama", "other", save_reference=file)
    assert f"--base {file} compares with it" in raised.value.hint


def test_another_vocabulary_is_refused(score: Score, file: Path) -> None:
    with pytest.raises(MisalignedRunsError, match="vocabularies of base and candidate differ"):
        score(file, "vocabulary")


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_file_is_refused_before_anything_is_loaded(
    score: Score, file: Path, loads: list[str], damage: str
) -> None:
    loads.clear()
    file.write_bytes(file.read_bytes()[:-50] if damage == "cut" else b"hello")
    with pytest.raises(UsageError, match="not a whole reference"):
        score(file, "other")
    assert loads == []


def test_other_packages_are_seen_by_every_reader(
    score: Score, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.engine import reference_scorer as stored_base

    assert score(file, "other")[0].description.findings == ()
    versions = {**stored_base.package_versions(), "torch": "9.9"}
    monkeypatch.setattr(stored_base, "package_versions", lambda: versions)
    (found,) = score(file, "other")[0].description.findings
    assert found.kind == "made_differently"
    assert found.text.startswith("its reference was made with torch ")
    assert found.text.endswith(", not 9.9")


def test_a_base_described_in_another_way_is_refused(
    score: Score, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.distributions.reference_file import ReferenceFile

    original = ReferenceFile.__init__

    def other(self: Any, path: Path) -> None:
        original(self, path)
        self.facts["description"]["more"] = 1
        self.facts["evalguard"] = "7.0"

    monkeypatch.setattr(ReferenceFile, "__init__", other)
    with pytest.raises(UsageError, match=r"was written by evalguard 7\.0, and this is"):
        score(file, "other")


def test_a_base_that_fails_leaves_no_file(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.models.lm_scorer import LMScorer

    def failing(*_: object, **__: object) -> Any:
        raise EvaluationError("out of memory")

    monkeypatch.setattr(LMScorer, "score_reference", failing)
    path = tmp_path / "never.reference"
    with pytest.raises(EvaluationError, match="out of memory"):
        score("llama", "other", save_reference=path)
    assert not path.exists()
    assert not list(tmp_path.glob(".*"))
