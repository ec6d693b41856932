"""Differences of two models that the documents cannot show are named, and no others."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scored_models import Score

from evalguard.comparison.checks.side_differences import list_side_differences
from evalguard.comparison.checks.untested_differences import (
    find_untested_differences,
    note_untested_code,
)
from evalguard.core.compare_report import RunIdentity
from evalguard.core.findings import Finding
from evalguard.core.scorer import ModelDescription
from evalguard.core.scores import ScoreTable
from evalguard.engine.scored_side import ScoredSide
from evalguard.harness.score_tables import TaskScores

SCORED = ({"doc_id": 0, "text": [None]},)
WRITTEN = ({"doc_id": 0, "text": ["42"]},)
CODE = {"class": "MistralForCausalLM", "remote": False, "digest": ""}


def side(
    config: dict[str, Any],
    *,
    longest: int = 31,
    rows: Any = SCORED,
    max_length: int = 4096,
    tables: tuple[ScoreTable, ...] = (),
    **sections: Any,
) -> ScoredSide:
    about = {"config": config, "generation": {}, "tokenizer": {"EOS": "</s>"}, "code": CODE}
    return ScoredSide(
        identity=RunIdentity(name="one", digest="1"),
        tables=tables,
        description=ModelDescription(
            model_type="hf", max_length=max_length, configuration={**about, **sections}
        ),
        samples={
            "t": TaskScores(task="t", tables=(), not_compared=(), samples=rows, longest=longest)
        },
    )


def differences(base: ScoredSide, port: ScoredSide) -> Any:
    return list_side_differences(
        (base.identity, port.identity), (base.description, port.description), ((), ())
    )


def found(base: ScoredSide, port: ScoredSide) -> Finding | None:
    told = find_untested_differences(differences(base, port), (base, port))
    assert len(told) < 2
    return told[0] if told else None


WINDOW = {"sliding_window": 256}
ROPE = {"rope_parameters.rope_type": "default", "max_position_embeddings": 1024}
DYNAMIC = {**ROPE, "rope_parameters.rope_type": "dynamic", "rope_parameters.factor": 4.0}
LONG = {
    "rope_parameters.rope_type": "longrope", "rope_parameters.long_factor": [1.0, 2.0],
    "rope_parameters.original_max_position_embeddings": 512,
}  # fmt: skip
BY_LENGTH: dict[str, tuple[dict[str, Any], dict[str, Any], str, int]] = {
    "no window": (WINDOW, {"sliding_window": None}, "sliding_window", 256),
    "another window": (WINDOW, {"sliding_window": 128}, "sliding_window", 128),
    "a window of chunks": (
        {"attention_chunk_size": 512}, {"attention_chunk_size": None}, "attention_chunk_size", 512,
    ),
    "inside of a text config": (
        {"text_config.sliding_window": 256}, {"text_config.sliding_window": None},
        "sliding_window", 256,
    ),
    "a window switched off": (
        {**WINDOW, "use_sliding_window": True}, {**WINDOW, "use_sliding_window": False},
        "use_sliding_window", 256,
    ),
    "fewer positions": (ROPE, {**ROPE, "max_position_embeddings": 512},
                        "max_position_embeddings", 512),
    "positions that stretch": (ROPE, DYNAMIC, "rope_type", 1024),
    "factors for long texts": (
        LONG, {**LONG, "rope_parameters.long_factor": [1.0, 3.0]}, "long_factor", 512,
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", BY_LENGTH)
def test_what_acts_beyond_a_length_is_untested_by_shorter_texts_alone(what: str) -> None:
    base, port, name, limit = BY_LENGTH[what]
    told = found(side(base, longest=limit), side(port, longest=limit - 1))
    assert told is not None
    assert name in told.values["longer"]
    assert told.values["beyond"] == limit
    assert told.values["longest_text"] == limit
    assert f"{name} " in told.text.replace(",", " ")
    assert found(side(base, longest=limit + 1), side(port, longest=limit)) is None
    assert found(side(base, longest=limit), side(port, longest=limit + 1)) is None


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters.rope_theta": 50000.0},
        {"rms_norm_eps": 1e-5},
        {"hidden_act": "gelu"},
        {"layer_types": ["full_attention", "sliding_attention"]},
    ],
)
def test_what_acts_from_the_first_token_on_is_tested(change: dict[str, Any]) -> None:
    assert found(side({**WINDOW, **dict.fromkeys(change)}), side({**WINDOW, **change})) is None


@pytest.mark.parametrize("kind", ["yarn", "llama3", "linear", "longrope"])
def test_rotary_positions_that_are_scaled_everywhere_are_tested(kind: str) -> None:
    scaled = {**DYNAMIC, "rope_parameters.rope_type": kind}
    assert found(side(ROPE), side(scaled)) is None
    # yarn takes its correction from the length, longrope its attention factor
    fewer = {**scaled, "max_position_embeddings": 512}
    assert found(side(scaled), side(fewer)) is None


def test_nothing_is_said_by_length_where_it_is_not_known() -> None:
    base, port, *_ = BY_LENGTH["no window"]
    assert found(side(base, longest=0), side(port)) is None
    assert found(side(base), side(port, longest=0)) is None


def test_whole_texts_are_read_in_pieces_of_a_models_context() -> None:
    base, port, *_ = BY_LENGTH["no window"]
    short = found(
        side(base, longest=9000, max_length=256), side(port, longest=9000, max_length=256)
    )
    assert short is not None
    assert short.values["longest_text"] == 256
    assert found(side(base, longest=9000), side(port, longest=9000)) is None


@pytest.mark.parametrize("name", ["eos_token_id", "generation.eos_token_id", "repetition_penalty"])
def test_what_ends_or_shapes_texts_is_untested_where_none_is_generated(name: str) -> None:
    leaf = name.rpartition(".")[2]
    if name == "eos_token_id":
        sides = side({leaf: 1}), side({leaf: 5})
    else:
        sides = side({}, generation={leaf: 1}), side({}, generation={leaf: 5})
    told = found(*sides)
    assert told is not None
    assert told.values["generated"] == (leaf,)
    assert told.text == f"not tested here: {leaf} (no text is generated)"
    texts = TaskScores(task="w", tables=(), not_compared=(), samples=WRITTEN, longest=3)
    written = [replace(one, samples={**one.samples, "w": texts}) for one in sides]
    assert found(written[0], written[1]) is None


def test_a_chat_template_is_untested_where_none_is_applied(score: Score) -> None:
    sides = [
        side({}, tokenizer={"EOS": "</s>", "chat template": digest}) for digest in ("one", "two")
    ]
    told = found(sides[0], sides[1])
    assert told is not None
    assert told.text == "not tested here: chat template (none is applied)"
    made = score("llama", "llama")[0].scores["sw_word"].tables[0]
    applied = replace(made, reading={"chat_template": "one"})
    assert found(replace(sides[0], tables=(applied,)), sides[1]) is None


@pytest.mark.parametrize("name", ["rules", "BOS", "EOS", "puts BOS first"])
def test_a_tokenizer_is_untested_where_all_texts_have_the_same_tokens(name: str) -> None:
    def cut(value: str, *hashes: str, text: str | None = None) -> ScoredSide:
        rows = [{"doc_id": at, "text": [text], "token_hash": of} for at, of in enumerate(hashes)]
        return side({}, rows=rows, tokenizer={name: value})

    told = found(cut("one", "a", "b"), cut("two", "a", "b"))
    assert told is not None
    assert told.values["other_tokens"] == (name,)
    assert told.text == f"not tested here: {name} (all texts have the same tokens)"
    assert found(cut("one", "a", "b"), cut("two", "a", "c")) is None
    assert found(cut("one", "a", ""), cut("two", "a", "")) is None
    written = found(cut("one", "a", text="42"), cut("two", "a", text="42"))
    assert (written is None) == (name == "EOS")


def test_reasons_are_said_once_with_all_that_they_hold_for() -> None:
    told = found(side({**ROPE, "eos_token_id": 1}), side({**DYNAMIC, "eos_token_id": 2}))
    assert told is not None
    assert told.text == (
        "not tested here: factor, rope_type (beyond 1,024 tokens; the longest text has 31); "
        "eos_token_id (no text is generated)"
    )


@given(window=st.integers(1, 5000), longest=st.integers(1, 5000))
def test_a_window_is_untested_exactly_up_to_its_length(window: int, longest: int) -> None:
    given_ = {"longest": longest, "max_length": 8192}
    base = side({"sliding_window": window}, **given_)
    port = side({"sliding_window": None}, **given_)
    assert (found(base, port) is not None) == (longest <= window)


def test_what_other_code_is_not_asked_for_is_noted() -> None:
    base, own = side(WINDOW), side(WINDOW, code={**CODE, "class": "PortForCausalLM"})
    other = replace(own, description=ModelDescription(model_type="gguf"))
    for port in (own, other):
        window, steps = note_untested_code(differences(base, port), (base, port))
        assert "256 tokens; the longest has 31" in window
        assert steps.startswith("no text is generated")
        long = side(WINDOW, longest=257, rows=WRITTEN)
        assert note_untested_code(differences(long, port), (long, port)) == ()
    assert note_untested_code(differences(base, base), (base, base)) == ()


def test_answers_say_how_long_the_longest_text_was(score: Score, models: dict[str, Path]) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(models["llama"])
    asked = [json.loads(line) for line in (models["tasks"] / "test.jsonl").read_text().splitlines()]
    longest = max(len(tokenizer(f"{one['text']} {one['last']}").input_ids) for one in asked)
    base, port = (one.scores["sw_word"] for one in score("llama", "llama"))
    assert base.longest == port.longest == longest
