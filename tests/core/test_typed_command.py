"""A command that is suggested writes no file of the one that it was made of."""

from __future__ import annotations

import shlex

import click
import pytest

from evalguard.cli.bisect_command import bisect_command
from evalguard.cli.compare_command import compare_command
from evalguard.cli.trace_command import trace_command
from evalguard.core.repeat_command import (
    as_bisection,
    as_comparison,
    as_trace,
    command_to_repeat,
    traced_as_comparison,
    without_options,
)


@pytest.mark.parametrize(
    ("typed", "anew"),
    [
        ("evalguard compare --base a --cand b", "evalguard compare --base a --cand b"),
        (
            "evalguard compare --base 'a b' -o x.txt --cand b",
            "evalguard compare --base 'a b' --cand b",
        ),
        ("evalguard demo -ox.txt --output=y.md --format json -q", "evalguard demo -q"),
        ("evalguard demo --output-path out --output x", "evalguard demo --output-path out"),
        ("evalguard demo -o", "evalguard demo"),
        ("evalguard demo --json --output-path=reports", "evalguard demo"),
        ("evalguard demo --output_path reports --json --seed 3", "evalguard demo --seed 3"),
        ("evalguard demo --output-path=out --json", "evalguard demo --output-path=out"),
        ('evalguard demo "unbalanced -o x', 'evalguard demo "unbalanced -o x'),
        ("evalguard  demo", "evalguard  demo"),
        ("", ""),
    ],
)
def test_files_are_left_out_and_all_else_stays(typed: str, anew: str) -> None:
    assert command_to_repeat(typed) == anew


def test_options_go_with_their_values_and_flags_alone() -> None:
    words = ["--budget", "9", "--jobs=2", "--thorough", "--base", "a"]
    kept = without_options(words, with_value=("--budget", "--jobs"), flags=("--thorough",))
    assert kept == ["--base", "a"]


@pytest.mark.parametrize(
    ("typed", "comparison"),
    [
        (
            "evalguard bisect --config 'a b.yaml' --budget 9 --jobs=2 --thorough --base a -o x.txt",
            "evalguard compare --config 'a b.yaml' --base a",
        ),
        ("evalguard compare --base a --cand b", "evalguard compare --base a --cand b"),
        ("evalguard demo -q", "evalguard demo -q"),
        ("evalguard nightly --config f", ""),
        ("python -m pytest", ""),
        ('evalguard bisect "unbalanced', ""),
        ("", ""),
    ],
)
def test_a_bisection_is_typed_again_as_a_comparison(typed: str, comparison: str) -> None:
    assert as_comparison(typed) == comparison


@pytest.mark.parametrize(
    ("typed", "bisection"),
    [
        (
            "evalguard compare --base a --bisect never --limit=9 --threads 2 -o x.txt",
            "evalguard bisect --base a --limit=9 --threads 2",
        ),
        ("evalguard compare --base r --strict --bisect=never",
         "evalguard bisect --base r --strict"),
        ("evalguard demo --bisect never", ""),
        ("evalguard bisect --base a", ""),
        ('evalguard compare "unbalanced', ""),
        ("", ""),
    ],
)  # fmt: skip
def test_a_comparison_is_typed_again_as_a_bisection(typed: str, bisection: str) -> None:
    assert as_bisection(typed) == bisection


def test_every_option_of_a_comparison_is_one_of_a_bisection() -> None:
    def typed(command: click.Command) -> set[str]:
        return {word for one in command.params for word in (*one.opts, *one.secondary_opts)}

    words = typed(compare_command) - {"--bisect", "--chain"}
    anew = as_bisection(shlex.join(["evalguard", "compare", *sorted(words)]))
    assert set(shlex.split(anew)[2:]) <= typed(bisect_command)


@pytest.mark.parametrize(
    ("typed", "trace"),
    [
        (
            "evalguard compare --base a --cand b --limit 9 --margin 2 --set x=1 --device cpu",
            "evalguard trace --base a --cand b --set x=1 --device cpu",
        ),
        (
            "evalguard bisect --base=a --candidate 'b c' --budget 3 --trust-remote-code --json",
            "evalguard trace --base=a --candidate 'b c' --trust-remote-code",
        ),
        ("evalguard compare --base a --cand b --cand c", ""),
        ("evalguard demo", "evalguard trace --base orig --cand fla-port --config demo"),
        ("evalguard trace --base a --cand b", ""),
        ("evalguard compare --base 'a", ""),
        ("", ""),
    ],
)
def test_a_comparison_becomes_a_trace_of_its_two_models(typed: str, trace: str) -> None:
    assert as_trace(typed) == trace


def test_a_trace_becomes_a_comparison_without_its_own_documents() -> None:
    typed = "evalguard trace --base a --cand b --text x.txt --detail --tasks t --swap 2 -o a.html"
    assert traced_as_comparison(typed) == "evalguard compare --base a --cand b --tasks t"
    assert traced_as_comparison("evalguard compare --base a --cand b") == ""


def test_what_a_trace_is_typed_with_are_options_of_a_trace() -> None:
    def typed(command: click.Command) -> set[str]:
        return {word for one in command.params for word in (*one.opts, *one.secondary_opts)}

    sides = {"--base", "--cand", "--candidate"}
    words = [f"{word}=x" for word in sorted(typed(compare_command) - sides)]
    anew = as_trace(shlex.join(["evalguard", "compare", "--base=a", "--cand=b", *words]))
    assert {word.partition("=")[0] for word in shlex.split(anew)[2:]} <= typed(trace_command)
