"""--track: the same verdict, exit code and run folder, whatever becomes of the tracker."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from small_world import Ran, SmallWorld, write_tasks
from wandb_server import KEY, Trouble, wandb_server

from evalguard.installation import extra_command
from evalguard.publish.sending_job import SendingLimits

Run = Callable[..., Ran]


# For what never answers, and for what is to arrive: a slow machine under load does it in that time.
SHORT = SendingLimits(start=120, init=4, finish=6)
LONG = SendingLimits(start=120, init=60, finish=120)


@pytest.fixture(autouse=True)
def short_bounds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_MODE")
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setattr("evalguard.publish.tracking.SendingLimits", lambda: SHORT)


def same_but_for_the_tracker(plain: Ran, tracked: Ran) -> list[dict[str, str]]:
    """Check that two results are one, and return what became of the second at its trackers."""
    one, other = plain.document, tracked.document
    assert plain.code == tracked.code == other["exit_code"]
    assert one.pop("tracked") == []
    sent = other.pop("tracked")
    for volatile in ("created", "command", "run_folder", "resources", "checksum"):
        one.pop(volatile), other.pop(volatile)
    assert one == other
    return sent


def test_nothing_is_sent_unasked(compare: Run, tmp_path: Path) -> None:
    found = compare("orig", "same", "--json")
    assert found.document["tracked"] == []
    assert not list(tmp_path.rglob("wandb"))


def test_the_guard_file_may_say_that_nothing_is_sent(
    run: Run, world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    guard = tmp_path / "evalguard.yaml"
    guard.write_text(world.guard.read_text().replace("run: {", "run: {track: none, "))
    found = run("compare", "--config", guard, "--base", "orig", "--cand", "same", "--json")
    assert found.document["tracked"] == []


def test_a_tracker_that_is_not_installed_changes_no_verdict(
    compare: Run, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trackio.py").write_text("raise ModuleNotFoundError('trackio')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")
    found = compare("orig", "sharp", "--track", "trackio")
    assert found.code == 1
    assert "sending figures of the run to trackio" in found.err
    shown = " ".join(found.out.split())
    assert f"trackio: not sent (it is not installed: {extra_command('trackio')})" in shown
    (folder,) = (tmp_path / "reports").iterdir()
    assert f"evalguard track reports/{folder.name} --track trackio" in shown
    again = run("track", folder, "--track", "trackio")
    assert (again.code, again.out.split(":")[0]) == (3, "trackio")
    several = run("track", folder, folder / "result.json", "--track", "trackio")
    assert (several.code, several.out.count("trackio: not sent")) == (3, 2)
    assert several.out.count(f"reports/{folder.name}:\n") == 2
    gone = run("track", folder, "reports/gone", "--track", "trackio")
    assert (gone.code, gone.out, "sending" in gone.err) == (2, "", False)
    nowhere = run("track", folder, "--track", "none")
    assert (nowhere.code, "sends the run nowhere" in nowhere.err) == (2, True)
    refused = run("track", folder)
    assert (refused.code, refused.out) == (2, "")
    assert "no tracker is configured" in refused.err


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A package without its module, which brings trackers ``lines`` and ``trackio``."""
    info = tmp_path / "site" / "broken-1.5.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(
        "[evalguard.trackers]\nlines = broken:send\ntrackio = broken:send\n"
    )
    (info.parent / "trackio.py").write_text("raise ModuleNotFoundError('trackio')")
    monkeypatch.syspath_prepend(info.parent)
    monkeypatch.setenv("PYTHONPATH", str(info.parent), prepend=":")


@pytest.mark.slow
@pytest.mark.usefixtures("broken")
def test_a_guard_file_that_was_only_found_sends_to_no_tracker_of_another_package(
    run: Run, world: SmallWorld, tmp_path: Path
) -> None:
    write_tasks(tmp_path / "tasks")
    text = world.guard.read_text().replace(str(world.tasks), "tasks")
    (tmp_path / "evalguard.yaml").write_text(text.replace("run: {", "run: {track: lines, "))
    why = "run.track names 'lines', which runs code of another package (broken:send of broken 1.5)"
    found = run("compare", "--base", "orig", "--cand", "sharp")
    assert (found.code, found.out) == (2, "")
    assert why in " ".join(found.err.split())
    assert not (tmp_path / "reports").exists()
    night = run("nightly", "-v")
    assert night.code == 1, "its verdicts stand"
    assert f"lines: not sent (evalguard.yaml: {why}" in " ".join(night.out.split())


