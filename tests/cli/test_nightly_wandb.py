"""A night at W&B, by a small local server: one group, one report; an outage changes no verdict."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_world import Ran, SmallWorld
from wandb_server import KEY, Trouble, WandbServer, wandb_server

from evalguard.core.tracked_run import Sent
from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import sync_command

Run = Callable[..., Ran]
Serve = Callable[..., WandbServer]

# For what never answers; for what is to arrive, which a slow machine under load does in that time;
# and for a night that has both.
SHORT = SendingLimits(start=120, init=4, finish=6)
LONG = SendingLimits(start=120, init=60, finish=120)
BOTH = SendingLimits(start=120, init=12, finish=20)

pytestmark = pytest.mark.usefixtures("pairs_here")


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Serve]:
    """Start a server that nights of this process are sent to."""
    running = []

    def started(trouble: Trouble, bounds: SendingLimits) -> WandbServer:
        monkeypatch.setattr("evalguard.publish.tracking.SendingLimits", lambda: bounds)
        running.append(wandb_server(trouble))
        server = running[-1].__enter__()
        monkeypatch.setenv("WANDB_BASE_URL", server.url)
        monkeypatch.setenv("WANDB_API_KEY", KEY)
        return server

    monkeypatch.delenv("WANDB_MODE", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    yield started
    for one in running:
        one.__exit__(None, None, None)


@pytest.fixture
def guard(world: SmallWorld, tmp_path: Path) -> Path:
    """Four pairs; one of them has no model."""
    names = ("same", "sharp", "gone", "soft")
    pairs = ", ".join(f"{{base: orig, cand: {name}}}" for name in names)
    text = world.guard.read_text().replace(
        "pairs: [{base: orig, cand: sharp}]", f"pairs: [{pairs}]"
    )
    path = tmp_path / "night.yaml"
    path.write_text(
        text.replace(
            "models:\n",
            f"models:\n  gone: {{model_args: {{pretrained: {tmp_path / 'no-model'}}}}}\n",
            1,
        )
    )
    return path


def told(document: dict[str, object]) -> list[tuple[object, ...]]:
    """What stays the same whatever becomes of the trackers."""
    keys = ("base", "candidate", "state", "exit_code", "reason", "metrics")
    return [tuple(pair[key] for key in keys) for pair in document["pairs"]]  # type: ignore[attr-defined]


@pytest.mark.slow
def test_a_night_is_one_group_of_runs_and_one_report_that_links_them(
    run: Run, guard: Path, serve: Serve, world: SmallWorld
) -> None:
    server = serve(Trouble(), LONG)
    found = run("nightly", "--config", guard, "-q")
    arrived = server.arrived
    assert arrived.runs, found.out + found.err
    rows = map(json.loads, (world.tasks / "test.jsonl").read_text().splitlines())
    texts = [row["text"] for row in rows if len(row["text"].split()) > 4]
    assert not [text for text in texts if text in repr(arrived)], "words of documents were sent"
    by_name = {one["displayName"]: one for one in arrived.runs.values()}
    assert set(by_name) == {"orig vs same", "orig vs sharp", "orig vs soft"}
    (night,) = (path for path in Path("reports/nightly").glob("2*") if path.is_dir())
    assert {one["groupName"] for one in by_name.values()} == {night.name}
    assert {one["jobType"] for one in by_name.values()} == {"nightly"}
    (view,) = arrived.views
    (table, *_) = [
        block["content"]
        for block in json.loads(view["spec"])["blocks"]
        if block["type"] == "markdown-block"
    ]
    told_of = table.splitlines()[2:]
    assert told_of[0].startswith("| [orig vs sharp](http")
    assert "**regressed**" in told_of[0]
    assert told_of[1].startswith("| orig vs gone | **no result** | ")
    assert found.out.count("W&B: http") == 4
    assert "wandb sync" not in found.out
    assert arrived.unknown == []


@pytest.mark.nightly
def test_an_outage_in_the_middle_of_a_night_keeps_the_rest_and_says_once_how_to_send_it(
    run: Run, guard: Path, serve: Serve
) -> None:
    plain = run("nightly", "--config", guard, "-q", "--track", "none")
    before = json.loads(next(Path("reports/nightly").glob("2*/night.json")).read_text())
    server = serve(Trouble(hangs=True, runs=1), BOTH)
    found = run("nightly", "--config", guard, "-q")
    (folder,) = {path.parent for path in Path("reports/nightly").glob("2*/wandb")}
    after = json.loads((folder / "night.json").read_text())
    assert (found.code, told(after)) == (plain.code, told(before))
    assert server.arrived.complete == [0]
    kept = list((folder / "wandb").glob("offline-run-*"))
    assert len(kept) == 2
    assert found.out.count("W&B: kept offline") == 2
    assert found.out.count("wandb sync") == 1
    place = folder.relative_to(Path.cwd()) if folder.is_absolute() else folder
    assert f"  wandb sync {place}/wandb/offline-run-*" in found.out


@pytest.mark.slow
def test_a_server_that_failed_twice_is_not_waited_for_again(
    run: Run, guard: Path, serve: Serve
) -> None:
    server = serve(Trouble(status=401), SHORT)
    found = run("nightly", "--config", guard, "-q")
    asked = server.arrived.requests
    shown = " ".join(found.out.split())
    assert "soft against orig: W&B: kept offline (not tried: the 2 before it failed)" in shown
    assert found.out.count("wandb sync") == 1
    assert "the night:" not in found.out
    assert server.arrived.requests == asked


def offline(place: str) -> Sent:
    return Sent(sink="wandb", state="offline", place=place, next_command=f"wandb sync {place}")


def test_one_command_sends_all_that_was_kept() -> None:
    assert sync_command([]) == ""
    assert sync_command([Sent(sink="wandb", state="sent", place="https://x")]) == ""
    assert (
        sync_command([offline("a b/wandb/offline-run-1")]) == "wandb sync 'a b/wandb/offline-run-1'"
    )
    two = [offline("a b/wandb/offline-run-1"), offline("a b/wandb/offline-run-2")]
    assert sync_command(two) == "wandb sync 'a b/wandb'/offline-run-*"
