"""Models are held against each other while they are scored, and checked at batch size 1."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeScorer

import evalguard
from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.score_models import score_models
from evalguard.engine.sources import ModelSource
from evalguard.errors import EvaluationError, MisalignedRunsError

Score = Callable[..., Any]


def source(name: str) -> ModelSource:
    return ModelSource(name=name, variant=Variant(name=name, model="fake", model_args={}))


@pytest.fixture
def score(task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Score:
    """Score models by name; each name opens the scorer that was given for it."""

    def scored(scorers: Mapping[str, FakeScorer], **given: Any) -> Any:
        def opened(
            variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
        ) -> FakeScorer:
            policies.append(policy)
            return scorers[variant.name]

        monkeypatch.setattr("evalguard.engine.run_context.open_scorer", opened)
        policies.clear()
        fields = {"tasks": ("sw_word",), "include_path": (task_folder,), "quiet": True}
        options = CompareOptions(**{**fields, "cache_dir": tmp_path, **given})
        sources = [source(name) for name in scorers]
        choices = resolve_choices(sources[0], sources[-1], GuardSet(guards=()), options)
        return score_models(sources, choices, options)

    policies: list[ScoringPolicy] = []
    scored.policies = policies  # type: ignore[attr-defined]
    return scored


class OtherWords(FakeScorer):
    """Encodes the last document in another way than the others do."""

    def encode(self, requests: Any) -> list[tuple[int, ...]]:
        return [*super().encode(requests)[:-1], (1, 2, 3)]


class OtherVocabulary(FakeScorer):
    """Has another vocabulary."""

    def describe(self) -> Any:
        return replace(super().describe(), vocabulary_digest="w", vocabulary_size=1000)


def test_models_are_scored_in_order_and_released(score: Score) -> None:
    scorers = {"a": FakeScorer("a"), "b": FakeScorer("b")}
    assert [evaluation.name for evaluation in score(scorers)] == ["a", "b"]
    assert all(scorer.closed for scorer in scorers.values())
    assert score_models([], None, CompareOptions()) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            OtherWords,
            r"encode 1 of 8 requests differently \(first: sw_word, doc_id 7, \d+ and \d+ token ids",
        ),
        (
            OtherVocabulary,
            r"vocabularies of base and candidate differ \(50,000 and 1,000 entries\)",
        ),
    ],
)
def test_other_tokens_are_refused_before_the_second_model_is_scored(
    score: Score, other: type[FakeScorer], message: str
) -> None:
    scorers = {"a": FakeScorer("a"), "b": other("b")}
    with pytest.raises(MisalignedRunsError, match=message) as raised:
        score(scorers)
    assert "--allow-differing tokens" in raised.value.hint
    quoted = {(one.what, one.side, one.doc_id, one.text) for one in raised.value.quotes}
    assert (("token ids", "candidate", 7, "1 2 3") in quoted) == (other is OtherWords)
    assert "1 2 3" not in str(raised.value)
    assert len(scorers["a"].scored) == 1
    assert scorers["b"].scored == []
    assert scorers["b"].closed
    assert score(scorers, allow_differing=frozenset({"tokens"}))


@pytest.mark.parametrize("reads_bos", ["base", "candidate"])
def test_a_bos_that_one_side_reads_is_named_with_the_side_that_needs_it(
    score: Score, reads_bos: str
) -> None:
    class WithBos(FakeScorer):
        def encode(self, requests: Any) -> list[tuple[int, ...]]:
            return [(7, *ids) for ids in super().encode(requests)]

    other = {"base": "candidate", "candidate": "base"}[reads_bos]
    kinds = {reads_bos: WithBos, other: FakeScorer}
    with pytest.raises(MisalignedRunsError, match="encode 8 of 8 requests differently") as raised:
        score({"a": kinds["base"]("a"), "b": kinds["candidate"]("b")})
    assert f"only the {reads_bos} reads token 7 before each text" in raised.value.hint
    assert f"{{add_bos_token: true}} on the {other}" in raised.value.hint
    assert "--allow-differing tokens" in raised.value.hint


def test_a_model_that_is_another_in_the_end_has_no_scores_and_leaves_none(score: Score) -> None:
    class Changed(FakeScorer):
        def describe(self) -> Any:
            return replace(super().describe(), model_type="llama_server")

        def check_unchanged(self) -> None:
            raise EvaluationError("the server changed while it was asked")

    with pytest.raises(EvaluationError, match="changed while"):
        score({"a": FakeScorer("a"), "b": Changed("b")})
    again = {"a": FakeScorer("a"), "b": FakeScorer("b")}
    score(again)
    assert again["a"].scored == [], "what is kept of the other one is sound"
    assert len(again["b"].scored) == 1


def test_token_ids_that_may_differ_are_said_how(score: Score) -> None:
    class TwiceBos(FakeScorer):
        def encode(self, requests: Any) -> list[tuple[int, ...]]:
            return [(ids[0], *ids) for ids in super().encode(requests)]

    declared = frozenset({"tokens"})
    _, second = score({"a": FakeScorer("a"), "b": TwiceBos("b")}, allow_differing=declared)
    (found,) = (one for one in second.findings if one.kind == "prompts_differ")
    assert found.text == (
        "token ids differ, as declared, in 8 of 8 requests that were looked at: the candidate "
        "reads its first token, BOS, twice"
    )
    assert found.values["kinds"] == ("double_bos",)
    alike = score({"a": FakeScorer("a"), "b": FakeScorer("b")}, allow_differing=declared)
    assert not [one for each in alike for one in each.findings if one.kind == "prompts_differ"]


def test_models_that_show_no_tokens_are_left_to_pairing(score: Score) -> None:
    class Silent(FakeScorer):
        def encode(self, requests: Any) -> list[tuple[int, ...]]:
            return [() for _ in requests]

    assert len(score({"a": FakeScorer("a"), "b": Silent("b")})) == 2


def test_each_model_gets_its_own_chat_template(score: Score) -> None:
    scorers = {"a": FakeScorer("a"), "b": FakeScorer("b")}
    declared = {"prompt", "tokens"}
    first, second = score(scorers, apply_chat_template=True, allow_differing=frozenset(declared))
    prompts = [evaluation.scores["sw_word"].samples[0]["prompt"] for evaluation in (first, second)]
    assert prompts[0].startswith("a:")
    assert prompts[1].startswith("b:")


def test_other_prompts_are_refused_before_the_second_model_is_scored(score: Score) -> None:
    scorers = {"a": FakeScorer("a"), "b": FakeScorer("b")}
    with pytest.raises(MisalignedRunsError, match="prompts of base and candidate differ") as raised:
        score(scorers, apply_chat_template=True)
    assert str(raised.value).endswith("they first differ at character 0")
    assert raised.value.quotes[0].text.startswith("a:")
    assert "--allow-differing prompt" in raised.value.hint
    assert scorers["b"].scored == []
    assert scorers["b"].closed


def test_token_ids_are_compared_where_prompts_are_the_same(score: Score) -> None:
    """What both templates write alike may still be read as other ids: BOS twice, say."""

    class Alike(FakeScorer):
        def render_chat(self, messages: Any, add_generation_prompt: bool) -> str:
            return "<s>" + "|".join(message["content"] for message in messages)

    class TwiceBos(Alike):
        def encode(self, requests: Any) -> list[tuple[int, ...]]:
            return [(ids[0], *ids) for ids in super().encode(requests)]

    with pytest.raises(MisalignedRunsError, match="the candidate reads its first token, BOS, tw"):
        score({"a": Alike("a"), "b": TwiceBos("b")}, apply_chat_template=True)
    assert len(score({"a": Alike("a"), "b": Alike("b")}, apply_chat_template=True)) == 2


def test_a_model_is_opened_at_most_seven_calls_below_a_comparison(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = str(Path(evalguard.__file__).parent)
    calls: list[str] = []

    def seen(*_: object) -> None:
        stack = [one for one in inspect.stack(0)[::-1] if one.filename.startswith(package)]
        calls.extend(one.function for one in stack)
        raise EvaluationError("seen")

    monkeypatch.setattr("evalguard.engine.run_context.RunContext.load", seen)
    fields = {"tasks": ("sw_word",), "include_path": (models["tasks"],), "quiet": True}
    with pytest.raises(EvaluationError, match="seen"):
        evalguard.compare(
            models["llama"], models["other"], write=False, cache_dir=tmp_path, **fields
        )
    below = calls[calls.index("compare") + 1 :]
    assert below[-1] == "open_model"
    assert len(below) <= 7, below
