"""After the verdict: guilty settings named, judged again, and the verdict left as it was."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from direct_oracle import Opened
from fake_models import FakeScorer

import evalguard
from evalguard.bisect.attach_bisection import attach_bisection, check_unchanged
from evalguard.bisect.command import resume_bisection
from evalguard.bisect.oracle.settings_oracle import OracleContext, OracleRequest
from evalguard.bisect.settings.derived_settings import SearchableCandidate
from evalguard.comparison.finished_comparison import FinishedComparison
from evalguard.comparison.stored_run import read_stored_run
from evalguard.config.guard_search import load_guards
from evalguard.core.scorer import Request, Response
from evalguard.core.settings import Setting, Target, Variant
from evalguard.errors import MisalignedRunsError, StoreError, UsageError
from evalguard.report.compare_document import compare_document

# What a setting costs on a document, in nats, by task.
COSTS = {"gain": {"sw_word": 2.0}, "late": {"sw_text": 2.0}}
# A document that a setting breaks, by task.
BREAKS = {"scale": {"sw_word": 5}}
GUARD = """
models:
  orig: {{model: fake}}
  port:
    extends: orig
    settings:
      eps: {{reference: 0.0, candidate: 1.0, target: "config.eps"}}
      gain: {{reference: 0.0, candidate: {gain}, target: "config.gain"}}
      late: {{reference: 0.0, candidate: {late}, target: "config.late"}}
      scale: {{reference: 0.0, candidate: 1.0, target: "config.scale"}}
  plain: {{extends: orig}}
tasks: [{tasks}]
include_path: [{folder}]
"""


class Planted(FakeScorer):
    """Loses what its settings cost; ``spelled`` is what a broken document gets, 0 for none."""

    spelled = 0.0

    def __init__(self, assignment: Mapping[str, Any]) -> None:
        active = {name: value for name, value in assignment.items() if value}
        super().__init__(repr(sorted(active.items())))
        self._active = active

    def _respond(self, request: Request) -> Response:
        digest = hashlib.sha256(str(request.arguments).encode()).digest()
        cost = sum(
            value * COSTS.get(name, {}).get(request.task, 0.0)
            for name, value in self._active.items()
        )
        answer = super()._respond(request)
        jitter = 0.01 * (answer.loglikelihood or 0.0)
        if self.spelled and any(
            BREAKS.get(name, {}).get(request.task) == request.doc_id for name in self._active
        ):
            return replace(answer, loglikelihood=self.spelled)
        return replace(answer, loglikelihood=-1.0 - digest[0] / 16 - cost + jitter)


Run = Callable[..., Any]


@pytest.fixture
def run(task_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Compare orig with port; ``opened`` asks other assignments."""

    def ran(
        opened: Opened,
        *,
        gain: float = 1.0,
        late: float = 0.0,
        tasks: str = "sw_word",
        base: str = "orig",
        candidate: str = "port",
        **given: Any,
    ) -> evalguard.CompareResult:
        guard = tmp_path / "guard.yaml"
        guard.write_text(GUARD.format(folder=task_folder, gain=gain, late=late, tasks=tasks))

        def opened_scorer(variant: Variant, *given: object, **more: object) -> Planted:
            return Planted(variant.assignment)

        monkeypatch.setattr("evalguard.engine.run_context.open_scorer", opened_scorer)
        monkeypatch.setattr("evalguard.comparison.compare.check_models", lambda sources: None)
        own = partial(attach_bisection, open_oracle=opened)
        monkeypatch.setattr("evalguard.bisect.attach_bisection.attach_bisection", own)
        fields = {
            "config": guard,
            "output_path": tmp_path / "reports",
            "cache_dir": tmp_path / "cache",
            "quiet": True,
            "distributions": "off",
        }
        return evalguard.compare(base, candidate, **{**fields, **given})

    return ran


