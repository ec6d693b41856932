"""Request time of a served model: evalguard's queue beside lm-eval's own client.

    python -m benchmarks.served_queue --output benchmarks/results/served_queue.md

A stub server in a process of its own answers after log-normal latencies, which follow from the
prompt and are the same for all. The same generations go through lm-eval's ``generate_until`` and
through evalguard's scorer, in blocks as a run has them, every answer journalled; once more block by
block, as before there was a queue. Each round asks all in turn; machines differ, so ratios count.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import math
import multiprocessing
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.output import deliver

ROOT = Path(__file__).parent.parent
COMMAND = "python -m benchmarks.served_queue --output benchmarks/results/served_queue.md"
SEED = 20261125
Way = Callable[[Any, Sequence[Any]], list[str]]


def main() -> None:
    """Measure; print the table or write it to a file."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--output", type=Path, help="write the table there")
    parser.add_argument("--requests", type=int, default=1319, help="as many as GSM8K has")
    parser.add_argument("--connections", type=int, default=256)
    parser.add_argument("--median", type=float, default=0.6, help="latency in seconds")
    parser.add_argument("--spread", type=float, default=0.8, help="of the logarithm of latencies")
    parser.add_argument("--words", type=int, default=400, help="of a prompt, on average")
    parser.add_argument("--rounds", type=int, default=5)
    deliver(_report(parser.parse_args()), parser.parse_args().output)


def _report(options: argparse.Namespace) -> Iterator[str]:
    requests = _requests(options.requests, options.words)
    times: dict[str, list[float]] = {name: [] for name in _WAYS}
    with _served(options.median, options.spread) as url:
        for number in range(options.rounds):
            names = [name for name in _WAYS if name != _BLOCKS or number == 0]
            # Whoever comes first in one round comes last in the next.
            for name in names if number % 2 == 0 else reversed(names):
                scorer = _client(url, options.connections)
                scorer.probe(requests[:1])
                begun = time.perf_counter()
                told = _WAYS[name](scorer, requests)
                times[name].append(time.perf_counter() - begun)
                scorer.close()
                assert len(told) == len(requests)
                assert told[0].startswith("text ")
    lines = [f"| {name} | {_ratios(times[name], times[_LM_EVAL])} |" for name in _WAYS]
    yield "# Request time of a served model\n"
    yield f"`{COMMAND}`\n"
    yield (
        f"{options.requests:,} generations, {options.connections} connections, prompts of about "
        f"{options.words} words, latencies log-normal with median {options.median:g} s and spread "
        f"{options.spread:g}, from a stub server in another process of the same machine. Time from "
        "the first request to the last answer, encoding included, in times of lm-eval's own in the "
        f"same round; {options.rounds} rounds, block by block in the first alone. The probe at "
        "load is not among it. The target is at most 1.15.\n"
    )
    yield "| way | median | lowest | highest |"
    yield "|---|---|---|---|"
    yield from lines
    packages = ", ".join(f"{name} {version(name)}" for name in ("lm_eval", "aiohttp"))
    yield f"\nSeed {SEED}. {packages}."


def _ratios(ours: Sequence[float], theirs: Sequence[float]) -> str:
    found = [one / other for one, other in zip(ours, theirs, strict=False)]
    return " | ".join(f"{one:.2f}" for one in (statistics.median(found), min(found), max(found)))


# The ways of asking.


def _by_lm_eval(scorer: Any, requests: Sequence[Any]) -> list[str]:
    from lm_eval.api.instance import Instance

    from evalguard.models.process_state import silence_libraries

    instances = [
        Instance("generate_until", {}, one.arguments, 0, metadata=("t", one.doc_id, 1))
        for one in requests
    ]
    with silence_libraries():  # its progress bar, which costs time too
        return list(scorer.lm.generate_until(instances, disable_tqdm=True))


def _by_queue(scorer: Any, requests: Sequence[Any]) -> list[str]:
    from evalguard.store.answer_journal import AnswerFile

    blocks = [block.requests for block in _blocks(requests)]
    with tempfile.TemporaryDirectory() as folder:
        journal = AnswerFile(Path(folder) / "answers.jsonl", facts={})
        scorer.keep_answers(journal)
        scorer.ask_ahead(blocks)
        told = [one.text for block in blocks for one in scorer.score(block)]
        assert len(journal) == len(requests)
        journal.close()
    return told


def _by_block(scorer: Any, requests: Sequence[Any]) -> list[str]:
    return [one.text for block in _blocks(requests) for one in scorer.score(block.requests)]


def _blocks(requests: Sequence[Any]) -> list[Any]:
    from evalguard.engine.executor import BLOCK_CUT
    from evalguard.harness.request_blocks import cut_blocks, text_lengths

    return cut_blocks(requests, text_lengths(requests), BLOCK_CUT)


_LM_EVAL = "lm-eval's own client"
_BLOCKS = "evalguard, block by block"
_WAYS: dict[str, Way] = {
    _LM_EVAL: _by_lm_eval,
    "evalguard, one queue": _by_queue,
    _BLOCKS: _by_block,
}


def _requests(number: int, words: int) -> list[Any]:
    from evalguard.core.scorer import Request

    rng = random.Random(SEED)
    vocabulary = [
        "mara",
        "carried",
        "the",
        "lantern",
        "down",
        "to",
        "harbour",
        "because",
        "fog",
        "had",
        "come",
        "in",
        "early",
    ]
    options = {"until": ["Question:", "</s>"], "do_sample": False, "temperature": 0.0}
    return [
        Request(
            task="t",
            doc_id=n,
            index=0,
            kind="generate_until",
            arguments=(
                f"{n}: " + " ".join(rng.choices(vocabulary, k=rng.randint(words // 2, 2 * words))),
                options,
            ),
        )
        for n in range(number)
    ]


def _client(url: str, connections: int) -> Any:
    """A scorer; ``lm`` is its client of lm-eval."""
    from transformers.utils import logging

    from evalguard.core.scorer import ScoringPolicy
    from evalguard.models.lm_scorer import LMScorer
    from evalguard.models.loading import load_lm

    logging.set_verbosity_error()  # the demo's model is shorter than what a server reads
    policy = ScoringPolicy()
    arguments = {
        "base_url": url,
        "model": "served",
        "tokenizer": str(ROOT / "demo" / "model"),
        "tokenizer_backend": "huggingface",
        "num_concurrent": connections,
        "max_length": 4096,
    }
    lm = load_lm(
        "local-completions", arguments, {}, policy, trust_remote_code=False, allow_pickle=False
    )
    scorer: Any = LMScorer(lm, policy, model_type="local-completions")
    scorer.lm = lm
    return scorer


# The server.


class _served:
    """A stub server in a process of its own; yields the address of its completions."""

    def __init__(self, median: float, spread: float) -> None:
        context = multiprocessing.get_context("spawn")
        self._ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(median, spread, theirs), daemon=True)

    def __enter__(self) -> str:
        self._process.start()
        return f"http://127.0.0.1:{self._ours.recv()}/v1/completions"

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()


def _serve(median: float, spread: float, told: Any) -> None:
    from aiohttp import web

    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        digest = hashlib.sha256(str(asked["prompt"]).encode()).digest()
        normal = statistics.NormalDist().inv_cdf((int.from_bytes(digest[:6], "big") + 0.5) / 2**48)
        await asyncio.sleep(median * math.exp(spread * normal))
        text = f"text {digest.hex()}"
        return web.json_response({"model": "served", "choices": [{"index": 0, "text": text}]})

    async def serve() -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/completions", answer)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        told.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(serve())


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
