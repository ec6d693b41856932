"""A trace as document, on the screen, and as a page; and as the next step of a comparison."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from example_reports import DEMO
from example_traces import (
    ANOTHER_LAYOUT,
    CANCELLING,
    CLEAR,
    DETAILED,
    EXAMPLES,
    HYPERPARAMETERS,
    LOCATED,
    UNKNOWN,
    layer,
    suspect,
    trace_of,
    trace_report,
)
from rich.cells import cell_len

from evalguard.errors import StoreError
from evalguard.report.formats import render_report
from evalguard.tracing.trace_page import growth_lines, render_trace, render_trace_page
from evalguard.tracing.trace_report import (
    read_trace,
    trace_document,
    trace_schema,
)
from evalguard.tracing.trace_result import TraceResult
from evalguard.tracing.trace_view import DepthPoint, build_trace_view, depth_points

VALIDATOR = jsonschema.Draft202012Validator(trace_schema())


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_trace_document_validates_and_is_strict_json(name: str) -> None:
    written = trace_document(EXAMPLES[name])
    VALIDATOR.validate(written)
    assert json.loads(json.dumps(written, allow_nan=False)) == written


def test_the_schema_is_a_schema_and_asks_for_every_key() -> None:
    jsonschema.Draft202012Validator.check_schema(trace_schema())
    assert set(trace_schema()["required"]) == set(trace_document(LOCATED))


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_stored_trace_is_read_back_as_it_was(name: str) -> None:
    shown = EXAMPLES[name]
    again = read_trace(json.loads(TraceResult(shown).to_json()))
    assert trace_document(again) == trace_document(shown)
    assert render_trace(again, width=80, verbose=True) == render_trace(
        shown, width=80, verbose=True
    )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: one.update(schema="evalguard.trace/9"), "evalguard.trace/9"),
        (lambda one: one.pop("layers"), "layers is missing"),
        (lambda one: one["suspects"][0].update(fault="luck"), "fault is 'luck'"),
        (lambda one: one.update(caveats=3), "caveats is 3"),
    ],
)
def test_a_damaged_document_is_refused_with_the_key(change: Any, words: str) -> None:
    written = json.loads(TraceResult(LOCATED).to_json())
    change(written)
    with pytest.raises(StoreError, match=words):
        read_trace(written)


def test_the_answer_stands_first() -> None:
    text = render_trace(LOCATED, width=80)
    assert text.startswith("LOCATED: model.layers.1.self_attn is the first module beyond the floor")
    assert "340x what rounding makes there as both run; exit code 1" in " ".join(text.split())
    assert "Likely why: attention_scale 0.0625 in the base, 0.0668 in the candidate" in text
    said = " ".join(text.split())
    assert "1 more module beyond the floor, the largest model.layers.3.self_attn" in said
    table = next(line for line in text.splitlines() if line.startswith("> model.layers.1"))
    assert "340x" in table
    assert "+1.3" in table
    assert "Next: give the candidate the base's attention_scale there, and trace again." in text


def test_where_nothing_is_beyond_the_floor_the_screen_says_how_far_it_is() -> None:
    text = render_trace(CLEAR, width=80)
    assert text.startswith("CLEAR: no module introduces more error than rounding does")
    assert "evalguard compare --base ./orig --cand ./port --device cpu" in text
    assert "what differs" not in text


def test_another_layout_is_shown_below_the_suspects_and_is_no_location() -> None:
    screen = " ".join(render_trace(CANCELLING, width=100).split())
    assert "CLEAR: no module introduces more error than rounding does" in screen
    assert "largest local error is 0.8x" in screen
    assert "1 module laid out otherwise, which cancels" in screen
    assert "another layout, cancels at model.layers.2.self_attn:out" in screen
    both = replace(LOCATED, trace=replace(LOCATED.trace, other_layouts=(ANOTHER_LAYOUT,)))
    shown = render_trace(both, width=100, verbose=True)
    assert shown.index("12345x") < shown.index("another layout")
    assert "another layout, cancels at model.layers.2.self_attn:out" in render_trace_page(both)


def test_where_nothing_is_known_the_screen_says_why() -> None:
    text = render_trace(UNKNOWN, width=80)
    assert text.startswith("UNKNOWN: where the error comes from is not known: nothing could be")


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("width", [20, 40, 80, 120])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_wider_than_the_terminal(name: str, width: int, verbose: bool) -> None:
    text = render_trace(EXAMPLES[name], width=width, verbose=verbose)
    assert max(map(cell_len, text.splitlines())) <= width
    assert "\x1b" not in text
    assert "\u202e" not in text


LONG = replace(
    LOCATED,
    notes=tuple(f"note {number}: {'what was seen ' * 12}" for number in range(6)),
    hyperparameters=tuple(
        replace(HYPERPARAMETERS[0], name=f"rope_{number}", base=list(range(100)),
                candidate=list(range(1, 101)))
        for number in range(4)
    ),
    chosen="of a task with a very long name " * 6,
)  # fmt: skip


@pytest.mark.parametrize("name", [*EXAMPLES, "long"])
def test_the_answer_and_the_next_step_are_on_one_screen(name: str) -> None:
    shown = LONG if name == "long" else EXAMPLES[name]
    lines = render_trace(shown, width=80).splitlines()
    assert any(line.startswith("Next") for line in lines[:24])
    if "In detail" not in "\n".join(lines):
        assert len(lines) <= 24
    view = build_trace_view(shown)
    for line in view.next_command.splitlines():
        assert line.split()[0] in "\n".join(lines[:24])


def test_what_has_no_room_is_counted_and_follows_with_v() -> None:
    brief, whole = (render_trace(LOCATED, width=80, verbose=verbose) for verbose in (False, True))
    assert "Growth over depth: error" not in brief
    assert "growth over depth" in brief.splitlines()[-1]
    assert "Growth over depth: error" in whole


def test_many_layers_are_joined_and_the_first_suspect_stands_alone() -> None:
    text = render_trace(EXAMPLES["deep"], width=80, verbose=True)
    growth = text[text.index("Growth over depth") :].split("\n\n")[0].splitlines()
    assert 8 <= len(growth) <= 16
    assert any(line.startswith("> layer 41 ") for line in growth)
    assert any(line.startswith("  layers ") for line in growth)


@pytest.mark.parametrize(("largest", "marks"), [(1.1, 2), (10.0, 50), (1e6, 50)])
def test_a_whole_bar_is_ten_times_the_floor_or_more(largest: float, marks: int) -> None:
    growth = tuple(
        DepthPoint(label=f"layer {n}", local=None, accumulated=ratio, first=False, layer=n)
        for n, ratio in enumerate((0.5, largest))
    )
    lines = growth_lines(replace(build_trace_view(CLEAR), growth=growth), 81, 9)
    assert [line.plain.count("#") for line in lines[-2:]] == [0, marks]


def test_modules_in_another_list_of_layers_are_joined_by_their_layer() -> None:
    """As those of an encoder beside the layers of its decoder, or of an image's model."""
    others = [layer(0, f"model.encoder.layers.{n}.{name}", 1.0 + n, 1.0)
              for n in range(2) for name in ("fc1", "fc2")]  # fmt: skip
    shown = replace(CLEAR, trace=replace(CLEAR.trace, layers=(*others, *CLEAR.trace.layers)))
    found = [one.label for one in depth_points(shown)]
    assert found[:2] == ["encoder.layers.0", "encoder.layers.1"]
    assert found[2:] == [one.label for one in depth_points(CLEAR)]


