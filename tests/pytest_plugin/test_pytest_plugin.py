"""The plugin in a pytest of its own: marker, fixture, options, summary; no cost if unused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import evalguard
from evalguard.comparison.result import CompareResult
from evalguard.core.compare_report import CompareReport, RunIdentity
from evalguard.core.comparison import Comparison
from evalguard.core.exit_code import decide_exit_code
from evalguard.core.gate import Gate
from evalguard.errors import EvaluationError

ROOT = Path(__file__).parent.parent.parent
Run = Callable[..., pytest.RunResult]
PLUGIN = ("-p", "evalguard.pytest_plugin")

KINDS: dict[str, tuple[Any, float, tuple[float, float]]] = {
    "good": ("unchanged", 0.0, (-0.2, 0.2)),
    "bad": ("regressed", 2.0, (1.5, 2.5)),
    "unsure": ("undecided", 0.5, (-1.0, 2.0)),
}


def compared(base: str, candidate: str, **options: Any) -> CompareResult:
    """Run no model: what a candidate is like is its name. What was asked for is printed."""
    print("asked", base, candidate, sorted((k, str(v)) for k, v in options.items()))
    if candidate == "broken":
        raise EvaluationError("the model is not there", hint="give a path")
    if candidate == "hostile":
        raise EvaluationError("\x1b[2Jno\n::add-mask::x --token abc9", hint="password=abc9\x07")
    outcome, sigma, interval = KINDS[candidate]
    one = Comparison(
        task="lambada", filter="none", metric="perplexity", higher_is_better=False, n=9, n_used=9,
        base=4.1, base_stderr=0.1, candidate=4.2, candidate_stderr=0.1, sigma=sigma,
        sigma_interval=interval, paired_stderr=0.1, method="paired-t",
        p_value=1e-9 if outcome == "regressed" else 0.5,
        confidence=0.95, false_alarm_probability=0.1, outcome=outcome, significant=sigma > 1,
        certain=sigma > 1, bit_identical=False, reason="as it is",
    )  # fmt: skip
    gate = Gate().judge((one,))
    return CompareResult(
        CompareReport(
            base=RunIdentity(name=base, digest="1"),
            candidate=RunIdentity(name=candidate, digest="2"),
            comparisons=(one,),
            gate=gate,
            created="2026-11-20T11:00:00Z",
            exit_code=decide_exit_code(gate, strict=options.get("strict", False), git_bisect=False),
        )
    )


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run tests with this plugin alone, and with comparisons that run no model."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    # Not setattr: that would import the real one first, to put it back.
    monkeypatch.setitem(vars(evalguard), "compare", compared)

    def ran(source: str, *words: str) -> pytest.RunResult:
        pytester.makepyfile(f"import pytest\n{source}")
        return pytester.runpytest_inprocess(*PLUGIN, "--strict-markers", *words)

    return ran


MARKED = """
@pytest.mark.evalguard("orig", "good", limit=5)
def test_good(evalguard):
    assert evalguard.result.passed

@pytest.mark.evalguard("orig", candidate="bad")
def test_bad():
    print("the body ran")

@pytest.mark.evalguard("orig", "unsure")
class TestUnsure:
    def test_it(self): ...

@pytest.mark.evalguard("orig", "broken")
def test_broken(): ...
"""


def test_a_marked_test_fails_unless_its_candidate_passes_the_gate(run: Run) -> None:
    ran = run(MARKED, "-rA")
    ran.assert_outcomes(passed=2, failed=2)
    text = ran.stdout.str()
    assert "the body ran" not in text
    assert "REGRESSED: lambada perplexity" in text
    assert "no verdict: the model is not there" in text
    assert "hint: give a path" in text
    assert "Traceback" not in text


def test_an_error_shows_no_secret_and_drives_no_terminal(run: Run) -> None:
    source = '@pytest.mark.evalguard("orig", "hostile")\ndef test_it(): ...\n'
    ran = run(source, "-rA", "--junitxml=tests.xml")
    ran.assert_outcomes(failed=1)
    written = Path("tests.xml").read_text()
    for text in (ran.stdout.str(), written):
        assert "--token ***" in text
        assert "abc9" not in text
        assert "\x1b[2J" not in text
        assert "\x07" not in text


def test_the_summary_has_a_line_for_each_comparison(run: Run) -> None:
    lines = run(MARKED).stdout.lines
    start = next(
        i for i, line in enumerate(lines) if line.startswith("===") and "evalguard" in line
    )
    told = [line for line in lines[start + 1 :] if "against" in line]
    assert [line.split("  ")[0].split("::")[-1] for line in told] == [
        "test_it",
        "test_bad",
        "test_good",
    ]
    assert "bad against orig: REGRESSED" in told[1]


def test_the_fixture_compares_and_lets_the_test_decide(run: Run) -> None:
    ran = run(
        """
