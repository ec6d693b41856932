from __future__ import annotations

import pytest

from evalguard.core.document_columns import read_fields


def documents(field, values):
    return {i: {field: value, "question": f"q{i}"} for i, value in enumerate(values)}


def test_texts_and_whole_numbers_are_fields_and_nested_ones_are_dotted():
    fields = read_fields(
        {
            3: {"story": "once", "n": 4, "yes": True, "score": 0.5, "list": [1], "none": None},
            5: {"story": "twice", "idx": {"paragraph": 7, "answer": 0}},
        }
    )
    assert fields.n == 2
    assert fields.labels == {
        "story": {3: "once", 5: "twice"},
        "n": {3: "4"},
        "idx.paragraph": {5: "7"},
        "idx.answer": {5: "0"},
    }


def test_long_texts_are_known_by_a_digest():
    fields = read_fields(documents("passage", ["a" * 500, "a" * 500, "b" * 500]))
    first, second, third = fields.labels["passage"].values()
    assert first == second != third
    assert len(first) == 64


def test_documents_that_are_no_mapping_have_no_fields():
    assert read_fields({0: "text", 1: None, 2: [1]}).labels == {}


@pytest.mark.parametrize(
    ("field", "values", "likely"),
    [
        ("passage", "aabbccc", "passage"),
        ("idx", [{"paragraph": i // 3} for i in range(12)], "idx.paragraph"),
        ("passage", "abcdefg", ""),  # every document its own
        ("passage", "aaaaaaa", ""),  # one for all
        ("passage", "aabcdef", ""),  # hardly any repeats
        ("group", ["x"] * 60 + ["y"] * 60, ""),  # a category
        ("label", "aabbccc", ""),  # a name that says nothing of passages
        ("passage", ["a", "a", None, "b", "b"], ""),  # not in every document
    ],
)
def test_only_a_plausible_passage_is_suggested(field, values, likely):
    assert read_fields(documents(field, values)).likely_cluster() == likely


def test_of_several_fields_the_one_with_most_values_is_suggested():
    docs = {i: {"article": i // 6, "passage": i // 2} for i in range(24)}
    assert read_fields(docs).likely_cluster() == "passage"
