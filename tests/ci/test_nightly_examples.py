"""The examples of a scheduled night: valid by outside validators, and as evalguard reads them."""

from __future__ import annotations

import configparser
import os
import re
import shlex
import shutil
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
import yaml
from croniter import croniter

from evalguard.cli.nightly_command import nightly_command

ROOT = Path(__file__).parent.parent.parent
NIGHTLY = ROOT / "ci" / "nightly"
UNITS = ("evalguard-nightly.service", "evalguard-nightly.timer")
WORKFLOW = ROOT / "ci" / "github" / "nightly.yml"


def cron_line() -> str:
    lines = (NIGHTLY / "evalguard.crontab").read_text().splitlines()
    (line,) = [one for one in lines if one and not one.startswith(("#", "SHELL="))]
    return line


def unit(name: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[method-assign,assignment]
    parser.read_string((NIGHTLY / name).read_text())
    return parser


def commands() -> list[str]:
    """Every ``evalguard nightly`` of the examples, up to where the shell goes on."""
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["nightly"]["steps"]
    texts = [cron_line(), unit(UNITS[0])["Service"]["ExecStart"]]
    texts += [step["run"] for step in steps if "evalguard nightly" in step.get("run", "")]
    return [re.search(r"evalguard nightly ([^>;|&]*)", text)[1] for text in texts]  # type: ignore[index]


def test_the_crontab_runs_once_a_night() -> None:
    when = " ".join(cron_line().split()[:5])
    assert croniter.is_valid(when)
    times = croniter(when, datetime(2026, 11, 21, 12, 0))
    assert [times.get_next(datetime).isoformat() for _ in range(2)] == [
        "2026-11-22T04:30:00",
        "2026-11-23T04:30:00",
    ]


@pytest.mark.parametrize("name", ["Europe/Berlin", "America/New_York", "Asia/Kolkata", "UTC"])
def test_no_change_of_clocks_skips_or_repeats_the_crontab_s_time(name: str) -> None:
    minute, hour = map(int, cron_line().split()[:2])
    zone = ZoneInfo(name)
    for day in range(366):
        time = datetime(2026, 11, 22, hour, minute, tzinfo=zone) + timedelta(days=day)
        assert time.utcoffset() == time.replace(fold=1).utcoffset()
        assert time.astimezone(timezone.utc).astimezone(zone) == time


NIGHTS = {
    "finished": "mkdir -p reports/nightly/20261123T/run && echo 'Subject: tonight' "
    "> reports/nightly/20261123T/summary.txt; exit 1",
    "refused": "echo 'error: evalguard.yaml:3: no such key'; exit 2",
}


@pytest.mark.parametrize(
    ("night", "mail"),
    [
        ("finished", "To: team@example.org\nSubject: tonight\n"),
        (
            "refused",
            "To: team@example.org\nSubject: evalguard nightly gave no result\n\n"
            "error: evalguard.yaml:3: no such key\n",
        ),
    ],
)
def test_the_crontab_mails_tonight_s_summary_or_why_there_is_none(
    tmp_path: Path, night: str, mail: str
) -> None:
    """Never that of the night before."""
    before = tmp_path / "reports" / "nightly" / "20261122T" / "summary.txt"
    before.parent.mkdir(parents=True)
    before.write_text("Subject: yesterday\n")
    os.utime(before, (0, 0))
    programs = {"evalguard": NIGHTS[night], "sendmail": "cat > mail"}
    for name, text in programs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}\n")
        (tmp_path / name).chmod(0o755)
    line = cron_line().split(maxsplit=5)[5].replace("/opt/evalguard/bin/", f"{tmp_path}/")
    line = line.replace("/usr/sbin/", f"{tmp_path}/").replace("/srv/models", str(tmp_path))
    assert subprocess.run(["bash", "-c", line], check=False).returncode == 0
    assert (tmp_path / "mail").read_text() == mail


def test_a_regression_is_in_the_history_of_the_next_night_on_github() -> None:
    """actions/cache by itself saves nothing where a step failed, as it does then."""
    steps = yaml.safe_load(WORKFLOW.read_text())["jobs"]["nightly"]["steps"]
    used = {step["uses"].split("@")[0]: step for step in steps if "uses" in step}
    restore, save = (used[f"actions/cache/{name}"] for name in ("restore", "save"))
    assert save["if"] == "always()"
    assert save["with"]["path"] == restore["with"]["path"]
    assert save["with"]["key"] == restore["with"]["key"]
    kept = save["with"]["path"].split()
    assert {"reports/nightly/history.sqlite", "reports/nightly/*/night.json"} <= set(kept)


def test_the_shell_takes_the_line_of_the_crontab() -> None:
    line = cron_line().split(maxsplit=5)[5]
    assert "%" not in line  # cron reads it as the end of the line
    assert subprocess.run(["bash", "-n", "-c", line], check=False).returncode == 0


def test_every_command_is_one_that_evalguard_takes() -> None:
    found = commands()
    assert len(found) == 3
    for words in found:
        nightly_command.make_context("nightly", shlex.split(words), obj="")


def test_the_units_say_what_to_run_and_when() -> None:
    service, timer = map(unit, UNITS)
    assert service["Service"]["Type"] == "oneshot"
    assert timer["Timer"]["OnCalendar"] == "*-*-* 02:30:00 UTC"
    assert timer["Install"]["WantedBy"] == "timers.target"


def test_a_pair_that_hangs_or_runs_out_of_memory_costs_its_turn_and_not_the_night() -> None:
    service = unit(UNITS[0])["Service"]
    assert service["OOMPolicy"] == "continue"
    job = yaml.safe_load(WORKFLOW.read_text())["jobs"]["nightly"]
    whole = [24.0, float(service["TimeoutStartSec"].removesuffix("h")), job["timeout-minutes"] / 60]
    for words, most in zip(commands(), whole, strict=True):
        given = nightly_command.make_context("nightly", shlex.split(words), obj="").params
        assert 0.0 < given["pair_hours"] <= most / 2


def test_systemd_takes_the_units(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("no systemd here: the parser above has read them")
    for name in UNITS:
        text = (NIGHTLY / name).read_text()
        text = text.replace("/opt/evalguard/bin/evalguard", shutil.which("true") or "/bin/true")
        (tmp_path / name).write_text(text.replace("User=evalguard", "User=root"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", *(str(tmp_path / name) for name in UNITS)],
        capture_output=True,
        text=True,
        check=False,
    )
    own = [line for line in done.stderr.splitlines() if "evalguard-nightly" in line]
    assert (done.returncode, own) == (0, []), done.stderr


def test_github_takes_the_workflow() -> None:
    words = ["--builtin-schema", "vendor.github-workflows", str(WORKFLOW)]
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", *words],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for used in re.findall(r"uses: (\S+)", WORKFLOW.read_text()):
        assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40}", used), used
    schedule = yaml.safe_load(WORKFLOW.read_text())[True]["schedule"]
    assert croniter.is_valid(schedule[0]["cron"])
