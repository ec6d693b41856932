"""Answers that are none: of both models alike or of one, named from a share on, and no pass."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from answer_kinds import BROKEN, HONEST, STOPS, Document, sentence, side_of, story, write_side

import evalguard
from evalguard.comparison.checks.broken import find_broken_answers, name_broken_answers
from evalguard.core.compare_report import CompareReport
from evalguard.core.findings import Finding

N = 120


def documents_of(kind: str, n: int) -> list[Document]:
    draw = random.Random(n)
    return [HONEST[kind][0](draw, i) for i in range(n)]


def broken_texts(kind: str, documents: list[Document], share: float, seed: int = 0) -> list[str]:
    """Solutions of which a share is broken: every document up to it, in an order by chance."""
    draw = random.Random(seed)
    order = [*range(len(documents))]
    random.Random(3).shuffle(order)
    broken = set(order[: round(share * len(documents))])
    return [
        BROKEN[kind][1](draw, i) if i in broken else one.text for i, one in enumerate(documents)
    ]


def named(
    documents: list[Document],
    base: list[str],
    candidate: list[str],
    options: dict[str, Any] = STOPS,
) -> tuple[Finding, ...]:
    right = [
        [one.right if text == one.text else 0.0 for one, text in zip(documents, side, strict=True)]
        for side in (base, candidate)
    ]
    ours, theirs = (
        side_of(documents, base, options, right[0]),
        side_of(documents, candidate, options, right[1]),
    )
    return name_broken_answers(find_broken_answers((ours[0], theirs[0]), (ours[1], theirs[1])))


@pytest.mark.parametrize("n", [10, 40, 200])
@pytest.mark.parametrize("kind", HONEST)
def test_honest_answers_are_not_named(kind: str, n: int) -> None:
    documents = documents_of(kind, n)
    texts = [one.text for one in documents]
    assert named(documents, texts, texts, HONEST[kind][1]) == ()


@pytest.mark.parametrize("share", [0.2, 0.5, 1.0])
@pytest.mark.parametrize("kind", BROKEN)
def test_answers_that_both_sides_break_alike_are_named_with_both_counts(
    kind: str, share: float
) -> None:
    documents = documents_of("math", N)
    base, candidate = (broken_texts(kind, documents, share, seed) for seed in (1, 2))
    (found,) = named(documents, base, candidate)
    assert found.kind == "broken_answers"
    assert found.values["fault"] == BROKEN[kind][0]
    assert found.values["documents"] == N
    for side in ("base", "candidate"):
        count = found.values[side]
        assert isinstance(count, int)
        assert 0.7 * share * N <= count <= share * N
        assert f"{count:,} of" in found.text


@pytest.mark.parametrize("kind", BROKEN)
def test_a_few_of_both_sides_are_not_named_but_for_errors_of_a_server(kind: str) -> None:
    documents = documents_of("math", N)
    texts = broken_texts(kind, documents, 0.1)
    found = [one.values["fault"] for one in named(documents, texts, texts)]
    assert found == (["error_text"] if BROKEN[kind][0] == "error_text" else [])


@pytest.mark.parametrize("kind", BROKEN)
def test_a_tenth_of_the_candidates_alone_is_named(kind: str) -> None:
    """Another language that is mixed in, say: the base has none."""
    documents = documents_of("math", N)
    (found,) = named(documents, [one.text for one in documents], broken_texts(kind, documents, 0.1))
    assert found.values["fault"] == BROKEN[kind][0]
    assert found.values["base"] == 0
    assert "none of the base's" in found.text


@pytest.mark.parametrize(
    ("language", "mixed"),
    [
        ("Chinese", "So we add them, 然后我们把所有的苹果加起来, which makes 18."),
        ("Japanese", "So we add them, それから合計を計算します, which makes 18."),
        ("Korean", "So we add them, 그리고 모두 더합니다, which makes 18."),
        ("Russian", "So we add them, потом складываем всё вместе, which makes 18."),
        ("Arabic", "So we add them, ثم نجمع كل شيء معا, which makes 18."),
        ("Thai", "So we add them, จากนั้นเรารวมทั้งหมด, which makes 18."),
        ("Hindi", "So we add them, फिर हम सबको जोड़ते हैं, which makes 18."),
        ("German", "Wir zählen sie und dann sehen wir, dass es nicht mehr als die 18 sind."),
        ("French", "On les compte dans la maison et puis on voit que ce sont les 18 pour la fin."),
        ("Spanish", "Los contamos en la casa y luego vemos que no son más de los 18 por el día."),
    ],
)
def test_another_language_in_a_tenth_of_the_candidates_answers_is_named(
    language: str, mixed: str
) -> None:
    documents = documents_of("math", N)
    texts = [one.text for one in documents]
    changed = [f"{mixed} ({i})" if i % 10 == 7 else text for i, text in enumerate(texts)]
    (found,) = named(documents, texts, changed)
    assert found.values["fault"] in ("mixed_script", "other_language", "other_script"), language
    assert found.values["candidate"] == N // 10


def test_a_language_that_the_prompt_asks_for_is_none_that_is_mixed_in() -> None:
    draw = random.Random(1)
    documents = [
        Document(prompt=f"Say in {name}: {sentence(draw)}", target="", text=text)
        for name, text in (
            ("Russian", "Он купил много книг"),
            ("German", "Er kauft und geht in das Haus, das nicht auf dem Berg ist, mit der Frau"),
        )
        * 40
    ]
    texts = [one.text for one in documents]
    assert named(documents, texts, texts) == ()


# The candidate's end-of-text id is lost: it goes on until the limit.


def test_answers_that_go_on_behind_the_bases_whole_answer_are_named() -> None:
    documents = documents_of("letter", N)
    base = [one.text for one in documents]
    draw = random.Random(4)
    longer = [f"{text}\n\nQuestion: {story(draw, 2)}\nAnswer: B" for text in base]
    found = {one.kind: one for one in named(documents, base, longer)}["answers_go_on"]
    assert found.values["candidate"] == N
    assert "eos_token_id" in found.text
    assert "max_gen_toks" not in found.text
    honest = [f"{text} because {sentence(draw)}" for text in base]
    assert not [one for one in named(documents, base, honest) if one.kind == "answers_go_on"]


# From the files to the exit code.

NULLS: dict[str, Any] = {
    "null in a list": [[None]],
    "no repeats": [[]],
    "null": [None],
    "no request": [],
    "nothing": None,
    "NaN": [[float("nan")]],
    "null as text": [["None"]],
    "NaN as text": [["nan"]],
    "white space": [[" \n "]],
    "without width": [["\u200b\ufeff"]],
    "empty": [[""]],
}


@pytest.fixture
def compare(tmp_path: Path) -> Callable[..., tuple[int, CompareReport]]:
    """Two finished runs of given answers, compared."""

    def run(
        documents: list[Document], base: list[Any], candidate: list[Any], *right: list[float]
    ) -> tuple[int, CompareReport]:
        sides = [
            write_side(tmp_path / name, documents, answers, STOPS, scores)
            for name, answers, scores in zip(
                ("base", "cand"), (base, candidate), right, strict=True
            )
        ]
        done = evalguard.compare(str(sides[0]), str(sides[1]), write=False, quiet=True)
        return done.exit_code, done.report

    return run


Compare = Callable[..., tuple[int, CompareReport]]


@pytest.mark.parametrize("name", NULLS)
def test_null_answers_are_empty_answers(name: str, compare: Compare) -> None:
    documents, nothing = documents_of("math", N), [NULLS[name]] * N
    exit_code, report = compare(documents, nothing, nothing, [0.0] * N, [0.0] * N)
    assert exit_code == 3
    assert f"all {N} documents are empty" in report.comparisons[0].reason


def test_null_is_an_answer_where_the_task_asks_for_it(compare: Compare) -> None:
    documents = documents_of("None is right", N)
    texts = [[[one.text]] for one in documents]
    assert compare(documents, texts, texts, [1.0] * N, [1.0] * N)[0] == 0


def test_a_run_that_shows_only_what_filters_gave_has_no_empty_answers(tmp_path: Path) -> None:
    documents = documents_of("math", N)
    right = [one.right for one in documents]
    texts = [[[one.text]] for one in documents]
    sides = [write_side(tmp_path / name, documents, texts, STOPS, right) for name in "ab"]
    for side in sides:
        (file,) = side.glob("samples_*")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        file.write_text(
            "".join(
                json.dumps({k: v for k, v in row.items() if k != "resps"}) + "\n" for row in rows
            )
        )
    done = evalguard.compare(str(sides[0]), str(sides[1]), write=False, quiet=True)
    assert done.exit_code == 0


@pytest.mark.parametrize("kind", [kind for kind in BROKEN if kind != "Chinese mixed in"])
def test_nine_tenths_broken_alike_are_no_pass(kind: str, compare: Compare) -> None:
    documents = documents_of("math", N)
    sides = [broken_texts(kind, documents, 0.9, seed) for seed in (1, 2)]
    right = [
        [one.right if text == one.text else 0.0 for one, text in zip(documents, side, strict=True)]
        for side in sides
    ]
    answers = [[[[text]] for text in side] for side in sides]
    exit_code, report = compare(documents, *answers, *right)
    assert exit_code == 3
    assert report.comparisons[0].outcome == "failed"


def test_a_base_that_is_broken_leaves_nothing_to_lose_and_a_candidate_has_regressed(
    compare: Compare,
) -> None:
    documents = documents_of("math", N)
    right, whole = [one.right for one in documents], [[[one.text]] for one in documents]
    texts = broken_texts("think", documents, 0.95)
    broken = [[[text]] for text in texts]
    none = [
        one.right if text == one.text else 0.0 for one, text in zip(documents, texts, strict=True)
    ]
    exit_code, report = compare(documents, whole, broken, right, none)
    assert exit_code == 1
    (found,) = [one for one in report.findings if one.kind == "broken_answers"]
    assert (found.values["base"], found.values["candidate"]) == (0, 114)


def test_a_broken_base_beside_a_whole_candidate_is_no_pass(compare: Compare) -> None:
    documents = documents_of("math", N)
    right, whole = [one.right for one in documents], [[[one.text]] for one in documents]
    broken = [[[text]] for text in broken_texts("sorry", documents, 1.0)]
    exit_code, report = compare(documents, broken, whole, [0.0] * N, right)
    assert exit_code == 3
    assert report.comparisons[0].reason.startswith("of the base, ")


@pytest.mark.parametrize("kind", ["letter", "code", "JSON", "list", "to Russian", "poem", "chorus"])
def test_honest_answers_of_both_sides_pass(kind: str, compare: Compare) -> None:
    documents = documents_of(kind, N)
    texts, right = [[[one.text]] for one in documents], [float(i % 3 > 0) for i in range(N)]
    exit_code, report = compare(documents, texts, texts, right, right)
    assert exit_code == 0
    assert not {one.kind for one in report.findings} & {"broken_answers", "no_answer_found"}
