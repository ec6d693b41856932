"""A worker scores exactly as its model does here, and every way to fail is one clear error."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from fake_worker import BLOCK_TOKENS, FakeScorer

import evalguard
from evalguard.core.scorer import (
    Request,
    Response,
    Scorer,
    ScoringPolicy,
    check_unchanged,
    count_cached_tokens,
)
from evalguard.core.settings import Setting, Target, Variant
from evalguard.errors import (
    BuildError,
    EvaluationError,
    GuardFileError,
    SettingError,
    UsageError,
    WorkerError,
)
from evalguard.worker import client
from evalguard.worker import client as line
from evalguard.worker.client import WorkerConnection, WorkerScorer
from evalguard.worker.process import worker_command

HERE = Path(__file__).parent
CHECKOUT = Path(evalguard.__file__).parent.parent
VARIANT = Variant(
    name="port",
    model="fake",
    model_args={"pretrained": "nowhere", "scale": 0.1},
    settings=(Setting(name="s", reference=1, candidate=2, target=Target.parse("config.s")),),
    assignment={"s": 2},
)


def request(text: str, task: str = "fine", doc_id: int = 0) -> Request:
    arguments = (text, " end")
    return Request(task=task, doc_id=doc_id, index=0, kind="loglikelihood", arguments=arguments)


@pytest.fixture
def python(tmp_path: Path) -> str:
    """An "interpreter" that runs the fake worker, with the arguments of the real one."""
    script = tmp_path / "fake-python"
    script.write_text(
        "#!/bin/sh\n"
        f"PYTHONPATH='{CHECKOUT}' exec '{sys.executable}' -u '{HERE / 'fake_worker.py'}' \"$@\"\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    return str(script)


Open = Callable[..., WorkerScorer]


@pytest.fixture
def open_worker(tmp_path: Path, python: str) -> Iterator[Open]:
    opened = []

    def start(variant: Variant = VARIANT, **options: Any) -> WorkerScorer:
        options = {"log": tmp_path / "logs" / "w.log", "python": python, **options}
        scorer = WorkerScorer(variant, ScoringPolicy(), cache_dir=tmp_path, **options)
        opened.append(scorer)
        return scorer

    yield start
    for scorer in opened:
        with contextlib.suppress(BuildError):
            scorer.close()


@pytest.fixture
def connected(tmp_path: Path, python: str) -> Iterator[tuple[WorkerScorer, WorkerConnection]]:
    """A worker that has loaded, and the connection to it, whose limits may be short from now on:
    it may take longer to start."""
    connection = WorkerConnection("port", python=python, env={}, log=tmp_path / "w.log")
    scorer = WorkerScorer.over(connection)
    try:
        scorer.load(VARIANT, ScoringPolicy(), cache_dir=tmp_path)
        yield scorer, connection
    finally:
        scorer.close()


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    def state() -> tuple[int, int]:
        return len(os.listdir("/dev/fd")), threading.active_count()

    def children() -> set[int]:  # those that nobody has reaped included
        return {child.pid for child in psutil.Process().children()}

    (files, threads), family = state(), children()
    yield
    assert children() <= family
    # The open_worker fixture was set up after this one, so its workers are closed by now.
    files_now, threads_now = state()
    assert files_now <= files  # the collector may have closed some of others
    assert threads_now <= threads


def gone(pid: int) -> bool:
    """Return whether a process has ended; one that nobody has reaped yet has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    status = Path(f"/proc/{pid}/stat")
    try:
        return status.read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return Path("/proc").exists()


def wait_until_gone(pid: int, seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not gone(pid):
        assert time.monotonic() < deadline, f"process {pid} still runs"
        time.sleep(0.05)


def test_a_worker_gives_the_same_answers_as_its_scorer_here(
    open_worker: Open, tmp_path: Path
) -> None:
    here = FakeScorer(VARIANT, ScoringPolicy(), tmp_path)
    there: Scorer = open_worker()
    requests = [request(text, doc_id=i) for i, text in enumerate(["", "é😀", "\ud83d\ude00", "a"])]
    assert replace(there.describe(), environment={}) == replace(here.describe(), environment={})
    assert there.encode(requests) == here.encode(requests)
    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "é"}]
    for prompt in (True, False):
        assert there.render_chat(chat, prompt) == here.render_chat(chat, prompt)
    got, wanted = there.score(requests), here.score(requests)
    assert [bare(r) for r in got] == [bare(r) for r in wanted]
    assert there.score([]) == []


