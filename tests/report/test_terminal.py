"""The terminal report: golden renderings, and no input that breaks it."""

from __future__ import annotations

import dataclasses
import shlex
import subprocess
from pathlib import Path

import pytest
from any_reports import reports, setting
from example_reports import DEMO, INF, comparison, failed, report
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.gate import Gate
from evalguard.core.scores import NotCompared
from evalguard.report import compare_terminal as table
from evalguard.report.compare_terminal import render_terminal

GOLDEN = Path(__file__).parent / "golden"
FAILED = report(failed(), comparison(metric="acc", higher_is_better=True), notes=("a note",))


@pytest.mark.parametrize(
    ("name", "shown", "width"),
    [
        ("regressed-80", DEMO, 80),
        ("regressed-60", DEMO, 60),
        ("regressed-120", DEMO, 120),
        ("failed-80", FAILED, 80),
    ],
)
def test_the_rendering_is_the_golden_one(name: str, shown: CompareReport, width: int) -> None:
    golden = (GOLDEN / f"{name}.txt").read_text(encoding="utf-8")
    assert render_terminal(shown, width=width, color=False) + "\n" == golden


def test_colour_adds_styles_and_no_text() -> None:
    plain = render_terminal(DEMO, width=80, color=False, verbose=True)
    coloured = render_terminal(DEMO, width=80, color=True, verbose=True)
    assert "\x1b" not in plain
    assert "\x1b[1;31mregressed" in coloured
    shown = Text.from_ansi(coloured).plain.splitlines()
    assert [line.rstrip() for line in shown] == plain.splitlines()


def test_colour_does_not_depend_on_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = render_terminal(DEMO, width=80, color=True, verbose=True)
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb"), ("COLUMNS", "20")):
        monkeypatch.setenv(name, value)
    assert render_terminal(DEMO, width=80, color=True, verbose=True) == expected


def test_metrics_of_one_task_stand_together_in_whatever_order_they_come() -> None:
    shown = report(*(comparison(task=task, metric=m) for m in ("p", "q") for task in ("a", "b")))
    lines = render_terminal(shown, width=80, color=False, verbose=True).splitlines()
    assert sum(line.startswith("a ·") for line in lines) == 1
    assert sum(line.startswith("b ·") for line in lines) == 1


def test_a_caveat_of_several_metrics_is_said_once() -> None:
    shown = report(
        comparison(caveats=("heavy tails",)),
        comparison(metric="acc", caveats=("heavy tails",)),
        comparison(metric="f1"),
    )
    text = render_terminal(shown, width=80, color=False, verbose=True)
    assert text.count("heavy tails") == 1
    assert " 1. lambada_openai perplexity, acc: heavy tails" in text


def test_a_named_filter_is_part_of_the_metric() -> None:
    shown = report(comparison(metric="exact_match", filter="flexible-extract"))
    assert "exact_match (flexible-extract)" in render_terminal(
        shown, width=120, color=False, verbose=True
    )


def test_names_cannot_act_on_the_terminal() -> None:
    evil = "\x1b]0;owned\x07\x1b[2J\u202e"
    shown = report(
        comparison(task=evil, metric=evil, filter=evil, caveats=(evil,)),
        failed(reason=evil, metric="b"),
        base=RunIdentity(name=evil, digest=evil, description=evil),
        candidate=RunIdentity(name=evil, digest=evil, settings=(setting(evil),)),
        notes=(evil,),
        not_compared=(NotCompared(task=evil, filter=evil, metric=evil, reason=evil),),
        command=f"evalguard compare {evil}",
        run_folder=evil,
    )
    for width in (60, 80, 140):
        text = render_terminal(shown, width=width, color=False, verbose=True)
        assert not set(text) & set("\x1b\x07\u202e")


def command_at(text: str, start: int) -> str:
    """The command that begins there, with the lines that continue it."""
    lines: list[str] = []
    for line in text[start:].split("\n"):
        lines.append(line)
        if not line.endswith("\\"):
            break
    return "\n".join(lines)


def test_a_copied_command_is_the_users_own_with_one_setting_undone() -> None:
    command = "evalguard compare --base orig --cand fla-port --config 'my guards.yaml' --limit 100"
    text = render_terminal(
        dataclasses.replace(DEMO, command=command), width=80, color=False, verbose=True
    )
    start = text.index("  evalguard compare")
    copied = command_at(text, start).replace("\\\n", " ")
    assert copied.split() == [*command.split(), "--set", "attn_scale=reference"]
    assert text[start:].splitlines()[0].endswith(" \\")


