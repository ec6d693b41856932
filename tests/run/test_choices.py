"""Choices: the command line wins over the guard file, and that over a finished run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_models import table

from evalguard.config.guard import GuardSet
from evalguard.config.guard_search import embedded_folder, load_guards
from evalguard.config.options import CompareOptions
from evalguard.core.settings import Variant
from evalguard.core.verdict import Margin
from evalguard.engine.choices import DEFAULT_SEED, Choices, resolve_choices, with_workers
from evalguard.engine.distribution_choice import DistributionChoice
from evalguard.engine.sources import ModelSource, RunSource, Source
from evalguard.errors import UsageError
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun

GUARD = """
models:
  orig: {model_args: {pretrained: org/model}}
  port:
    extends: orig
    settings: {bos: {reference: true, candidate: false, target: model_args.add_bos_token}}
  plain: {extends: orig}
pairs: [{base: orig, cand: plain, tasks: [pair_task], differs: [prompt]}]
tasks: [file_task]
include_path: mine
run: {limit: 50, num_fewshot: 2, batch_size: 4, seed: 9, device: cpu, token_budget: 512,
      scorer: harness}
gate: {margin: 0.5, fail_on: certain, confidence: 0.9, undecided: fail, subtasks: true,
       metrics: {kl_mean: 0.5, same_top1: 0.9}}
