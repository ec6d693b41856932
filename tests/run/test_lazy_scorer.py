"""A model is loaded when something has to be asked of it, and is then what it was before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeScorer

from evalguard.bisect.oracle.assigned_candidate import AssignedCandidate
from evalguard.core.scorer import ModelDescription, Request, Scorer
from evalguard.core.settings import Variant
from evalguard.engine.loading.known_models import KnownModel
from evalguard.engine.loading.lazy_scorer import (
    LazyScorer,
    OtherModelError,
    is_loaded,
    local_scorer,
)
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, FallbackError
from evalguard.store.fact_cache import FactCache

ASKED = [
    Request(task="t", doc_id=d, index=0, kind="loglikelihood", arguments=("a b", f" {d}"))
    for d in range(3)
]


class Described(FakeScorer):
    """Has a description that a test may change."""

    def __init__(self, name: str = "m", **changes: Any) -> None:
        super().__init__(name)
        self.changes = changes

    def describe(self) -> ModelDescription:
        return replace(super().describe(), **self.changes)


Open = Callable[..., LazyScorer]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """Open a model; ``opened.loads`` has those that were really loaded."""
    loads: list[Scorer] = []

    def made(scorer: Scorer) -> LazyScorer:
        def load() -> Scorer:
            loads.append(scorer)
            return scorer

        known = KnownModel(FactCache(tmp_path / "facts"), "digest")
        return LazyScorer("base", known, load, here=True)

    made.loads = loads  # type: ignore[attr-defined]
    return made


def test_the_first_time_it_is_loaded_and_the_next_time_it_is_known(opened: Any) -> None:
    first = opened(FakeScorer())
    assert is_loaded(first)
    assert first.encode(ASKED) == FakeScorer().encode(ASKED)
    second = opened(FakeScorer())
    assert second.describe() == first.describe()
    assert second.encode(ASKED) == first.encode(ASKED)
    assert not is_loaded(second)
    assert len(opened.loads) == 1


@pytest.mark.parametrize(
    "ask",
    [
        lambda scorer: scorer.score(ASKED),
        lambda scorer: scorer.encode(ASKED[:1]),
        lambda scorer: scorer.render_chat([{"role": "user", "content": "x"}], True),
    ],
)
def test_what_is_not_known_is_asked_of_the_model(opened: Any, ask: Any) -> None:
    opened(FakeScorer()).encode(ASKED)
    scorer = opened(FakeScorer())
    ask(scorer)
    assert is_loaded(scorer)
    assert len(opened.loads) == 2


def test_a_model_that_cannot_be_proven_is_loaded_every_time(opened: Any) -> None:
    for _ in range(2):
        assert is_loaded(opened(FakeScorer(cached=False)))
    assert len(opened.loads) == 2


def test_another_model_than_the_known_one_is_refused_and_known_from_then_on(opened: Any) -> None:
    opened(FakeScorer("m"))
    other = FakeScorer("n")
    scorer = opened(other)
    with pytest.raises(OtherModelError, match="base is not what it was") as raised:
        scorer.score(ASKED)
    assert "run the same command again" in raised.value.hint
    assert other.closed
    assert other.scored == []
    again = opened(FakeScorer("n"))
    assert not is_loaded(again)
    assert len(again.score(ASKED)) == 3


def test_what_changes_no_score_is_taken_over(opened: Any) -> None:
    opened(Described())
    scorer = opened(Described(caveats=("slow today",), environment={"host": "b"}))
    assert scorer.describe().caveats == ()
    scorer.score(ASKED)
    assert scorer.describe().caveats == ("slow today",)
    assert opened(Described()).describe().environment == {"host": "b"}


def test_what_was_loaded_from_other_files_than_the_digests_is_not_remembered(
    tmp_path: Path,
) -> None:
    facts, loads = FactCache(tmp_path / "facts"), []

    def opened(weights: str) -> LazyScorer:
        known = KnownModel(facts, "digest", {"weights": {"pretrained": "a"}})

        def load() -> Scorer:
            loads.append(weights)
            return Described(identity={"weights": {"pretrained": weights}})

        return LazyScorer("base", known, load, here=True)

    opened("b")  # written over after the digest was taken
    opened("a")
    opened("a")
    assert loads == ["b", "a"]


def test_a_bisection_names_the_files_that_changed_under_it(tmp_path: Path) -> None:
    source = ModelSource(name="port", variant=Variant(name="port", model="hf", model_args={}))
    proofs = {"weights": {"pretrained": "a"}, "code": {"torch": "1", "code 0 hooks": "x"}}
    now = {"weights": {"pretrained": "a"}, "code": {"torch": "1", "code 0 hooks": "y", "late": "z"}}
    known = KnownModel(FactCache(tmp_path / "facts"), "digest", proofs)
    found = Described(identity=now).describe()
    with pytest.raises(EvaluationError, match=r"\(code: code 0 hooks, code: late\)"):
        AssignedCandidate(source=source, known=known).describe_as(found)
    unproven = AssignedCandidate(source=source, known=None)
    unproven.describe_as(Described(identity=proofs).describe())
    with pytest.raises(EvaluationError, match=r"\(code: code 0 hooks, code: late\)"):
        unproven.describe_as(found)


def test_damaged_facts_only_cost_a_load(opened: Any, tmp_path: Path) -> None:
    opened(FakeScorer()).encode(ASKED)
    for path in tmp_path.rglob("*.json"):
        path.write_bytes(path.read_bytes()[:-9])
    scorer = opened(FakeScorer())
    assert is_loaded(scorer)
    assert scorer.encode(ASKED) == FakeScorer().encode(ASKED)


def test_facts_of_another_shape_only_cost_a_load(opened: Any, tmp_path: Path) -> None:
    facts = FactCache(tmp_path / "facts")
    facts.put("models", "digest", {"description": {"model_type": "hf", "new": 1}})
    assert is_loaded(opened(FakeScorer()))
    facts.put("models", "digest", {})
    assert is_loaded(opened(FakeScorer()))


def test_closing_releases_the_model_and_asks_nothing_of_it_again(opened: Any) -> None:
    scorer = FakeScorer()
    first = opened(scorer)
    first.close()
    assert scorer.closed
    second = opened(FakeScorer())
    second.close()
    assert not is_loaded(second)
    with pytest.raises(EvaluationError, match="closed"):
        second.score(ASKED)


def test_a_model_of_another_process_is_none_of_this_one(tmp_path: Path) -> None:
    known = KnownModel(FactCache(tmp_path), "digest")
    assert local_scorer(LazyScorer("m", known, FakeScorer, here=False)) is None
    assert local_scorer(LazyScorer("m", known, FakeScorer, here=True)) is None  # no LMScorer


def test_what_documents_show_a_model_cannot_do_is_remembered(opened: Any, tmp_path: Path) -> None:
    late = FallbackError("scores differ by 0.3 nats", giving_up="share_prefixes", hint="--no")
    known = KnownModel(FactCache(tmp_path / "facts"), "digest")
    assert known.gave_up is None
    with pytest.raises(FallbackError):
        opened(FakeScorer(fails={0: late})).score(ASKED)
    assert known.gave_up is not None
    assert str(known.gave_up) == "found in an earlier run: scores differ by 0.3 nats"
    assert (known.gave_up.giving_up, known.gave_up.hint) == ("share_prefixes", "--no")
    assert KnownModel(known.facts, "another").gave_up is None
    known.facts.put("given_up", "digest", {"giving_up": "of another version", "reason": ""})
    assert known.gave_up is None