@pytest.mark.parametrize(
    "path", ["/runs/" + 30 * "nightly/" + "repaired.yaml", "/runs/it's " + 60 * "a b'c " + "é.yaml"]
)
@pytest.mark.parametrize("width", [40, 80])
def test_a_shell_reads_a_command_with_a_long_path_as_it_was(path: str, width: int) -> None:
    words = ["evalguard", "compare", "--config", path, "--base", "orig", "--cand", "port"]
    text = render_terminal(
        dataclasses.replace(DEMO, command=shlex.join(words)), width=width, color=False, verbose=True
    )
    copied = command_at(text, text.rindex("  evalguard compare"))
    assert all(cell_len(line) <= width for line in copied.split("\n"))
    ran = subprocess.run(
        ["sh", "-c", f"evalguard() {{ printf '%s\\0' evalguard \"$@\"; }}\n{copied}"],
        capture_output=True, check=True, encoding="utf-8",
    )  # fmt: skip
    assert ran.stdout.split("\0")[: len(words)] == words


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_what_a_model_is_is_said_in_full(width: int) -> None:
    about = "hf, 764,032 parameters, float32+bfloat16, on cpu"
    side = RunIdentity(name="orig", digest="a1b2c3d4e5", description=about)
    text = render_terminal(
        dataclasses.replace(DEMO, base=side), width=width, color=False, verbose=True
    )
    assert f"{about}, digest a1b2c3d4 candidate" in " ".join(text.split()).replace("orig ", "")


def test_a_long_path_in_a_command_is_broken_behind_a_folder() -> None:
    path = "/home/somebody/quantisation/.venv/lib/python3.11/site-packages/evalguard/demo.yaml"
    command = f"evalguard compare --config {path} --base orig --cand port"
    text = render_terminal(
        dataclasses.replace(DEMO, command=command), width=80, color=False, verbose=True
    )
    assert "/site-packages/evalguard/\\\ndemo.yaml \\\n" in text


@settings(max_examples=150, deadline=None)
@given(reports(), st.integers(20, 160))
def test_no_report_breaks_out_of_the_width(shown: CompareReport, width: int) -> None:
    text = render_terminal(shown, width=width, color=False, verbose=True)
    assert all(cell_len(line) <= width for line in text.split("\n"))
    assert all(character == "\n" or character.isprintable() for character in text)


@settings(max_examples=40, deadline=None)
@given(reports())
def test_any_report_can_be_coloured(shown: CompareReport) -> None:
    plain = render_terminal(shown, width=80, color=False, verbose=True)
    coloured = Text.from_ansi(render_terminal(shown, width=80, color=True, verbose=True)).plain
    assert [line.rstrip() for line in coloured.splitlines()] == plain.splitlines()


def test_infinite_and_identical_numbers_have_words_of_their_own() -> None:
    infinite = report(comparison(sigma=INF, sigma_interval=(INF, INF)))
    assert "+inf [inf, inf]" in render_terminal(infinite, width=80, color=False, verbose=True)
    identical = comparison(
        sigma=0.0, sigma_interval=(0.0, 0.0), bit_identical=True, outcome="unchanged",
        significant=False, certain=False, p_value=1.0,
    )  # fmt: skip
    shown = report(identical, gate=Gate(margin=0.5))
    assert "0 bit-identical" in render_terminal(shown, width=80, color=False, verbose=True)


def test_the_work_grows_with_the_metrics_not_with_their_square(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared, measured = [0], [0]
    equal = Comparison.__eq__

    def counted_equal(one: Comparison, other: object) -> bool:
        compared[0] += 1
        return equal(one, other)

    def counted_length(text: str) -> int:
        measured[0] += 1
        return cell_len(text)

    def work(metrics: int) -> tuple[int, int]:
        shown = report(*(comparison(task=f"task {number}") for number in range(metrics)))
        compared[0] = measured[0] = 0
        render_terminal(shown, width=80, color=False, verbose=True)
        return compared[0], measured[0]

    monkeypatch.setattr(Comparison, "__eq__", counted_equal)
    monkeypatch.setattr(table, "cell_len", counted_length)
    (few_compared, few), (many_compared, many) = work(20), work(200)
    assert many_compared <= 11 * few_compared
    assert many <= 11 * few