"""
INLINE = ModelSource(name="m", variant=Variant(name="m", model="hf", model_args={}))


@pytest.fixture
def guards(tmp_path: Path) -> GuardSet:
    (tmp_path / "evalguard.yaml").write_text(GUARD)
    (tmp_path / "mine").mkdir()
    return load_guards(None, cwd=tmp_path, allow_code=False)


@pytest.fixture
def settle(guards: GuardSet) -> Any:
    def source(name: str | Source) -> Source:
        if not isinstance(name, str):
            return name
        guard, variant = guards.find(name)
        return ModelSource(name=name, variant=variant, guard=guard)

    def chosen(base: str | Source, candidate: str | Source, **options: Any) -> Choices:
        return resolve_choices(source(base), source(candidate), guards, CompareOptions(**options))

    return chosen


def stored(**run: Any) -> RunSource:
    tables = (table([0.0, 1.0], task="run_task", run=run),)
    found = LmEvalRun(path=Path("r.json"), model_name="m", model_args={}, date="", tables=tables)
    return RunSource(name="run", run=found)


def test_tasks_come_from_the_command_line_the_pair_the_file_or_the_run(settle: Any) -> None:
    assert settle("orig", "plain", tasks=("mine",)).tasks == ("mine",)
    assert settle("orig", "plain").tasks == ("pair_task",)
    assert settle("orig", "port").tasks == ("file_task",)
    assert settle(stored(), INLINE).tasks == ("run_task",)
    with pytest.raises(UsageError, match="no tasks to compare on"):
        settle(INLINE, INLINE)


def test_run_options_of_the_guard_file_are_the_default(settle: Any) -> None:
    of_file = settle("orig", "port")
    assert of_file.task_options.limit == 50
    assert of_file.task_options.num_fewshot == 2
    assert of_file.task_options.seed == of_file.policy.seed == 9
    assert (of_file.policy.batch_size, of_file.policy.device) == (4, "cpu")
    assert (of_file.policy.token_budget, of_file.policy.scorer) == (512, "harness")
    given = settle(
        "orig",
        "port",
        limit=0.5,
        num_fewshot=0,
        seed=1,
        batch_size="auto",
        device="cuda",
        token_budget=0,
        scorer="fast",
    )
    assert (given.task_options.limit, given.task_options.num_fewshot) == (0.5, 0)
    assert given.task_options.seed == given.policy.seed == 1
    assert (given.policy.batch_size, given.policy.device) == (None, "cuda")
    assert (given.policy.token_budget, given.policy.scorer) == (0, "fast")


def test_without_a_guard_file_the_defaults_hold(settle: Any) -> None:
    choices = settle(INLINE, INLINE, tasks=("t",))
    assert choices.policy.batch_size is None
    assert (choices.policy.token_budget, choices.policy.scorer) == (0, "fast")
    assert choices.policy.seed == choices.task_options.seed == DEFAULT_SEED
    assert choices.policy.rolling_bos == "lm-eval"
    assert choices.task_options.limit is None
    assert choices.gate.margin == 1.0


def test_a_named_guard_file_judges_what_is_no_model_of_it(guards: GuardSet, tmp_path: Path) -> None:
    sides, options = (stored(), stored()), CompareOptions()
    found = resolve_choices(*sides, guards, options)
    assert (found.gate.margin, found.clusters.by_task) == (1.0, {})
    assert found.notes == (
        "no side is a model of evalguard.yaml: it does not count (--config evalguard.yaml holds to "
        "its gate)",
    )
    file = tmp_path / "evalguard.yaml"
    file.write_text(file.read_text() + "clusters: {run_task: story}\n")
    named = resolve_choices(*sides, load_guards(file, cwd=tmp_path, allow_code=False), options)
    assert (named.gate.margin, named.gate.undecided) == (0.5, "fail")
    assert named.clusters.by_task == {"run_task": "story"}
    assert named.task_options.limit is None
    assert named.notes == (f"no side is a model of {file}: its gate and clusters count",)


def test_a_named_guard_file_says_how_models_are_run_that_it_does_not_name(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "run: {token_budget: 512, worker: always, timeout: 9.5, track_documents: true,\n"
        "      system_instruction: Be brief., fewshot_as_multiturn: false, history: h.sqlite}\n"
    )
    named = load_guards(file, cwd=tmp_path, allow_code=False)
    options = CompareOptions(tasks=("t",))
    found = resolve_choices(INLINE, INLINE, named, options)
    assert (found.policy.token_budget, found.worker, found.timeout) == (512, "always", 9.5)
    assert found.task_options.system_instruction == "Be brief."
    assert found.task_options.fewshot_as_multiturn is False
    assert found.history == tmp_path / "h.sqlite"
    assert found.notes == (f"no side is a model of {file}: its run, gate and clusters count",)
    told = with_workers(options, found)
    assert (told.worker, told.timeout) == ("always", 9.5)
    typed = resolve_choices(INLINE, INLINE, named, replace(options, timeout=2.0, worker="auto"))
    assert (typed.worker, typed.timeout) == ("auto", 2.0)
    finished = resolve_choices(stored(), stored(), named, CompareOptions())
    assert (finished.worker, finished.policy.token_budget) == ("auto", 0)
    assert (finished.history, finished.track_documents) == (tmp_path / "h.sqlite", True)


def test_a_finished_run_settles_what_neither_says(settle: Any) -> None:
    run = stored(num_fewshot=5, fewshot_seed=77, limit=20)
    beside = settle(run, INLINE)
    assert beside.task_options.num_fewshot == 5
    assert beside.task_options.seed == 77
    assert beside.task_options.limit == 20
    of_file = settle(run, "port")
    assert (of_file.task_options.num_fewshot, of_file.task_options.limit) == (2, 50)
    assert settle(run, "port", limit=3).task_options.limit == 3


def test_the_gate_is_the_files_where_the_command_line_is_silent(settle: Any) -> None:
    gate = settle("orig", "port").gate
    assert (gate.margin, gate.fail_on, gate.confidence, gate.undecided) == (
        0.5, "certain", 0.9, "fail"
    )  # fmt: skip
    assert gate.subtasks
    changed = settle("orig", "port", margin=2.0, fail_on="margin").gate
    assert (changed.margin, changed.fail_on, changed.confidence) == (2.0, "margin", 0.9)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("margin", -1.0),
        ("margin", float("nan")),
        ("confidence", 1.0),
        ("confidence", float("nan")),
        ("fail_on", "marge"),
        ("limit", -1),
        ("num_fewshot", -1),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    settle: Any, name: str, value: Any
) -> None:
    with pytest.raises(UsageError):
        settle("orig", "port", **{name: value})


def test_distributions_are_compared_as_the_command_line_or_the_file_says(
    settle: Any, tmp_path: Path
) -> None:
    assert settle("orig", "port").distributions == DistributionChoice()
    chosen = settle("orig", "port", distributions="reference", reference_top_k=16)
    assert chosen.distributions == DistributionChoice(mode="reference", top_k=16)
    file = tmp_path / "a.reference"
    chosen = settle("orig", "port", save_reference=file)
    assert chosen.distributions == DistributionChoice(mode="reference", file=file)


@pytest.mark.parametrize(
    ("candidate", "options", "message"),
    [
        ("port", {"reference_top_k": 16}, "reference_top_k has no effect with distributions auto"),
        (
            "port",
            {"distributions": "off", "save_reference": Path("a")},
            "which distributions off does not compare",
        ),
        (None, {"distributions": "reference"}, "finished run, which holds no distributions"),
        (None, {"distributions": "lockstep"}, "finished run, which holds no distributions"),
    ],
)
def test_distributions_that_cannot_be_compared_are_refused(
    settle: Any, candidate: str | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        settle("orig", candidate or stored(), **options)


def test_differences_are_declared_by_user_pair_or_setting(settle: Any) -> None:
    assert settle("orig", "plain").allow == {"prompt"}
    assert settle("orig", "plain", allow_differing=frozenset({"tokens"})).allow == {
        "prompt", "tokens", "reading"
    }  # fmt: skip
    assert settle("orig", "port").allow == {"tokens"}
    assert settle("orig", "port").declared == frozenset()
    assert settle("plain", "orig").allow == frozenset()


def test_the_users_folders_come_last_so_that_they_win(settle: Any, tmp_path: Path) -> None:
    paths = settle("orig", "port", include_path=(tmp_path,)).task_options.include_paths
    assert paths == (embedded_folder() / "tasks", tmp_path / "mine", tmp_path)


def test_an_installation_without_the_demo_is_enough_for_a_guard_file_that_is_named(
    settle: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evalguard.config.guard_search.PACKAGE", tmp_path / "nothing" / "here")
    paths = settle("orig", "port", include_path=(tmp_path,)).task_options.include_paths
    assert paths == (tmp_path / "mine", tmp_path)


def test_the_embedded_guard_file_is_said_only_where_it_is_used(tmp_path: Path) -> None:
    guards = load_guards(None, cwd=tmp_path, allow_code=False)
    guard, variant = guards.find("orig")
    demo = ModelSource(name="orig", variant=variant, guard=guard)
    options = CompareOptions(tasks=("t",))
    assert "the built-in demo's is used" in resolve_choices(demo, demo, guards, options).notes[0]
    assert resolve_choices(INLINE, INLINE, guards, options).notes == ()


def test_tables_of_a_run_that_disagree_settle_nothing() -> None:
    tables = (
        table([0.0, 1.0], task="a", run={"num_fewshot": 0, "fewshot_seed": 3}),
        table([0.0, 1.0], task="b", run={"num_fewshot": 5, "fewshot_seed": 3}),
    )
    run = LmEvalRun(path=Path("r.json"), model_name="m", model_args={}, date="", tables=tables)
    source = RunSource(name="run", run=run)
    choices = resolve_choices(source, INLINE, GuardSet(guards=()), CompareOptions())
    assert choices.task_options.num_fewshot is None
    assert choices.task_options.seed == 3
    assert np.array_equal(tables[0].doc_ids, [0, 1])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("kl_mean", None, "kl_mean says nothing that the gate could hold it to"),
        ("lops", None, "'lops' is no figure of generated answers; did you mean 'loops'"),
        ("loops", "0pp", "a margin is above 0, not 0pp"),
        ("loops", 2, "the limit of loops is a number, between 0 and 1, not 2"),
        ("t/kl_mean", 0.1, "a limit on kl_mean holds for every task"),
        ("kl_mean", "1pp", "the limit of kl_mean is a number, not 1pp"),
        ("tokens", 0.1, "no limit can be set on 'tokens'"),
        ("acc", 0.1, "no limit can be set on 'acc'"),
    ],
)
def test_a_gate_metric_that_cannot_be_meant_is_refused(
    settle: Any, name: str, value: object, message: str
) -> None:
    with pytest.raises(UsageError) as raised:
        settle("orig", "port", gate_limits={name: value})
    assert message in str(raised.value)


def test_a_gate_metric_is_a_limit_a_margin_or_a_figure_that_is_gated(settle: Any) -> None:
    asked = {"loops": None, "t/cut": "1pp", "valid_json": "99%", "empty": 0, "acc": "2%"}
    gate = settle("orig", "port", gate_limits=asked).gate
    assert gate.figures == ("loops",)
    assert dict(gate.margins) == {"t/cut": Margin(0.01, "points"), "acc": Margin(0.02, "relative")}
    limits = {limit.name: limit.value for limit in gate.limits if limit.of_figure}
    assert limits == {"valid_json": 0.99, "empty": 0}
    assert set(gate.figure_names) == {"loops", "t/cut", "valid_json", "empty"}
    covered = [gate.covers("t", "text", name) for name in ("loops", "cut", "valid_json", "empty")]
    assert covered == [True, True, False, False]


def test_limits_of_the_command_line_win_over_those_of_the_file(settle: Any) -> None:
    limits = {limit.metric: limit.value for limit in settle("orig", "port").gate.limits}
    assert limits == {"kl_mean": 0.5, "same_top1": 0.9}
    given = settle("orig", "port", gate_limits={"kl_mean": 0.01, "dp_rms": 0.1}).gate.limits
    assert {limit.metric: limit.value for limit in given} == {
        "same_top1": 0.9,
        "kl_mean": 0.01,
        "dp_rms": 0.1,
    }
    with pytest.raises(UsageError, match="no limit can be set on 'kl_men'; did you mean"):
        settle("orig", "port", gate_limits={"kl_men": 0.01})
