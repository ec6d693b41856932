"""What libraries print is kept off stdout, whoever asks for that at the same time."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
from tqdm import tqdm

from evalguard.models.process_state import silence_libraries


def test_threads_that_overlap_leave_all_as_it_was() -> None:
    stdout, start = sys.stdout, vars(tqdm)["__init__"]
    step = Barrier(2, timeout=300)

    def first() -> None:
        with silence_libraries():
            step.wait()  # both are in
            step.wait()
        step.wait()  # the first is out

    def second() -> None:
        with silence_libraries():
            step.wait()
            step.wait()
            step.wait()
            assert sys.stdout is sys.stderr

    with ThreadPoolExecutor(2) as pool:
        for one in [pool.submit(first), pool.submit(second)]:
            one.result(timeout=300)
    assert sys.stdout is stdout
    assert vars(tqdm)["__init__"] is start


def test_a_bar_that_its_caller_switches_on_is_not_shown(capfd: pytest.CaptureFixture[str]) -> None:
    with silence_libraries():
        assert list(tqdm([1, 2], desc="Applying", disable=False)) == [1, 2]
    assert capfd.readouterr() == ("", "")