@pytest.mark.usefixtures("broken")
def test_a_broken_tracker_of_another_package_changes_no_verdict(
    compare: Run, run: Run, tmp_path: Path
) -> None:
    found = compare("orig", "sharp", "--track", "lines")
    assert found.code == 1
    shown = " ".join(found.out.split())
    assert "lines: not sent (broken:send of broken 1.5 cannot be imported: Module" in shown
    (folder,) = (tmp_path / "reports").iterdir()
    assert f"evalguard track reports/{folder.name} --track lines" in shown
    kept = json.loads((folder / "result.json").read_text())
    assert [one["sink"] for one in kept["tracked"]] in ([], ["lines"])
    own = run("track", folder, "--track", "trackio")
    assert "evalguard's own; broken:send of broken 1.5 is not used" in own.err
    assert extra_command("trackio") in own.out
    unknown = run("track", folder, "--track", "line")
    assert (unknown.code, "did you mean 'lines'" in unknown.err) == (2, True)


@pytest.mark.slow
@pytest.mark.parametrize("asked", [False, True])
def test_documents_travel_only_where_somebody_says_so(
    run: Run, world: SmallWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: bool
) -> None:
    monkeypatch.setattr("evalguard.publish.tracking.SendingLimits", lambda: LONG)
    guard = tmp_path / "evalguard.yaml"
    said = f"run: {{track: [wandb], track_documents: {str(asked).lower()}, "
    guard.write_text(world.guard.read_text().replace("run: {", said))
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        found = run("compare", "--config", guard, "--base", "orig", "--cand", "sharp")
    assert found.code == 1, found.err
    assert ("with its documents" in found.err) is asked
    folder = next(iter((tmp_path / "reports").glob("*-vs-sharp")))
    sample = next(iter((folder / "samples").glob("*.parquet")))
    prompts = pq.read_table(sample).column("base:prompt").to_pylist()
    everything = b"".join(server.arrived.uploads.values()).decode(errors="replace")
    assert any(json.dumps(text)[1:-1] in everything for text in prompts if text) is asked
    assert any("forest" in path for path in server.arrived.uploads), "plots travel"
    assert any("table/metrics" in path for path in server.arrived.uploads), "tables travel"
    assert any(path.endswith(".parquet") for path in server.arrived.uploads) is asked


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "trouble", "state"),
    [
        ("same", Trouble(), "sent"),
        pytest.param("same", Trouble(status=401), "offline", marks=pytest.mark.nightly),
        pytest.param("same", Trouble(hangs=True), "offline", marks=pytest.mark.nightly),
        ("sharp", Trouble(status=401), "offline"),
        pytest.param("sharp", Trouble(status=429), "offline", marks=pytest.mark.nightly),
        pytest.param("sharp", Trouble(status=500), "offline", marks=pytest.mark.nightly),
        ("sharp", Trouble(hangs=True), "offline"),
        pytest.param("sharp", Trouble(drops=True), "offline", marks=pytest.mark.nightly),
        pytest.param("sharp", Trouble(drops=True, after=6), "offline", marks=pytest.mark.nightly),
    ],
)
def test_no_trouble_of_wandb_changes_the_verdict(
    compare: Run, monkeypatch: pytest.MonkeyPatch, candidate: str, trouble: Trouble, state: str
) -> None:
    plain = compare("orig", candidate, "--json")
    if state == "sent":
        monkeypatch.setattr("evalguard.publish.tracking.SendingLimits", lambda: LONG)
    with wandb_server(trouble) as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        tracked = compare("orig", candidate, "--json")
    (sent,) = same_but_for_the_tracker(plain, tracked)
    # A server that goes away later may have heard all by then.
    possible = {state, "sent"} if trouble.after else {state}
    assert sent["sink"] == "wandb"
    assert sent["state"] in possible, sent
    if sent["state"] == "offline":
        assert sent["next_command"].startswith("wandb sync reports/wandb/offline-run-")


@pytest.mark.slow
def test_what_wandb_gets_are_the_numbers_of_result_json(
    compare: Run, world: SmallWorld, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("evalguard.publish.tracking.SendingLimits", lambda: LONG)
    with wandb_server() as server:
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        guard = world.saying("track_documents: true")
        found = compare("orig", "sharp", "--config", guard, "--json").document
    (sent,) = found["tracked"]
    assert sent["state"] == "sent", sent
    arrived = server.arrived
    (step,) = arrived.history
    for one in found["comparisons"]:
        place = f"{one['task']}/{one['metric']}"
        for name in ("base", "candidate", "sigma", "p_value"):
            assert step[f"{place}/{name}"] == pytest.approx(one[name], rel=1e-12)
        assert arrived.summary[f"{place}/outcome"] == one["outcome"]
    for one in found["distributions"]:
        kl = one["kl"]["value"]
        assert step[f"{one['task']}/kl_mean"] == pytest.approx(kl, rel=1e-12)
    assert arrived.config["base"]["digest"] == found["base"]["digest"]
    kept = json.loads((Path(found["run_folder"]) / "result.json").read_text())
    assert json.loads(arrived.uploaded("/result.json")) == kept
    assert [path for path in arrived.uploads if path.endswith(".parquet")]
    table = json.loads(arrived.uploaded("media/table/moved_documents"))
    rows = [dict(zip(table["columns"], row, strict=True)) for row in table["data"]]
    assert rows
    assert all(row["prompt"] and row["base score"] for row in rows)
    assert arrived.unknown == []
