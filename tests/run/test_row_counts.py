"""Rows that one side has more are named: a padded vocabulary is healthy, rows in the middle shift
all that follow."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from evalguard.core.row_counts import find_row_counts
from evalguard.tensors.compare_tensors import TensorOptions, compare_tensors
from evalguard.tensors.tensors_page import render_tensors
from evalguard.tensors.tensors_report import TensorDelta, TensorsReport, tensors_document

EMBEDDING, HEAD, UP = "model.embed_tokens.weight", "lm_head.weight", "model.layers.0.mlp.up.weight"
Change = Callable[[np.ndarray], np.ndarray]


def draw(rows: int, columns: int = 64, seed: int = 0) -> np.ndarray:
    drawn = np.random.default_rng(seed).standard_normal((rows, columns)) * 0.02
    return drawn.astype(np.float32)


def pad(number: int, scale: float = 0.0) -> Change:
    return lambda rows: np.concatenate([rows, scale * draw(number, rows.shape[1], 9)])


def insert(at: int, number: int = 1) -> Change:
    return lambda rows: np.concatenate([rows[:at], draw(number, rows.shape[1], 9), rows[at:]])


def remove(*rows: int) -> Change:
    return lambda values: np.delete(values, rows, axis=0)


def compare(
    folder: Path, change: Change, names: tuple[str, ...] = (EMBEDDING, HEAD), dtype: str = "float32"
) -> TensorsReport:
    base = {EMBEDDING: draw(100), HEAD: draw(100, seed=1), UP: draw(100, seed=2)}
    other = {name: change(rows) if name in names else rows for name, rows in base.items()}
    for file, tensors in (("a", base), ("b", other)):
        kept = {
            name: torch.from_numpy(np.ascontiguousarray(rows)).to(
                getattr(torch, dtype if file == "b" else "float32")
            )
            for name, rows in tensors.items()
        }
        save_file(kept, folder / f"{file}.safetensors")
    paths = [str(folder / f"{file}.safetensors") for file in "ab"]
    return compare_tensors(*paths, TensorOptions())


def find(report: TensorsReport, name: str = EMBEDDING) -> TensorDelta:
    return next(one for one in report.deltas if one.name == name)


def words(report: TensorsReport) -> dict[str, str]:
    return {
        one.name: one.likeness.words for one in report.deltas if not one.passed and one.likeness
    }


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("scale", [0.0, 1.0])
def test_a_padded_vocabulary_is_healthy_and_said_to_be_one(
    tmp_path: Path, scale: float, dtype: str
) -> None:
    report = compare(tmp_path, pad(28, scale), dtype=dtype)
    assert report.exit_code == 0
    screen = render_tensors(report, width=80, color=False)
    said = "28 rows appended to lm_head.weight, model.embed_tokens.weight: a padded vocabulary"
    assert said in " ".join(screen.split())
    assert len(screen.splitlines()) <= 24
    delta = find(report)
    assert delta.rows_appended == 28
    assert (delta.base.shape, delta.candidate.shape) == ((100, 64), (128, 64))
    assert tensors_document(report)["tensors"][0]["rows_appended"] == 28


def test_the_rows_that_both_have_are_compared_beside_the_padding(tmp_path: Path) -> None:
    def damage(rows: np.ndarray) -> np.ndarray:
        return pad(28)(np.concatenate([rows[:40], -rows[40:44], rows[44:]]))

    report = compare(tmp_path, damage, (EMBEDDING,))
    assert report.exit_code == 1
    assert words(report) == {EMBEDDING: "rows negated (4 rows: 40 to 43)"}
    assert find(report).rows_appended == 28


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (pad(28, np.nan), "NaN or infinite"),
        (pad(28, 50.0), "larger than any of the base's"),
    ],
)
def test_padding_that_would_change_answers_is_a_fault(
    tmp_path: Path, change: Change, why: str
) -> None:
    report = compare(tmp_path, change, (HEAD,))
    assert report.exit_code == 1
    assert why in words(report)[HEAD]


def test_rows_at_the_end_of_what_is_no_vocabulary_are_a_fault(tmp_path: Path) -> None:
    report = compare(tmp_path, pad(28), (UP,))
    assert report.exit_code == 1
    assert words(report) == {UP: "rows appended (28 rows at the end, from row 100 on)"}


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (insert(30), "shifted (from row 30 on, 1 row inserted)"),
        (insert(0, 3), "shifted (from row 0 on, 3 rows inserted)"),
        (remove(50), "shifted (from row 50 on, 1 row deleted)"),
        (remove(10, 60), "shifted (from row 10 on, deleted: 2 rows: 10, 60)"),
        (remove(98, 99), "rows cut off (2 rows at the end, from row 98 on)"),
        (lambda w: pad(4)(insert(30)(w)), "shifted (from row 30 on, inserted: 5 rows: 30,"),
    ],
)
def test_rows_put_in_or_taken_out_are_named_with_their_index(
    tmp_path: Path, change: Change, text: str
) -> None:
    report = compare(tmp_path, change)
    assert report.exit_code == 1
    found = words(report)
    assert set(found) == {EMBEDDING, HEAD}
    assert all(one.startswith(text) for one in found.values()), found


def test_a_matrix_of_other_rows_is_only_of_another_shape(tmp_path: Path) -> None:
    report = compare(tmp_path, lambda rows: draw(128, seed=7), (EMBEDDING,))
    assert report.exit_code == 1
    assert (find(report).state, find(report).likeness) == ("shape", None)


def test_a_padded_head_of_a_model_that_ties_it_is_compared_with_the_embedding(
    tmp_path: Path,
) -> None:
    """The base stores no head; the candidate stores one, padded and stale."""
    rows = draw(100)
    save_file({EMBEDDING: torch.from_numpy(rows)}, tmp_path / "a.safetensors")
    for change, code in ((pad(28), 0), (lambda rows: pad(28)(rows + 0.3 * draw(100, seed=3)), 1)):
        other = {EMBEDDING: torch.from_numpy(pad(28)(rows)), HEAD: torch.from_numpy(change(rows))}
        # another dtype: two stored copies of one tensor are tied
        other[HEAD] = other[HEAD].half()
        save_file(other, tmp_path / "b.safetensors")
        paths = [str(tmp_path / f"{file}.safetensors") for file in "ab"]
        report = compare_tensors(*paths, TensorOptions())
        assert report.exit_code == code
    assert "stale tied head" in words(report)[HEAD]


@settings(max_examples=50, deadline=None)
@given(
    st.integers(0, 10_000),
    st.lists(st.integers(0, 59), min_size=1, max_size=6, unique=True),
    st.floats(0.0, 0.3),
)
def test_the_rows_are_found_through_what_a_quantiser_leaves(
    seed: int, gone: list[int], noise: float
) -> None:
    base = draw(60, seed=seed)
    other = np.delete(base + noise * draw(60, seed=seed + 1), gone, axis=0)
    for sides, more in (((base, other), "base"), ((other, base), "candidate")):
        found = find_row_counts(*sides)
        assert found is not None
        assert (found.more, found.rows, found.differing) == (more, tuple(sorted(gone)), 0)
