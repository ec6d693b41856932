"""RunIdentity: the digest covers what can change a score, the settings show what took."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fake_models import table

from evalguard.core.scorer import ModelDescription
from evalguard.core.settings import Setting, Target, Variant
from evalguard.engine.run_identities import identify_model, identify_run
from evalguard.engine.sources import ModelSource, RunSource
from evalguard.harness.finished_runs.lmeval_run import LmEvalRun

SETTING = Setting(name="eps", reference=1e-6, candidate=0.5, target=Target.parse("config.eps"))
VARIANT = Variant(
    name="port",
    model="hf",
    model_args={"pretrained": "p"},
    settings=(SETTING,),
    assignment={"eps": 0.5},
)
DESCRIPTION = ModelDescription(
    model_type="hf", effective={"eps": 0.5}, identity={"weights": "w"}, dtype="float32",
    device="cpu", parameters=1_234_567,
)  # fmt: skip
SOURCE = ModelSource(name="port (candidate)", variant=VARIANT)


def test_settings_show_what_was_asked_declared_and_read_back() -> None:
    identity = identify_model(SOURCE, DESCRIPTION)
    assert (identity.name, identity.kind) == ("port (candidate)", "model")
    (state,) = identity.settings
    assert (state.value, state.reference, state.candidate) == (0.5, 1e-6, 0.5)
    assert (state.target, state.effective) == ("config.eps", 0.5)
    assert identity.effective == {"eps": 0.5}
    assert identity.description == "hf, 1,234,567 parameters, float32, on cpu"


def test_the_digest_follows_the_identity_and_without_one_the_declaration() -> None:
    digest = identify_model(SOURCE, DESCRIPTION).digest
    other = replace(DESCRIPTION, identity={"weights": "x"})
    assert identify_model(SOURCE, other).digest != digest
    assert identify_model(replace(SOURCE, name="n"), DESCRIPTION).digest == digest
    unproven = replace(DESCRIPTION, identity=None)
    assert identify_model(SOURCE, unproven).digest == VARIANT.digest


def test_the_digest_of_a_run_covers_documents_and_scores() -> None:
    def digest(*values: float) -> str:
        run = LmEvalRun(
            path=Path("r.json"), model_name="m", model_args={}, date="2026-01-01",
            tables=(table(values),),
        )  # fmt: skip
        identity = identify_run(RunSource(name="run", run=run))
        assert identity.kind == "lm-eval run"
        assert identity.description == "m, lm-eval run of 2026-01-01"
        return identity.digest

    assert digest(0.0, 1.0) == digest(0.0, 1.0) != digest(1.0, 0.0)
