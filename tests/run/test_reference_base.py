"""A base that is not loaded: its reference file says what it answered."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_world import make_world
from test_distributions import kl, source, values

from evalguard.config.guard import GuardSet
from evalguard.errors import EvaluationError, MisalignedRunsError, UsageError
from evalguard.run.choices import resolve_choices
from evalguard.run.options import CompareOptions
from evalguard.run.scoring.evaluate import Evaluation
from evalguard.run.scoring.scoring import score_models

Score = Callable[..., list[Evaluation]]


@pytest.fixture(scope="module")
def models(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    world = make_world(tmp_path_factory.mktemp("world"), tiny_llama)
    return {**world.models, "tasks": world.tasks}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the models that were loaded."""
    from evalguard.run.scoring import run_context as bench

    names, original = [], bench.open_scorer

    def noted(variant: Any, *more: Any, **options: Any) -> Any:
        names.append(variant.name)
        return original(variant, *more, **options)

    monkeypatch.setattr(bench, "open_scorer", noted)
    return names


@pytest.fixture
def score(models: dict[str, Path], tmp_path: Path, opened: list[str]) -> Score:
    def scored(base: str, candidate: str, **given: Any) -> list[Evaluation]:
        fields = {"tasks": ("sw_word", "sw_text"), "include_path": (models["tasks"],)}
        fields |= {"quiet": True, "use_cache": False, "device": "cpu"}
        options = CompareOptions(**{**fields, "cache_dir": tmp_path / "cache", **given})
        sources = [source(models, base), source(models, candidate)]
        choices = resolve_choices(sources[0], sources[1], GuardSet(guards=()), options)
        return score_models(sources, choices, options)

    return scored


@pytest.fixture
def file(score: Score, tmp_path: Path) -> Path:
    path = tmp_path / "llama.reference"
    score("llama", "other", reference=path)
    return path


def test_the_file_takes_the_place_of_the_base(score: Score, file: Path, opened: list[str]) -> None:
    whole = score("llama", "other", distributions="reference")
    opened.clear()
    stored = score("llama", "other", reference=file)
    assert opened == ["other"]
    assert values(stored) == values(whole)
    for task in ("sw_word", "sw_text"):
        assert kl(stored, task).tobytes() == kl(whole, task).tobytes()
    assert stored[0].description.identity == whole[0].description.identity


def test_the_file_serves_several_candidates_and_keeps_their_divergences(
    score: Score, file: Path, tmp_path: Path
) -> None:
    for candidate in ("other", "llama"):
        first = score("llama", candidate, reference=file, use_cache=True)
        again = score("llama", candidate, reference=file, use_cache=True)
        assert kl(first, "sw_text").tobytes() == kl(again, "sw_text").tobytes()
    assert not kl(first, "sw_text").any()
    assert len(list((tmp_path / "cache" / "divergences").rglob("*.parquet"))) == 4
    assert not (tmp_path / "cache" / "references").exists()


def test_tokens_of_the_file_are_as_many_as_were_asked_for(score: Score, tmp_path: Path) -> None:
    path = tmp_path / "k.reference"
    score("llama", "other", reference=path, reference_top_k=10_000)
    exact = score("llama", "other", distributions="lockstep")
    stored = score("llama", "other", reference=path)
    np.testing.assert_allclose(kl(stored, "sw_text"), kl(exact, "sw_text"), atol=1e-9)
    with pytest.raises(UsageError, match="keeps its own number of tokens"):
        score("llama", "other", reference=path, reference_top_k=7)


@pytest.mark.parametrize(
    ("base", "given", "error", "message"),
    [
        ("other", {}, UsageError, "not a reference of 'other' as it is here: other weights"),
        ("llama", {"batch_size": 3}, UsageError, "other policy .batch_size: None, not 3"),
        ("llama", {"tasks": ("sw_choice",)}, EvaluationError, "task 'sw_choice' as they are asked"),
        ("llama", {"limit": 7}, EvaluationError, "answers to documents 0 to 6 of task 'sw_word'"),
        ("llama", {"apply_chat_template": True}, EvaluationError, "chat template is to be applied"),
        ("llama", {"distributions": "lockstep"}, UsageError, "no use with distributions lockstep"),
    ],
)
def test_another_base_or_other_questions_are_refused(
    score: Score, file: Path, base: str, given: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        score(base, "other", reference=file, **given)


def test_another_vocabulary_is_refused(score: Score, file: Path) -> None:
    with pytest.raises(MisalignedRunsError, match="vocabularies of base and candidate differ"):
        score("llama", "vocabulary", reference=file)


@pytest.mark.parametrize("damage", ["cut", "text"])
def test_a_damaged_file_is_refused_before_anything_is_loaded(
    score: Score, file: Path, opened: list[str], damage: str
) -> None:
    opened.clear()
    file.write_bytes(file.read_bytes()[:-50] if damage == "cut" else b"hello")
    with pytest.raises(UsageError, match="not a whole reference"):
        score("llama", "other", reference=file)
    assert opened == []


def test_other_packages_are_a_caveat(
    score: Score, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.run.scoring import referencing as stored_base

    assert score("llama", "other", reference=file)[0].description.caveats == ()
    versions = {**stored_base.package_versions(), "torch": "9.9"}
    monkeypatch.setattr(stored_base, "package_versions", lambda: versions)
    (caveat,) = score("llama", "other", reference=file)[0].description.caveats
    assert caveat.startswith("its reference was made with torch ")
    assert caveat.endswith(", not 9.9")


def test_a_base_described_in_another_way_is_refused(
    score: Score, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.store.reference_file import ReferenceFile

    original = ReferenceFile.__init__

    def other(self: Any, path: Path) -> None:
        original(self, path)
        self.facts["description"]["more"] = 1
        self.facts["evalguard"] = "7.0"

    monkeypatch.setattr(ReferenceFile, "__init__", other)
    with pytest.raises(UsageError, match=r"was written by evalguard 7\.0, and this is"):
        score("llama", "other", reference=file)


def test_a_base_that_fails_leaves_no_file(
    score: Score, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.models.lm_scorer import LMScorer

    def failing(*_: object, **__: object) -> Any:
        raise EvaluationError("out of memory")

    monkeypatch.setattr(LMScorer, "score_reference", failing)
    path = tmp_path / "never.reference"
    with pytest.raises(EvaluationError, match="out of memory"):
        score("llama", "other", reference=path)
    assert not path.exists()
    assert not list(tmp_path.glob(".*"))


def test_a_moved_base_is_still_recognised(
    score: Score, file: Path, models: dict[str, Path], tmp_path: Path
) -> None:
    moved = shutil.copytree(models["llama"], tmp_path / "elsewhere")
    models["moved"] = moved
    assert kl(score("moved", "other", reference=file), "sw_text").size
