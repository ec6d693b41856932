"""The score cache gives back exactly what was put, or nothing."""

from __future__ import annotations

import math
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evalguard.core.scorer import Response
from evalguard.core.shown_tokens import GeneratedTokens
from evalguard.errors import StoreError
from evalguard.store.block_cache import ScoreCache

KEY, BLOCK = "00aa11bb22cc33dd", "ffee00112233"
INF, NAN = float("inf"), float("nan")

RESPONSES = [
    Response(
        loglikelihood=-12.5,
        is_greedy=True,
        token_logprobs=np.array([-1.5, -11.0, -INF, NAN, -0.0]),
        token_hash="a1b2",
        n_tokens=17,
    ),
    Response(loglikelihood=NAN, is_greedy=False, token_logprobs=np.array([]), truncated=True),
    Response(loglikelihood=-INF),
    Response(text="  an answer\nwith «unicode» \U0001f600 and a lone surrogate \ud800"),
    Response(text=""),
    Response(top_logprobs=({}, {" \ud800": -0.1, "token_id:7": -INF})),
    Response(
        text="a",
        message='{"refusal": "é \ud800"}',
        generated=GeneratedTokens.of([5, -1], [0.1, NAN], [2, -1]),
    ),
    Response(generated=GeneratedTokens.of([])),
    Response(),
]


def bits(value: float | None) -> bytes | None:
    return None if value is None else struct.pack("<d", value)


def exact(response: Response) -> tuple[object, ...]:
    """Everything of a response, floats as their bits, so that NaN equals itself."""
    logprobs = response.token_logprobs
    return (
        bits(response.loglikelihood),
        response.is_greedy,
        response.text,
        None if logprobs is None else (logprobs.dtype.str, logprobs.tobytes()),
        response.token_hash,
        response.n_tokens,
        response.truncated,
        None
        if response.top_logprobs is None
        else [list(shown.items()) for shown in response.top_logprobs],
        response.ended,
        response.message,
        None
        if response.generated is None
        else [
            (array.dtype.str, array.tobytes())
            for array in (
                response.generated.ids,
                response.generated.margins,
                response.generated.others,
            )
        ],
    )


def same(left: list[Response] | None, right: list[Response]) -> bool:
    return left is not None and [exact(r) for r in left] == [exact(r) for r in right]


@pytest.fixture
def cache(tmp_path: Path) -> ScoreCache:
    return ScoreCache(tmp_path / "cache")


def only_file(cache: ScoreCache) -> Path:
    (path,) = cache.folder.rglob("*.parquet")
    return path


def test_an_empty_cache_has_no_block_and_no_problem(cache: ScoreCache) -> None:
    assert cache.get(KEY, BLOCK) is None
    assert cache.problems == []
    assert not cache.folder.exists()


def test_a_block_comes_back_to_the_last_bit(cache: ScoreCache) -> None:
    cache.put(KEY, BLOCK, RESPONSES)
    assert same(ScoreCache(cache.folder).get(KEY, BLOCK), RESPONSES)
    assert cache.problems == []


def test_an_empty_block_is_a_block(cache: ScoreCache) -> None:
    cache.put(KEY, BLOCK, [])
    assert cache.get(KEY, BLOCK) == []


def test_values_of_numpy_are_kept_as_plain_values(cache: ScoreCache) -> None:
    given_ = Response(
        loglikelihood=np.float64(-1.0),
        is_greedy=np.bool_(True),  # type: ignore[arg-type]
        token_logprobs=np.array([-1.5], dtype=np.float32),  # type: ignore[arg-type]
        n_tokens=np.int64(3),  # type: ignore[arg-type]
    )
    cache.put(KEY, BLOCK, [given_])
    plain = Response(
        loglikelihood=-1.0, is_greedy=True, token_logprobs=np.array([-1.5]), n_tokens=3
    )
    assert same(cache.get(KEY, BLOCK), [plain])


