"""What one command finds leads to the command that says more, and it is printed whole."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from example_bisections import bisection, culprit, search
from example_reports import comparison, report

from evalguard.bisect.bisect_report import BisectReport, TracedPlace
from evalguard.core.broken_documents import BrokenDocument
from evalguard.core.compare_report import CompareReport, RunIdentity, SettingState
from evalguard.core.findings import Finding, FindingValue
from evalguard.core.repeat_command import as_tokenizer_search
from evalguard.report.compare_view import explain_report
from evalguard.report.first_screen import cause_line
from evalguard.report.meaning import Meaning, derive_meaning, margin_below

HF = "hf, 1.2M parameters, float32, on cpu"
COMMAND = "evalguard compare --base ./orig --cand ./port --tasks t --limit 9"
TRACE = "evalguard trace --base ./orig --cand ./port --tasks t"


def side(name: str, **more: Any) -> RunIdentity:
    return RunIdentity(
        **{"name": name, "digest": name, "description": HF, "model_type": "hf", **more}
    )


def lost(*findings: Finding, folder: bool = True, **changes: Any) -> CompareReport:
    fields: dict[str, Any] = {
        "base": side("orig", folder="/m/orig" if folder else ""),
        "candidate": side("port", folder="/m/port" if folder else ""),
        "command": COMMAND, "findings": findings,
    }  # fmt: skip
    return report(comparison(), **{**fields, **changes})


def differ(**values: FindingValue) -> Finding:
    named = {name.replace("__", "."): value for name, value in values.items()}
    return Finding(kind="sides_differ", text="something differs", values=named)


def broken(candidate_is: Any = "not a number", where: Any = "candidate") -> BrokenDocument:
    return BrokenDocument(
        task="t", doc_id=3, side=where, base=-4.0, candidate=None, candidate_is=candidate_is
    )


def steps(said: Meaning) -> tuple[str, str]:
    return said.command, said.trace


@pytest.mark.parametrize("kind", ["not a number", "infinity", "minus infinity"])
def test_scores_that_are_no_numbers_lead_to_the_weights_and_to_a_trace(kind: str) -> None:
    said = explain_report(lost(broken_documents=(broken(kind),)))
    assert "nan or infinite" in said.next_step
    assert steps(said) == ("evalguard tensors --invariant finite /m/orig /m/port", TRACE)


def test_without_folders_they_lead_to_the_trace_alone() -> None:
    said = derive_meaning(lost(broken_documents=(broken(),), folder=False))
    assert said.next_step.startswith("to see where the first nan or infinite value is")
    assert steps(said) == (TRACE, "")


@pytest.mark.parametrize(
    "documents", [(), (broken("", "candidate"),), (broken("not a number", "both"),)]
)
def test_scores_that_are_only_low_do_not(documents: tuple[BrokenDocument, ...]) -> None:
    assert "nan" not in derive_meaning(lost(broken_documents=documents)).next_step


WHOLE = bisection(
    search(culprits=(culprit("model", target="model_args.pretrained"),), cleared=(), inert=())
)
CLASSES = differ(code__class=("GraniteForCausalLM", "LlamaForCausalLM"))


def test_another_class_of_model_leads_to_its_layers_and_to_a_trace() -> None:
    said = explain_report(lost(CLASSES))
    assert "another class costs (LlamaForCausalLM where the base is Granite" in said.next_step
    layers = COMMAND.replace("compare", "bisect") + " --over layers"
    assert steps(said) == (layers, TRACE)


def test_the_whole_model_is_no_cause_where_its_class_is_another_one() -> None:
    found = WHOLE
    shown = cause_line(lost(CLASSES, bisect=found))
    assert shown.startswith(
        "Cause: another class of model, LlamaForCausalLM where the base is GraniteForCausalLM"
    )
    said = explain_report(lost(CLASSES, bisect=found))
    assert said.next_step.startswith("read the candidate as GraniteForCausalLM (architectures")
    assert steps(said) == ("", TRACE)


@pytest.mark.parametrize(
    "finding",
    [
        differ(),
        differ(code__remote_base_class=("MyLlama", "LlamaForCausalLM")),
        differ(code__class=("LlamaForCausalLM", None)),
        differ(code__torch=("2.1", "2.2")),
    ],
)
def test_nothing_else_is_taken_for_another_class(finding: Finding) -> None:
    said = explain_report(lost(finding))
    assert said.next_step == "to see where in the model it comes from"
    assert "another class" not in cause_line(lost(finding, bisect=WHOLE))


@pytest.mark.parametrize(
    ("bisect", "command"),
    [
        (WHOLE, COMMAND),
        (WHOLE, COMMAND.replace("compare", "bisect") + " --budget 9 --over settings"),
        (
            bisection(search(status="not_reproduced", outside_sigma=9.0, culprits=())),
            COMMAND,
        ),
    ],
)
def test_own_code_leads_to_its_layers_and_to_a_trace(bisect: BisectReport, command: str) -> None:
    own = differ(code__remote_class=("LlamaForCausalLM", "MyLlama"))
    said = explain_report(lost(own, bisect=bisect, command=command))
    assert said.next_step == "to see which layers of the candidate's own code it comes from"
    assert steps(said) == (COMMAND.replace("compare", "bisect") + " --over layers", TRACE)


def test_own_code_is_named_with_where_a_trace_finds_its_error_and_not_with_the_base_as_repair() -> (
    None
):
    own = differ(code__remote_class=("LlamaForCausalLM", "MyLlama"))
    place = TracedPlace(folder="runs/t", module="model.layers.3.mlp", operation="MLP: other code")
    for traced, text in (
        (None, "its own code (MyLlama) or its weights; with the base in its place, "),
        (
            place,
            "its own code (MyLlama) or its weights (by the trace in runs/t it begins at "
            "model.layers.3.mlp, MLP: other code: repair that); with the base in its place, ",
        ),
    ):
        shown = cause_line(lost(own, bisect=replace(WHOLE, traced=traced)))
        assert shown.startswith(f"Cause: the candidate as a whole, {text}")


CONFIGS = differ(configs__rope_theta=(1e4, 5e4))


def test_configs_that_differ_lead_to_a_search_before_a_trace() -> None:
    said = explain_report(lost(CONFIGS))
    assert said.next_step == "to name the culprits (the configs of the two models differ)"
    assert steps(said) == (COMMAND.replace("compare", "bisect"), TRACE)
    undeclared = lost(CONFIGS, bisect_reason="no settings", bisect_ended="undeclared")
    assert steps(derive_meaning(undeclared)) == steps(said)
    stopped = lost(CONFIGS, bisect_reason="interrupted", bisect_ended="interrupted")
    assert steps(derive_meaning(stopped)) == steps(said), "it goes on from what is kept"
    assert steps(derive_meaning(lost(CONFIGS, bisect_reason="nothing to search"))) == (TRACE, "")
    served = side("port", model_type="local-completions")
    assert "culprits" not in derive_meaning(lost(CONFIGS, candidate=served)).next_step


def test_tokenizers_that_differ_lead_to_their_search_and_to_no_trace() -> None:
    said = explain_report(lost(differ(tokenizer__rules=("1", "2"))))
    assert said.next_step == "to see what the tokenizer costs"
    search = COMMAND.replace("compare", "bisect") + " --allow-differing tokens"
    assert steps(said) == (search, "")


@pytest.mark.parametrize(
    ("command", "search"),
    [
        (COMMAND, "evalguard bisect --base ./orig --cand ./port --tasks t --limit 9"),
        ("evalguard bisect --base a --cand b", "evalguard bisect --base a --cand b"),
        ("evalguard trace --base a --cand b --text c.txt", "evalguard bisect --base a --cand b"),
        (
            "evalguard compare --base a --cand b --allow-differing prompt",
            "evalguard bisect --base a --cand b",
        ),
        ("evalguard trace --base ./a --cand ./b --text c.txt", ""),
        ("evalguard floor --base a", ""),
        ("", ""),
    ],
)
def test_a_search_of_the_tokenizer_is_typed_from_any_question(command: str, search: str) -> None:
    expected = f"{search} --allow-differing tokens" if search else ""
    assert as_tokenizer_search(command) == expected


def setting(name: str) -> SettingState:
    return SettingState(
        name=name, value=2, reference=1, candidate=2, target=f"config.{name}", effective=2
    )


def within(**changes: Any) -> CompareReport:
    """A real drift below the margin, with settings that may make it."""
    port = side("port", settings=(setting("eps"), setting("gain")))
    fields: dict[str, Any] = {
        "outcome": "degraded", "sigma": 0.64, "sigma_interval": (0.5, 0.8), "certain": False,
    }  # fmt: skip
    base = {"base": side("orig"), "candidate": port, "command": COMMAND}
    return report(comparison(**fields), **{**base, **changes})


def test_below_the_margin_the_settings_are_named_and_searched_at_half_the_drift() -> None:
    said = derive_meaning(within())
    assert said.next_step == (
        "to name which of eps and gain makes it, although it is within the margin"
    )
    assert said.command == COMMAND.replace("compare", "bisect") + " --margin 0.32"
    typed = derive_meaning(within(command=f"{COMMAND} --margin 1.5"))
    assert typed.command.endswith("--limit 9 --margin 0.32")


def test_a_drift_that_may_be_chance_is_not_searched_below_the_margin() -> None:
    assert margin_below(comparison(sigma=0.3, sigma_interval=(-0.1, 0.7))) == ""
    assert margin_below(comparison(sigma=None, sigma_interval=None)) == ""


def test_one_setting_is_undone_below_the_margin_as_above_it() -> None:
    port = side("port", settings=(setting("eps"),))
    assert derive_meaning(within(candidate=port)).command.endswith("--set eps=reference")
