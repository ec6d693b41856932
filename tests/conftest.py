"""Fixtures that several rooms share: tiny models, and where the shared data is."""

from __future__ import annotations

import gc
import os
import signal
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from same_examples import draw_no_constants_of_loaded_modules

pytest_plugins = ["pytester"]

# How long examples take says something about the machine, not about the code. Where a change is
# tested its verdict is the same every time; new counterexamples are for who runs the tests at home.
SAME_EXAMPLES = bool(os.environ.get("EVALGUARD_SAME_EXAMPLES"))
settings.register_profile(
    "evalguard",
    deadline=None,
    derandomize=SAME_EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("evalguard")
if SAME_EXAMPLES:
    draw_no_constants_of_loaded_modules()

# No test asks the hub, however pytest was started. The library reads these once, when imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_DATASETS_OFFLINE", "1")

# A shell without job control starts background jobs with Ctrl-C ignored, and processes started from
# here would inherit that: the tests of interrupts hold in a background job too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Look for no garbage among all modules again: releasing a model does, and Python by itself."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Llama, tied embeddings, float32, context of 48."""
    from tiny_models import save_llama

    return save_llama(tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_gemma2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a random two-layer Gemma 2, float32, context of 48."""
    from tiny_models import save_gemma2

    return save_gemma2(tmp_path_factory.mktemp("tiny-gemma2"))


@pytest.fixture(autouse=True)
def budget_of_every_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches as on any machine: what one measures says something about it, not about the code."""
    monkeypatch.setattr("evalguard.engine.loading.edited_model.measure_budget", lambda _: 1024)


@pytest.fixture(scope="session", autouse=True)
def files_need_not_survive_a_power_cut() -> Iterator[None]:
    """Some disks take long to make sure of thousands of files; whether it is asked for is tested
    where it matters."""
    real = os.fsync

    def fsync(file: Any) -> None:
        if not stat.S_ISREG(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode):
            real(file)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        yield


@pytest.fixture(autouse=True)
def path_as_before() -> Iterator[None]:
    """Hooks leave their folders on the path, which ends with their process; tests share one."""
    before = list(sys.path)
    yield
    sys.path[:] = before


@pytest.fixture(autouse=True)
def no_run_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test is a part of a run that another one began."""
    monkeypatch.setenv("EVALGUARD_THIS_RUN", "")
    monkeypatch.delenv("EVALGUARD_THIS_RUN")


@pytest.fixture(autouse=True)
def no_code_of_others_as_before() -> Iterator[None]:
    """A process that has loaded code of a checkpoint or a hook scores no model itself any more."""
    loaded = len(sys.modules)
    yield
    if len(sys.modules) == loaded:
        return
    brought = ("transformers_modules.", "evalguard_user_")
    for name in [name for name in sys.modules if name.startswith(brought)]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def nothing_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who runs these tests may be logged in to W&B, and behind a proxy."""
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "127.0.0.1,localhost")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and weights; the test is skipped where it is absent."""
    default = Path(__file__).parent.parent.parent / "shared" / "data"
    folder = Path(os.environ.get("EVALGUARD_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"no shared data at {folder}")
    return folder
