"""From generated texts to a comparison: answers not found, cut, repeated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from generated_documents import answers

from evalguard.answers.document_figures import DocumentAnswers
from evalguard.answers.generations import compare_generations, parts_caveat
from evalguard.core.generation_comparison import GeneratedDocument, GenerationComparison
from evalguard.core.pairing import PairedScores
from evalguard.core.scores import ScoreTable


def table(values: Sequence[float], **more: Any) -> ScoreTable:
    n = len(values)
    return ScoreTable(
        task="t", filter="strict", metric="exact_match", aggregation="mean",
        higher_is_better=True, doc_ids=np.arange(n, dtype=np.int64),
        values=np.array(values, dtype=np.float64), doc_hashes=("h",) * n,
        prompt_hashes=("p",) * n, target_hashes=("t",) * n, **more,
    )  # fmt: skip


def both(
    base: Mapping[int, DocumentAnswers], candidate: Mapping[int, DocumentAnswers]
) -> list[tuple[int, DocumentAnswers, DocumentAnswers]]:
    return [(doc, one, candidate[doc]) for doc, one in base.items() if doc in candidate]


def compared(
    ours: Sequence[float], theirs: Sequence[float], **sides: Sequence[int]
) -> GenerationComparison:
    base = answers([[one] for one in ours], missing=sides.get("base_missing", ()))
    candidate = answers(
        [[one] for one in theirs], missing=sides.get("missing", ()), cut=sides.get("cut", ())
    )
    paired = PairedScores(base=table(ours), candidate=table(theirs))
    return compare_generations("t", both(base, candidate), metrics=[paired])


def test_a_loss_is_parted_into_answers_not_found_and_others() -> None:
    ours = [1.0] * 20
    theirs = [0.0] * 6 + [1.0] * 14
    found = compared(ours, theirs, missing=[0, 1, 2, 3])
    (part,) = found.parts
    assert (part.cause, part.side, part.documents) == ("missing", "candidate", 4)
    assert part.drift == pytest.approx(-0.3)
    assert part.part == pytest.approx(-0.2)
    assert part.share == pytest.approx(2 / 3)
    assert "of the loss of 0.3, 0.2 come from 4 documents" in parts_caveat(found.parts)


def test_a_gain_is_one_of_the_base_whose_answers_were_not_found() -> None:
    theirs = [1.0] * 20
    ours = [0.0] * 6 + [1.0] * 14
    found = compared(ours, theirs, base_missing=[0, 1, 2, 3, 4])
    (part,) = found.parts
    assert part.side == "base"
    assert parts_caveat(found.parts).startswith("of the gain of 0.3, 0.25 come from 5 documents")


def test_a_small_part_of_a_loss_and_few_documents_are_not_worth_a_caveat() -> None:
    ours = [1.0] * 40
    small = compared(ours, [0.0] * 10 + [1.0] * 30, missing=[0, 1, 2])
    assert small.parts[0].share == pytest.approx(0.3)
    few = compared(ours, [0.0] * 2 + [1.0] * 38, missing=[0, 1])
    assert few.parts[0].share == 1.0
    assert parts_caveat(small.parts) == parts_caveat(few.parts) == ""


def test_what_was_not_found_on_both_sides_explains_nothing() -> None:
    ours, theirs = [1.0] * 5 + [0.0] * 15, [0.0] * 20
    found = compared(ours, theirs, missing=range(5, 20), base_missing=range(5, 20))
    assert found.parts == ()
    assert found.filters[0].missing.difference.value == 0.0


def test_whether_an_answer_was_cut_is_unknown_where_nobody_said() -> None:
    known = answers([[1.0]] * 8, cut=[0])
    unknown = {
        doc: replace(one, known=replace(one.known, ended=[""])) if doc % 2 and one.known else one
        for doc, one in known.items()
    }
    found = compare_generations("t", both(known, unknown))
    assert found.cut is not None
    assert found.cut.n == 4
    assert found.caveats == (
        "whether an answer was cut at the token limit is known of 4 of 8 documents",
    )
    silent = {doc: replace(one, known=None) for doc, one in known.items()}
    nothing = compare_generations("t", both(silent, known))
    assert (nothing.cut, nothing.filters, nothing.repeated, nothing.caveats) == (None, (), (), ())
    assert nothing.length.difference.value == 0.0


def test_mean_and_pass_at_k_are_means_over_documents() -> None:
    base = answers([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]])
    candidate = answers([[0, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0]])
    found = {
        one.name: one.score for one in compare_generations("t", both(base, candidate)).repeated
    }
    assert list(found) == ["mean@4", "pass@2", "pass@4"]
    assert found["mean@4"].base.value == pytest.approx((0.25 + 0.5) / 3)
    assert found["pass@2"].base.value == pytest.approx((1 / 2 + 5 / 6) / 3)
    assert found["pass@2"].candidate.value == pytest.approx(1.0 / 3)
    assert found["pass@4"].difference.value == pytest.approx(-1 / 3)


def test_a_metric_that_is_not_right_or_wrong_has_a_mean_and_no_pass() -> None:
    base, candidate = answers([[0.5, 1.0]] * 3), answers([[0.5, 0.5]] * 3)
    found = compare_generations("t", both(base, candidate)).repeated
    assert [one.name for one in found] == ["mean@2"]
    assert found[0].score.difference.value == pytest.approx(-0.25)


def test_no_document_of_both_sides_is_an_error() -> None:
    with pytest.raises(ValueError, match="no document"):
        compare_generations("t", [])


def test_what_was_written_is_read_again_and_damage_is_refused() -> None:
    known = answers([[1.0, 0.0]], missing=[0], cut=[0])[0].known
    assert known is not None
    again = GeneratedDocument.read(known.written)
    assert again is not None
    assert again.written == known.written
    assert GeneratedDocument.read("") is None
    assert GeneratedDocument.read(None) is None
    for damaged in ("[]", '{"ended": ["?"], "missing": {}, "scores": {}}', "{", '{"ended": 3}'):
        with pytest.raises(ValueError):
            GeneratedDocument.read(damaged)


def test_two_requests_of_a_document_are_not_two_answers_to_it() -> None:
    asked_twice = {
        doc: DocumentAnswers(
            texts=["yes", "yes"],
            known=GeneratedDocument(ended=["stop", "stop"], missing={"none": [False]}),
        )
        for doc in range(4)
    }
    found = compare_generations("t", both(asked_twice, asked_twice))
    assert (found.repeats, found.base_equal) == (1, None)