def written(result: evalguard.CompareResult) -> dict[str, Any]:
    assert result.run_folder is not None
    found: dict[str, Any] = json.loads((Path(result.run_folder) / "result.json").read_text())
    return found


def names(result: evalguard.CompareResult) -> list[str]:
    assert result.report.bisect is not None
    return [culprit.setting for culprit in result.report.bisect.culprits]


def test_the_guilty_setting_is_named_and_nobody_else(run: Run) -> None:
    result = run(Opened())
    assert names(result) == ["gain"]
    found = result.report.bisect
    assert (found.status, result.exit_code) == ("minimal", 1)
    assert found.culprits[0].candidate == 1.0
    # The comparison's own sigma is what the search explains.
    assert found.searches[0].drift_sigma == pytest.approx(result.comparisons[0].sigma, rel=1e-9)
    assert found.repaired.passed
    assert found.repaired.reset == ("gain",)
    assert {"eps", "scale"} <= {*found.searches[0].cleared, *found.searches[0].inert}
    measured = found.searches[0].measured
    assert len(measured) == found.searches[0].probes
    assert sum(one.cost for one in measured) == pytest.approx(found.searches[0].evaluations)
    assert all(one.drift_sigma is not None for one in measured if one.outcome == "scored")
    assert written(result) == result.to_dict()
    assert read_stored_run(Path(result.run_folder)).report == result.report


def test_the_repair_is_a_part_of_a_guard_file_that_puts_the_culprits_right(
    run: Run, tmp_path: Path
) -> None:
    result = run(Opened(), command="evalguard bisect --budget 9 --base orig --cand port --jobs=2")
    found = result.report.bisect
    assert found.fix_where.startswith(str(tmp_path / "guard.yaml"))
    fixed = tmp_path / "fixed.yaml"
    own = (tmp_path / "guard.yaml").read_text()
    head, _, _ = own.partition("  port:")
    fixed.write_text(head + found.fix.removeprefix("models:\n"))
    guards = load_guards(fixed, cwd=tmp_path, allow_code=False)
    _, variant = guards.find("port")
    assert dict(variant.assignment) == {"gain": 0.0}
    assert found.proof == "evalguard compare --base orig --cand port --set gain=reference"


def test_a_second_metric_that_still_fails_is_searched_in_the_repaired_candidate(run: Run) -> None:
    opened = Opened()
    result = run(opened, gain=3.0, late=4.0, tasks="sw_word, sw_text")
    first, second = result.report.bisect.searches
    assert (first.task, first.culprits[0].setting) == ("sw_word", "gain")
    assert (second.task, second.culprits[0].setting) == ("sw_text", "late")
    assert second.repaired_before == ("gain",)
    assert "gain" not in second.settings
    assert names(result) == ["gain", "late"]
    assert result.report.bisect.repaired.passed


def test_a_small_cause_beside_a_large_one_is_found_when_that_is_put_right(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COSTS, "gain", {"sw_text": 90.0})
    result = run(Opened(), gain=1.0, late=4.0, tasks="sw_text")
    found = result.report.bisect
    first, second = found.searches
    assert first.coarse
    assert first.margin > 1.0 == second.margin
    assert not first.cleared
    assert (first.culprits[0].setting, second.culprits[0].setting) == ("gain", "late")
    assert found.status == "minimal"
    assert found.unexplained_sigma == second.unexplained_sigma
    assert found.repaired.passed


