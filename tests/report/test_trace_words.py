"""What a trace says beside its answer, and the next command: roundings, nan, ties, positions."""

from __future__ import annotations

import html
from dataclasses import replace
from typing import Any

import pytest
from example_traces import CLEAR, LOCATED, suspect, trace_of, trace_report

from evalguard.core.compare_report import RunIdentity
from evalguard.core.hyperparameters import HyperparameterDelta
from evalguard.core.trace_record import NonFiniteOrigin, TwinFacts
from evalguard.report.hyperparameter_texts import difference_text
from evalguard.tracing.trace_page import render_trace, render_trace_page
from evalguard.tracing.trace_report import TracedDocument, TraceReport
from evalguard.tracing.trace_words import next_step, separating_text

SIDES = tuple(
    RunIdentity(
        name=name, digest="d" * 16, description="hf", model_type="hf", folder=f"/models/{name} 1"
    )
    for name in ("orig", "port")
)
TENSORS = "evalguard tensors '/models/orig 1' '/models/port 1'"


def twin(**more: Any) -> TwinFacts:
    values: dict[str, Any] = {"dtype": "float32", "weights": "float32", "votes": {"float32": 15}}
    return TwinFacts(**{**values, "threshold": 2.5, **more})


def located(fault: str = "weights", module: str = "model.layers.1.self_attn", **more: Any) -> Any:
    one = replace(suspect(3, "model.layers.1.self_attn", 340.0, fault=fault), module=module)
    trace = trace_of(suspects=(one,), first=one, **more)
    return trace_report(trace, base=SIDES[0], candidate=SIDES[1], hyperparameters=())


def shown(report: TraceReport) -> str:
    return " ".join(render_trace(report, width=80).split())


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        (twin(seen="float32"), "Weights: float32, as the base's."),
        (twin(seen="bfloat16", weights="bfloat16"), "Weights: bfloat16, as stored."),
        (
            twin(seen="int8 per channel", weights="int8 per channel", declared="bits: 8",
                 votes={"int8 per channel": 14, "float32": 1}),
            "Weights: int8 per channel (14 of 15 matrices), taken as the floor: bits: 8.",
        ),
        (
            twin(seen="other", weights="other", declared="quantization_config (gptq)"),
            "Weights: rounded by another rule, taken as the floor: quantization_config (gptq).",
        ),
        (
            twin(seen="3 bits (per tensor)", undeclared={"3 bits (per tensor)": 14},
                 votes={"int4 per channel": 15}),
            "Likely why: 14 of 15 weight matrices look rounded to 3 bits (per tensor); no setting, "
            "quantization_config or dtype says so",
        ),
    ],
)  # fmt: skip
def test_the_first_screen_says_which_class_of_weights_was_seen(facts: TwinFacts, says: str) -> None:
    report = located(twin=facts)
    assert says in shown(report)
    assert says.partition(":")[2].strip(" .") in " ".join(
        html.unescape(render_trace_page(report)).split()
    )


def test_a_rounding_that_nobody_declared_leads_to_the_weights() -> None:
    report = located(twin=twin(seen="3 bits (per tensor)", undeclared={"3 bits (per tensor)": 14}))
    step, command = next_step(report)
    assert "declare how they are rounded" in step
    assert command == TENSORS


@pytest.mark.parametrize(
    ("position", "weights", "says"),
    [
        (5, (), "(sw_word 3, position 5); its weights hold none: it is computed."),
        (None, (), "(sw_word 3); its weights hold none"),
        (0, ("a.weight",), "position 0); a.weight holds such values."),
        (0, ("a.weight", "b.weight"), "a.weight and b.weight hold such values."),
        (0, tuple("abcde"), "a, b and 3 others hold such values."),
    ],
)
def test_the_first_nan_is_told_with_its_place_and_whether_weights_hold_it(
    position: int | None, weights: tuple[str, ...], says: str
) -> None:
    origin = NonFiniteOrigin(
        side="candidate", module="m", point="m:out", elements=3, sequence=0,
        position=position, weights=weights,
    )  # fmt: skip
    report = located(nonfinite=(origin,))
    text = shown(report)
    assert "The candidate's first nan or infinite value is at m:out" in text
    assert says in text
    if weights:
        assert next_step(report)[1] == TENSORS.replace("tensors", "tensors --invariant finite")


def delta(name: str, base: Any, candidate: Any, where: str = "") -> HyperparameterDelta:
    return HyperparameterDelta(
        name=name, base=base, candidate=candidate, verdict="differs", where=where,
        base_source="a", candidate_source="a",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("base", "candidate", "says"),
    [
        ([1.0, 0.1], [1.0, 0.2], "[1, 0.1] in the base, [1, 0.2] in the candidate (rotary)"),
        ([1.0] * 8, [1.0] * 4, "has 8 values in the base, 4 in the candidate (rotary)"),
        (
            [1.0] * 8 + [0.5, 0.25], [1.0] * 8 + [0.5, 0.125],
            "0.25 in the base, 0.125 in the candidate, from number 10 of 10 on (rotary)",
        ),
    ],
)  # fmt: skip
def test_frequencies_that_differ_are_told_in_few_words(
    base: list[float], candidate: list[float], says: str
) -> None:
    found = difference_text(delta("rope_frequencies", base, candidate, "rotary"))
    assert found == f"rope_frequencies {says}"


