"""A real (tiny, random) model scores the same in a worker process as in this one."""

from __future__ import annotations

import contextlib
import dataclasses
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import evalguard
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.core.settings import Setting, Target, Variant
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.errors import EvaluationError, SettingError, WorkerError
from evalguard.models.lm_scorer import LMScorer
from evalguard.worker.client import WorkerScorer

POLICY = ScoringPolicy(batch_size=2, device="cpu", threads=1)
CONTEXTS = [
    "Mara carried the lantern",
    "Nobody at the pier had seen the boat, and the old keeper said",
    "the fog had come in early. " * 8,  # longer than the model's context
]


@pytest.fixture
def variant(tiny_llama: Path) -> Variant:
    eps = Setting(
        name="eps", reference=1e-6, candidate=0.5, target=Target.parse("config.rms_norm_eps")
    )
    return Variant(
        name="tiny",
        model="hf",
        model_args={"pretrained": str(tiny_llama), "dtype": "float32"},
        settings=(eps,),
        assignment={"eps": 0.5},
    )


@pytest.fixture(autouse=True)
def find_this_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(evalguard.__file__).parent.parent))


def blocks() -> list[list[Request]]:
    def block(kind: str, *tails: object) -> list[Request]:
        return [
            Request(task="t", doc_id=i, index=0, kind=kind, arguments=(text, *tails))  # type: ignore[arg-type]
            for i, text in enumerate(CONTEXTS)
        ]

    return [
        block("loglikelihood", " and waited"),
        block("loglikelihood_rolling"),
        block("generate_until", {"until": ["."], "max_gen_toks": 4, "do_sample": False}),
    ]


def exact(response: Response) -> tuple[object, ...]:
    logprobs = response.token_logprobs
    return (
        None if logprobs is None else logprobs.tobytes(),
        replace(response, token_logprobs=None),
    )


@pytest.mark.slow
def test_a_model_scores_the_same_in_a_worker_to_the_last_bit(
    variant: Variant, tmp_path: Path
) -> None:
    here = load_scorer(variant, POLICY, cache_dir=tmp_path)
    there = WorkerScorer(variant, POLICY, cache_dir=tmp_path, log=tmp_path / "worker.log")
    try:
        assert there.describe() == here.describe()
        assert there.describe().effective == {"eps": 0.5}
        for block in blocks():
            assert there.encode(block) == here.encode(block)
            answers = [exact(response) for response in here.score(block)]
            assert [exact(response) for response in there.score(block)] == answers
            assert len(answers) == len(CONTEXTS)
    finally:
        there.close()
        here.close()


@pytest.mark.slow
def test_a_model_that_is_not_there_is_the_same_error_in_a_worker(
    variant: Variant, tmp_path: Path
) -> None:
    absent = replace(variant, model_args={"pretrained": str(tmp_path / "absent")})
    with pytest.raises(EvaluationError) as here:
        load_scorer(absent, POLICY, cache_dir=tmp_path)
    with pytest.raises(EvaluationError) as there:
        WorkerScorer(absent, POLICY, cache_dir=tmp_path, log=tmp_path / "worker.log")
    assert not isinstance(there.value, WorkerError)
    assert type(there.value) is type(here.value)
    assert (str(there.value), there.value.hint) == (str(here.value), here.value.hint)


@pytest.mark.slow
def test_a_setting_of_the_environment_holds_in_a_worker_that_is_given_it(
    variant: Variant, tmp_path: Path
) -> None:
    flag = Setting(
        name="flag", reference="0", candidate="1", target=Target.parse("env.EVALGUARD_TEST_FLAG")
    )
    flagged = replace(variant, settings=(flag,), assignment={"flag": "1"})
    log = tmp_path / "worker.log"
    with pytest.raises(SettingError):
        WorkerScorer(flagged, POLICY, cache_dir=tmp_path, log=log)
    scorer = WorkerScorer(
        flagged, POLICY, cache_dir=tmp_path, log=log, env={"EVALGUARD_TEST_FLAG": "1"}
    )
    assert scorer.describe().effective == {"flag": "1"}
    scorer.close()


@pytest.mark.slow
def test_references_and_divergences_are_those_of_this_process(
    variant: Variant, tmp_path: Path
) -> None:
    here = load_scorer(variant, POLICY, cache_dir=tmp_path)
    assert isinstance(here, LMScorer)
    with contextlib.closing(
        WorkerScorer(variant, POLICY, cache_dir=tmp_path, log=tmp_path / "worker.log")
    ) as there:
        assert there.describe().gives_rows
        for block in blocks()[:2]:
            ours, kept = here.score_reference(block, top_k=8, samples=2)
            theirs, fetched = there.score_reference(block, top_k=8, samples=2)
            assert [exact(r) for r in theirs] == [exact(r) for r in ours]
            assert [digest(r) for r in fetched] == [digest(r) for r in kept]
            answers, compared = here.score_against(block, kept)
            again, found = there.score_against(block, kept)
            assert [exact(r) for r in again] == [exact(r) for r in answers]
            assert found.reason == compared.reason == ""
            assert [digest(d) for d in found.divergences] == [
                digest(d) for d in compared.divergences
            ]


def digest(record: object) -> list[object]:
    values = [getattr(record, field.name) for field in dataclasses.fields(record)]  # type: ignore[arg-type]
    return [v.tobytes() if isinstance(v, np.ndarray) else v for v in values]