floats = st.one_of(st.none(), st.floats(), st.just(-0.0))
responses = st.builds(
    Response,
    loglikelihood=floats,
    is_greedy=st.one_of(st.none(), st.booleans()),
    text=st.one_of(st.none(), st.text(st.characters(exclude_categories=()))),
    token_logprobs=st.one_of(
        st.none(), st.lists(st.floats()).map(lambda values: np.array(values, dtype=np.float64))
    ),
    top_logprobs=st.none()
    | st.lists(
        st.dictionaries(
            st.text(st.characters(exclude_categories=())), st.floats(allow_nan=False), max_size=3
        ),
        max_size=4,
    ).map(tuple),
    token_hash=st.text("0123456789abcdef"),
    n_tokens=st.integers(0, 2**31),
    truncated=st.booleans(),
    message=st.text(st.characters(exclude_categories=())),
    generated=st.none()
    | st.lists(
        st.tuples(st.integers(-1, 2**31 - 1), st.floats(width=32), st.integers(-1, 2**31 - 1)),
        max_size=4,
    ).map(lambda rows: GeneratedTokens.of(*map(list, zip(*rows, strict=True))) if rows else None),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(responses, max_size=8))
def test_any_block_comes_back_to_the_last_bit(block: list[Response]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache = ScoreCache(Path(folder))
        cache.put(KEY, BLOCK, block)
        assert same(cache.get(KEY, BLOCK), block)


def test_another_model_or_other_requests_find_nothing(cache: ScoreCache) -> None:
    cache.put(KEY, BLOCK, RESPONSES)
    assert cache.get("0" * 16, BLOCK) is None
    assert cache.get(KEY, "0" * 12) is None


def test_a_later_put_wins(cache: ScoreCache) -> None:
    cache.put(KEY, BLOCK, RESPONSES)
    cache.put(KEY, BLOCK, RESPONSES[:1])
    assert same(cache.get(KEY, BLOCK), RESPONSES[:1])
    assert [p.name for p in only_file(cache).parent.iterdir()] == [f"{BLOCK}.parquet"]


def test_a_name_that_is_no_digest_is_refused(cache: ScoreCache) -> None:
    for name in ("../up", "", "a/b", ".hidden", "a" * 200):
        with pytest.raises(StoreError, match="not a digest"):
            cache.get(name, BLOCK)
        with pytest.raises(StoreError, match="not a digest"):
            cache.put(KEY, name, [])


def test_a_path_that_is_a_file_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    cache = ScoreCache(tmp_path / "file" / "cache")
    with pytest.raises(StoreError, match="file is a file, not a folder") as caught:
        cache.put(KEY, BLOCK, RESPONSES)
    assert "--cache-dir" in caught.value.hint
    assert cache.get(KEY, BLOCK) is None


def test_a_full_disk_is_a_clear_error_and_leaves_nothing_half_written(small_disk: Path) -> None:
    cache = ScoreCache(small_disk)
    cache.put(KEY, BLOCK, RESPONSES)
    noise = np.random.default_rng(0).normal(size=20_000)
    with pytest.raises(StoreError, match="the disk is full") as caught:
        cache.put(KEY, "b2", [Response(loglikelihood=-1.0, token_logprobs=noise)])
    assert "--cache-dir" in caught.value.hint
    assert [p.name for p in only_file(cache).parent.iterdir()] == [f"{BLOCK}.parquet"]
    assert same(cache.get(KEY, BLOCK), RESPONSES)


_WRITER = """
import sys
from pathlib import Path
import numpy as np
from evalguard.core.scorer import Response
from evalguard.store.block_cache import ScoreCache

cache = ScoreCache(Path(sys.argv[1]))
block = [Response(loglikelihood=-1.0, token_logprobs=np.arange(500.0)) for _ in range(20)]
for _ in range(40):
    cache.put("k", "b", block)
    found = cache.get("k", "b")
    assert found is not None and len(found) == 20, cache.problems
assert cache.problems == []
"""


def test_two_processes_may_share_a_cache(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _WRITER, str(tmp_path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(2)]
    for process in running:
        _, errors = process.communicate(timeout=500)
        assert process.returncode == 0, errors.decode()
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["b.parquet"]


def test_nan_and_infinity_stay_what_they_are(cache: ScoreCache) -> None:
    cache.put(KEY, BLOCK, RESPONSES)
    found = cache.get(KEY, BLOCK)
    assert found is not None
    assert math.isnan(found[1].loglikelihood or 0.0)
    assert found[2].loglikelihood == -INF
    assert found[5].loglikelihood is None
