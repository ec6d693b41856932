"""trackio and MLflow: a run read back from their local databases by their own means."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tracked_examples import example

from evalguard.publish.sending_job import SendingLimits
from evalguard.publish.tracking import send_run

pytestmark = pytest.mark.slow


def read_back(code: str) -> Any:
    """What a process prints as JSON: trackers keep threads and warn, and their own place is set."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


TRACKIO = """
import json, sqlite3, pathlib, trackio
from trackio.sqlite_storage import SQLiteStorage as storage
(name,) = storage.get_runs("evalguard")
print(json.dumps({"name": name, "logs": storage.get_logs("evalguard", name),
                  "config": storage.get_run_config("evalguard", name)}, default=str))
"""


def test_trackio_has_the_run(tmp_path: Path, bounds: SendingLimits) -> None:
    sent = send_run("trackio", example(tmp_path), folder=tmp_path, bounds=bounds)
    assert sent.state == "sent", sent.reason
    found = read_back(TRACKIO)
    assert found["name"].startswith("orig vs port-")
    (step,) = found["logs"]
    assert step["lambada/acc/sigma"] == 1.465
    assert step["state"] == "regressed"
    assert "A b" in json.dumps(step["moved_documents"])
    assert found["config"]["gate"] == {"margin": 1.0}
    assert found["config"]["job_type"] == "compare"


MLFLOW = """
import json, mlflow
(run,) = mlflow.search_runs(experiment_names=["evalguard"], output_format="list")
files = {}
for one in mlflow.artifacts.list_artifacts(run_id=run.info.run_id):
    path = mlflow.artifacts.download_artifacts(run_id=run.info.run_id, artifact_path=one.path)
    files[one.path] = open(path).read()
print(json.dumps({"name": run.info.run_name, "state": run.info.status, "metrics": run.data.metrics,
                  "params": run.data.params, "tags": run.data.tags, "files": files}))
"""


def test_mlflow_has_the_run_in_a_local_sqlite_file(tmp_path: Path, bounds: SendingLimits) -> None:
    sent = send_run("mlflow", example(tmp_path), folder=tmp_path, bounds=bounds)
    assert sent.state == "sent", sent.reason
    assert sent.place.endswith(str(tmp_path / "mlflow.db"))
    found = read_back(MLFLOW)
    assert (found["name"], found["state"]) == ("orig vs port", "FINISHED")
    assert found["metrics"]["lambada/acc/sigma"] == 1.465
    assert found["metrics"]["a b:strict-match/acc/n_used"] == 7.0, "MLflow has no star, no comma"
    assert found["params"]["gate.margin"] == "1.0"
    assert found["tags"]["group"] == "pull request 7"
    assert found["tags"]["lambada/acc/outcome"] == "regressed"
    assert found["tags"]["alert"] == "port regressed: by 1.5 sigma"
    assert found["files"]["result.json"] == '{"exit_code": 1}'
    assert found["files"]["forest.html"] == "<svg>here</svg>"
    table = json.loads(found["files"]["moved_documents.json"])
    assert table["rows"] == [{"document": 7, "prompt": "A b"}]


def test_an_mlflow_server_that_is_not_there_costs_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bounds: SendingLimits
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
    sent = send_run("mlflow", example(tmp_path), folder=tmp_path, bounds=bounds)
    assert sent.state == "failed"
    assert "127.0.0.1" in sent.reason