def test_what_an_engine_says_of_its_cache_arrives_and_so_does_that_it_says_nothing(
    open_worker: Open,
) -> None:
    there: Scorer = open_worker()
    assert count_cached_tokens(there) is None
    there.score([request("a"), request("b")])
    assert count_cached_tokens(there) == 2


def test_a_client_of_a_server_asks_again_in_its_process(
    open_worker: Open,
) -> None:
    client = open_worker()
    client.score([request("a"), request("b")])
    check_unchanged(client)
    client.score([request("c")])
    with pytest.raises(EvaluationError, match="changed while it was asked"):
        check_unchanged(client)


def bare(response: Response) -> tuple[object, ...]:
    assert response.token_logprobs is not None
    return (
        np.float64(response.loglikelihood or 0.0).tobytes(),
        response.token_logprobs.tobytes(),
        replace(response, loglikelihood=None, token_logprobs=None),
    )


@pytest.mark.slow
def test_fifty_megabytes_travel_both_ways(open_worker: Open) -> None:
    scorer = open_worker()
    block = [request("x" * 5_000_000 + str(i), task="block", doc_id=i) for i in range(10)]
    responses = scorer.score(block)
    assert sum(r.token_logprobs.nbytes for r in responses if r.token_logprobs is not None) > 50e6
    assert all(r.n_tokens == BLOCK_TOKENS for r in responses)
    assert [r.text for r in responses] == [q.arguments[0] for q in block]


@pytest.mark.parametrize(
    ("task", "kind", "message", "hint", "code"),
    [
        ("usage", UsageError, "no such thing", "ask for another", 2),
        ("setting", SettingError, "it did not take", "look again", 3),
        ("guard", GuardFileError, "guard.yaml:3: bad key", "see init", 2),
        ("unknown-subclass", SettingError, "deeper", "", 3),
        ("zero", EvaluationError, "model 'port': ZeroDivisionError: ", "the traceback is in", 3),
        ("missing-file", EvaluationError, "FileNotFoundError: ", "the traceback is in", 3),
        ("memory", EvaluationError, "model 'port': MemoryError", "the traceback is in", 3),
    ],
)
def test_what_a_model_raises_arrives_and_the_worker_goes_on(
    open_worker: Open, task: str, kind: type[Exception], message: str, hint: str, code: int
) -> None:
    scorer = open_worker()
    with pytest.raises(kind) as caught:
        scorer.score([request("a", task=task)])
    assert type(caught.value) is kind
    assert message in str(caught.value)
    assert getattr(caught.value, "hint", "").startswith(hint)
    assert getattr(caught.value, "exit_code", None) == code
    assert "Traceback" not in str(caught.value)
    assert len(scorer.score([request("a")])) == 1


def test_the_traceback_of_an_unexpected_exception_is_in_the_log(
    open_worker: Open, tmp_path: Path
) -> None:
    with pytest.raises(EvaluationError, match="ZeroDivisionError"):
        open_worker().score([request("a", task="zero")])
    assert "Traceback (most recent call last)" in (tmp_path / "logs" / "w.log").read_text()


def test_an_answer_that_cannot_travel_is_an_error_that_says_where(open_worker: Open) -> None:
    scorer = open_worker()
    with pytest.raises(EvaluationError, match=r"responses\[0\].token_logprobs: expected an array"):
        scorer.score([request("a", task="float32")])
    assert len(scorer.score([request("a")])) == 1


