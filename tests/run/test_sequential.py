"""Sequential runs: models are asked in looks, in a seeded order, and stop with a promise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_models import FakeScorer
from small_world import N_LONG, SmallWorld, make_world

import evalguard
from evalguard.comparison.looks import score_in_looks
from evalguard.comparison.refusals import check_sequential
from evalguard.config.guard import GuardSet
from evalguard.config.options import CompareOptions
from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.choices import resolve_choices
from evalguard.engine.score_models import score_sides
from evalguard.engine.sources import ModelSource, RunSource, Source
from evalguard.errors import UsageError
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun
from evalguard.planning.plan_run import plan_from_run
from evalguard.stats.sequential_looks import document_order

Run = Callable[..., Any]


class Worse(FakeScorer):
    """Loses three nats on every document, and never agrees with the text."""

    def _respond(self, request: Request) -> Response:
        answer = super()._respond(request)
        return replace(answer, loglikelihood=(answer.loglikelihood or 0.0) - 3.0, is_greedy=False)


class NeverRight(FakeScorer):
    """Gives the same likelihoods, and never agrees with the text."""

    def describe(self) -> ModelDescription:
        return replace(super().describe(), identity={"weights": f"{self.name}, never right"})

    def _respond(self, request: Request) -> Response:
        return replace(super()._respond(request), is_greedy=False)


def model(name: str) -> ModelSource:
    return ModelSource(name=name, variant=Variant(name=name, model="fake", model_args={}))


@pytest.fixture
def run(task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Score two sides in looks; names stand for scorers, everything else for itself."""

    def ran(
        base: str | Source,
        candidate: str | Source,
        scorers: Mapping[str, FakeScorer],
        **given: Any,
    ) -> Any:
        def opened(
            variant: Variant, policy: ScoringPolicy, options: CompareOptions, *, cache_dir: Path
        ) -> FakeScorer:
            return scorers[variant.name]

        monkeypatch.setattr("evalguard.engine.run_context.open_scorer", opened)
        fields = {"tasks": ("sw_long",), "include_path": (task_folder,), "quiet": True,
                  "sequential": True, "cache_dir": tmp_path}  # fmt: skip
        options = CompareOptions(**{**fields, **given})
        sources = tuple(model(s) if isinstance(s, str) else s for s in (base, candidate))
        choices = resolve_choices(sources[0], sources[1], GuardSet(guards=()), options)
        score = score_in_looks if options.sequential else score_sides
        return score(sources, choices, options)  # type: ignore[operator]

    return ran


def asked(scorer: FakeScorer) -> list[int]:
    return [doc_id for block in scorer.scored for doc_id in block]


def test_an_unchanged_model_stops_early_and_both_answer_the_same_documents(run: Run) -> None:
    scorers = {"a": FakeScorer("m"), "b": FakeScorer("m", cached=False)}
    (base, candidate), stops = run("a", "b", scorers)
    task = stops.run.tasks[0]
    assert task.n_used < N_LONG == task.n_total
    assert sorted(asked(scorers["a"])) == sorted(asked(scorers["b"]))
    order = document_order(range(N_LONG), task="sw_long", seed=1234)
    assert set(asked(scorers["a"])) == set(order[: task.n_used])
    assert {table.n for side in (base, candidate) for table in side.tables} == {task.n_used}
    assert {finding.side for finding in stops.findings.values()} == {"below"}
    assert stops.rule.gated == 2
    assert stops.run.loads == 2


def test_documents_are_asked_look_by_look_and_each_once(run: Run) -> None:
    scorers = {"a": FakeScorer("m"), "b": NeverRight("m")}
    _, stops = run("a", "b", scorers, use_cache=False)
    task = stops.run.tasks[0]
    assert len(asked(scorers["a"])) == len(set(asked(scorers["a"]))) == task.n_used
    assert task.n_used == task.looks[task.look - 1]
    order = document_order(range(N_LONG), task="sw_long", seed=1234)
    assert set(asked(scorers["a"])[: task.looks[0]]) == set(order[: task.looks[0]])
    sides = {key[2]: found.side for key, found in stops.findings.items()}
    assert sides == {"perplexity": "below", "acc": "above"}