def test_where_the_largest_causes_leave_what_the_gate_allows_the_others_are_cleared(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(COSTS, "gain", {"sw_text": 90.0})
    monkeypatch.setitem(COSTS, "late", {"sw_text": 0.01})
    found = run(Opened(), gain=1.0, late=1.0, tasks="sw_text").report.bisect
    (only,) = found.searches
    assert only.coarse
    assert [culprit.setting for culprit in only.culprits] == ["gain"]
    assert abs(only.unexplained_sigma) <= 1.0 < only.margin
    assert "late" in only.cleared
    assert {*only.cleared, *only.inert} == {*only.settings} - {"gain"}


@pytest.fixture
def with_parts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Mapping[str, float]], None]:
    """Make finer settings inside ``gain``, each with what it costs in nats."""

    def make(costs: Mapping[str, float]) -> None:
        for name, cost in costs.items():
            monkeypatch.setitem(COSTS, name, {"sw_text": cost})
        parts = tuple(
            Setting(name=one, reference=0.0, candidate=1.0, target=Target(kind="config", path=one))
            for one in costs
        )
        whole = SearchableCandidate.of

        def parted(finished: FinishedComparison) -> SearchableCandidate:
            found = whole(finished)
            assert isinstance(found, SearchableCandidate)
            return replace(found, groups={"gain": parts})

        monkeypatch.setattr(SearchableCandidate, "of", parted)

    return make


def test_the_parts_of_a_guilty_group_are_searched_by_the_drift_of_the_group(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    with_parts: Callable[[Mapping[str, float]], None],
) -> None:
    for name, cost in {"gain": 40.0, "late": 90.0}.items():
        monkeypatch.setitem(COSTS, name, {"sw_text": cost})
    with_parts({"one": 20.0, "two": 20.0, "three": 0.0})
    found = run(Opened(), gain=1.0, late=1.0, tasks="sw_text").report.bisect
    outer, inner = found.searches
    assert outer.coarse
    assert inner.inside == ("gain",)
    assert inner.margin < outer.margin
    assert {culprit.setting for culprit in inner.culprits} == {"one", "two"}
    assert found.repaired.passed


def test_a_group_whose_parts_all_have_a_share_is_the_answer_within_what_was_announced(
    run: Run,
    monkeypatch: pytest.MonkeyPatch,
    with_parts: Callable[[Mapping[str, float]], None],
) -> None:
    monkeypatch.setitem(COSTS, "gain", {"sw_text": 8.0})
    with_parts({f"part{number}": 0.5 for number in range(16)})
    found = run(Opened(), gain=1.0, tasks="sw_text").report.bisect
    assert [culprit.setting for culprit in found.culprits] == ["gain"]
    assert found.repaired.passed
    assert found.status == "minimal"
    assert not found.resume
    assert found.announced_evaluations is not None
    assert found.evaluations <= found.announced_evaluations + 1.0


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"bisect": "never"}, ""),
        ({"git_bisect": True}, ""),
        ({"gain": 0.0}, ""),  # the gate passes
        ({"candidate": "plain"}, ""),
        ({"candidate": "plain", "bisect": "always"}, "declares no settings"),
        ({"cand_set": dict.fromkeys(("gain", "eps", "late", "scale"), "reference"),
          "bisect": "always"}, "stands at its reference value"),
    ],
)  # fmt: skip
def test_nothing_is_searched_where_nobody_asked_for_it(
    run: Run, given: dict[str, Any], reason: str
) -> None:
    opened = Opened()
    result = run(opened, **given)
    assert result.report.bisect is None
    assert reason in result.report.bisect_reason
    assert bool(reason) == bool(result.report.bisect_reason)
    assert not opened.oracles


@pytest.mark.parametrize("spelled", [-9999.0, float("-inf"), float("nan")])
def test_a_broken_document_ends_no_search_for_the_drift_of_the_others(
    run: Run, monkeypatch: pytest.MonkeyPatch, spelled: float
) -> None:
    monkeypatch.setattr(Planted, "spelled", spelled)
    result = run(Opened())
    assert "gain" in names(result)
    assert result.exit_code == 1
    assert [one.doc_id for one in result.report.broken_documents] == [5]
    assert read_stored_run(Path(result.run_folder)).report == result.report


def test_broken_documents_alone_are_not_searched(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planted, "spelled", -9999.0)
    result = run(Opened(), gain=0.0)
    assert (result.exit_code, result.report.bisect) == (1, None)
    assert "broken documents fail the gate" in result.report.bisect_reason


