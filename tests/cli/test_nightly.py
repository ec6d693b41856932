"""``evalguard nightly``: every pair of a guard file, whatever happens to any of them."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from pairs_here import PairsHere
from safetensors.torch import load_file, save_file
from small_world import Ran, SmallWorld

from evalguard.comparison.stored_run import read_stored_run
from evalguard.nights.history.history_file import HistoryFile
from evalguard.nights.night_page import night_schema
from evalguard.publish.tracked_comparison import build_tracked_run
from evalguard.store.leases import FileLock

Run = Callable[..., Ran]
Pairs = Callable[..., Path]
Here = type[PairsHere]

pytestmark = pytest.mark.usefixtures("pairs_here")


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
    found = run("nightly", "--config", guard("same", "other-vocabulary", "sharp"), "--json", "-q")
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


def test_kl_does_not_end_with_the_night_that_scored_the_base(
    run: Run, world: SmallWorld, guard: Pairs, tmp_path: Path
) -> None:
    run("compare", "--base", "orig", "--cand", "same", "--config", world.guard, "--no-write")
    text = guard("sharp").read_text()
    for gain in ("2.0", "2.5"):
        path = tmp_path / "night.yaml"
        path.write_text(text.replace("candidate: 2.0", f"candidate: {gain}"))
        run("nightly", "--config", path, "-q")
    reports = [read_stored_run(next(night.glob("*-vs-sharp"))).report for night in nights(tmp_path)]
    first, second = ([one.kl.value or 0.0 for one in report.distributions] for report in reports)
    assert [0.0] < first < second
    for report in reports:
        assert [name for name in build_tracked_run(report).charts if name.endswith("/kl_mean")]


def test_a_night_of_other_pairs_and_another_base_says_so(
    run: Run, guard: Pairs, tmp_path: Path
) -> None:
    run("nightly", "--config", guard("sharp", "same"), "-q")
    text = guard("same", "soft").read_text()
    models = tmp_path / "night.yaml"
    models.write_text(text.replace("dtype: float32", "dtype: float32, max_length: 40"))
    found = run("nightly", "--config", models, "-q")
    said = " ".join(found.out.split())
    assert "Not what it was last night, a base: orig (" in said
    assert "Not compared last night: soft against orig." in said
    assert "Not compared any more: sharp against orig (regressed last night)." in said
    document = json.loads((nights(tmp_path)[-1] / "night.json").read_text())
    jsonschema.validate(document, night_schema())
    assert document["gone"] == [{"base": "orig", "candidate": "sharp", "was": "regressed"}]


def test_a_clock_that_went_back_is_told_of(run: Run, guard: Pairs, tmp_path: Path) -> None:
    words = ("nightly", "--config", guard("same"), "-q", "--json")
    assert run(*words).document["notes"] == []
    (night,) = nights(tmp_path)
    night.rename(night.with_name("29990101T000000Z"))
    (note,) = run(*words).document["notes"]
    assert "the clock went back: there is a night 29990101T000000Z already" in note


class Died(BaseException):
    """The night is gone: nothing of evalguard's own runs any more."""


def dying(here: Here, candidate: str) -> list[str]:
    """Let the night die in the comparison of one candidate; the names that were compared."""
    compared: list[str] = []

    def noted(name: str) -> None:
        compared.append(name)
        if name == candidate:
            raise Died

    here.before = staticmethod(noted)  # type: ignore[assignment]
    return compared


def test_a_night_that_was_killed_goes_on_and_repeats_nothing(
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here
) -> None:
    config = guard("same", "soft", "sharp")
    dying(pairs_here, "soft")
    assert run("nightly", "--config", config, "-q").code == 3
    (night,) = nights(tmp_path)
    assert not (night / "night.json").exists()
    compared = dying(pairs_here, "nobody")
    document = run("nightly", "--config", config, "--json", "-q").document
    assert compared == ["sharp", "soft"]  # what it died in comes last
    assert (nights(tmp_path), document["resumed"]) == ([night], 1)
    assert [pair["state"] for pair in document["pairs"]][::2] == ["passed", "regressed"]


def test_a_pair_that_takes_the_process_down_twice_is_left_out(
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here
) -> None:
    config = guard("soft", "same")
    dying(pairs_here, "soft")
    for _ in range(2):
        assert run("nightly", "--config", config, "-q").code == 3
    document = run("nightly", "--config", config, "--json", "-q").document
    assert [pair["state"] for pair in document["pairs"]] == ["failed", "passed"]
    assert "died 2 times" in document["pairs"][0]["reason"]
    assert document["exit_code"] == 3