from evalguard.errors import EvaluationError

def test_sigma(evalguard):
    result = evalguard.compare("orig", "bad")
    assert result.comparisons[0].sigma == 2.0
    assert evalguard.result is None

def test_check(evalguard):
    evalguard.check("orig", "good")
    with pytest.raises(pytest.fail.Exception):
        evalguard.check("orig", "bad")

def test_nothing_is_known(evalguard):
    with pytest.raises(EvaluationError):
        evalguard.compare("orig", "broken")
"""
    )
    ran.assert_outcomes(passed=3)


def test_options_of_the_command_line_win_and_the_rest_is_for_tests(
    run: Run, pytester: pytest.Pytester
) -> None:
    pytester.makeini("[pytest]\nevalguard_config = guard.yaml\n")
    first = run(MARKED, "-rA", "-k", "test_good").stdout.str()
    assert f"('config', '{pytester.path}/guard.yaml'), ('history', 'none'), ('limit', '5')" in first
    assert "('track', \"('none',)\")" in first
    words = ("--evalguard-config=x.yaml", "--evalguard-limit=7", "--evalguard-cache=c")
    second = run(MARKED, "-rA", "-k", "test_good", *words, "--evalguard-output=o").stdout.str()
    told = "('cache_dir', 'c'), ('config', 'x.yaml'), ('history', 'none'), ('limit', '7.0'), "
    assert f"{told}('output_path', 'o')" in second


def test_undecided_passes_unless_strict(run: Run) -> None:
    run(MARKED, "-k", "TestUnsure").assert_outcomes(passed=1, deselected=3)
    run(MARKED, "-k", "TestUnsure", "--evalguard-strict").assert_outcomes(failed=1, deselected=3)


def test_skipping_leaves_other_tests_alone(run: Run) -> None:
    ran = run(MARKED + "\ndef test_other(): ...", "--evalguard-skip")
    ran.assert_outcomes(passed=1, skipped=4)


@pytest.mark.parametrize(
    "source",
    [
        '@pytest.mark.evalguard("orig")\ndef test_it(): ...',
        '@pytest.mark.evalguard("orig", "good", base="x")\ndef test_it(): ...',
        "import unittest\n"
        '@pytest.mark.evalguard("orig", "good")\n'
        "class TestOld(unittest.TestCase):\n    def test_it(self): ...",
    ],
)
def test_a_mark_that_could_not_be_heeded_is_an_error(run: Run, source: str) -> None:
    ran = run(source)
    assert ran.ret == pytest.ExitCode.USAGE_ERROR
    assert "the evalguard marker" in ran.stderr.str() + ran.stdout.str()


def test_unused_it_imports_nothing_but_pytest() -> None:
    code = (
        "import pytest, sys; before = set(sys.modules)\n"
        "import evalguard.pytest_plugin\n"
        "new = set(sys.modules) - before - {'evalguard', 'evalguard.pytest_plugin'}\n"
        "assert not new, new"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_it_is_an_entry_point_of_the_package() -> None:
    entry = '[project.entry-points.pytest11]\nevalguard = "evalguard.pytest_plugin"\n'
    assert entry in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_real_models_under_xdist(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    options = 'tasks=["evalguard_rolling"], limit=16, bisect="never"'
    pytester.makepyfile(
        f"""
import pytest

@pytest.mark.evalguard("orig", "orig", {options})
def test_same(evalguard):
    assert evalguard.result.comparisons[0].bit_identical

@pytest.mark.evalguard("orig", "fla-port", {options})
def test_port(): ...
"""
    )
    demo = str(ROOT / "configs/demo.yaml")
    ran = pytester.runpytest_subprocess(
        *PLUGIN, "-p", "xdist.plugin", "-n", "2",
        f"--evalguard-config={demo}", f"--evalguard-cache={pytester.path / 'cache'}",
    )  # fmt: skip
    ran.assert_outcomes(passed=1, failed=1)
    assert sum("against orig" in line for line in ran.stdout.lines) == 2
