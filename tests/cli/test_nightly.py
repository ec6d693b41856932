"""``evalguard nightly``: every pair of a guard file, whatever happens to any of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from small_world import Ran, SmallWorld

from evalguard.night_report import PairNight
from evalguard.pipeline.nightly import night as night_module
from evalguard.pipeline.options import CompareOptions
from evalguard.report.night.document import night_schema
from evalguard.store import FileLock

Run = Callable[..., Ran]
Pairs = Callable[..., Path]


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path) -> Pairs:
    """Write a guard file with these candidates of ``orig``."""

    def written(*candidates: str, run: str = "bisect: never", accept: str = "") -> Path:
        text = world.guard.read_text().replace("run: {bisect: never}", f"run: {{{run}}}")
        pairs = ", ".join(f"{{base: orig, cand: {one}{accept}}}" for one in candidates)
        text = text.replace("pairs: [{base: orig, cand: sharp}]", f"pairs: [{pairs}]")
        path = tmp_path / "night.yaml"
        path.write_text(text)
        return path

    return written


def nights(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "reports" / "nightly").glob("2*") if path.is_dir())


def journal(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def test_a_failing_pair_stops_no_other(run: Run, guard: Pairs, tmp_path: Path) -> None:
    found = run("nightly", "--config", guard("same", "not-a-number", "sharp"), "--json", "-q")
    document = found.document
    jsonschema.validate(document, night_schema())
    assert [pair["state"] for pair in document["pairs"]] == ["passed", "failed", "regressed"]
    assert (found.code, document["exit_code"]) == (1, 1)
    (night,) = nights(tmp_path)
    assert json.loads((night / "night.json").read_text()) == document
    for pair in document["pairs"]:
        there = pair["report"] and (night / pair["report"] / "result.json").exists()
        assert bool(there) == (pair["run_folder"] is not None)
    assert Path(document["history"]) == tmp_path / "reports" / "nightly" / "history.sqlite"
    listed = run("history", "list", "--history", document["history"], "--json").document
    compared = [pair["candidate"] for pair in document["pairs"] if pair["run_folder"]]
    assert [one["candidate"] for one in listed["runs"]] == compared


def test_the_mail_has_a_subject_and_72_columns(run: Run, guard: Pairs, tmp_path: Path) -> None:
    run("nightly", "--config", guard("same", "sharp"), "-q")
    (night,) = nights(tmp_path)
    head, empty, *body = (night / "summary.txt").read_text().splitlines()
    assert head.startswith("Subject: evalguard nightly 20")
    assert "REGRESSED, 1 new (1 regressed, 1 passed)" in head
    assert empty == ""
    assert max(len(line) for line in body if "/" not in line) <= 72
    assert "NEW: sharp against orig regressed on sw_word perplexity." in "\n".join(body)
    assert "sharp against orig" in (night / "summary.md").read_text()


def test_what_is_other_than_last_night_stands_on_top(
    run: Run, guard: Pairs, tmp_path: Path
) -> None:
    first = run("nightly", "--config", guard("same", "sharp", "soft"), "--json", "-q").document
    assert first["previous"] == ""
    second = run("nightly", "--config", guard("same", "sharp", "soft"), "--json", "-q").document
    assert second["previous"] == first["created"]
    changes = {one["candidate"]: one for one in second["changes"]}
    assert changes["same"]["was"] == "passed"
    assert [one["metric"] for one in changes["sharp"]["still"]] == ["perplexity"]
    assert changes["sharp"]["regressed"] == []
    assert "Still regressed: sharp against orig" in " ".join(
        (nights(tmp_path)[-1] / "summary.txt").read_text().split()
    )


class Died(BaseException):
    """The process is gone: nothing of evalguard's own runs any more."""


def dying(monkeypatch: pytest.MonkeyPatch, candidate: str) -> list[str]:
    """Let the process die in the comparison of one candidate; the names that were compared."""
    compared: list[str] = []
    whole = night_module.verdict_of

    def verdict_of(base: str, cand: str, options: CompareOptions) -> PairNight:
        compared.append(cand)
        if cand == candidate:
            raise Died
        return whole(base, cand, options)

    monkeypatch.setattr(night_module, "verdict_of", verdict_of)
    return compared