def test_scores_without_bounds_that_look_worse_are_asked_of_all_documents(run: Run) -> None:
    scorers = {"a": FakeScorer("m"), "b": Worse("m")}
    (base, _), stops = run("a", "b", scorers, use_cache=False)
    task = stops.run.tasks[0]
    assert {table.n for table in base.tables} == {task.n_used} == {N_LONG}
    assert (len(task.looks), stops.findings) == (task.look, {})  # no look in between
    assert task.reason == f"perplexity: above the margin after {task.looks[0]}, confirmed on all"


def test_another_seed_asks_other_documents(run: Run) -> None:
    chosen = []
    for seed in (1, 2):
        scorers = {"a": FakeScorer("m"), "b": Worse("m")}
        _, stops = run("a", "b", scorers, use_cache=False, seed=seed)
        assert stops.run.seed == seed
        chosen.append(asked(scorers["a"])[:70])
    assert chosen[0] != chosen[1]


def test_a_second_run_takes_every_look_from_the_cache(run: Run) -> None:
    scorers = {"a": FakeScorer("m"), "b": Worse("n")}
    _, first = run("a", "b", scorers)
    again = {"a": FakeScorer("m"), "b": Worse("n")}
    _, second = run("a", "b", again)
    assert asked(again["a"]) == asked(again["b"]) == []
    assert first.run.tasks == second.run.tasks