def test_a_request_that_cannot_travel_is_an_error_and_the_worker_goes_on(open_worker: Open) -> None:
    scorer = open_worker()
    odd = replace(request("a"), arguments=(object(),))  # type: ignore[arg-type]
    with pytest.raises(EvaluationError, match=r"requests\[0\].arguments\[0\]: expected a JSON"):
        scorer.score([odd])
    assert len(scorer.score([request("a")])) == 1


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("sys.exit", "exited with code 4 while scoring 1 requests of task 'sys.exit'"),
        ("os._exit", "exited with code 3"),
        ("sigkill", r"was killed by SIGKILL \(out of memory\?\)"),
        ("sigsegv", "was killed by SIGSEGV"),
        ("spoil", "sent what is not a frame: b'Loading checkpoint shards: 100%'"),
        ("huge", "announced a frame of 4,294,967,295 bytes"),
        ("leave-with-child", "exited with code 5"),
        ("shut", "while scoring(.|\n)*cannot reach the process that started it"),
        ("too-few", "gave 0 answers to 1 requests"),
    ],
)
def test_a_worker_that_dies_or_sends_garbage_is_an_error_with_its_log(
    open_worker: Open, tmp_path: Path, task: str, message: str
) -> None:
    scorer = open_worker()
    with pytest.raises(WorkerError, match=message) as caught:
        scorer.score([request("a", task=task)])
    assert caught.value.exit_code == 3
    assert caught.value.log == str(tmp_path / "logs" / "w.log")
    assert caught.value.log in str(caught.value)
    assert gone(scorer.pid)
    with pytest.raises(WorkerError, match="the worker of model 'port' has ended"):
        scorer.score([request("a")])
    scorer.close()


def test_the_message_carries_the_last_ten_lines_of_the_log(open_worker: Open) -> None:
    with pytest.raises(WorkerError) as caught:
        open_worker().score([request("a", task="many-lines")])
    lines = caught.value.quotes[0].text.splitlines()
    assert lines == [f"line {i}" for i in range(20, 30)]
    assert "line 19" not in lines


def test_the_log_of_an_earlier_worker_is_kept_but_not_shown(
    open_worker: Open, tmp_path: Path
) -> None:
    log = tmp_path / "w.log"
    log.write_text("of an earlier worker\n")
    with pytest.raises(WorkerError) as caught:
        open_worker(log=log).score([request("a", task="os._exit")])
    assert caught.value.quotes[0].text == "last words"
    assert log.read_text() == "of an earlier worker\nlast words\n"


def test_escape_sequences_of_the_log_do_not_reach_the_terminal(open_worker: Open) -> None:
    with pytest.raises(WorkerError) as caught:
        open_worker().score([request("a", task="escape")])
    assert caught.value.quotes[0].text.endswith("?[31mred?")


def test_what_a_library_prints_is_in_the_log_and_does_no_harm(
    open_worker: Open, tmp_path: Path
) -> None:
    scorer = open_worker()
    assert len(scorer.score([request("a", task="print")])) == 1
    logged = (tmp_path / "logs" / "w.log").read_bytes()
    assert b"EVGF progress 100%" in logged
    assert b"from a child" in logged


@pytest.mark.slow
def test_a_stopped_worker_is_killed_after_the_heartbeat_timeout(connected: Any) -> None:
    scorer, connection = connected
    connection.silence = 1.5
    with pytest.raises(WorkerError, match=r"gave no sign of life for 1.5 s") as caught:
        scorer.score([request("a", task="sigstop")])
    assert ", in " not in str(caught.value)  # it cannot tell, and nobody waits long for that
    assert gone(scorer.pid)


def test_a_worker_that_is_alive_but_never_answers_is_killed_after_the_call_timeout(
    connected: Any,
) -> None:
    scorer, connection = connected
    connection.timeout = 3.0
    with pytest.raises(WorkerError, match=r"gave no answer within 3 s.*\d heartbeats") as caught:
        scorer.score([request("a", task="sleep")])
    assert "run: {timeout: SECONDS}" in caught.value.hint
    first_line = str(caught.value).splitlines()[0]
    assert re.search(
        r"scoring 1 requests.*, in <lambda> \(.*fake_worker.py, line \d+\); ", first_line
    )
    assert caught.value.quotes[0].text.endswith("asleep")  # its own words, not the stack
    assert gone(scorer.pid)