@pytest.mark.parametrize(
    ("base", "candidate", "tokens", "reached"),
    [
        (256, "none", 256, False),
        (256, "none", 257, True),
        ([256, "none"], 128, 128, False),
        ([256, "none"], 128, 129, True),
    ],
)
def test_a_window_that_no_text_reaches_is_said_not_to_be(
    base: Any, candidate: Any, tokens: int, reached: bool
) -> None:
    rows = (delta("attention_window", base, candidate), delta("norm_eps", 1e-5, 1e-6))
    texts = (TracedDocument(name="a", tokens=tokens), TracedDocument(name="b", tokens=3))
    said = shown(replace(CLEAR, hyperparameters=rows, documents=texts))
    assert "attention_window" in said
    assert ("no text reaches the window" in said) is not reached


@pytest.mark.parametrize(
    ("module", "where", "told"),
    [
        ("model.rotary_emb", "model.rotary_emb", True),
        ("model.layers.1.self_attn", "model.layers.*.self_attn.rotary_emb", True),
        ("model.layers.1.self_attn", "", True),
        ("model.layers.1.mlp.act_fn", "model.rotary_emb", False),
        ("model.layers.1.mlp", "", False),
    ],
)
def test_rotary_positions_explain_attention_and_nothing_else(
    module: str, where: str, told: bool
) -> None:
    report = replace(
        located("operation", module), hyperparameters=(delta("rope_theta", 1e4, 5e4, where),)
    )
    assert ("Likely why: rope_theta 10000 in the base" in shown(report)) is told


@pytest.mark.parametrize(
    ("name", "module", "where", "told"),
    [
        ("lm_head_multiplier", "(root)", "model", True),
        ("lm_head_multiplier", "(root)", "model.layers.*.mlp", False),
        ("lm_head_multiplier", "model.layers.1", "model", False),
        ("dtype", "(root)", "lm_head", False),
    ],
)
def test_a_value_of_the_inner_model_explains_what_the_logits_are_made_of(
    name: str, module: str, where: str, told: bool
) -> None:
    row = replace(delta(name, 0.5, 1.0), modules=(where,))
    report = replace(located("operation", module), hyperparameters=(row,))
    assert (f"Likely why: {name} 0.5 in the base" in shown(report)) is told


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("module", ["lm_head", "model.embed_tokens"])
def test_a_tie_on_one_side_only_is_a_likely_why(tied: bool, module: str) -> None:
    report = replace(
        located("weights", module), hyperparameters=(delta("tied_embeddings", tied, not tied),)
    )
    sides = ("base", "candidate") if tied else ("candidate", "base")
    text = shown(report)
    assert (
        f"Likely why: the output layer has the embedding's weights in the {sides[0]} (tied), and "
        f"others in the {sides[1]}" in text
    )
    assert "give the candidate's output layer the base's weights" in text


@pytest.mark.parametrize(
    ("fault", "beside", "told"),
    [
        ("operation", "", True),
        ("weights", "", False),
        ("precision", "", False),
        ("operation", "model.layers.*.self_attn", False),
    ],
)
def test_a_configs_own_value_is_a_likely_why_of_an_operation_that_nothing_else_explains(
    fault: str, beside: str, told: bool
) -> None:
    rows = [delta("config.alibi", True, False)]
    if beside:
        rows.append(delta("attention_scale", 0.1, 0.2, beside))
    report = replace(located(fault, "model.layers.1.self_attn"), hyperparameters=tuple(rows))
    assert ("Likely why: config.alibi true in the base" in shown(report)) is told


def test_another_class_of_model_leads_to_its_layers() -> None:
    classes = delta("architecture", "GraniteForCausalLM", "LlamaForCausalLM")
    report = replace(located("operation", "model.norm"), hyperparameters=(classes,))
    text = shown(report)
    assert "Likely why: architecture GraniteForCausalLM in the base" in text
    step, command = next_step(report)
    assert "architectures and model_type" in step
    assert command == (
        "evalguard bisect --base ./orig --cand ./port --device cpu --tasks sw_word --over layers"
    )


def test_the_next_comparison_names_a_task_or_is_not_offered() -> None:
    assert next_step(CLEAR)[1].endswith("--tasks sw_word")
    own = (TracedDocument(name="a.txt", tokens=5),)
    assert next_step(replace(CLEAR, documents=own))[1] == ""
    guard = "evalguard trace --base orig --cand port --text a.txt"
    command = next_step(replace(CLEAR, documents=own, command=guard))[1]
    assert command == "evalguard compare --base orig --cand port"


def test_the_way_that_was_there_stays() -> None:
    assert next_step(LOCATED)[0] == (
        "give the candidate the base's attention_scale there, and trace again"
    )


def test_what_tells_a_segment_apart_is_asked_of_a_dump_alone() -> None:
    """A library that runs the model shows what it shows, and takes no name map."""
    found = trace_of()
    middle = "model.layers.1.self_attn.k_proj:out"
    asked = [replace(one, separating=middle) for one in found.layers]
    shown = trace_report(replace(found, layers=tuple(asked)))
    assert 'cand: "ITS NAME IN THE DUMP"' in separating_text(shown)
    ran = replace(shown, candidate=replace(shown.candidate, model_type="rwkv"))
    assert separating_text(ran) == (
        "compare the code and the weights before o_proj with the base's: model type rwkv shows "
        "nothing there"
    )
