"""The command in this process, in an empty folder, over the small world."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from answering_servers import Asked, Served
from pairs_here import pairs_here
from small_world import Ran, SmallWorld, make_world, run_here

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["HF_DATASETS_OFFLINE"] = "1"

Run = Callable[..., Ran]

__all__ = ["pairs_here"]


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory, tiny_llama: Path) -> SmallWorld:
    import lm_eval.models.huggingface  # noqa: F401

    made = make_world(tmp_path_factory.mktemp("world"), tiny_llama)
    # Releasing a model collects garbage: half a second each time with all of torch to look at.
    gc.collect()
    gc.freeze()
    return made


@pytest.fixture(scope="session")
def kept_scores(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A score cache for all tests that do not look at it."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """No model may be loaded."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a model was loaded")

    monkeypatch.setattr("evalguard.engine.run_context.open_scorer", refuse)


@pytest.fixture
def few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out lm-eval's own 14,000 names, which take many seconds to read."""
    import lm_eval.tasks

    read = lm_eval.tasks.TaskManager
    monkeypatch.setattr(
        lm_eval.tasks,
        "TaskManager",
        lambda include_path, include_defaults: read(
            include_path=include_path, include_defaults=False
        ),
    )


@pytest.fixture
def run(
    kept_scores: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> Run:
    """Run a command line in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVALGUARD_CACHE_DIR", str(kept_scores))
    return lambda *words: run_here(words, capfd)


@pytest.fixture
def compare(run: Run, world: SmallWorld) -> Run:
    """Run ``evalguard compare`` of a base and a candidate of the small world's guard file."""

    def compared(base: object, candidate: object, *words: object) -> Ran:
        return run("compare", "--config", world.guard, "--base", base, "--cand", candidate, *words)

    return compared


@pytest.fixture
def refused(run: Run) -> Run:
    """Run a command line that must end in one clear message: no result, no traceback."""

    def ran(code: int, *words: object) -> Ran:
        found = run(*words)
        assert (found.code, found.out) == (code, ""), found.err
        heads = [line for line in found.err.splitlines() if line.startswith("error: ")]
        assert len(heads) == 1, found.err
        assert "Traceback" not in found.err
        assert "internal error" not in found.err
        return found

    return ran


@pytest.fixture
def refused_pair(refused: Run, world: SmallWorld) -> Run:
    """Compare two models of the small world's guard file; the same must happen as for refused."""

    def ran(code: int, base: object, candidate: object, *words: object) -> Ran:
        sides = ("--base", base, "--cand", candidate)
        return refused(code, "compare", "--config", world.guard, *sides, *words)

    return ran


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served(servers=[])
    yield made
    for server in made.servers:
        server.shutdown()
        server.server_close()


@pytest.fixture
def asked(
    world: SmallWorld, served: Served, capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> Asked:
    return Asked(world=world, served=served, capfd=capfd, tmp_path=tmp_path)