@pytest.mark.slow
def test_a_long_call_with_heartbeats_is_no_error(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    scorer = open_worker(replace(VARIANT, model="close-hangs"), heartbeat_timeout=3.0)
    monkeypatch.setattr(client, "CLOSE_TIMEOUT", 4.0)
    started = time.monotonic()
    scorer.close()
    assert time.monotonic() - started >= 4.0  # it was the close timeout, not the heartbeat's
    assert gone(scorer.pid)


@pytest.mark.parametrize(
    ("model", "kind", "message"),
    [
        ("usage", UsageError, "no such thing"),
        ("zero", EvaluationError, "ZeroDivisionError"),
        ("os._exit", WorkerError, "exited with code 3 while loading the model.*\nlast words"),
        ("sigkill", WorkerError, "SIGKILL .* while loading the model"),
        ("spoil", WorkerError, "sent what is not a frame"),
    ],
)
def test_a_failure_to_load_is_the_same_error_and_ends_the_worker(
    open_worker: Open, model: str, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind, match=message):
        open_worker(replace(VARIANT, model=model))


def test_a_worker_that_dies_between_two_calls_is_an_error_of_the_next_call(
    open_worker: Open,
) -> None:
    scorer = open_worker()
    scorer.score([request("a")])
    os.kill(scorer.pid, signal.SIGKILL)
    while scorer.is_running:
        time.sleep(0.05)
    with pytest.raises(WorkerError, match=r"SIGKILL .* while encoding 1 requests"):
        scorer.encode([request("a")])


def test_closing_a_worker_that_died_is_no_error(open_worker: Open) -> None:
    scorer = open_worker()
    os.kill(scorer.pid, signal.SIGKILL)
    scorer.close()
    assert gone(scorer.pid)


def test_close_releases_the_model_and_may_be_called_twice(
    open_worker: Open, tmp_path: Path
) -> None:
    scorer = open_worker()
    scorer.close()
    scorer.close()
    assert gone(scorer.pid)
    assert (tmp_path / "logs" / "w.log").read_text() == "closed\n"
    with pytest.raises(WorkerError, match="has ended"):
        scorer.encode([])
    assert scorer.describe().model_type == "fake"


def test_an_error_of_closing_arrives_and_the_worker_has_ended(open_worker: Open) -> None:
    scorer = open_worker(replace(VARIANT, model="close-fails"))
    with pytest.raises(BuildError, match="cannot release"):
        scorer.close()
    assert gone(scorer.pid)


def test_a_worker_that_nobody_closes_ends_with_its_scorer(tmp_path: Path, python: str) -> None:
    scorer = WorkerScorer(
        VARIANT, ScoringPolicy(), cache_dir=tmp_path, log=tmp_path / "w.log", python=python
    )
    pid = scorer.pid
    del scorer
    assert gone(pid)


def test_the_environment_of_a_setting_reaches_the_worker(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "here")
    described = open_worker(env={"FAKE_FLAG": "on"}).describe()
    assert described.environment["variables"] == {"FAKE_FLAG": "on", "HOME": "here"}
    assert "FAKE_FLAG" not in os.environ


def test_the_same_interpreter_imports_from_where_this_process_does(
    open_worker: Open, python: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend("/a/folder/of/hooks")
    assert sys.path != open_worker().describe().environment["import_path"]
    monkeypatch.setattr(sys, "executable", python)
    assert sys.path == open_worker().describe().environment["import_path"]


def test_the_current_folder_is_on_the_import_path_of_a_worker_only_if_it_is_on_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["/elsewhere"])
    assert ("-P" in worker_command(sys.executable)) == (sys.version_info >= (3, 11))
    assert "-P" not in worker_command("/another/python")
    for here in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", ["/elsewhere", here])
        assert "-P" not in worker_command(sys.executable)


def test_ctrl_c_ends_the_worker_and_goes_on_upwards(open_worker: Open, tmp_path: Path) -> None:
    scorer = open_worker()
    log = tmp_path / "logs" / "w.log"

    def interrupt_once_it_is_asked() -> None:
        while "asleep" not in log.read_text():
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGINT)

    user = threading.Thread(target=interrupt_once_it_is_asked, daemon=True)
    user.start()
    with pytest.raises(KeyboardInterrupt):
        scorer.score([request("a", task="sleep")])
    user.join()
    assert gone(scorer.pid)


def test_the_children_of_a_worker_end_with_it(open_worker: Open) -> None:
    scorer = open_worker()
    [response] = scorer.score([request("a", task="child")])
    with pytest.raises(WorkerError):
        scorer.score([request("a", task="os._exit")])
    wait_until_gone(int(response.text or ""))


