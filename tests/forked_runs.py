"""Commands in processes of their own that can be killed, without importing torch for each anew."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import evalguard

# A process that has everything imported and computed nothing, and forks a command when it is asked.
# The command notes what it scores: a line when it begins a block, a line when it has kept one.
_SERVER = """
import gc, json, os, sys, time

import lm_eval.models.huggingface, pyarrow.parquet, transformers.models.llama.modeling_llama
import evalguard.comparison.compare, evalguard.engine.executor
import evalguard.engine.answer as lockstep
from evalguard.cli import main
from evalguard.harness.request_blocks import BlockCut, requests_digest
from evalguard.models.lm_scorer import LMScorer
from evalguard.store.block_cache import BlockCache

evalguard.engine.executor.BLOCK_CUT = BlockCut(fewest=10, most=10)
alone, together, put = LMScorer.score, lockstep.score_in_lockstep, BlockCache.put


def note(*words):
    line = " ".join([str(os.getpid()), *words])
    journal = os.open(os.environ["JOURNAL"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(journal, (line + chr(10)).encode())
    os.close(journal)
    if words[0] == "scores":
        wait_for_others()


def wait_for_others():
    # At its first block: until as many others as it was told of are at theirs.
    others, end = int(os.environ.pop("BESIDE", 0)), time.monotonic() + 300
    while others and time.monotonic() < end:
        with open(os.environ["JOURNAL"]) as journal:
            if len({line.split()[0] for line in journal}) > others:
                return
        time.sleep(0.01)


inside = []


def within(function, *given, **more):
    inside.append(1)
    try:
        return function(*given, **more)
    finally:
        inside.clear()


def noted_alone(self, requests):
    if not inside:
        note("scores", requests_digest(requests))
    return alone(self, requests)


def noted_together(base, candidate, ours, theirs, **more):
    note("scores", requests_digest(ours))
    return within(together, base, candidate, ours, theirs, **more)


def noted_put(self, key, block, content):
    put(self, key, block, content)
    note("kept", self.what, key, block)


def noted_reference(self, requests, **more):
    note("scores", "reference-" + requests_digest(requests))
    return within(reference, self, requests, **more)


def noted_against(self, requests, references):
    note("scores", "against-" + requests_digest(requests))
    return within(against, self, requests, references)


reference, against = LMScorer.score_reference, LMScorer.score_against
LMScorer.score_reference, LMScorer.score_against = noted_reference, noted_against
LMScorer.score, lockstep.score_in_lockstep, BlockCache.put = noted_alone, noted_together, noted_put
gc.collect()
gc.freeze()
print("ready", flush=True)
for line in sys.stdin:
    job = json.loads(line)
    if "wait" in job:
        print(os.waitpid(job["wait"], 0)[1], flush=True)
        continue
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    try:
        os.chdir(job["folder"])
        os.environ.update(JOURNAL=job["journal"], BESIDE=str(job["beside"]))
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(job[name], os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        main(job["words"])
    except KeyboardInterrupt:
        os._exit(130)  # it came before the command had begun
    except SystemExit as ended:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(ended.code)
    finally:
        os._exit(99)
"""


@dataclass(frozen=True)
class Run:
    """One command under way, or ended."""

    pid: int
    out: Path
    err: Path
    journal: Path
    server: Server

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """Send a signal; nothing happens where the command ended by itself."""
        os.kill(self.pid, number)  # it is not waited for yet, so the number is still its own

    def wait(self) -> int:
        """Return the exit code, minus the signal that ended it."""
        return os.waitstatus_to_exitcode(int(self.server.ask({"wait": self.pid})))


class Server:
    """Starts commands."""

    def __init__(self, folder: Path, *, first: Sequence[Path] = ()) -> None:
        """Start it; ``first``: folders that come first on the import path, in workers too."""
        self._folder = folder
        self._started = 0
        checkout = Path(evalguard.__file__).parent.parent
        path = os.pathsep.join(str(place) for place in (*first, checkout))
        self._process = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        self._heard("ready")

    def start(self, words: Sequence[object], journal: Path, *, beside: int = 0) -> Run:
        """Start ``evalguard`` with these words.

        Args:
            beside: how many other commands with this journal it is to work beside: it goes on from
                its first block once they are at theirs.
        """
        self._started += 1
        out, err = (self._folder / f"{self._started}.{name}" for name in ("out", "err"))
        job = {"words": [str(word) for word in words], "folder": str(self._folder)}
        places = {"journal": str(journal), "out": str(out), "err": str(err)}
        pid = self.ask({**job, **places, "beside": beside})
        return Run(int(pid), out, err, journal, self)

    def ask(self, job: dict[str, object]) -> str:
        """Send one line, return one line."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job) + "\n")
        self._process.stdin.flush()
        return self._heard()

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(timeout=300)
        self._process.stdout.close()

    def _heard(self, expected: str = "") -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        assert line, "the server of runs ended"
        assert not expected or line == expected
        return line


@contextmanager
def run_server(folder: Path, *, first: Sequence[Path] = ()) -> Iterator[Server]:
    """A server of runs in a folder."""
    server = Server(folder, first=first)
    try:
        yield server
    finally:
        server.close()