def test_models_that_do_not_fit_together_take_turns_at_wider_looks(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.engine.memory.fits_in_memory", lambda *_: False)
    scorers = {"a": FakeScorer("m"), "b": NeverRight("m")}
    _, stops = run("a", "b", scorers, use_cache=False)
    task = stops.run.tasks[0]
    assert stops.run.loads == 1 + 2 * task.look
    ratios = [b / a for a, b in zip(task.looks, task.looks[1:], strict=False)]
    assert min(ratios) > 1.9
    assert all(scorer.closed for scorer in scorers.values())


def test_the_time_saved_is_that_of_the_documents_left_out_at_the_pace_measured(run: Run) -> None:
    _, stops = run("a", "b", {"a": FakeScorer("m"), "b": NeverRight("m")})
    assert stops.run.early
    assert stops.run.saved_seconds > 0.0
    _, again = run("a", "b", {"a": FakeScorer("m"), "b": NeverRight("m")})
    assert again.run.saved_seconds is None  # all from the cache: no pace is known
    assert again.run == stops.run


def test_loading_models_again_counts_against_the_time_saved(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.engine.memory.fits_in_memory", lambda *_: False)
    monkeypatch.setattr("evalguard.engine.meter.Meter.seconds_per_load", lambda _: 1000.0)
    _, stops = run("a", "b", {"a": FakeScorer("m"), "b": NeverRight("m")}, use_cache=False)
    assert stops.run.early
    assert stops.run.saved_seconds < -900.0 * (stops.run.loads - 2)


def finished(run: Run, name: str, scorer: FakeScorer) -> RunSource:
    """What a full run of a model says, as a finished run."""
    sides = run(name, name, {name: scorer}, sequential=None)
    tables = sides[0].tables
    stored = LmEvalRun(path=Path("r"), model_name=name, model_args={}, date="", tables=tables)
    return RunSource(name="stored", run=stored)


@pytest.mark.parametrize("stored_is_base", [True, False])
def test_beside_a_finished_run_only_the_model_is_asked(run: Run, stored_is_base: bool) -> None:
    stored = finished(run, "a", FakeScorer("m"))
    scorers = {"b": FakeScorer("m", cached=False)}
    pair = (stored, "b") if stored_is_base else ("b", stored)
    (base, candidate), stops = run(*pair, scorers)
    used = stops.run.tasks[0].n_used
    assert used < N_LONG
    assert len(asked(scorers["b"])) == used
    assert {table.n for side in (base, candidate) for table in side.tables} == {used}


def test_a_finished_run_of_other_documents_is_compared_in_full(run: Run) -> None:
    stored = finished(run, "a", FakeScorer("m"))
    scorers = {"b": FakeScorer("m", cached=False)}
    _, stops = run(stored, "b", scorers, limit=200)
    assert stops.run.tasks[0].reason == "the finished run has other documents"
    assert stops.run.tasks[0].n_used == 200


def test_clustered_tasks_are_asked_in_full_and_say_why(run: Run) -> None:
    scorers = {"a": FakeScorer("m"), "b": Worse("m")}
    _, stops = run("a", "b", scorers, cluster="last", use_cache=False)
    task = stops.run.tasks[0]
    assert task.n_used == N_LONG
    assert "documents of one cluster belong together" in task.reason
    assert stops.findings == {}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"fail_on": "certain"},
            "verdict of fail_on real or margin early, and not that of certain",
        ),
        ({"strict": True}, "too few to decide"),
        ({"distributions": "lockstep"}, "need all of them"),
        ({"gate_limits": {"kl_mean": 0.1}}, "need all of them"),
        ({"seed": -1}, "no order of documents has the seed -1"),
        ({"sequential_alpha": 0.7}, "between 0 and 0.5"),
        ({"sequential": None, "sequential_alpha": 0.1}, "no effect without sequential"),
    ],
)
def test_what_cannot_be_promised_is_refused(
    world: SmallWorld, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        evalguard.compare("orig", "same", config=world.guard, **{"sequential": True, **given})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> SmallWorld:
    return make_world(tmp_path_factory.mktemp("world"), tiny_llama)


@pytest.fixture
def compared(world: SmallWorld, tmp_path: Path) -> Run:
    def call(tasks: Sequence[str], candidate: str = "sharp", **given: Any) -> Any:
        return evalguard.compare(
            "orig", candidate, tasks=tasks, quiet=True, output_path=tmp_path / "reports",
            cache_dir=tmp_path / "cache", **{"config": world.guard, **given},
        )  # fmt: skip

    return call


def test_with_all_documents_asked_the_numbers_are_those_of_an_ordinary_run(compared: Run) -> None:
    whole, looked = compared(["sw_word"]), compared(["sw_word"], sequential=True)
    assert all(c.stopping is not None and not c.stopping.early for c in looked.comparisons)
    plain = [replace(c, stopping=None) for c in looked.comparisons]
    assert plain == list(whole.comparisons)
    assert looked.report.sequential.tasks[0].n_used == 24


def test_a_whole_command_stops_early_and_reports_it(
    compared: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "evalguard.core.gate.Gate.covers", lambda _, task, name, metric: metric != "acc"
    )
    whole = compared(["sw_long"], "same")
    looked = compared(["sw_long"], "same", sequential=True)
    by_name = {c.metric: c for c in looked.comparisons}
    early, full = by_name["perplexity"], whole.comparisons[0]
    assert early.stopping is not None
    assert early.stopping.early
    assert early.n == full.n == N_LONG
    assert early.outcome == full.outcome == "unchanged"
    assert early.base_stderr == pytest.approx(full.base_stderr, rel=0.5)
    assert looked.exit_code == whole.exit_code == 0
    planned = plan_from_run(looked.run_folder)
    assert [metric.pilot.metric for metric in planned.metrics] == ["acc"]
    assert any("stopped early there: sw_long perplexity" in note for note in planned.report.notes)
    document = looked.to_dict()
    assert document["sequential"]["tasks"][0]["n_used"] == early.n_used
    assert "Stopped early" in looked.render(verbose=True)


def test_a_perplexity_that_looks_regressed_has_the_verdict_of_all_documents(compared: Run) -> None:
    whole, looked = compared(["sw_long"]), compared(["sw_long"], sequential=True)
    assert {c.n_used for c in looked.comparisons} == {N_LONG}
    for own, full in zip(looked.comparisons, whole.comparisons, strict=True):
        assert own.outcome == full.outcome
        assert own.sigma == pytest.approx(full.sigma, rel=1e-3)
    assert looked.exit_code == whole.exit_code == 1
    assert "above the margin after" in looked.render(verbose=True)


@pytest.mark.parametrize(
    ("candidate", "margin", "state"),
    [
        ("same", "{sw_long/perplexity: {margin: 60%}}", "passed"),
        ("same", "{perplexity: {margin: 1.5}}", "passed"),
    ],
)
def test_margins_of_single_metrics_in_their_units_stop_early_with_the_verdict_of_all_documents(
    world: SmallWorld, compared: Run, tmp_path: Path, candidate: str, margin: str, state: str
) -> None:
    guard = world.guard.with_name(f"{tmp_path.name}.yaml")
    text = world.guard.read_text(encoding="utf-8")
    gate = f"\ngate: {{margin: 1pp, metrics: {margin}, only: [perplexity]}}\n"
    guard.write_text(text + gate, encoding="utf-8")
    whole = compared(["sw_long"], candidate, config=guard)
    looked = compared(["sw_long"], candidate, config=guard, sequential=True)
    early, full = looked.comparisons[0], whole.comparisons[0]
    assert looked.report.gate.state == whole.report.gate.state == state
    assert early.stopping is not None
    assert early.stopping.early
    assert early.margin_text == full.margin_text
    assert early.margin == pytest.approx(full.margin, rel=0.5)
    assert f"margin of {early.margin_text.removesuffix(' sigma')}" in early.reason


def test_an_ungated_metric_that_cannot_stop_is_not_taken_for_one_of_all_documents(
    compared: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its ordinary comparison would look as if the documents asked were all there are."""
    monkeypatch.setattr(
        "evalguard.core.gate.Gate.covers", lambda _, task, name, metric: metric != "acc"
    )
    monkeypatch.setattr(
        "evalguard.comparison.draws.cannot_stop",
        lambda table: "no" if table.metric == "acc" else "",
    )
    looked = compared(["sw_long"], "same", sequential=True)
    acc = next(c for c in looked.comparisons if c.metric == "acc")
    used = looked.report.sequential.tasks[0].n_used
    assert acc.n == acc.n_used == used < N_LONG
    assert acc.stopping is None
    assert any(f"no statement about all {N_LONG:,} documents" in text for text in acc.caveats)


def test_two_finished_runs_save_nothing_and_say_so(run: Run) -> None:
    stored = finished(run, "a", FakeScorer("m"))
    options = CompareOptions(sequential=True, quiet=True)
    choices = resolve_choices(stored, stored, GuardSet(guards=()), options)
    notes = check_sequential((stored, stored), choices, options).notes
    assert any("would save nothing" in note for note in notes)


class Broken(FakeScorer):
    """Gives one document far less than chance, or nothing at all, and all others as ever."""

    document, loglikelihood = 0, -90.0

    def _respond(self, request: Request) -> Response:
        answer = super()._respond(request)
        if request.doc_id != self.document:
            return answer
        return replace(answer, loglikelihood=self.loglikelihood)


@pytest.mark.parametrize("loglikelihood", [-90.0, -9999.0, float("-inf"), float("nan")])
def test_no_run_stops_early_past_a_broken_document(run: Run, loglikelihood: float) -> None:
    scorer = Broken("m", cached=False)
    scorer.document = document_order(range(N_LONG), task="sw_long", seed=1234)[3]
    scorer.loglikelihood = loglikelihood
    _, stops = run("a", "b", {"a": FakeScorer("m"), "b": scorer})
    assert not stops.run.early
    assert f"document {scorer.document}" in stops.run.tasks[0].reason