def test_a_stored_base_with_a_broken_document_is_read_as_it_was_compared(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Planted, "spelled", -9999.0)
    first = run(Opened(), gain=0.0, bisect="never")
    given = {"bisect": "never", "base": f"{first.run_folder}:port", "gain": 0.0}
    candidate = run(Opened(), **given)
    assert [one.side for one in candidate.report.broken_documents] == ["both"]
    assert candidate.exit_code == 3


def test_always_searches_where_the_gate_passes_too(run: Run) -> None:
    result = run(Opened(), gain=0.0, bisect="always")
    assert result.report.bisect.status == "not_reproduced"
    assert result.exit_code == 0


def test_a_bisection_that_cannot_begin_leaves_verdict_and_files_as_they_were(run: Run) -> None:
    plain = written(run(Opened(), bisect="never"))

    class Broken(Opened):
        def __call__(self, *args: Any, **given: Any) -> Any:
            raise RuntimeError("no such oracle")

    result = run(Broken())
    assert result.exit_code == 1
    assert result.report.bisect is None
    assert result.report.bisect_reason == "RuntimeError: no such oracle"
    left = written(result)
    assert left["bisect_reason"] == "RuntimeError: no such oracle"
    for name in ("comparisons", "gate", "exit_code", "base", "candidate"):
        assert left[name] == plain[name]


def stop_at(number: int, error: BaseException) -> Callable[[frozenset[str]], None]:
    asked: list[frozenset[str]] = []

    def before(settings: frozenset[str]) -> None:
        asked.append(settings)
        if len(asked) == number:
            raise error

    return before


@pytest.mark.parametrize(
    ("error", "ended"),
    [(KeyboardInterrupt(), "interrupted"), (StoreError("the disk is full"), "failed")],
)
def test_a_search_that_ends_early_keeps_what_it_knows_and_says_how_to_go_on(
    run: Run, error: BaseException, ended: str
) -> None:
    result = run(Opened(before=stop_at(2, error)))
    found = result.report.bisect
    assert (found.status, found.searches[0].ended) == ("stopped", ended)
    assert found.searches[0].probes == 1
    assert found.resume == f"evalguard bisect --resume {result.run_folder}"
    assert result.exit_code == 1
    assert found.repaired is None


def test_a_budget_that_is_spent_stops_the_search(run: Run) -> None:
    result = run(Opened(), bisect_budget=0.5)
    found = result.report.bisect
    assert (found.status, found.searches[0].ended) == ("stopped", "budget")
    assert found.evaluations <= 0.5
    assert found.resume.endswith(" --budget 1")


def test_a_stopped_bisection_goes_on_and_puts_the_answer_into_its_folder(run: Run) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())))
    before = written(stopped)
    resumed = resume_bisection(stopped.run_folder, quiet=True)
    assert names(resumed) == ["gain"]
    assert resumed.run_folder == stopped.run_folder
    after = written(resumed)
    assert after["bisect"]["status"] == "minimal"
    changed = {name for name in after if after[name] != before[name]}
    assert changed == {"bisect", "checksum"}


def test_files_that_were_asked_for_are_written_again_when_it_goes_on(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())), output="page.txt")
    assert "it was interrupted" in (tmp_path / "page.txt").read_text()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    resumed = resume_bisection(stopped.run_folder, quiet=True)
    assert "culprit: gain" in (tmp_path / "page.txt").read_text()
    assert read_stored_run(Path(stopped.run_folder)).report.bisect == resumed.report.bisect
    again = resume_bisection(stopped.run_folder, quiet=True, output=["other.txt"])
    assert (elsewhere / "other.txt").read_text() == again.rendered("text")
    assert read_stored_run(Path(stopped.run_folder)).report == again.report


