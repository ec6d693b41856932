"""Finished runs that say nothing about their models are no pass, and the message says why."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from handmade_runs import HandmadeRun

import evalguard
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import Finding, Quote
from evalguard.errors import EvaluationError

N = 120
RIGHT = [float(i % 5 < 3) for i in range(N)]
ANSWERS = [str(i) for i in range(N)]
TEXTS = [f"so = {i}" for i in range(N)]
FIRST = {"function": "take_first"}


@pytest.fixture
def compare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., CompareReport]:
    def run(base: HandmadeRun, candidate: HandmadeRun, **options: Any) -> CompareReport:
        monkeypatch.chdir(tmp_path)
        sides = [base.write(tmp_path / "base"), candidate.write(tmp_path / "cand")]
        return evalguard.compare(*sides, write=False, track=(), **options).report

    return run


def generated(
    model: str = "org/base",
    /,
    *,
    missing: int = 0,
    fallback: Any = "[invalid]",
    right: Sequence[float] = RIGHT,
    steps: Any = None,
    **given: Any,
) -> HandmadeRun:
    """A run whose filter finds nothing in the first ``missing`` of its texts."""
    texts = [f"{model} thinks {i}" for i in range(missing)] + TEXTS[missing:]
    answers = [fallback] * missing + ANSWERS[missing:]
    scores = [0.0] * missing + list(right)[missing:]
    return HandmadeRun(model, **given).generate(texts, answers, scores, steps=steps)


def reason(report: CompareReport) -> str:
    (one,) = report.comparisons
    return one.reason


OWN_FALLBACK = [{"function": "regex", "regex_pattern": "= (.*)", "fallback": "none found"}, FIRST]
LOWERED = [{"function": "regex", "fallback": "Nothing "}, {"function": "lowercase"}, FIRST]
CHOICES = [{"function": "multi_choice_regex"}, FIRST]


def found(report: CompareReport) -> list[Finding]:
    """What is said of answers that were not found."""
    return [one for one in report.findings if one.kind == "no_answer_found"]


OF_THE_TASK = [{"function": "<function find at 0x7f>"}, FIRST]
VOTED = [{"function": "regex"}, {"function": "majority_vote"}, FIRST]


@pytest.mark.parametrize(
    ("steps", "fallback", "missing"),
    [
        (None, "[invalid]", N),
        (OWN_FALLBACK, "none found", N),
        (LOWERED, "nothing", N),
        (CHOICES, "[invalid]", N),
        (VOTED, "[invalid]", N),
        (OF_THE_TASK, None, N),
        (OF_THE_TASK, " ", N - 2),
        (OF_THE_TASK, [], N - 6),
        (None, "[invalid]", N - 4),
        (None, "[invalid]", 108),
    ],
)
def test_a_filter_that_finds_nothing_on_either_side_is_no_pass(
    compare: Any, steps: Any, fallback: str, missing: int
) -> None:
    sides = [
        generated(model, missing=missing, fallback=fallback, steps=steps)
        for model in ("org/base", "org/port")
    ]
    report = compare(*sides)
    assert report.exit_code == 3
    assert "the filter number finds no answer in" in reason(report)
    assert f"{'all' if missing == N else f'{missing} of'} {N} documents" in reason(report)
    assert "(documents 0, 1, 2)" in reason(report)
    assert "thinks" not in reason(report)
    (failed,) = (c for c in report.comparisons if c.outcome == "failed")
    assert [(one.doc_id, one.side, one.text) for one in failed.quotes] == [
        (i, "candidate", f"org/port thinks {i}") for i in range(3)
    ]
    assert bool(found(report)) == (steps is not OF_THE_TASK)
    for finding in found(report):
        assert finding.values["candidate"] == pytest.approx(missing / N)


def test_a_candidate_without_answers_regresses_and_it_is_said_to_be_a_loss_of_form(
    compare: Any,
) -> None:
    report = compare(generated(), generated("org/port", missing=N - 2))
    assert report.exit_code == 1
    (finding,) = found(report)
    assert "98.3% of the candidate's texts (base 0%): a loss of form" in finding.text
    assert any("a loss of form" in caveat for caveat in report.comparisons[0].caveats)


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        # not one of the base's answers is right, so that no loss shows
        (generated(missing=80, right=[0.0] * N), generated("org/port", missing=N)),
        # a few right answers are lost, by chance for all that is known
        (generated(missing=100, right=[0.0] * 118 + [1.0] * 2), generated("org/port", missing=N)),
        (
            generated(missing=107, right=[1.0] * N),
            generated("org/port", missing=110, right=[1.0] * N),
        ),
    ],
    ids=["none right", "few right", "the rest right"],
)
def test_a_candidate_without_answers_is_no_pass_where_no_loss_shows(
    compare: Any, base: HandmadeRun, candidate: HandmadeRun
) -> None:
    report = compare(base, candidate)
    assert report.exit_code == 3
    assert reason(report).startswith("of the candidate, the filter number finds no answer in")
    assert report.comparisons[0].sigma is None


def test_a_base_without_answers_has_nothing_to_lose(compare: Any) -> None:
    report = compare(generated(missing=N - 3), generated("org/port"))
    assert report.exit_code == 3
    assert "there is nothing that a candidate could lose" in reason(report)


@pytest.mark.parametrize("missing", [30, 60, 90])
def test_many_texts_without_an_answer_are_a_finding_of_a_run_that_is_judged(
    compare: Any, missing: int
) -> None:
    report = compare(generated(missing=missing), generated("org/port", missing=missing))
    assert report.exit_code == 0
    (finding,) = found(report)
    assert f"{100 * missing / N:.3g}% of the candidate's texts" in finding.text


def test_few_texts_without_an_answer_are_no_finding(compare: Any) -> None:
    report = compare(generated(missing=20), generated("org/port", missing=20))
    assert (report.exit_code, found(report)) == (0, [])


def test_findings_of_many_tasks_are_three_lines(compare: Any) -> None:
    sides = [HandmadeRun(model) for model in ("org/base", "org/port")]
    for side in sides:
        for number in range(5):
            answers = ["[invalid]"] * (40 + number) + ANSWERS[40 + number :]
            side.generate(TEXTS, answers, RIGHT, task=f"task{number}")
    findings = found(compare(*sides))
    assert [one.task for one in findings] == ["task4", "task3", ""]
    assert "by 3 more filters, of 3 tasks (first: task2)" in findings[2].text


def test_giving_no_answer_may_be_the_right_answer(compare: Any) -> None:
    right = [1.0] * 114 + [0.0] * 6
    texts = [f"there is none {i}" for i in range(110)] + TEXTS[110:]
    answers = ["unanswerable"] * 110 + ANSWERS[110:]
    steps = [{"function": "regex", "fallback": "unanswerable"}, FIRST]
    sides = [
        HandmadeRun(model).generate(texts, answers, right, steps=steps) for model in ("a", "b")
    ]
    report = compare(*sides)
    assert report.exit_code == 0
    assert "no answer is found in 91.7%" in found(report)[0].text


TAKEN = [FIRST]


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        ([""] * N, f"the generated answers to all {N} documents are empty"),
        ([" \n\t"] * N, f"the generated answers to all {N} documents are empty"),
        ([""] * (N - 5) + TEXTS[:5], f"the generated answers to {N - 5} of {N} documents"),
        (["the same"] * N, f"all {N} documents are given the same answer"),
        (["Sorry."] * (N - 3) + ["a", "b", "c"], f"{N - 3} of {N} documents are given the same"),
    ],
)
@pytest.mark.parametrize("candidate", ["the same", "another"])
def test_texts_that_do_not_depend_on_the_document_are_no_pass(
    compare: Any, texts: list[str], said: str, candidate: str
) -> None:
    right = [0.0] * (N - 30) + [1.0] * 30
    other = [text.upper() for text in texts] if candidate == "another" else texts
    report = compare(
        HandmadeRun("a").generate(texts, texts, right, steps=TAKEN),
        HandmadeRun("b").generate(other, other, right, steps=TAKEN),
    )
    assert report.exit_code == 3
    assert said in reason(report)


def test_one_text_that_is_the_right_answer_everywhere_is_an_answer(compare: Any) -> None:
    yes = ["yes"] * N
    sides = [HandmadeRun(m).generate(yes, yes, [1.0] * N, steps=TAKEN) for m in ("a", "b")]
    assert compare(*sides).exit_code == 0


def cached(name: str, /, *, cache: str | None = "cache/answers.db", **given: Any) -> HandmadeRun:
    return generated(name, use_cache=cache, **given)


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        (cached("org/a"), cached("org/b")),
        (cached("org/a"), cached("org/b", cache="/elsewhere/answers.db")),
        (cached("org/a"), cached("org/a", model_args="pretrained=org/a,dtype=float16")),
        (cached("org/a"), cached("org/a", model_args="pretrained=org/a,revision=step2")),
        (cached("org/a"), cached("org/a", model="vllm")),
        (
            HandmadeRun("org/a", use_cache="c.db").choose(RIGHT),
            HandmadeRun("org/b", use_cache="c.db").choose(RIGHT),
        ),
    ],
    ids=["names", "folders of the cache", "dtypes", "revisions", "types", "log-likelihoods"],
)
def test_one_cache_under_two_models_is_no_pass(
    compare: Any, base: HandmadeRun, candidate: HandmadeRun
) -> None:
    report = compare(base, candidate)
    assert report.exit_code == 3
    assert "both runs went through one lm-eval cache (use_cache " in reason(report)
    assert f"the same answers to all {N} documents" in reason(report)
    assert "without use_cache" in reason(report)


def test_a_cache_that_has_most_of_the_other_model_s_answers_is_no_pass(compare: Any) -> None:
    other = cached("org/b")
    for row in other.samples["sums"][:4]:
        row["resps"] = [[f"{row['resps'][0][0]}!"]]
    assert f"to {N - 4} of {N} documents" in reason(compare(cached("org/a"), other))


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        (cached("org/a"), cached("org/a")),
        (cached("org/a"), cached("org/a", model_args="pretrained=org/a,batch_size=8,device=cuda")),
        (cached("org/a"), cached("org/b", cache="of-b.db")),
        (cached("org/a", cache=None), cached("org/b", cache=None)),
    ],
    ids=["one model", "one model elsewhere", "two caches", "no cache"],
)
def test_equal_answers_are_bit_identical_where_nothing_speaks_against_it(
    compare: Any, base: HandmadeRun, candidate: HandmadeRun
) -> None:
    report = compare(base, candidate)
    assert report.exit_code == 0
    assert report.comparisons[0].bit_identical


def test_one_cache_with_other_answers_is_two_models(compare: Any) -> None:
    base = HandmadeRun("org/a", use_cache="c.db").choose(RIGHT)
    other = HandmadeRun("org/b", use_cache="c.db").choose(RIGHT, shift=-0.01)
    assert compare(base, other).exit_code == 0


def test_a_copied_run_under_another_name_is_no_pass(compare: Any) -> None:
    sides = [generated("org/a"), generated("org/b")]
    for side in sides:
        side.results |= {"start_time": 12.5, "total_evaluation_time_seconds": "345.25"}
    assert "one is a copy of the other" in reason(compare(*sides))


def test_a_run_that_lies_in_two_folders_is_no_pass(compare: Any) -> None:
    sides = [generated("org/a"), generated("org/a")]
    for side in sides:
        side.results |= {"start_time": 12.5, "total_evaluation_time_seconds": "345.25"}
    report = compare(*sides)
    assert report.exit_code == 3
    assert "both sides are one run of org/a" in reason(report)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("0.4.9.1", "0.4.9.2"), ("0.4.3", "0.4.13"), (None, "0.4.13"), ("0.4.13", None)],
)
def test_other_versions_of_lm_eval_are_refused_for_generated_answers_too(
    compare: Any, ours: str | None, theirs: str | None
) -> None:
    sides = [generated("org/a"), generated("org/b", missing=30)]
    for side, version in zip(sides, (ours, theirs), strict=True):
        side.results["lm_eval_version"] = version
    report = compare(*sides)
    assert report.exit_code == 3
    assert all(str(one or "not recorded") in reason(report) for one in (ours, theirs))
    assert "--allow-differing tokens" in reason(report)


def test_other_versions_are_compared_where_that_is_declared(compare: Any) -> None:
    sides = [generated("org/a"), generated("org/b", missing=30)]
    sides[0].results["lm_eval_version"] = "0.4.9.1"
    report = compare(*sides, allow_differing=["tokens"])
    assert report.exit_code == 1
    assert any("0.4.9.1" in caveat for caveat in report.comparisons[0].caveats)


def predicted(run: HandmadeRun) -> HandmadeRun:
    """The run as lm_eval --predict_only leaves it."""
    for task, rows in run.samples.items():
        values = {"alias": task, "bypass,none": 999, "bypass_stderr,none": "N/A"}
        run.results["results"][task] = values
        for row in rows:
            row |= {"metrics": ["bypass"], "bypass": 999, "filter": "none"}
    return run


@pytest.mark.parametrize("who", ["both", "base", "candidate"])
@pytest.mark.parametrize("task", ["generated", "log-likelihoods"])
def test_runs_that_only_predicted_have_no_scores(compare: Any, who: str, task: str) -> None:
    sides = [
        generated(model) if task == "generated" else HandmadeRun(model).choose(RIGHT)
        for model in ("org/a", "org/b")
    ]
    for side, name in zip(sides, ("base", "candidate"), strict=True):
        if who in ("both", name):
            predicted(side)
    report = compare(*sides)
    assert report.exit_code == 3
    assert "(lm_eval --predict_only); run lm_eval once more without it" in reason(report)


@pytest.mark.parametrize("stderr", [0.0, 0.5, 1e-9])
def test_a_stated_standard_error_that_is_wrong_is_a_caveat(compare: Any, stderr: float) -> None:
    sides = [HandmadeRun("a").choose(RIGHT), HandmadeRun("b").choose([0.0] * 20 + RIGHT[20:])]
    before = compare(*sides).comparisons[0]
    for side in sides:
        side.results["results"]["choice"]["acc_stderr,none"] = stderr
    for path in ("base", "cand"):
        _remove(Path(path))
    after = compare(*sides).comparisons[0]
    assert (after.sigma, after.outcome) == (before.sigma, "regressed")
    assert sum("that of the samples is used" in caveat for caveat in after.caveats) == 2


def _remove(folder: Path) -> None:
    for path in sorted(folder.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()


@pytest.mark.parametrize("layout", ["counted", "of the task"])
def test_samples_that_were_lost_are_not_of_that_run(compare: Any, layout: str) -> None:
    base, other = HandmadeRun("a").choose(RIGHT), HandmadeRun("b").choose(RIGHT)
    del other.samples["choice"][-5:]  # of which three are right, as of all
    if layout == "counted":
        other.results["results"]["choice"]["sample_len"] = N
    with pytest.raises(EvaluationError, match=f"{N - 5} documents stand in the samples"):
        compare(base, other)


def test_differing_limits_are_said_with_both(compare: Any) -> None:
    base, other = HandmadeRun("a").choose(RIGHT), HandmadeRun("b").choose(RIGHT[:50])
    other.results["n-samples"]["choice"]["original"] = N
    report = compare(base, other)
    assert report.exit_code == 3
    assert "limit is 'all' in" in reason(report)
    assert "and 50 in" in reason(report)
    assert reason(report).count("--limit") == 1


def with_prompts(run: HandmadeRun) -> HandmadeRun:
    for rows in run.samples.values():
        for row in rows:
            row["prompt_hash"] = row["prompt_hash"][::-1]
    return run


def test_other_few_shot_counts_are_named_and_no_option_is_offered_for_them(compare: Any) -> None:
    base, other = with_prompts(HandmadeRun("a").choose(RIGHT)), HandmadeRun("b").choose(RIGHT)
    base.results["n-shot"]["choice"] = 5
    report = compare(base, other)
    assert report.exit_code == 3
    assert "num_fewshot is 5 in" in reason(report)
    assert "run both with the same num_fewshot" in reason(report)
    assert "--allow-differing" not in reason(report)


@pytest.mark.parametrize(
    ("sha", "said"), [("", "a chat template in"), ("beef", "another chat template on each side")]
)
def test_another_chat_template_is_named(compare: Any, sha: str, said: str) -> None:
    base, other = with_prompts(HandmadeRun("a").choose(RIGHT)), HandmadeRun("b").choose(RIGHT)
    base.results["chat_template_sha"] = "cafe"
    other.results["chat_template_sha"] = sha or None
    report = compare(base, other)
    assert report.exit_code == 3
    assert said in reason(report)
    assert "--allow-differing prompt" in reason(report)


def many(model: str, names: Sequence[str] = ("t1", "t2", "t3"), group: str = "") -> HandmadeRun:
    run = HandmadeRun(model)
    for name in names:
        run.choose(RIGHT, task=name, shift=-0.001 * len(model))
    if group:
        run.results["group_subtasks"][group] = list(names)
    return run


def without_samples(run: HandmadeRun, task: str = "t3") -> HandmadeRun:
    del run.samples[task]
    return run


@pytest.mark.parametrize(
    ("base", "candidate"),
    [
        (many("a"), many("bb", ("t1", "t2"))),
        (many("a", ("t1", "t2")), many("bb")),
        (many("a"), without_samples(many("bb"))),
        (without_samples(many("a")), many("bb")),
        (without_samples(many("a")), without_samples(many("bb"))),
        (many("a", group="g"), many("bb", ("t1", "t2"), group="g")),
        (many("a", group="g"), without_samples(many("bb", group="g"))),
        (without_samples(many("a", group="g")), without_samples(many("bb", group="g"))),
        (many("a"), without_samples(many("bb"), "t1")),
    ],
)
def test_one_task_of_many_that_is_missing_is_no_pass(
    compare: Any, base: HandmadeRun, candidate: HandmadeRun
) -> None:
    report = compare(base, candidate)
    assert report.exit_code == 3
    assert {one.outcome for one in report.comparisons if one.task == "t2"} == {"unchanged"}


@pytest.mark.parametrize("tasks", [["g"], ["t*"]])
def test_a_subtask_without_samples_is_no_pass_where_its_group_is_asked(
    compare: Any, tasks: list[str]
) -> None:
    sides = [without_samples(many(name, group="g")) for name in ("a", "bb")]
    report = compare(*sides, tasks=tasks)
    assert report.exit_code == 3
    (failed,) = (one for one in report.comparisons if one.outcome == "failed")
    assert failed.task == "t3"
    assert "has no samples file of it" in failed.reason
    assert "--tasks" in failed.reason


def test_a_task_that_is_not_asked_may_have_no_samples(compare: Any) -> None:
    sides = [without_samples(many(name)) for name in ("a", "bb")]
    report = compare(*sides, tasks=["t1", "t2"])
    assert report.exit_code == 0


def test_what_makes_answers_say_nothing_is_read_back_with_a_stored_run(tmp_path: Path) -> None:
    from evalguard.comparison.run_record import MetricFacts, describe_metrics
    from evalguard.core.scores import Uninformative
    from evalguard.harness.finished_runs.lmeval_run import read_run

    tables = read_run(generated(missing=N).write(tmp_path / "run")).tables
    told = json.loads(json.dumps(describe_metrics(tables)))
    quotes = tuple(Quote(what="answer", doc_id=i, text=f"org/base thinks {i}") for i in range(3))
    found = Uninformative(kind="not_found", documents=N, n=N, quotes=quotes)
    assert MetricFacts.read(told[0]).uninformative == found
    del told[0]["uninformative"]  # of an earlier version
    assert MetricFacts.read(told[0]).uninformative is None


@pytest.mark.parametrize("others", [0, 12])
def test_scores_are_bit_identical_together_with_the_answers(
    compare: Callable[..., CompareReport], others: int
) -> None:
    texts = [f"thus = {i}" for i in range(others)] + TEXTS[others:]
    candidate = HandmadeRun("org/port").generate(texts, ANSWERS, RIGHT)
    report = compare(HandmadeRun("org/base").generate(TEXTS, ANSWERS, RIGHT), candidate)
    (whole,) = (one.whole for one in report.generations)
    assert whole is not None
    assert (whole.same, whole.texts, whole.calling) == (N - others, others, 0)
    assert report.exit_code == 0
    assert {c.bit_identical for c in report.comparisons} == {not others}
