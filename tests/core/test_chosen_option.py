"""Which option a metric of lm-eval chooses."""

from __future__ import annotations

import math

import pytest

from evalguard.core.document_statistics import chosen_option, needs_lengths

OPTIONS = ["yes", "perhaps", "né"]


@pytest.mark.parametrize(
    ("metric", "loglikelihoods", "chosen"),
    [
        ("acc", [-3.0, -2.0, -4.0], 1),
        ("f1", [-2.0, -2.0, -4.0], 0),
        ("acc_norm", [-3.0, -6.3, -3.0], 1),
        ("acc_norm", [-3.0, -9.0, -1.9], 2),
        ("acc_bytes", [-2.8, -9.0, -2.7], 2),  # é has two bytes: -2.7 / 3 against -2.8 / 3
        ("acc_norm", [-2.8, -9.0, -2.7], 0),
        ("acc_mutual_info", [-3.0, -2.0, -4.0, -1.0, -2.0, -9.0], 2),
        ("acc", [-3.0, -2.0, -4.0, -1.0, -2.0, -9.0], 1),
        ("acc_mutual_info", [-3.0, -2.0, -4.0], None),
        ("brier_score", [-3.0, -2.0, -4.0], None),
        ("acc", [-3.0, math.nan, -4.0], None),
        ("acc", [-3.0, -4.0], None),
    ],
)
def test_the_choice_is_the_one_of_process_results(metric, loglikelihoods, chosen):
    assert chosen_option(metric, loglikelihoods, OPTIONS) == chosen


def test_an_empty_option_has_no_length_to_divide_by():
    assert chosen_option("acc_norm", [-1.0, -2.0], ["", "a"]) is None
    assert chosen_option("acc", [-1.0, -2.0], ["", "a"]) == 0
    assert needs_lengths("acc_norm")
    assert not needs_lengths("acc")