PARENT = """
import sys
from pathlib import Path
from evalguard.worker.client import WorkerScorer
from evalguard.core.scorer import Request, ScoringPolicy
from evalguard.core.settings import Variant

folder, python, task = sys.argv[1:]
scorer = WorkerScorer(Variant(name="v", model="fake", model_args={}), ScoringPolicy(),
                      cache_dir=Path(folder), log=Path(folder) / "w.log", python=python)
def ask(task):
    return scorer.score([Request(task=task, doc_id=0, index=0, kind="loglikelihood",
                                 arguments=("a",))])
print(scorer.pid, ask("child")[0].text, flush=True)
if task == "idle":
    sys.stdin.read()
ask(task)
"""


@pytest.mark.parametrize("task", ["idle", "sleep"])
def test_a_worker_whose_parent_is_killed_ends_busy_or_not(
    tmp_path: Path, python: str, task: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PARENT, str(tmp_path), python, task],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        text=True,
    ) as parent:
        assert parent.stdout is not None
        worker, child = (int(word) for word in parent.stdout.readline().split())
        time.sleep(0.3)
        parent.kill()
    wait_until_gone(worker)
    wait_until_gone(child)


def test_a_worker_becomes_another_assignment_and_says_so(open_worker: Open) -> None:
    scorer = open_worker()
    pid = scorer.pid
    assert scorer.reassign(VARIANT.assigned({"s": 1}))
    assert scorer.describe().effective == {"s": 1}
    assert len(scorer.score([request("a")])) == 1
    other = replace(VARIANT, model="another")
    assert not scorer.reassign(other)
    scorer.load(other, ScoringPolicy(seed=5), cache_dir=Path("/elsewhere"))
    assert scorer.describe().model_type == "another"
    assert scorer.describe().identity == {"policy": 5, "cache": "/elsewhere"}
    assert scorer.pid == pid


def test_what_was_loaded_is_released_before_the_next_one(open_worker: Open, tmp_path: Path) -> None:
    scorer = open_worker()
    with pytest.raises(UsageError, match="no such thing"):
        scorer.load(replace(VARIANT, model="usage"), ScoringPolicy(), cache_dir=tmp_path)
    assert (tmp_path / "logs" / "w.log").read_text().startswith("closed\nTraceback")
    with pytest.raises(WorkerError, match="asked for 'score' before 'load'"):
        scorer.score([request("a")])
    scorer.load(VARIANT, ScoringPolicy(), cache_dir=tmp_path)
    assert len(scorer.score([request("a")])) == 1


def test_a_worker_that_dies_while_it_is_assigned_anew_is_an_error(open_worker: Open) -> None:
    scorer = open_worker()
    assert scorer.is_running
    with pytest.raises(WorkerError, match=r"SIGKILL.* while assigning other values to settings"):
        scorer.reassign(replace(VARIANT, model="sigkill"))
    assert not scorer.is_running


def test_another_version_of_evalguard_is_refused(open_worker: Open) -> None:
    with pytest.raises(WorkerError, match=r"has evalguard 9.9 \(Python .*while starting") as caught:
        open_worker(env={"FAKE_VERSION": "9.9"})
    assert "same version" in caught.value.hint


@pytest.mark.slow
def test_a_worker_that_never_says_hello_is_an_error(
    open_worker: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line, "START_SILENCE", 1.0)
    with pytest.raises(WorkerError, match=r"no sign of life for 1 s.*while starting"):
        open_worker(env={"FAKE_START": "silent"}, heartbeat_timeout=1.0)


def test_an_interpreter_that_is_not_there_is_an_error(open_worker: Open) -> None:
    with pytest.raises(WorkerError, match=r"cannot start a worker process \(/no/python\)"):
        open_worker(python="/no/python")


def test_an_interpreter_without_evalguard_is_an_error_that_says_so(
    open_worker: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare-python"
    bare.write_text(f"#!/bin/sh\ncd / && exec '{sys.executable}' -I -S \"$@\"\n")
    bare.chmod(0o755)
    with pytest.raises(WorkerError, match=r"exited with code 1 while starting(.|\n)*No module"):
        open_worker(python=str(bare))


def test_a_log_that_cannot_be_written_is_an_error(open_worker: Open, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(WorkerError, match="cannot write the worker's log"):
        open_worker(log=tmp_path / "file" / "w.log")