def test_a_bisection_does_not_go_on_about_another_model(run: Run, tmp_path: Path) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())))
    guard = tmp_path / "guard.yaml"
    guard.write_text(guard.read_text().replace("candidate: 1.0", "candidate: 1.5"))
    before = written(stopped)
    with pytest.raises(MisalignedRunsError, match="the candidate port is not what it was"):
        resume_bisection(stopped.run_folder, quiet=True)
    assert written(stopped) == before


@pytest.mark.parametrize(
    ("then", "what"),
    [
        ({"packages": {"torch": "2.9", "numpy": "1"}}, "torch 2.9 then, 2.13 now$"),
        ({"packages": {"torch": "2.13"}, "device": "cpu (AVX2)"}, r"device cpu \(AVX2\) then, "),
        ({"threads": 4}, "threads 4 then, 2 now$"),
        ({"python": "3.9", "packages": {"gone": "1"}}, "weights, settings or code changed$"),
        ({}, "weights, settings or code changed$"),
        (None, "weights, settings or code changed$"),
    ],
)
def test_what_another_version_or_device_computed_is_refused_by_its_name(
    run: Run, then: dict[str, Any] | None, what: str
) -> None:
    made = run(Opened(), bisect="never").report
    versions = {"torch": "2.13", "numpy": "1"}
    now = {"packages": versions, "device": "cpu (AVX512)", "threads": 2, "python": "3.11"}
    report = replace(made, environment={**made.environment, "candidate": now})
    there = json.loads(json.dumps(compare_document(report)))
    check_unchanged(there, report)
    there["environment"]["candidate"] = then
    check_unchanged(there, report)  # it is the digest that counts
    there["candidate"]["digest"] = "0" * 16
    with pytest.raises(MisalignedRunsError, match=what):
        check_unchanged(there, report)


def test_what_was_asked_for_is_not_edited_between(run: Run) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())))
    request = Path(stopped.run_folder) / "bisection.json"
    told = json.loads(request.read_text())
    request.write_text(json.dumps({**told, "options": {**told["options"], "margin": 9}}))
    with pytest.raises(StoreError, match=r"bisection\.json is not as evalguard wrote it"):
        resume_bisection(stopped.run_folder, quiet=True)


def test_only_what_changes_no_answer_may_be_another_when_a_bisection_goes_on(run: Run) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())))
    with pytest.raises(UsageError, match="limit is one"):
        resume_bisection(stopped.run_folder, limit=3)
    finished = run(Opened(), bisect="never")
    with pytest.raises(UsageError, match="cannot be read"):
        resume_bisection(finished.run_folder)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("include_path:", "gate: {margin: 0.5}\ninclude_path:", "margin 1.0 then, 0.5 now"),
        (
            "include_path:",
            "gate: {metrics: {same_answer: 0.5}}\ninclude_path:",
            "no limits then, same_answer 0.5 now",
        ),
        ("tasks: [sw_word, sw_text]", "tasks: [sw_word]", "sw_text .* was compared when"),
        ("eps: {reference: 0.0", "eps: {reference: 0.5", "'eps' .* 0.0 -> 1.0 then, .* 0.5 -> 1.0"),
        ("      eps: {", "      epsilon: {", "the candidate port is not what it was"),
    ],
)
def test_a_bisection_does_not_go_on_under_another_gate_other_settings_or_without_a_task(
    run: Run, tmp_path: Path, old: str, new: str, what: str
) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())), tasks="sw_word, sw_text")
    guard = tmp_path / "guard.yaml"
    guard.write_text(guard.read_text().replace(old, new))
    before = written(stopped)
    with pytest.raises(MisalignedRunsError, match=what):
        resume_bisection(stopped.run_folder, quiet=True)
    assert written(stopped) == before


class Ending(Opened):
    """Oracles whose workers do not end in peace."""

    def __init__(self, error: BaseException, **given: Any) -> None:
        super().__init__(**given)
        self.error = error

    @contextmanager
    def __call__(self, inquiry: OracleRequest, surroundings: OracleContext) -> Iterator[Any]:
        with super().__call__(inquiry, surroundings) as oracle:
            yield oracle
        raise self.error


