"""CompareOptions: fields by name, texts for sequences of one, and the nearest name otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evalguard.config.options import CompareOptions, make_options
from evalguard.errors import EXIT_USAGE, UsageError


def test_given_fields_override_the_options() -> None:
    options = make_options(CompareOptions(limit=5, seed=1), limit=7)
    assert (options.limit, options.seed) == (7, 1)


def test_nothing_given_is_the_default() -> None:
    assert make_options(None) == CompareOptions()


def test_one_text_stands_for_a_sequence_and_for_a_path() -> None:
    options = make_options(
        None, tasks="a", include_path="x", allow_differing="tokens", config="g", output_path="o"
    )
    assert options.tasks == ("a",)
    assert options.include_path == (Path("x"),)
    assert options.allow_differing == frozenset({"tokens"})
    assert (options.config, options.output_path) == (Path("g"), Path("o"))


def test_lists_become_what_options_hold() -> None:
    options = make_options(None, tasks=["a", "b"], include_path=["x", Path("y")])
    assert options.tasks == ("a", "b")
    assert options.include_path == (Path("x"), Path("y"))


def test_an_unknown_field_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="no option 'task'; did you mean 'tasks'") as raised:
        make_options(None, task="a")
    assert raised.value.exit_code == EXIT_USAGE


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 0),
        ("batch_size", True),
        ("batch_size", "automatic"),
        ("threads", -1),
        ("timeout", 0),
        ("timeout", float("nan")),
        ("timeout", float("inf")),
        ("worker", "alway"),
        ("allow_differing", "lengths"),
        ("distributions", "both"),
        ("reference_top_k", 0),
        ("reference_top_k", True),
        ("history", ""),
        ("config", ""),
        ("output_path", ""),
        ("seed", float("nan")),
        ("num_fewshot", 2.5),
    ],
)
def test_a_value_that_cannot_be_meant_is_refused_at_once(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=f"option {name}: "):
        make_options(None, **{name: value})


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("limit", "500", "a number"),
        ("timeout", "60", "a number"),
        ("confidence", True, "a number"),
        ("seed", "1234", "a number"),
        ("base_model_args", "dtype=float32", "a mapping"),
        ("cand_set", ["norms=reference"], "a mapping"),
        ("tasks", 5, "a text or a list"),
        ("include_path", None, "a text or a list"),
    ],
)
def test_a_value_of_another_kind_is_refused_by_name(name: str, value: Any, expected: str) -> None:
    with pytest.raises(UsageError, match=f"option {name}: .* is not {expected}"):
        make_options(None, **{name: value})
