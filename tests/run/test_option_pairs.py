"""Every two options together give the numbers that none of them gives, or are refused in words."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from small_world import make_world

from evalguard import compare
from evalguard.errors import UsageError

pytestmark = pytest.mark.nightly

TASKS = ("sw_word", "sw_choice", "sw_text")
# Batches of another shape round otherwise, and lm-eval adds a text's windows up in float32.
TOLERANCE = 2e-5

OPTIONS: dict[str, dict[str, Any]] = {
    "memory lockstep": {"memory": "lockstep"},
    "memory sequential": {"memory": "sequential"},
    "distributions lockstep": {"distributions": "lockstep"},
    "distributions reference": {"distributions": "reference"},
    "distributions off": {"distributions": "off"},
    "reference of all tokens": {"distributions": "reference", "reference_top_k": 512},
    "reference file": {"save_reference": "FILE"},
    "a limit on distributions": {"gate_limits": {"kl_mean": 100.0}},
    "sequential": {"sequential": True},
    "check of the scorer": {"verify_scorer": 2},
    "lm-eval's own path": {"scorer": "harness"},
    "no shared prefixes": {"share_prefixes": False},
    "a batch size": {"batch_size": 5},
    "a token budget": {"token_budget": 96},
    "worker processes": {"worker": "always"},
    "no cache": {"use_cache": False},
}
# What there is no sense in saying together; everything else works.
REFUSED = {
    ("memory lockstep", "distributions reference"),
    ("memory lockstep", "reference of all tokens"),
    ("memory lockstep", "reference file"),
    ("memory sequential", "distributions lockstep"),
    ("distributions lockstep", "reference file"),
    ("distributions lockstep", "sequential"),
    ("distributions lockstep", "lm-eval's own path"),
    ("distributions lockstep", "worker processes"),
    ("distributions reference", "sequential"),
    ("distributions reference", "lm-eval's own path"),
    ("distributions off", "reference file"),
    ("distributions off", "a limit on distributions"),
    ("reference of all tokens", "sequential"),
    ("reference of all tokens", "lm-eval's own path"),
    ("reference file", "sequential"),
    ("reference file", "lm-eval's own path"),
    ("a limit on distributions", "sequential"),
    ("a limit on distributions", "lm-eval's own path"),
}
# Options that say the same thing in two ways are no pair.
PAIRS = [
    (one, other)
    for one, other in combinations(OPTIONS, 2)
    if not OPTIONS[one].keys() & OPTIONS[other].keys()
]


@dataclass(frozen=True)
class Numbers:
    """What a run says of its documents: by task and document, base beside candidate.

    ``kl`` is per scored token, by task, document, request and position; {} where not measured.
    """

    scores: Mapping[tuple[str, int], list[float]]
    kl: Mapping[tuple[str, int, int, int], float]


Run = Callable[..., Numbers]


@pytest.fixture(scope="module")
def run(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Compare two models; all runs share one cache, in which what others kept is lying about."""
    folder = tmp_path_factory.mktemp("pairs")
    world = make_world(folder, tiny_llama)
    fields: dict[str, Any] = {
        "tasks": TASKS, "include_path": world.tasks, "quiet": True, "device": "cpu",
        "base_model_args": {"dtype": "float32"}, "cand_model_args": {"dtype": "float32"},
        "output_path": folder / "reports", "cache_dir": folder / "cache",
    }  # fmt: skip

    def compared(base: Path | None = None, **given: Any) -> Numbers:
        asked = {**fields, **given} | ({} if base is None else {"base_model_args": {}})
        result = compare(base or world.models["llama"], world.models["other"], **asked)
        assert result.run_folder is not None
        return numbers(Path(result.run_folder))

    return compared


@pytest.fixture(scope="module")
def plain(run: Run) -> Numbers:
    return run(use_cache=False)


def numbers(folder: Path) -> Numbers:
    scores: dict[tuple[str, int], list[float]] = {}
    kl: dict[tuple[str, int, int, int], float] = {}
    for task in TASKS:
        for row in pq.read_table(folder / "samples" / f"{task}.parquet").to_pylist():
            sides = (row[f"{side}:token_logprobs"] for side in ("base", "candidate"))
            whole = (row[f"{side}:loglikelihood"] for side in ("base", "candidate"))
            told = [x for side in sides for of in side or () for x in of or ()]
            scores[task, row["doc_id"]] = [x for side in whole for x in side] + told
        tokens = folder / f"tokens-{task}.parquet"
        for row in pq.read_table(tokens).to_pylist() if tokens.exists() else ():
            kl[task, row["doc_id"], row["request"], row["position"]] = row["kl"]
    return Numbers(scores=scores, kl=kl)


@pytest.fixture(scope="module")
def by_reference(run: Run) -> Numbers:
    """Of 64 of 384 tokens, and a sample of the others: near the plain run's, and not the same."""
    return run(use_cache=False, distributions="reference")


@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_two_options_give_the_numbers_of_none_or_are_refused(
    run: Run, plain: Numbers, by_reference: Numbers, tmp_path: Path, one: str, other: str
) -> None:
    given = {**OPTIONS[one], **OPTIONS[other]}
    file = tmp_path / "reference"
    if "save_reference" in given:
        given["save_reference"] = file
    if (one, other) in REFUSED:
        with pytest.raises(UsageError) as raised:
            run(**given)
        assert raised.value.hint
        return
    for again in (False, True):  # then what the first run kept and wrote is there
        if again and given.pop("save_reference", None):
            given |= {"base": file}
            given.pop("reference_top_k", None)  # it keeps its own
        found = run(**given)
        check_scores(found, plain, by_lm_eval=given.get("scorer") == "harness")
        assert not found.kl or has_kl_of(found, plain) or has_kl_of(found, by_reference)


def check_scores(found: Numbers, plain: Numbers, *, by_lm_eval: bool) -> None:
    assert found.scores.keys() == plain.scores.keys()
    for place, told in found.scores.items():
        expected = plain.scores[place]
        # lm-eval's own path shows no tokens
        kept = expected[: len(told)] if by_lm_eval else expected
        np.testing.assert_allclose(told, kept, atol=TOLERANCE, err_msg=str(place))


def has_kl_of(found: Numbers, expected: Numbers) -> bool:
    return found.kl.keys() == expected.kl.keys() and np.allclose(
        [found.kl[place] for place in expected.kl], list(expected.kl.values()), atol=TOLERANCE
    )