def test_a_night_that_was_killed_goes_on_and_repeats_nothing(
    run: Run, guard: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = guard("same", "soft", "sharp")
    dying(monkeypatch, "soft")
    assert run("nightly", "--config", config, "-q").code == 3
    monkeypatch.undo()
    (night,) = nights(tmp_path)
    assert not (night / "night.json").exists()
    monkeypatch.chdir(tmp_path)
    compared = dying(monkeypatch, "nobody")
    document = run("nightly", "--config", config, "--json", "-q").document
    assert compared == ["sharp", "soft"]  # what it died in comes last
    assert (nights(tmp_path), document["resumed"]) == ([night], 1)
    assert [pair["state"] for pair in document["pairs"]][::2] == ["passed", "regressed"]


def test_a_pair_that_takes_the_process_down_twice_is_left_out(
    run: Run, guard: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = guard("soft", "same")
    dying(monkeypatch, "soft")
    for _ in range(2):
        assert run("nightly", "--config", config, "-q").code == 3
    document = run("nightly", "--config", config, "--json", "-q").document
    assert [pair["state"] for pair in document["pairs"]] == ["failed", "passed"]
    assert "died 2 times" in document["pairs"][0]["reason"]
    assert document["exit_code"] == 3


def test_a_pair_that_takes_every_night_down_does_not_keep_the_others_from_their_turn(
    run: Run, guard: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A night that died is not gone on with where the next one begins a day later."""
    words = ("nightly", "--config", guard("soft", "same", "sharp"), "--resume-hours", 0, "-q")
    compared = dying(monkeypatch, "soft")
    codes = [run(*words).code for _ in range(2)]
    assert (codes, compared) == ([3, 3], ["soft", "same", "sharp", "soft"])
    document = run(*words, "--json").document
    assert compared[4:] == ["same", "sharp"]
    assert [pair["state"] for pair in document["pairs"]] == ["failed", "passed", "regressed"]
    assert "died 2 times" in document["pairs"][0]["reason"]
    assert len(nights(tmp_path)) == 3
    run(*words)
    assert compared[6:] == ["soft"]  # a night has finished: it gets another chance


def test_a_verdict_that_was_written_is_taken_though_the_journal_does_not_know(
    run: Run, guard: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = guard("sharp", "same")
    whole = night_module.verdict_of

    def too_late(base: str, cand: str, options: CompareOptions) -> PairNight:
        whole(base, cand, options)
        raise Died

    monkeypatch.setattr(night_module, "verdict_of", too_late)
    assert run("nightly", "--config", config, "-q").code == 3
    monkeypatch.setattr(night_module, "verdict_of", whole)
    document = run("nightly", "--config", config, "--json", "-q").document
    assert [pair["state"] for pair in document["pairs"]] == ["regressed", "passed"]
    listed = run("history", "list", "--history", document["history"], "--json").document
    assert [one["candidate"] for one in listed["runs"]] == ["sharp", "same"]


def test_another_guard_file_or_an_old_night_begins_anew(
    run: Run, guard: Pairs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = guard("same", "soft")
    dying(monkeypatch, "soft")
    run("nightly", "--config", config, "-q")
    monkeypatch.setattr(night_module, "verdict_of", lambda *_: pytest.fail("not asked"))
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    document = run("nightly", "--config", config, "--resume-hours", 0, "--json", "-q").document
    assert document["resumed"] == 0
    config.write_text(config.read_text() + "# another\n")
    assert run("nightly", "--config", config, "--json", "-q").document["resumed"] == 0
    assert len(nights(tmp_path)) == 3


def test_two_nights_at_once_are_refused_and_a_dead_one_is_not_in_the_way(
    run: Run, refused: Run, guard: Pairs, tmp_path: Path
) -> None:
    config = guard("same")
    run("nightly", "--config", config, "-q")
    root = tmp_path / "reports" / "nightly"
    assert not list(root.glob(".*lock"))
    seen: list[Path] = []
    whole = FileLock.tried

    def watched(path: Path) -> FileLock | None:
        seen.append(path)
        return whole(path)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FileLock, "tried", watched)
        run("nightly", "--config", config, "-q")
    (place,) = {path for path in seen if path.parent == root}
    held = FileLock.tried(place)
    assert held is not None
    place.write_text(json.dumps({"process": 4711, "host": "night-host", "since": "03:00"}))
    assert (
        "process 4711 on night-host, since 03:00"
        in refused(3, "nightly", "--config", config, "-q").err
    )
    held.release(remove=False)  # as the kernel does when the process is killed
    assert place.exists()
    assert run("nightly", "--config", config, "-q").code == 0


@pytest.mark.slow
def test_bisections_come_after_all_verdicts_and_name_the_guilty(
    run: Run, guard: Pairs, tmp_path: Path
) -> None:
    config = guard("sharp", "same", run="bisect: auto")
    document = run("nightly", "--config", config, "--json", "-q").document
    sharp, same = document["pairs"]
    assert (sharp["culprits"], same["bisection"]) == (["gain"], "")
    steps = [key for line in journal(nights(tmp_path)[0]) for key in line]
    order = [key for key in steps if key in ("verdict", "bisecting", "bisected")]
    assert order == ["verdict", "verdict", "bisecting", "bisected"]
    result = json.loads((Path(sharp["run_folder"]) / "result.json").read_text())
    assert [one["setting"] for one in result["bisect"]["culprits"]] == ["gain"]


def test_an_expired_waiver_is_loud(run: Run, guard: Pairs) -> None:
    accept = (
        ", accept: [{task: sw_word, metric: perplexity, up_to: 1000, until: 2000-01-01, "
        "reason: known}]"
    )
    found = run("nightly", "--config", guard("sharp", accept=accept), "-q")
    assert found.code == 1
    assert "EXPIRED WAIVER: sharp against orig" in " ".join(found.out.split())


def test_a_night_is_written_where_it_is_asked_for(run: Run, guard: Pairs, tmp_path: Path) -> None:
    files = [word for name in ("n.json", "n.md", "n.txt") for word in ("-o", name)]
    assert run("nightly", "--config", guard("same"), "-q", *files).code == 0
    assert json.loads((tmp_path / "n.json").read_text())["schema"] == "evalguard.nightly/1"
    assert "PASSED" in (tmp_path / "n.txt").read_text()
    assert (tmp_path / "n.md").read_text().startswith("### evalguard nightly")


def test_what_cannot_be_run_as_a_night_is_refused(
    refused: Run, guard: Pairs, tmp_path: Path
) -> None:
    assert "has no pairs" in refused(2, "nightly", "--config", guard()).err
    config = guard("same")
    assert "not written as junit" in refused(2, "nightly", "--config", config, "-o", "x.xml").err
    assert nights(tmp_path) == []


def test_help_names_the_history_that_nights_have_by_default(run: Run) -> None:
    said = " ".join(run("nightly", "--help").out.split())
    assert "else history.sqlite beside the nights" in said
