"""What is kept is neither scored nor loaded again; distributions bring a base back once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from scored_models import Score, kl, values

from evalguard.core.settings import Variant
from evalguard.engine import memory as decisions
from evalguard.engine import run_context as bench
from evalguard.errors import UsageError
from evalguard.store.fact_cache import open_facts

LIMITS = {"gate_limits": {"kl_mean": 10.0}}


def test_a_finished_comparison_loads_nothing_again(
    score: Score, loads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    first = score("llama", "other")
    assert loads == ["llama", "other"]
    capsys.readouterr()
    again = score("llama", "other", quiet=False)
    assert loads == ["llama", "other"]
    assert values(again) == values(first)
    assert kl(again, "sw_word").tolist() == kl(first, "sw_word").tolist()
    assert [e.description for e in again] == [e.description for e in first]
    said = capsys.readouterr().err
    assert "llama: all 1 blocks kept, not loaded" in said
    assert "loading llama" not in said


def test_without_the_cache_everything_is_loaded_again(score: Score, loads: list[str]) -> None:
    score("llama", "other")
    score("llama", "other", use_cache=False)
    assert loads == ["llama", "other"] * 2


@pytest.mark.slow
def test_a_kept_model_starts_no_worker_process_again(score: Score, loads: list[str]) -> None:
    given = {"worker": "always", "distributions": "off"}
    first = score("llama", "other", **given)
    again = score("llama", "other", **given)
    assert loads == ["llama", "other"]
    assert values(again) == values(first)


@pytest.mark.parametrize(("before", "memory"), [("llama", "auto"), ("other", "sequential")])
def test_a_base_whose_scores_alone_are_kept_is_run_for_its_distributions_once(
    score: Score, loads: list[str], capsys: pytest.CaptureFixture[str], before: str, memory: str
) -> None:
    score("llama", before, distributions="off")
    loads.clear()
    measured = score("llama", "other", memory=memory, quiet=False)
    assert sorted(loads) == ["llama", "other"]
    assert "llama: scored once more, since its scores are kept" in capsys.readouterr().err
    assert [one.findings for one in measured] == [(), ()]
    anew = score("llama", "other", distributions="reference", use_cache=False)
    assert kl(measured, "sw_word").tolist() == kl(anew, "sw_word").tolist()
    assert values(measured) == values(anew)
    loads.clear()
    again = score("llama", "other", memory=memory, quiet=False)
    assert kl(again, "sw_word").tolist() == kl(measured, "sw_word").tolist()
    assert loads == []
    same = score("llama", "llama", memory=memory, quiet=False)
    assert loads == ["llama"]
    assert kl(same, "sw_word").max() == pytest.approx(0.0, abs=1e-6)
    assert "once more" not in capsys.readouterr().err


@pytest.mark.parametrize("given", [{"distributions": "lockstep"}, LIMITS])
def test_whoever_needs_distributions_gets_them_in_lock_step(
    score: Score, loads: list[str], given: dict[str, Any]
) -> None:
    score("llama", "other", distributions="off")
    loads.clear()
    measured = score("llama", "other", **given)
    assert sorted(loads) == ["llama", "other"]
    assert (
        kl(measured, "sw_word").tolist()
        == kl(score("llama", "other", use_cache=False), "sw_word").tolist()
    )


def test_a_kept_reference_takes_the_bases_place(score: Score, loads: list[str]) -> None:
    score("llama", "llama", distributions="reference")
    loads.clear()
    found = score("llama", "other")
    assert loads == ["other"]
    assert kl(found, "sw_word").size > 0
    by_reference = score("llama", "other", distributions="reference", use_cache=False)
    assert kl(found, "sw_word").tolist() == kl(by_reference, "sw_word").tolist()


def test_changed_weights_are_another_model(
    score: Score, models: dict[str, Path], loads: list[str]
) -> None:
    weights = models["other"] / "model.safetensors"
    before = weights.read_bytes()
    first = score("llama", "other")
    try:
        weights.write_bytes(before[:-4] + b"\x00\x00\x00\x3f")
        changed = score("llama", "other", distributions="off")
    finally:
        weights.write_bytes(before)
    assert loads == ["llama", "other", "other"]
    assert values(changed)[0] == values(first)[0]
    assert changed[1].description.identity != first[1].description.identity


def test_scores_of_a_model_that_is_not_the_known_one_are_never_mixed(
    score: Score, loads: list[str], tmp_path: Path
) -> None:
    right = score("llama", "other", distributions="off")
    facts = open_facts(tmp_path)
    for path in (tmp_path / "facts" / "v1" / "models").iterdir():
        known = facts.get("models", path.stem)
        assert known is not None
        if known["description"]["identity"] == dict(right[0].description.identity or {}):
            known["description"]["identity"]["threads"] = 99
            facts.put("models", path.stem, known)
    loads.clear()
    again = score("llama", "other", distributions="off")
    assert loads == ["llama"]  # asked, found to be another, and then found in the cache
    assert values(again) == values(right)
    assert again[0].description.identity == right[0].description.identity


def test_two_models_that_are_not_the_known_ones_are_both_put_right(
    score: Score, loads: list[str], tmp_path: Path
) -> None:
    right = score("llama", "other", distributions="off")
    facts = open_facts(tmp_path)
    for path in (tmp_path / "facts" / "v1" / "models").iterdir():
        known = facts.get("models", path.stem)
        assert known is not None
        known["description"]["identity"]["threads"] = 99
        facts.put("models", path.stem, known)
    loads.clear()
    assert values(score("llama", "other", distributions="off")) == values(right)
    assert loads == ["llama", "other"]


@pytest.mark.parametrize("memory", ["sequential", "lockstep"])
def test_memory_says_how_many_models_are_loaded_at_once(
    score: Score, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_now: list[str] = []
    most = []
    original = bench.open_scorer

    def watched(variant: Variant, *given: Any, **more: Any) -> Any:
        scorer = original(variant, *given, **more)
        open_now.append(variant.name)
        most.append(len(open_now))
        close = scorer.close

        def closed() -> None:
            if variant.name in open_now:
                open_now.remove(variant.name)
            close()

        scorer.close = closed  # type: ignore[method-assign]
        return scorer

    monkeypatch.setattr(bench, "open_scorer", watched)
    monkeypatch.setattr(decisions, "fits_in_memory", lambda weights, device: memory == "sequential")
    base, other = score("llama", "other", memory=memory, use_cache=False)
    assert max(most) == (2 if memory == "lockstep" else 1)
    assert kl([base, other], "sw_word").size > 0
    if memory == "lockstep":
        score("llama", "other", memory=memory, use_cache=False, distributions="off")
        assert most == [1, 2, 1, 2]
    else:
        assert "by reference: memory sequential loads one model at a time" in base.notes[-1]


def test_a_limit_on_distributions_is_measured_by_reference_where_one_model_is_loaded_at_a_time(
    score: Score,
) -> None:
    base, other = score("llama", "other", memory="sequential", **LIMITS)
    assert kl([base, other], "sw_word").size > 0
    assert "by reference: memory sequential loads one model at a time" in base.notes[0]


@pytest.mark.parametrize(
    ("memory", "distributions"), [("lockstep", "reference"), ("sequential", "lockstep")]
)
def test_memory_and_distributions_that_want_the_opposite_are_refused(
    score: Score, memory: str, distributions: str
) -> None:
    with pytest.raises(UsageError, match=f"memory {memory} does not go with") as raised:
        score("llama", "other", memory=memory, distributions=distributions)
    assert "run: {memory: ...}" in raised.value.hint


@pytest.mark.slow
def test_a_finished_comparison_imports_neither_torch_nor_transformers(
    models: dict[str, Path], tmp_path: Path
) -> None:
    compare = (
        "import sys, evalguard\n"
        f"evalguard.compare({str(models['llama'])!r}, {str(models['other'])!r}, device='cpu',"
        f" tasks=['sw_word'], include_path=[{str(models['tasks'])!r}], quiet=True,"
        f" cache_dir={str(tmp_path / 'cache')!r}, output_path={str(tmp_path / 'out')!r})\n"
        "print(sorted({'torch', 'transformers', 'lm_eval.models.huggingface'} & set(sys.modules)))"
    )
    told = [
        subprocess.run(
            [sys.executable, "-c", compare], capture_output=True, text=True, check=True
        ).stdout.strip()
        for _ in range(2)
    ]
    assert told == ["['lm_eval.models.huggingface', 'torch', 'transformers']", "[]"]