class Interrupting(Opened):
    """Ctrl-C once, when so many oracles were opened and one more is."""

    def __init__(self, *, opened: int) -> None:
        super().__init__()
        self.at = opened

    def __call__(self, inquiry: OracleRequest, surroundings: OracleContext) -> Any:
        if len(self.oracles) == self.at:
            self.at = -1
            raise KeyboardInterrupt
        return super().__call__(inquiry, surroundings)


@pytest.mark.parametrize(
    ("error", "ended", "words"),
    [
        (KeyboardInterrupt(), "interrupted", "left; then it was interrupted."),
        (StoreError("the disk is full"), "failed", "then it could not go on (the disk is full)."),
    ],
)
def test_what_was_found_outlives_whatever_happens_while_workers_end(
    run: Run, error: BaseException, ended: str, words: str
) -> None:
    result = run(Ending(error))
    found = result.report.bisect
    assert names(result) == ["gain"]
    assert (found.status, found.searches[0].ended) == ("minimal", ended)
    assert found.resume == f"evalguard bisect --resume {result.run_folder}"
    text = " ".join(result.rendered("text").split())
    assert words in text
    assert "to go on where it stopped" in text
    assert names(resume_bisection(result.run_folder, quiet=True)) == ["gain"]


def test_a_second_ctrl_c_while_workers_end_leaves_what_the_first_one_left(run: Run) -> None:
    result = run(Ending(KeyboardInterrupt(), before=stop_at(2, KeyboardInterrupt())))
    found = result.report.bisect
    assert (found.status, found.searches[0].ended) == ("stopped", "interrupted")
    assert found.searches[0].probes == 1
    assert found.resume


def test_ctrl_c_before_anything_is_found_out_says_how_to_go_on(run: Run) -> None:
    result = run(Interrupting(opened=0))
    expected = "interrupted before anything was found out; evalguard bisect --resume "
    assert result.report.bisect_reason == f"{expected}{result.run_folder} goes on"
    assert result.report.bisect_ended == "interrupted"
    assert names(resume_bisection(result.run_folder, quiet=True)) == ["gain"]


def test_ctrl_c_while_a_later_search_begins_ends_it_all(run: Run) -> None:
    result = run(Interrupting(opened=1), gain=3.0, late=4.0, tasks="sw_word, sw_text")
    found = result.report.bisect
    assert names(result) == ["gain"]
    assert len(found.searches) == 1
    assert found.repaired.failure == "it was interrupted"
    assert found.resume
    assert names(resume_bisection(result.run_folder, quiet=True)) == ["gain", "late"]


def test_ctrl_c_while_the_repaired_candidate_is_judged_says_how_to_go_on(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*given: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        where = "evalguard.bisect.bisection.judge_repaired"
        patched.setattr(where, interrupted)
        result = run(Opened())
    found = result.report.bisect
    assert (found.status, names(result)) == ("minimal", ["gain"])
    assert found.fix
    assert found.repaired.failure == "it was interrupted"
    text = " ".join(result.rendered("text").split())
    assert "to go on where it stopped" in text
    assert resume_bisection(result.run_folder, quiet=True).report.bisect.repaired.passed


def test_ctrl_c_between_two_probes_is_no_budget_that_is_spent(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from evalguard.bisect.search.culprit_search import CulpritSearch

    def thinking(self: CulpritSearch) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(CulpritSearch, "run", thinking)
    found = run(Opened()).report.bisect
    assert (found.status, found.searches[0].ended) == ("stopped", "interrupted")


def test_more_time_may_be_given_when_a_bisection_goes_on(run: Run) -> None:
    stopped = run(Opened(before=stop_at(2, KeyboardInterrupt())))
    assert names(resume_bisection(stopped.run_folder, quiet=True, timeout=900.0)) == ["gain"]
