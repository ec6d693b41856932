"""A worker with a model of arithmetic instead of torch, which misbehaves when it is asked to.

``Variant.model`` says how loading goes, ``Request.task`` how scoring goes. Run as a program it
takes the place of ``evalguard.engine.worker_main`` (see ``test_worker_scorer.python``).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.errors import BuildError, EvaluationError, GuardFileError, SettingError, UsageError
from evalguard.worker.messages import Load

AWKWARD = np.array([np.nan, -np.inf, np.inf, -0.0, 5e-324, -1.0 / 3.0])
BLOCK_TOKENS = 650_000


class Unprintable(SettingError):
    """A subclass that the parent does not know."""


def protocol_fd(option: str) -> int:
    return int(sys.argv[sys.argv.index(option) + 1])


def raises(error: BaseException) -> Callable[[], None]:
    def run() -> None:
        raise error

    return run


def spoil_protocol() -> None:
    os.write(protocol_fd("--replies"), b"Loading checkpoint shards: 100%")
    time.sleep(600)


def send_huge_frame() -> None:
    os.write(protocol_fd("--replies"), b"EVGF\x00\x01\xff\xff\xff\xff{}")
    time.sleep(600)


def print_much() -> None:
    print("EVGF progress 100%")
    os.write(1, b"\x00\x01EVGF\xff\n")
    os.system("echo from a child")


def shut_pipe_but_live() -> None:
    os.close(protocol_fd("--replies"))
    time.sleep(600)


def leave_with_child() -> None:
    """Die while a forked child still holds both pipes open."""
    if os.fork() == 0:
        time.sleep(600)
    os._exit(5)


def stop_self() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


MISDEEDS: dict[str, Callable[[], object]] = {
    "usage": raises(UsageError("no such thing", hint="ask for another")),
    "setting": raises(SettingError("it did not take", hint="look again")),
    "guard": raises(GuardFileError("bad key", where="guard.yaml:3", hint="see init")),
    "unknown-subclass": raises(Unprintable("deeper")),
    "zero": lambda: 1 // 0,
    "missing-file": raises(FileNotFoundError(2, "No such file or directory", "weights.bin")),
    "memory": raises(MemoryError()),
    "sys.exit": lambda: sys.exit(4),
    "os._exit": lambda: (print("last words"), os._exit(3)),
    "sigkill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "sigsegv": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "sigstop": stop_self,
    "sleep": lambda: (print("asleep"), time.sleep(600)),
    "print": print_much,
    "spoil": spoil_protocol,
    "huge": send_huge_frame,
    "shut": shut_pipe_but_live,
    "leave-with-child": leave_with_child,
    "many-lines": lambda: ([print(f"line {i}") for i in range(30)], os._exit(3)),
    "escape": lambda: (print("\x1b[31mred\x07"), os._exit(3)),
}


class FakeScorer:
    """Scores by arithmetic on the request's text."""

    def __init__(self, variant: Variant, policy: ScoringPolicy, cache_dir: Path) -> None:
        self.variant = variant
        self.policy = policy
        self.cache_dir = cache_dir
        self.child: subprocess.Popen[bytes] | None = None
        self.cached_tokens: int | None = None

    def describe(self) -> ModelDescription:
        return ModelDescription(
            model_type=self.variant.model,
            effective=dict(self.variant.assignment),
            identity={"policy": self.policy.seed, "cache": str(self.cache_dir)},
            environment={
                "variables": {name: os.environ.get(name) for name in ("FAKE_FLAG", "HOME")},
                "import_path": list(sys.path),
            },
            caveats=("no real model",),
        )

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        return [tuple(str(r.arguments[0]).encode("utf-8", "surrogatepass")) for r in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        if requests and requests[0].task in MISDEEDS:
            MISDEEDS[requests[0].task]()
        if requests and requests[0].task == "too-few":
            return []
        self.cached_tokens = (self.cached_tokens or 0) + len(requests)
        return [self._respond(request) for request in requests]

    def count_cached_tokens(self) -> int | None:
        """Told from the first block on, whose tokens are as many as its requests."""
        return self.cached_tokens

    def check_unchanged(self) -> None:
        """Another model answers from the third request on."""
        if (self.cached_tokens or 0) > 2:
            raise EvaluationError("the server changed while it was asked")

    def _respond(self, request: Request) -> Response:
        if request.task == "child":
            self.child = subprocess.Popen(["sleep", "600"])
            return Response(text=str(self.child.pid))
        if request.task == "float32":
            return Response(token_logprobs=np.zeros(1, dtype=np.float32))
        seed = zlib.crc32(repr(request.arguments).encode("utf-8", "surrogatepass"))
        size = BLOCK_TOKENS if request.task == "block" else 5
        logprobs = -np.random.default_rng(seed).exponential(size=size)
        return Response(
            loglikelihood=float(AWKWARD[seed % len(AWKWARD)]),
            is_greedy=seed % 2 == 0,
            text=str(request.arguments[0]),
            token_logprobs=np.concatenate([AWKWARD, logprobs]),
            token_hash=f"{seed:08x}",
            n_tokens=size,
            truncated=seed % 3 == 0,
        )

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        return "|".join(m["content"] for m in messages) + ("|>" if add_generation_prompt else "")

    def reassign(self, variant: Variant) -> bool:
        """A model called otherwise cannot be had without loading."""
        if variant.model in MISDEEDS:
            MISDEEDS[variant.model]()
        if variant.model != self.variant.model:
            return False
        self.variant = variant
        return True

    def close(self) -> None:
        print("closed")
        if self.variant.model == "close-fails":
            raise BuildError("cannot release")
        if self.variant.model == "close-hangs":
            time.sleep(600)


def open_fake(load: Load) -> FakeScorer:
    if load.variant.model in MISDEEDS:
        MISDEEDS[load.variant.model]()
    return FakeScorer(load.variant, load.policy, Path(load.cache_dir))


if __name__ == "__main__":
    import evalguard
    from evalguard.engine import worker_main as worker

    if os.environ.get("FAKE_VERSION"):
        evalguard.__version__ = os.environ["FAKE_VERSION"]
    if os.environ.get("FAKE_START") == "silent":
        time.sleep(600)
    module = sys.argv.index("evalguard.engine.worker_main")
    sys.exit(worker.main(sys.argv[module + 1 :], open_scorer=open_fake))
