"""The scatter of models by size: who is on the front, what stands where, and what a file holds."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest
from example_documents import HOSTILE
from hypothesis import given
from hypothesis import strategies as st

from evalguard.several.size_plot import (
    Better,
    PlottedModel,
    draw_size_plot,
    pareto_front,
    size_plot_file,
)

_SVG = "{http://www.w3.org/2000/svg}"
places = st.lists(
    st.tuples(st.integers(1, 9), st.sampled_from([0.0, 1e-5, 0.01, 0.02, 3.0])), max_size=9
)


def model(size: int | None, value: float | None, **more: object) -> PlottedModel:
    fields: dict[str, object] = {"name": f"{size} bytes", "size": size, "value": value, **more}
    return PlottedModel(**fields)  # type: ignore[arg-type]


def drawn(models: list[PlottedModel], better: Better = "lower") -> ElementTree.Element:
    plot = draw_size_plot(models, name="mean KL, nats a token", better=better)
    return ElementTree.fromstring(size_plot_file(plot))


@given(places, st.sampled_from(["lower", "higher"]))
def test_no_model_beats_one_of_the_front_and_one_of_it_beats_or_equals_any_other(
    found: list[tuple[int, float]], better: Better
) -> None:
    models = [model(size, value, name=str(at)) for at, (size, value) in enumerate(found)]
    front = pareto_front(models, better)
    sign = 1.0 if better == "lower" else -1.0

    def beats(one: PlottedModel, other: PlottedModel) -> bool:
        ours, theirs = (one.size or 0, sign * (one.value or 0)), (
            other.size or 0,
            sign * (other.value or 0),
        )  # fmt: skip
        return ours != theirs and ours[0] <= theirs[0] and ours[1] <= theirs[1]

    assert not any(beats(one, other) for one in models for other in front)
    for other in models:
        same = [(one.size, one.value) == (other.size, other.value) for one in front]
        assert any(same) or any(beats(one, other) for one in front)


@given(places)
def test_every_model_with_a_place_is_drawn_inside_the_picture(
    found: list[tuple[int, float]],
) -> None:
    models = [model(size, value, interval=(0.0, 2 * value)) for size, value in found]
    if not models:
        assert draw_size_plot(models, name="KL", better="lower") == ""
        return
    picture = drawn(models)
    circles = picture.findall(f".//{_SVG}circle")
    assert len(circles) == len(models)
    width, height = (float(picture.attrib[name]) for name in ("width", "height"))
    for circle in circles:
        assert 0.0 <= float(circle.attrib["cx"]) <= width
        assert 0.0 <= float(circle.attrib["cy"]) <= height


@pytest.mark.parametrize(
    "homeless",
    [
        model(None, 0.1),
        model(5, None),
        model(5, float("nan")),
        model(5, float("inf")),
    ],
)
def test_a_model_without_a_size_or_a_number_has_no_place(homeless: PlottedModel) -> None:
    assert draw_size_plot([homeless], name="KL", better="lower") == ""
    assert len(drawn([homeless, model(3, 0.1)]).findall(f".//{_SVG}circle")) == 1
    assert pareto_front([homeless, model(3, 0.1)], "lower") == [model(3, 0.1)]


def test_a_pointer_on_a_model_shows_its_row_and_no_text_of_it_is_markup() -> None:
    rows = [f"{text} <script>alert(1)</script>" for text in HOSTILE]
    picture = drawn([model(at + 1, 0.1 * at, name=row, row=row) for at, row in enumerate(rows)])
    titles = [one.text or "" for one in picture.findall(f".//{_SVG}title")]
    assert len(titles) == len(rows)
    assert all("<script>" in title for title in titles)
    assert picture.findall(f".//{_SVG}script") == []


def test_a_drift_of_0_and_ones_of_many_sizes_stand_apart_on_one_axis() -> None:
    picture = drawn([model(9, 0.0), model(5, 3e-5), model(4, 2e-3), model(3, 0.4)])
    heights = sorted(float(one.attrib["cy"]) for one in picture.findall(f".//{_SVG}circle"))
    assert all(after - before > 20.0 for before, after in pairwise(heights))


def test_a_file_of_its_own_brings_its_colours_and_loads_nothing() -> None:
    text = size_plot_file(draw_size_plot([model(3, 0.1)], name="KL", better="lower"))
    assert "prefers-color-scheme: dark" in text
    assert text.count("http") == 1  # the name of SVG
