"""The repair: what is pasted or typed is read back as it is, and shows no secret."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from evalguard.bisect.repair import (
    REPAIRED_FILE,
    Repair,
    build_repair,
    proof_command,
    render_repaired_guard,
)
from evalguard.cli.click_options import read_compare_options
from evalguard.cli.compare_command import compare_command
from evalguard.cli.value_types import Pairs
from evalguard.comparison.typed_command import option_words
from evalguard.config.declared_options import declared_keys
from evalguard.config.guard import GuardSet
from evalguard.config.guard_search import load_guards
from evalguard.config.options import CompareOptions, RunOptions, make_options
from evalguard.core.gate import Gate, Waiver
from evalguard.core.limits import Limit
from evalguard.core.scorer import ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.engine.choices import Choices, resolve_choices
from evalguard.engine.cluster_fields import ClusterChoice
from evalguard.engine.distribution_choice import DistributionChoice
from evalguard.engine.sources import ModelSource
from evalguard.harness.task_options import TaskOptions

_GUARD = """
models:
  port:
    model: fake
    settings:
      kind: {reference: "0", candidate: "1", target: config.kind}
      door: {reference: open-sesame, candidate: wrong-word, target: env.DOOR_TOKEN}
"""


def repaired(tmp_path: Path, values: dict[str, Value]) -> Repair:
    file = tmp_path / "guard.yaml"
    file.write_text(_GUARD)
    guard, variant = load_guards(file, cwd=tmp_path, allow_code=False).find("port")
    source = ModelSource(name="port", variant=variant, guard=guard)
    report = SimpleNamespace(command="evalguard compare --base a --cand port")
    finished: Any = SimpleNamespace(candidate=source, report=report)
    return build_repair(finished, values, source)


@pytest.mark.parametrize(
    "value",
    ["2", "true", "None", "null", "it's $HOME", "NaN", "", "\u00e9", 2, 0.5, None, True, [1]],
)
def test_the_proof_gives_the_very_value(tmp_path: Path, value: Value) -> None:
    words = shlex.split(repaired(tmp_path, {"kind": value}).command)
    name, read = Pairs().convert(words[-1], None, None)
    assert (name, read, type(read)) == ("kind", value, type(value))


def test_no_secret_is_in_the_lines_to_paste_or_in_the_proof(tmp_path: Path) -> None:
    at_reference = repaired(tmp_path, {"door": "open-sesame"})
    assert at_reference.command.endswith("--set door=reference")
    other = repaired(tmp_path, {"door": "third-word"})
    assert other.command == ""
    for text in (at_reference.text, other.text):
        assert "***" in text
        assert not [word for word in ("sesame", "wrong-word", "third-word") if word in text]


# Keys of ``run`` that change no number of a comparison.
OF_NO_NUMBER = {
    "actors", "bisect", "bisect_budget", "bisect_jobs", "bisect_over", "bisect_thorough",
    "cache_max_size", "execution", "history", "memory_each", "num_cpus", "num_gpus", "pair_hours",
    "track", "track_documents",
}  # fmt: skip


def test_the_proof_of_derived_settings_asks_and_judges_as_the_comparison_did(
    tmp_path: Path,
) -> None:
    waiver = Waiver(task="t", metric="acc", up_to=2.0, until="2999-01-01", reason="known")
    limits = (Limit(metric="kl_p99.9", value=0.5),)
    gate = Gate(
        undecided="fail", subtasks=True, limits=limits, waivers=(waiver,), today="2026-01-01"
    )
    asked = TaskOptions(
        system_instruction="Don't guess.",
        apply_chat_template=True,
        fewshot_as_multiturn=True,
        gen_kwargs={"until": ["a,b"]},
        limit=500.0,  # as the command line reads it
        num_fewshot=1,
    )
    policy = ScoringPolicy(
        batch_size=2, token_budget=512, scorer="harness", share_prefixes=False, device="cpu",
        rolling_bos="once",
    )  # fmt: skip
    choices = Choices(
        gate=gate, task_options=asked, policy=policy, tasks=("t",), declared=frozenset({"prompt"}),
        allow=frozenset({"prompt", "tokens", "length"}),
        clusters=ClusterChoice(by_task={"t": "story"}),
        distributions=DistributionChoice(mode="reference", top_k=8), memory="sequential",
        sequential_alpha=0.01, worker="always", timeout=9.0,
    )  # fmt: skip
    options = CompareOptions(threads=1, cluster="passage", cache_dir=tmp_path, use_cache=False)
    report = SimpleNamespace(comparisons=[SimpleNamespace(task="u", cluster_field="passage")])
    source = ModelSource(name="m", variant=Variant(name="m", model="fake", model_args={}))
    finished: Any = SimpleNamespace(
        sources=(source, source), choices=choices, options=options, report=report
    )
    (tmp_path / REPAIRED_FILE).write_text(render_repaired_guard(finished, source))
    written = yaml.safe_load((tmp_path / REPAIRED_FILE).read_text())["run"]
    keys = {*declared_keys(RunOptions, "run")}
    assert written.keys() == keys - OF_NO_NUMBER
    (guard,) = load_guards(tmp_path / REPAIRED_FILE, cwd=tmp_path, allow_code=False).guards
    judged = (guard.gate.undecided, guard.gate.subtasks, guard.gate.limits)
    assert judged == (gate.undecided, gate.subtasks, gate.limits)
    assert guard.clusters == {"t": "story", "u": "passage"}
    (pair,) = guard.pairs
    assert [replace(one, where="") for one in pair.accept] == [waiver]
    read = resolve_choices(
        source, replace(source, guard=guard), GuardSet(guards=(guard,)), CompareOptions()
    )
    assert read.policy == policy
    assert (read.distributions, read.memory) == (choices.distributions, choices.memory)
    assert read.sequential_alpha == choices.sequential_alpha
    assert read.task_options == replace(
        asked, gen_kwargs={}, include_paths=read.task_options.include_paths
    )
    assert (read.worker, read.timeout) == ("always", 9.0)
    words = shlex.split(proof_command(tmp_path, finished))
    given = read_compare_options(dict(compare_command.make_context("compare", words[2:]).params))
    assert given["gen_kwargs"] == asked.gen_kwargs
    assert set(given["allow_differing"]) == {"prompt"}
    assert (given["threads"], given["use_cache"]) == (1, False)
    assert given["cache_dir"] == tmp_path


OPTIONS = CompareOptions(
    config=Path("guard.yaml"), tasks=("a", "b"), include_path=(Path("x y"), Path("z")),
    cand_model_args={"dtype": "bfloat16", "n": 2}, base_set={"s": "1"}, limit=0.25, seed=3,
    apply_chat_template=True, batch_size="auto", threads=2, allow_code=True,
    allow_differing=frozenset({"tokens", "prompt"}), margin=0.5, gate_limits={"kl_mean": 0.01},
    sequential=True, strict=True, use_cache=False,
)  # fmt: skip


def test_what_python_was_asked_for_can_be_typed(tmp_path: Path) -> None:
    names = {field.name for field in fields(CompareOptions)}
    words = ["--base", "a", "--cand", "b", *option_words(OPTIONS, names)]
    given = read_compare_options(dict(compare_command.make_context("compare", words).params))
    read = make_options(None, **{name: given[name] for name in names & given.keys()})
    assert read == replace(OPTIONS, model=read.model)
    assert option_words(CompareOptions(), names) == []


def test_from_python_the_proof_names_everything_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "guard.yaml").write_text(_GUARD)
    guard, variant = load_guards(tmp_path / "guard.yaml", cwd=tmp_path, allow_code=False).find(
        "port"
    )
    finished: Any = SimpleNamespace(
        candidate=ModelSource(name="port", variant=variant, guard=guard),
        report=SimpleNamespace(command=""), options=OPTIONS, named=("./a folder", "port"),
    )  # fmt: skip
    found = build_repair(finished, {"kind": "0"}, finished.candidate)
    words = shlex.split(found.command)
    assert words[:6] == ["evalguard", "compare", "--base", "./a folder", "--cand", "port"]
    given = read_compare_options(dict(compare_command.make_context("compare", words[2:]).params))
    assert (given["config"], given["tasks"]) == (OPTIONS.config, OPTIONS.tasks)
    assert given["cand_set"] == {"kind": "reference"}
    for named in ({"apply_chat_template": "plain"}, {"share_prefixes": False}):
        asked = _with(finished, replace(OPTIONS, **named))  # which nobody can type
        assert build_repair(asked, {"kind": "0"}, finished.candidate).command == ""
    unseen = _with(finished, replace(OPTIONS, timeout=1.5))  # and what moves no number
    assert build_repair(unseen, {"kind": "0"}, finished.candidate).command == found.command


def _with(finished: Any, options: CompareOptions) -> Any:
    return SimpleNamespace(**{**vars(finished), "options": options})