def test_a_pair_that_takes_every_night_down_does_not_keep_the_others_from_their_turn(
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here
) -> None:
    """A night that died is not gone on with where the next one begins a day later."""
    words = ("nightly", "--config", guard("soft", "same", "sharp"), "--resume-hours", 0, "-q")
    compared = dying(pairs_here, "soft")
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
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here
) -> None:
    config = guard("sharp", "same")

    def too_late(_: str) -> None:
        raise Died

    pairs_here.after = staticmethod(too_late)  # type: ignore[assignment]
    assert run("nightly", "--config", config, "-q").code == 3
    del pairs_here.after
    document = run("nightly", "--config", config, "--json", "-q").document
    assert [pair["state"] for pair in document["pairs"]] == ["regressed", "passed"]
    listed = run("history", "list", "--history", document["history"], "--json").document
    # Both may be of one second, in which the list has the order in which they were put in.
    assert sorted(one["candidate"] for one in listed["runs"]) == ["same", "sharp"]


def test_another_guard_file_or_an_old_night_begins_anew(
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here
) -> None:
    config = guard("same", "soft")
    dying(pairs_here, "soft")
    run("nightly", "--config", config, "-q")
    del pairs_here.before
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


def test_a_history_that_another_process_holds_costs_no_pair_its_verdict(
    run: Run, guard: Pairs, tmp_path: Path, pairs_here: Here, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is waited for once, and tried again when all verdicts are there."""
    monkeypatch.setitem(HistoryFile.__init__.__kwdefaults__, "patience", 0.1)
    words = ("nightly", "--config", guard("same", "sharp", "soft"), "-q", "--json")
    holder: list[sqlite3.Connection] = []

    def held(_: str) -> None:
        if not holder:
            history = tmp_path / "reports" / "nightly" / "history.sqlite"
            holder.append(sqlite3.connect(history, isolation_level=None))
            holder[0].execute("BEGIN IMMEDIATE")

    def freed_by_the_last(name: str) -> None:
        if name == "soft":
            holder[0].execute("ROLLBACK")

    pairs_here.after = staticmethod(held)  # type: ignore[assignment]
    never = run(*words)
    assert (never.code, [one["state"] for one in never.document["pairs"]]) == (
        1, ["passed", "regressed", "undecided"],  # acc of soft: no answer right on either side
    )  # fmt: skip
    for pair in never.document["pairs"]:
        (problem,) = pair["problems"]
        assert "another process has been writing to it all along" in problem
    mail = " ".join((nights(tmp_path)[0] / "summary.txt").read_text().split())
    assert "PROBLEM: sharp against orig: this run is not in the history: cannot write" in mail
    at_once = run(*words)
    assert (at_once.code, at_once.document["error"]["type"]) == (3, "StoreError")
    holder[0].execute("ROLLBACK")
    holder.clear()
    pairs_here.before = staticmethod(held)  # type: ignore[assignment]
    pairs_here.after = staticmethod(freed_by_the_last)  # type: ignore[assignment]
    document = run(*words).document
    assert [pair["problems"] for pair in document["pairs"]] == [[], [], []]
    listed = run("history", "list", "--history", document["history"], "--json").document
    assert sorted(one["candidate"] for one in listed["runs"]) == ["same", "sharp", "soft"]
    holder[0].close()


def test_a_candidate_without_settings_is_said_to_differ_in_what_it_differs(
    run: Run, world: SmallWorld, guard: Pairs, tmp_path: Path
) -> None:
    folder = shutil.copytree(world.models["llama"], tmp_path / "louder")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"] *= 2.0
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 1e-3}))
    text = guard("louder", run="bisect: auto").read_text()
    text = text.replace(
        "  soft:", f"  louder: {{extends: orig, model_args: {{pretrained: {folder}}}}}\n  soft:"
    )
    (tmp_path / "night.yaml").write_text(text)
    found = run("nightly", "--config", tmp_path / "night.yaml", "--json", "-q").document
    (pair,) = found["pairs"]
    assert pair["state"] == "regressed"
    why = "no settings are declared; configs differ: rms_norm_eps 1e-06 -> 0.001"
    assert pair["bisection"] == why


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
