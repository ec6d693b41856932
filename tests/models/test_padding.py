"""What padding does to a model's answers is measured, and scored where a batch size is asked."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from architectures import ARCHITECTURES, save_architecture
from lm_requests import CONTEXTS, lm_eval_answers
from unpadded_models import FAULTS, HEALTHY, save_gpt2

from evalguard.core.scorer import PaddingEffect, Request, ScoringPolicy
from evalguard.models.assigned_model import AssignedModel
from evalguard.models.hf.padding import measure_padding
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm
from evalguard.tracing.measure.padding_trace import locate_padding
from evalguard.worker.messages import DESCRIPTION

POLICY = ScoringPolicy(device="cpu")
IN_EIGHTS = replace(POLICY, batch_size=8)


def load(folder: Path, policy: ScoringPolicy = POLICY, *, dtype: str = "float32") -> Any:
    given = {"pretrained": str(folder), "dtype": dtype}
    return load_lm("hf", given, {}, policy, trust_remote_code=True, allow_pickle=False)


def open_model(folder: Path, policy: ScoringPolicy = POLICY) -> LMScorer:
    return LMScorer(
        load(folder, policy), policy, model_type="hf", assigned=AssignedModel(provenance={})
    )


def effect_of(folder: Path, **given: Any) -> PaddingEffect:
    found = measure_padding(load(folder, **given))
    assert found is not None
    return found


def texts(model: LMScorer) -> list[str | None]:
    return [one.text for one in model.score(generations())]


def generations() -> list[Request]:
    options = {"until": ["\n"], "max_gen_toks": 6}
    return [
        Request(task="g", doc_id=i, index=0, kind="generate_until", arguments=(text, options))
        for i, text in enumerate(CONTEXTS)
        if text
    ]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_model_that_padding_changes_is_found(tmp_path: Path, fault: str, dtype: str) -> None:
    found = effect_of(save_gpt2(tmp_path, FAULTS[fault]), dtype=dtype)
    assert found.before_matters
    assert found.left > 3 * found.limit


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("port", HEALTHY)
def test_a_healthy_port_shows_rounding_only(tmp_path: Path, port: str, dtype: str) -> None:
    assert not effect_of(save_gpt2(tmp_path, HEALTHY[port]), dtype=dtype).matters


@pytest.mark.parametrize("name", [one for one in ARCHITECTURES if "rwkv" not in one])
def test_what_transformers_has_of_an_architecture_is_healthy(tmp_path: Path, name: str) -> None:
    folder = save_architecture(tmp_path, name)
    for dtype in ("float32", "bfloat16"):
        assert not effect_of(folder, dtype=dtype).matters


def test_a_state_that_reads_padding_is_told_from_a_fault(tmp_path: Path) -> None:
    found = effect_of(save_architecture(tmp_path, "rwkv: a state without a mask"))
    assert found.matters
    assert found.keeps_state


def test_without_a_batch_size_texts_are_those_of_one_by_one(tmp_path: Path) -> None:
    folder = save_gpt2(tmp_path, FAULTS["the mask is ignored"])
    model = open_model(folder)
    alone = lm_eval_answers(folder, generations(), batch_size=1, trust_remote_code=True)
    assert texts(model) == alone
    assert any("texts are generated one by one" in c for c in model.describe().caveats)


@pytest.mark.parametrize("fault", FAULTS)
def test_with_a_batch_size_texts_are_those_of_lm_evals_padded_batches(
    tmp_path: Path, fault: str
) -> None:
    folder = save_gpt2(tmp_path, FAULTS[fault])
    model = open_model(folder, IN_EIGHTS)
    padded = lm_eval_answers(folder, generations(), batch_size=8, trust_remote_code=True)
    assert texts(model) == padded
    assert padded != lm_eval_answers(folder, generations(), batch_size=1, trust_remote_code=True)
    assert any("as --batch-size 8 asks" in c for c in model.describe().caveats)


def test_a_description_keeps_the_effect_on_its_way_to_another_process(tmp_path: Path) -> None:
    told = open_model(save_gpt2(tmp_path, FAULTS["the mask is ignored"])).describe()
    assert told.padding is not None
    assert told.padding.matters
    assert DESCRIPTION.decode(DESCRIPTION.encode(told)) == told


def test_a_context_with_no_room_for_padding_is_not_asked(tmp_path: Path) -> None:
    folder = save_gpt2(tmp_path, FAULTS["the mask is ignored"], n_positions=10)
    assert measure_padding(load(folder)) is None


def entry(folder: Path, dtype: str = "float32") -> tuple[str, float]:
    lm = load(folder, dtype=dtype)
    return locate_padding(lm.model, lm.tok_encode(CONTEXTS[0]), lm.tokenizer.pad_token_id)


POSITIONS, ATTENTION = "transformer.wpe", "transformer.h.0.attn"
ENTRIES = {
    fault: ATTENTION if "mask" in fault or "padding is seen" in fault else POSITIONS
    for fault in FAULTS
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_padded_twin_shows_where_padding_enters(tmp_path: Path, fault: str, dtype: str) -> None:
    module, size = entry(save_gpt2(tmp_path, FAULTS[fault]), dtype)
    assert module == ENTRIES[fault]
    assert size > 0.1


@pytest.mark.parametrize("port", HEALTHY)
def test_a_healthy_ports_padded_twin_is_the_port(tmp_path: Path, port: str) -> None:
    assert entry(save_gpt2(tmp_path, HEALTHY[port])) == ("", 0.0)


@pytest.mark.parametrize("name", [one for one in ARCHITECTURES if "rwkv" not in one])
def test_padding_enters_nowhere_in_what_transformers_has(tmp_path: Path, name: str) -> None:
    folder = save_architecture(tmp_path, name)
    for dtype in ("float32", "bfloat16"):
        assert entry(folder, dtype) == ("", 0.0)
