"""The demo as a user runs it: a real drift with real causes, and exit code 1."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from small_world import run_here

import evalguard
from evalguard.comparison.listing import find_demo_guard

# The last one costs something on whole texts alone, where lm-eval reads BOS given BOS.
GUILTY = ("attn_scale", "rope_theta", "final_softcap")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def searched(cache: Path) -> evalguard.CompareResult:
    """The demo with its bisection, as its command runs it."""
    return demo(cache, bisect="auto")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("demo-cache")


def demo(cache: Path, **given: object) -> evalguard.CompareResult:
    options = {"config": find_demo_guard(), "cache_dir": cache, "write": False, "quiet": True,
               "bisect": "never", **given}  # fmt: skip
    return evalguard.compare("orig", "fla-port", **options)


def last_word(result: evalguard.CompareResult, metric: str) -> evalguard.core.comparison.Comparison:
    (found,) = (
        c for c in result.comparisons if (c.task, c.metric) == ("evalguard_lastword", metric)
    )
    return found


def test_the_port_is_worse_by_one_to_three_sigma_on_the_last_word(
    searched: evalguard.CompareResult,
) -> None:
    perplexity, accuracy = last_word(searched, "perplexity"), last_word(searched, "acc")
    assert searched.exit_code == 1
    assert perplexity.n >= 2_000
    assert perplexity.base is not None
    assert perplexity.base <= 10
    assert accuracy.base is not None
    assert accuracy.base >= 0.5
    assert perplexity.outcome == "regressed"
    assert perplexity.sigma is not None
    assert 1 < perplexity.sigma < 3
    assert perplexity.significant
    assert len(searched.report.candidate.settings) >= 8


def test_the_readme_shows_the_screen_of_the_demo_in_an_empty_folder(
    searched: evalguard.CompareResult,
    cache: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    page = (Path(__file__).parent.parent / "README.md").read_text("utf-8")
    line, _, screen = re.findall(r"```console\n\$ (.*?)```", page, re.DOTALL)[0].partition("\n")
    screen, _, code = screen.partition("$ echo $?\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(cache))
    monkeypatch.setenv("COLUMNS", "80")
    ran = run_here(shlex.split(line)[1:], capfd)
    assert of_any_time(ran.out) == of_any_time(screen)
    assert ran.code == int(code)


def of_any_time(screen: str) -> str:
    """A screen, whenever its run began."""
    return re.sub(r"reports/\w+-", "reports/TIME-", screen)


@pytest.mark.nightly
def test_each_guilty_setting_costs_something_and_all_others_together_nothing(
    cache: Path,
) -> None:
    names = [setting.name for setting in demo(cache, limit=2).report.candidate.settings]

    def only(*active: str) -> evalguard.core.comparison.Comparison:
        back = {name: "reference" for name in names if name not in active}
        result = demo(cache, tasks="evalguard_lastword", cand_set=back)
        return last_word(result, "perplexity")

    for name in GUILTY[:2]:
        drift = only(name)
        assert drift.sigma is not None
        assert drift.sigma > 0.5
        assert drift.significant
    harmless = only(*(name for name in names if name not in GUILTY))
    assert not harmless.significant
    assert harmless.outcome in ("unchanged", "improved")


@pytest.mark.nightly
def test_with_every_setting_back_at_its_reference_the_port_is_the_original(cache: Path) -> None:
    names = [setting.name for setting in demo(cache, limit=2).report.candidate.settings]
    result = demo(cache, cand_set=dict.fromkeys(names, "reference"))
    assert result.exit_code == 0
    assert all(comparison.bit_identical for comparison in result.comparisons)


def test_the_demo_names_exactly_the_guilty_settings_and_what_it_cost(
    searched: evalguard.CompareResult,
) -> None:
    found = searched.report.bisect
    assert found is not None
    assert sorted(culprit.setting for culprit in found.culprits) == sorted(GUILTY)
    assert found.status == "minimal"
    assert found.repaired is not None
    assert found.repaired.passed
    assert sorted(found.repaired.reset) == sorted(GUILTY)
    assert 0.0 < found.evaluations < len(found.searches[0].settings)
