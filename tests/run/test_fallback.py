"""Where one model cannot share prefixes, both are scored without; the report says so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeScorer
from strange_models import LateTwice
from tiny_models import save_llama, save_mamba

import evalguard
from evalguard.comparison.looks import score_in_looks
from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.scorer import ModelDescription, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.loading import load_scorer as loading
from evalguard.engine.score_models import score_models
from evalguard.engine.sources import ModelSource
from evalguard.errors import FallbackError, UsageError

Score = Callable[..., Any]


class Sharing(FakeScorer):
    """Shares prefixes if it is asked to, unless it ``cannot``; finds out late if it ``fails``."""

    def __init__(self, name: str, *, cannot: str = "", **given: Any) -> None:
        super().__init__(name, **given)
        self.cannot = cannot
        self.shares = False

    def describe(self) -> ModelDescription:
        return replace(
            super().describe(),
            identity={"weights": self.name, "shares": self.shares},
            computation={"shares_prefixes": self.shares},
            unshared=self.cannot,
        )


def late(giving_up: str = "share_prefixes") -> FallbackError:
    return FallbackError("scores differ by 0.3 nats", giving_up=giving_up)


@pytest.fixture
def opened(task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Score:
    """Prepare scoring with these scorers: (sources, choices, options), and the policies asked."""

    def prepared(scorers: Mapping[str, Sharing], *, model: str = "hf", **given: Any) -> Any:
        policies: list[tuple[str, ScoringPolicy]] = []

        def load(variant: Variant, policy: ScoringPolicy, *_: Any, **__: Any) -> FakeScorer:
            policies.append((variant.name, policy))
            scorer = scorers[variant.name]
            scorer.shares = policy.share_prefixes and not scorer.cannot
            return scorer

        monkeypatch.setattr("evalguard.engine.run_context.open_scorer", load)
        fields = {"tasks": ("sw_word",), "include_path": (task_folder,), "quiet": True}
        fields |= {"distributions": "off", "cache_dir": tmp_path}
        options = CompareOptions(**{**fields, **given})
        sources = tuple(
            ModelSource(name=name, variant=Variant(name=name, model=model, model_args={}))
            for name in scorers
        )
        choices = resolve_choices(sources[0], sources[-1], GuardSet(guards=()), options)
        return (sources, choices, options), policies

    return prepared


def asked(policies: list[tuple[str, ScoringPolicy]]) -> list[tuple[str, bool]]:
    return [(name, policy.share_prefixes) for name, policy in policies]


@pytest.mark.parametrize(
    ("given", "shared"),
    [
        pytest.param({}, True, id="both can"),
        pytest.param({"model": "gguf"}, False, id="a model of another type"),
        pytest.param({"share_prefixes": False}, False, id="turned off by the user"),
    ],
)
def test_both_models_share_prefixes_where_both_can_and_may(
    opened: Score, given: dict[str, Any], shared: bool
) -> None:
    arguments, policies = opened({"a": Sharing("a"), "b": Sharing("b")}, **given)
    assert [evaluation.notes for evaluation in score_models(*arguments)] == [(), ()]
    assert asked(policies) == [("a", shared), ("b", shared)]


def test_the_second_model_does_not_share_where_the_first_cannot(opened: Score) -> None:
    arguments, policies = opened({"a": Sharing("a", cannot="it has a state"), "b": Sharing("b")})
    score_models(*arguments)
    assert asked(policies) == [("a", True), ("b", False)]


def test_both_start_again_where_only_the_second_cannot(opened: Score) -> None:
    arguments, policies = opened({"a": Sharing("a"), "b": Sharing("b", cannot="it has a state")})
    found = score_models(*arguments)
    assert asked(policies) == [("a", True), ("b", True), ("a", False), ("b", False)]
    for evaluation in found:
        assert evaluation.notes == (
            "shared prefixes are read again for every continuation, by all models "
            "(b cannot share prefixes: it has a state)",
        )
        assert evaluation.description.computation["shares_prefixes"] is False


def test_what_only_the_documents_show_starts_both_again(opened: Score) -> None:
    scorers = {"a": Sharing("a"), "b": Sharing("b", fails={0: late()})}
    arguments, policies = opened(scorers)
    found = score_models(*arguments)
    assert asked(policies) == [("a", True), ("b", True), ("a", False), ("b", False)]
    assert "scores differ by 0.3 nats" in found[0].notes[0]
    # what the base answered the first time is kept under another key, and was not taken again
    assert len(scorers["a"].scored) == 2
    assert scorers["b"].closed


def test_a_sequential_run_starts_again_too(opened: Score) -> None:
    arguments, policies = opened(
        {"a": Sharing("a"), "b": Sharing("b", fails={0: late()})}, sequential=True
    )
    (base, candidate), _ = score_in_looks(*arguments)
    assert ("b", False) in asked(policies)
    assert base.notes == candidate.notes
    assert "scores differ by 0.3 nats" in base.notes[0]


def test_logits_are_computed_at_all_positions_where_a_model_needs_them(opened: Score) -> None:
    arguments, policies = opened({"a": Sharing("a"), "b": Sharing("b", fails={0: late("scorer")})})
    found = score_models(*arguments)
    assert [policy.scorer for _, policy in policies] == [
        "fast", "fast", "full logits", "full logits"
    ]  # fmt: skip
    assert "logits are computed at every position" in found[1].notes[0]


def test_a_model_that_fails_again_without_sharing_is_an_error(opened: Score) -> None:
    class Never(Sharing):
        def score(self, requests: Any) -> Any:
            raise late()

    arguments, _ = opened({"a": Sharing("a"), "b": Never("b")})
    with pytest.raises(FallbackError, match=r"0\.3 nats"):
        score_models(*arguments)


@pytest.mark.parametrize(
    "how",
    [
        {},
        pytest.param({"distributions": "reference"}, marks=pytest.mark.nightly),
        pytest.param({"worker": "always", "distributions": "off"}, marks=pytest.mark.nightly),
        pytest.param({"sequential": True}, marks=pytest.mark.slow),
    ],
)
def test_a_state_space_port_is_compared_with_both_models_scored_alike(
    task_folder: Path, tmp_path: Path, how: dict[str, Any]
) -> None:
    base = save_llama(tmp_path / "orig")
    port = save_mamba(tmp_path / "port")
    given = {"tasks": ("sw_choice",), "include_path": (task_folder,), "write": False, **how}
    given |= {"base_model_args": {"dtype": "float32"}, "quiet": True}
    given |= {"cand_model_args": {"dtype": "float32", "max_length": 48}}
    again = evalguard.compare(base, port, cache_dir=tmp_path / "cache", **given)
    plain = evalguard.compare(
        base, port, cache_dir=tmp_path / "other", share_prefixes=False, **given
    )
    assert [note for note in again.report.notes if "prefixes" in note] == [
        "shared prefixes are read again for every continuation, by all models "
        "(port cannot share prefixes: layers of kind linear_attention keep a state, which no mask "
        "divides)"
    ]
    assert not [note for note in plain.report.notes if "prefixes" in note]
    assert again.report.comparisons == plain.report.comparisons


@pytest.mark.slow
def test_a_reference_file_is_made_anew_with_the_run_and_one_from_before_stays(
    task_folder: Path, tmp_path: Path
) -> None:
    base, port = save_llama(tmp_path / "orig"), save_mamba(tmp_path / "port")
    file = tmp_path / "reference"
    given = {"tasks": ("sw_choice",), "include_path": (task_folder,), "write": False, "quiet": True}
    given |= {"base_model_args": {"dtype": "float32"}, "cache_dir": tmp_path}
    port_args = {"dtype": "float32", "max_length": 48}
    of_base = {"base_model_args": given.pop("base_model_args"), "save_reference": file}
    port_given = {**given, "cand_model_args": port_args}
    written = evalguard.compare(base, port, **port_given, **of_base)
    # the file is of a base that shared nothing
    read = evalguard.compare(file, port, share_prefixes=False, **port_given)
    assert read.comparisons == written.comparisons
    assert read.distributions == written.distributions
    file.unlink()
    evalguard.compare(base, base, **given, **of_base)
    before = file.read_bytes()
    with pytest.raises(UsageError, match="scored otherwise than this candidate can be") as raised:
        evalguard.compare(file, port, **port_given)
    assert "run: {share_prefixes: false}" in raised.value.hint
    assert file.read_bytes() == before


@pytest.mark.parametrize("distributions", ["lockstep", "off"])
def test_what_only_documents_show_is_known_to_the_next_run(
    task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, distributions: str
) -> None:
    """The candidate's head is called twice on texts of more than 20 tokens."""
    loaded: list[str] = []
    load = loading.load_lm

    def noted(model_type: str, arguments: Any, overrides: Any, policy: Any, **given: Any) -> Any:
        lm: Any = load(model_type, arguments, overrides, policy, **given)
        loaded.append(f"{Path(arguments['pretrained']).name}: {policy.scorer}")
        if loaded[-1].startswith("port"):
            lm._model = LateTwice.from_pretrained(arguments["pretrained"]).eval()
        return lm

    monkeypatch.setattr(loading, "load_lm", noted)
    base, port = save_llama(tmp_path / "orig"), save_llama(tmp_path / "port", tied=False)
    given = {"tasks": ("sw_word",), "include_path": (task_folder,), "write": False, "quiet": True}
    given |= {"distributions": distributions, "cache_dir": tmp_path / "cache"}
    given |= {"share_prefixes": False}
    given |= {f"{side}_model_args": {"dtype": "float32"} for side in ("base", "cand")}
    first, second = (evalguard.compare(base, port, **given) for _ in range(2))
    assert first.report.comparisons == second.report.comparisons
    assert loaded == ["orig: fast", "port: fast", "orig: full logits", "port: full logits"]
    (note,) = [note for note in second.report.notes if "every position" in note]
    assert "found in an earlier run: logits cannot be computed at the scored positions" in note
