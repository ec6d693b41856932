"""The words of a verdict are defined once: the page of words shows what screens and pages show."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from evalguard.core.comparison import Outcome
from evalguard.report.metric_labels import GLOSSARY, OUTCOMES, SIGMA_UNIT, outcome_name

PAGE = (Path(__file__).parent.parent.parent / "docs/verdict.md").read_text("utf-8")


def table(*heads: str, rows: list[tuple[str, str]]) -> str:
    lines = [f"| {' | '.join(heads)} |", f"|{'---|' * len(heads)}"]
    return "\n".join([*lines, *(f"| {word} | {text} |" for word, text in rows)])


def test_the_page_of_words_has_the_definitions_of_the_package() -> None:
    found = re.search(r"<!-- words: .*? -->\n\n(.*?)\n\n<!-- end of words -->", PAGE, re.DOTALL)
    assert found is not None
    outcomes = [(outcome_name(one), text) for one, text in OUTCOMES.items()]
    wanted = "\n\n".join(
        [
            table("word", "what it means", rows=list(GLOSSARY.items())),
            table("outcome", "what it means", rows=outcomes),
        ]
    )
    assert found[1] == wanted, f"docs/verdict.md is to hold:\n{wanted}"


def test_every_outcome_is_defined_and_a_tolerated_one_reads_as_no_alarm() -> None:
    assert set(OUTCOMES) == set(get_args(Outcome))
    assert outcome_name("degraded") == "tolerated"
    assert outcome_name("degraded", fails=True) == "degraded"
    assert [outcome_name(one) for one in OUTCOMES if one != "degraded"] == [
        one for one in OUTCOMES if one != "degraded"
    ]


def test_the_sign_of_sigma_is_part_of_its_unit() -> None:
    assert "+ is worse" in SIGMA_UNIT
    assert SIGMA_UNIT in GLOSSARY["sigma"]
