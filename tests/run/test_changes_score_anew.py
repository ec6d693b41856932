"""Whatever changes, kept answers are those that the model would give now.

Every case makes a world, changes one thing for real, and holds a run over the kept answers of the
unchanged world against a run that has kept nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from changed_adapters import ADAPTERS
from changed_builds import BUILT
from changed_code import RUN
from changed_configs import BESIDE
from changed_hub import HUB
from changed_options import ASKED
from changed_switches import SWITCHED
from changed_tasks import DATA
from changed_weights import WEIGHTS
from changed_worlds import Answers, answer, answer_afresh, write_world
from read_versions import forget_versions
from world_changes import Case

from evalguard.core.settings import Variant
from evalguard.engine.loading.known_models import digest_weights

pytestmark = pytest.mark.slow


@contextmanager
def switches_as_before() -> Iterator[None]:
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    precision, mkldnn = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled
    try:
        yield
    finally:
        forget_versions()
        torch.use_deterministic_algorithms(deterministic)
        torch.set_float32_matmul_precision(precision)
        torch.backends.mkldnn.enabled = mkldnn  # type: ignore[assignment]


TABLES = (WEIGHTS, ADAPTERS, HUB, BESIDE, DATA, ASKED, BUILT, SWITCHED, RUN)
CASES = {name: case for table in TABLES for name, case in table.items()}


def ask(case: Case, folder: Path, cache: Path, given: Mapping[str, Any], env: Any) -> Answers:
    """The answers now; nothing that this process read before counts."""
    forget_versions()
    for name in ("beside", "factor", "hook"):
        sys.modules.pop(name, None)
    if not case.afresh:
        return answer(folder, cache, given)
    paths = [part.replace("{folder}", str(folder)) for part in [env.get("PYTHONPATH", "")]]
    variables = {n: v.replace("{folder}", str(folder)) for n, v in env.items()}
    # a file path of a script comes first; this package of the tests' environment comes last
    variables["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), *filter(None, sys.path)])
    return answer_afresh(folder, cache, given, variables)


def test_an_adapter_counts_by_its_files_in_place_too(tmp_path: Path) -> None:
    """Its library need not be installed where the digest is taken."""
    for name in ("model", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_text("weights")
    arguments = {name: str(tmp_path / place) for name, place in
                 (("pretrained", "model"), ("peft", "adapter"))}  # fmt: skip
    variant = Variant(name="m", model="hf", model_args={**arguments})
    before = digest_weights(variant, variant.model_args)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    times = file.stat()
    file.write_text("others!")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest_weights(variant, variant.model_args) != before


# Processes of their own take most of the table's time; one stands for the others by day.
BY_DAY = "what that function imports"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.nightly] if case.afresh and name != BY_DAY else [])
        for name, case in CASES.items()
    ],
)
def test_answers_over_kept_ones_are_those_of_now(
    name: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    folder = write_world(tmp_path / "world", tiny_llama)
    case.prepare(folder)
    cache, nothing = tmp_path / "cache", tmp_path / "nothing"
    with switches_as_before():
        before = ask(case, folder, cache, case.given, case.env)
        given = {**case.given, **(case.change(folder, monkeypatch) or {})}
        over_kept = ask(case, folder, cache, given, {**case.env, **case.after})
        now = ask(case, folder, nothing, given, {**case.env, **case.after})
    assert sorted(over_kept.told, key=str) == sorted(now.told, key=str)
    if case.matters is not None:
        assert (sorted(now.told, key=str) != sorted(before.told, key=str)) == case.matters
    if case.scored is not None:
        assert (over_kept.scored > 0) == case.scored, "kept answers were used, or not used"


def test_the_table_is_long_and_nothing_is_scored_twice_for_nothing(
    tiny_llama: Path, tmp_path: Path
) -> None:
    assert len(CASES) >= 55
    folder = write_world(tmp_path / "world", tiny_llama)
    first = answer(folder, tmp_path / "cache", {})
    again = answer(folder, tmp_path / "cache", {})
    assert first.told == again.told
    assert (first.scored > 0, again.scored) == (True, 0)
