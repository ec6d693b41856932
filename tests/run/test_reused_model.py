"""One model after another in one worker process, for as long as that is safe."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import evalguard
from evalguard.config.options import CompareOptions
from evalguard.core.question import Loads
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Setting, Target, Value, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.engine.reused_model import ReusedModel
from evalguard.engine.sources import ModelSource
from evalguard.errors import SettingError, WorkerError
from evalguard.store.cache_folder import LOG_FILE
from evalguard.worker.messages import DESCRIPTION, RESPONSES

POLICY = ScoringPolicy(device="cpu", threads=1, token_budget=1024)
FAKE = Path(__file__).with_name("reuse_worker.py")
ATTR, CONFIG, FLAG = "attr:model.norm.eps", "config.eps", "env.REUSE_FLAG"


def source(values: dict[str, Value] | None = None, **fields: Any) -> ModelSource:
    settings = tuple(
        Setting(name=target, reference=None, candidate=value, target=Target.parse(target))
        for target, value in (values or {}).items()
    )
    policy = fields.pop("policy", None)
    given: dict[str, Any] = {
        "name": "cand",
        "model": "hf",
        "model_args": {"pretrained": "nowhere"},
        "assignment": values or {},
        **fields,
    }
    return ModelSource(name="cand", variant=Variant(settings=settings, **given), policy=policy)


def request(text: str = "fine") -> Request:
    return Request(task="t", doc_id=0, index=0, kind="generate_until", arguments=(text, {}))


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[ReusedModel]:
    """Models of settings alone, in real worker processes."""
    monkeypatch.setenv("PYTHONPATH", str(Path(evalguard.__file__).parent.parent))
    monkeypatch.setattr(
        "evalguard.worker.client.worker_command",
        lambda python: [sys.executable, "-u", str(FAKE), "evalguard.engine.worker_main"],
    )
    with ReusedModel(POLICY, CompareOptions(timeout=300), tmp_path) as reused:
        yield reused


def came(model: ReusedModel, one: ModelSource) -> tuple[object, str, object]:
    """Process, way in which the model came about, and its settings."""
    told = model.at(one).describe()
    return told.environment["pid"], str(told.environment["way"]), dict(told.effective)


def test_settings_of_the_loaded_model_are_assigned_anew(model: ReusedModel) -> None:
    pid, way, effective = came(model, source({ATTR: 1}))
    assert (way, effective) == ("loaded", {ATTR: 1})
    for value in (2, 3):
        assert came(model, source({ATTR: value})) == (pid, "reassigned", {ATTR: value})
    assert model.loads == Loads(started=1, reassigned=2)


def test_the_same_model_again_is_neither_loaded_nor_assigned(model: ReusedModel) -> None:
    first = model.at(source({ATTR: 1}))
    assert model.at(source({ATTR: 1})) is first
    assert model.loads == Loads(started=1)
    assert came(model, source({ATTR: True}))[2] == {ATTR: True}
    assert model.loads == Loads(started=1, reassigned=1)


def test_another_model_is_loaded_in_the_same_process(model: ReusedModel) -> None:
    pid, _, _ = came(model, source({CONFIG: 1}))
    assert came(model, source({CONFIG: 2})) == (pid, "loaded", {CONFIG: 2})
    assert came(model, source({CONFIG: 2}, model_args={"pretrained": "elsewhere"}))[0] == pid
    assert came(model, source({CONFIG: 2, ATTR: "not without loading"}))[:2] == (pid, "loaded")
    assert model.loads == Loads(started=1, loaded=3)


def test_another_policy_is_a_load(model: ReusedModel) -> None:
    model.at(source({ATTR: 1}))
    told = model.at(source({ATTR: 1}, policy=ScoringPolicy(seed=7))).describe()
    assert (told.environment["seed"], told.environment["loads"]) == (7, 2)
    assert model.loads == Loads(started=1, loaded=1)


HOOKED = source({"call:hook.py:edit": 1}, allow_code=True)
REMOTE = source({ATTR: 1}, trust_remote_code=True)
ELSEWHERE = source({ATTR: 1}, model="hf-multimodal")
KERNELS = source({ATTR: 1}, model_args={"pretrained": "nowhere", "use_kernels": True})
SPREAD = source({ATTR: 1}, model_args={"pretrained": "nowhere", "parallelize": True})


@pytest.mark.parametrize("other", [HOOKED, REMOTE, KERNELS, ELSEWHERE, SPREAD])
def test_what_may_change_its_process_has_one_of_its_own(
    model: ReusedModel, other: ModelSource
) -> None:
    plain = source({ATTR: 1})
    pids = [came(model, one)[0] for one in (plain, other, other, plain)]
    assert pids[1] == pids[2]
    assert len(set(pids)) == 3
    assert model.loads == Loads(started=3)


def test_another_environment_is_another_process(model: ReusedModel) -> None:
    on, off = source({FLAG: "1", ATTR: 1}), source({FLAG: None, ATTR: 1})
    told = [model.at(one).describe().environment for one in (on, off)]
    assert [one["flag"] for one in told] == ["1", None]
    assert told[0]["pid"] != told[1]["pid"]
    pid = came(model, source({FLAG: None, ATTR: 2}))[0]
    assert pid == told[1]["pid"]
    assert model.loads == Loads(started=2, reassigned=1)


def test_after_a_value_that_cannot_be_the_next_one_is_loaded_in_the_same_process(
    model: ReusedModel,
) -> None:
    pid, _, _ = came(model, source({ATTR: 1}))
    for _ in range(2):
        with pytest.raises(SettingError, match="it did not take"):
            model.at(source({ATTR: "bad"}))
    assert came(model, source({ATTR: 1})) == (pid, "loaded", {ATTR: 1})
    assert model.loads == Loads(started=1, loaded=1)


def test_a_worker_that_dies_in_a_probe_takes_only_that_probe(model: ReusedModel) -> None:
    first, _, _ = came(model, source({ATTR: 1}))
    with pytest.raises(WorkerError, match=r"SIGKILL.* while assigning"):
        model.at(source({ATTR: "kill"}))
    second, _, _ = came(model, source({ATTR: 1}))
    with pytest.raises(WorkerError, match=r"SIGKILL.* while scoring"):
        model.at(source({ATTR: 2})).score([request("kill")])
    third, _, _ = came(model, source({ATTR: 2}))
    assert len({first, second, third}) == 3
    assert model.loads == Loads(started=3, reassigned=1)


def test_a_worker_that_died_in_between_is_replaced(model: ReusedModel) -> None:
    pid, _, _ = came(model, source({ATTR: 1}))
    assert isinstance(pid, int)
    os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert came(model, source({ATTR: 1}))[0] != pid
    assert model.loads == Loads(started=2)


def test_what_fails_in_a_used_process_is_tried_in_a_new_one(model: ReusedModel) -> None:
    pid, _, _ = came(model, source({CONFIG: 1}))
    other, way, _ = came(model, source({CONFIG: "first process only"}))
    assert other != pid
    assert way == "loaded"
    assert model.loads == Loads(started=2)


@pytest.mark.slow
def test_a_probe_that_takes_too_long_is_ended_and_the_next_one_goes_on(
    model: ReusedModel, tmp_path: Path
) -> None:
    for seconds in (3, 15, 75):  # a busy machine needs longer for what does not hang
        with (
            ReusedModel(POLICY, CompareOptions(timeout=seconds), tmp_path) as short,
            contextlib.suppress(WorkerError),
        ):
            short.at(source({ATTR: 1}))
            with pytest.raises(WorkerError, match=f"gave no answer within {seconds} s"):
                short.at(source({ATTR: "hang"}))
            assert short.at(source({ATTR: 2})).score([request()])[0].text == ""
            return
    pytest.fail("what does not hang was ended too")


def test_logs_are_called_as_those_that_are_cleared_out_in_time(
    model: ReusedModel, tmp_path: Path
) -> None:
    for one in (HOOKED, source({ATTR: 1})):  # two processes
        model.at(one)
    logs = [path.name for path in (tmp_path / "logs").iterdir()]
    assert len(logs) == 2
    assert all(LOG_FILE.fullmatch(name) for name in logs)


def test_closing_ends_the_worker_and_the_model_can_be_used_again(model: ReusedModel) -> None:
    pid, _, _ = came(model, source({ATTR: 1}))
    assert isinstance(pid, int)
    model.close()
    model.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert came(model, source({ATTR: 1}))[0] != pid


@pytest.mark.slow
def test_a_model_that_was_reused_is_what_loading_it_here_gives(
    tiny_llama: Path, tiny_gemma2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evalguard.__file__).parent.parent))
    scaling, norm = "attr:model.layers.*.self_attn.scaling", "dtype:model.norm"
    places = {"model_args": {"pretrained": str(tiny_gemma2), "dtype": "float32"}}
    here = {"model_args": {"pretrained": str(tiny_llama), "dtype": "float32"}}
    sequence = [
        source({scaling: 0.3, norm: "bfloat16"}, **here),
        source({scaling: 0.4, norm: "float32"}, **here),
        source({scaling: 0.4, "config.rms_norm_eps": 0.1}, **here),
        source({scaling: 0.3, norm: "bfloat16"}, **places),
        source({scaling: 0.3, norm: "bfloat16"}, **here),
        source({scaling: 0.3, norm: "float64"}, **here),
    ]
    texts = ("Mara carried the lantern", "Nobody at the pier")
    asked = [
        Request(task="t", doc_id=i, index=0, kind="loglikelihood", arguments=(text, " boat"))
        for i, text in enumerate(texts)
    ]
    with ReusedModel(POLICY, CompareOptions(), tmp_path) as reused:
        for one in sequence:
            scorer = reused.at(one)
            with contextlib.closing(load_scorer(one.variant, POLICY, cache_dir=tmp_path)) as fresh:
                assert DESCRIPTION.encode(scorer.describe()) == DESCRIPTION.encode(fresh.describe())
                answers = tuple(scorer.score(asked)), tuple(fresh.score(asked))
                assert RESPONSES.encode(answers[0]) == RESPONSES.encode(answers[1])
        assert reused.loads == Loads(started=1, loaded=3, reassigned=2)