def test_errors_by_token_and_head_are_shown_where_they_were_measured() -> None:
    text = render_trace(DETAILED, width=80)
    assert "relative L2 by head: 0: 0.5, 1: 1e-07, 2: 2e-07, 3: 0.25" in text
    rows = text[text.index("In detail") :].splitlines()
    assert [row.split()[:3] for row in rows[3:5]] == [["a.txt", "1", "b"], ["b.txt", "0", "0.4"]]


def test_what_the_configuration_says_is_told_in_a_sentence() -> None:
    unexplained = replace(LOCATED, hyperparameters=HYPERPARAMETERS[1:])
    sentence = build_trace_view(unexplained).configuration
    assert sentence == (
        "Configuration: nothing differs (equal once in float32: norm_eps, 1 shown by one side "
        "only, 1 equal)"
    )
    view = build_trace_view(LOCATED)
    assert view.configuration.startswith("Configuration: attention_scale 0.0625 in the base")
    assert [one.why for one in view.suspects] == ["", "attention_scale"]


@pytest.mark.parametrize(
    ("where", "explains"),
    [
        ("model.layers.1.self_attn", True),
        ("model.layers.*.self_attn", True),
        ("model.layers.1", True),
        ("model.layers.2.self_attn", False),
        ("model.layers.1.self_attn.q_proj", False),
        ("", True),
    ],
)
def test_a_difference_explains_a_suspect_that_holds_it(where: str, explains: bool) -> None:
    one = replace(HYPERPARAMETERS[0], modules=(where,) if where else ())
    view = build_trace_view(replace(LOCATED, hyperparameters=(one,)))
    assert bool(view.because) is explains


def test_a_suspect_by_its_weights_leads_to_its_weights() -> None:
    guilty = suspect(3, "model.layers.1.self_attn", 9.0, fault="weights", check="weights")
    view = build_trace_view(
        trace_report(trace_of(suspects=(guilty,), first=guilty), hyperparameters=())
    )
    assert "the command tensors" in view.next_step
    assert "in its weights" in view.headline


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_page_holds_what_the_screen_says_and_nothing_in_it_acts(name: str) -> None:
    page = render_trace_page(EXAMPLES[name])
    assert "<script>alert" not in page
    assert build_trace_view(EXAMPLES[name]).state.upper() in page
    assert page.count("<tbody>") == page.count("</tbody>")


def test_the_page_has_every_point_with_numbers_to_sort_by() -> None:
    page = render_trace_page(LOCATED)
    assert page.count('data-key="') == 8 * len(LOCATED.trace.layers)
    assert page.count("beyond regressed") == 1
    assert 'class="chart growth"' in page


def test_a_comparisons_page_shows_the_trace_of_its_models() -> None:
    plain, traced = render_report(DEMO, "html"), render_report(DEMO, "html", trace=LOCATED)
    assert 'id="trace"' not in plain
    assert '<a href="#trace">Trace</a>' in traced
    assert "340x what rounding makes there" in traced
    assert render_report(DEMO, "markdown", trace=LOCATED) == render_report(DEMO, "markdown")
