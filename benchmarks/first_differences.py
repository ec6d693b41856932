"""Where answers of converted models first differ, near tie or not; what recording margins costs.

    python -m benchmarks.first_differences --output benchmarks/results/first_differences.md

Trained models in float32, beside themselves in other precisions and with planted faults.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks.output import deliver
from benchmarks.quantised import quantised_copy
from benchmarks.trained_models import STORIES, Trained, trained
from evalguard.answers.first_difference import NEAR_TIE, find_first_difference
from evalguard.core.scorer import Request, Response, ScoringPolicy
from evalguard.models.hf import generation as guarded_generation
from evalguard.models.lm_scorer import LMScorer
from evalguard.models.loading import load_lm

KINDS = (STORIES, "llama")
_TOKENS, _WORDS = 64, 16
_BATCH = 32

Make = Callable[[Path, Path], Path]
Weights = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What is done to a model: to its folder, or to its precision."""

    name: str
    fault: bool = False
    make: Make | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)


def _quantised(bits: int, group: int | None) -> Make:
    return lambda model, folder: quantised_copy(model, folder, bits=bits, group=group)


def _edited(edit: Callable[[Weights, dict[str, Any]], None]) -> Make:
    """A copy of which weights and config.json are changed in place."""

    def make(model: Path, folder: Path) -> Path:
        from safetensors.torch import load_file, save_file

        shutil.copytree(model, folder)
        weights = load_file(folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        edit(weights, config)
        for name in ("model.safetensors", "config.json"):
            (folder / name).unlink()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "config.json").write_text(json.dumps(config))
        return folder

    return make


def _wrong_base(times: float) -> Make:
    def edit(_weights: Weights, config: dict[str, Any]) -> None:
        config["rope_parameters"]["rope_theta"] *= times

    return _edited(edit)


def _scaled_attention(by: float) -> Make:
    """Queries times a constant are scores times it."""

    def edit(weights: Weights, _config: dict[str, Any]) -> None:
        for name in weights:
            if name.endswith("q_proj.weight"):
                weights[name] = weights[name] * by

    return _edited(edit)


def _exchanged_heads(weights: Weights, config: dict[str, Any]) -> None:
    name = "model.layers.2.self_attn.k_proj.weight"
    heads = config["num_key_value_heads"]
    weights[name] = weights[name].roll(weights[name].shape[0] // heads, 0).contiguous()


def _noise(share: float) -> Make:
    """Noise on the matrices of one layer, by a share of their own spread."""

    def edit(weights: Weights, _config: dict[str, Any]) -> None:
        import torch

        torch.manual_seed(0)
        for name, weight in weights.items():
            if ".layers.2." in name and weight.dim() == 2:
                weights[name] = weight + share * weight.std() * torch.randn_like(weight)

    return _edited(edit)


CANDIDATES = (
    Candidate(name="float16", arguments={"dtype": "float16"}),
    Candidate(name="bfloat16", arguments={"dtype": "bfloat16"}),
    Candidate(name="int8, per channel", make=_quantised(8, None)),
    Candidate(name="int6, per channel", make=_quantised(6, None)),
    Candidate(name="int4, groups of 32", make=_quantised(4, 32)),
    Candidate(name="rotary base x 5", fault=True, make=_wrong_base(5.0)),
    Candidate(name="attention x 1.5", fault=True, make=_scaled_attention(1.5)),
    Candidate(name="heads exchanged in a layer", fault=True, make=_edited(_exchanged_heads)),
    Candidate(name="a layer with 20% noise", fault=True, make=_noise(0.2)),
    Candidate(name="attention x 1.07", fault=True, make=_scaled_attention(1.0695)),
    Candidate(name="rotary base x 1.05", fault=True, make=_wrong_base(1.05)),
)


def main() -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--documents", type=int, default=200)
    parser.add_argument("--kinds", nargs="+", default=list(KINDS))
    parser.add_argument("--no-costs", action="store_true", help="leave the second table out")
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="first-differences-") as folder:
        page = _page(given.kinds, given.documents, Path(folder), costs=not given.no_costs)
        deliver(page, given.output)


def _page(kinds: Sequence[str], documents: int, work: Path, *, costs: bool) -> Iterator[str]:
    yield "# Where answers first differ"
    yield ""
    yield (
        "`python -m benchmarks.first_differences --output benchmarks/results/first_differences.md`"
        f": greedy answers of {_TOKENS} tokens to {documents} texts: the first {_WORDS} words of "
        f"stories, and of {KINDS[1]} a question with all that it follows from. Beyond near ties: a "
        f"side prefers its own token by more than {NEAR_TIE} nats; near ties: none does, and one "
        "side's most probable other token is the other's; else not known "
        "(`evalguard/answers/first_difference.py`). Per cent are of the documents that "
        "differ. By the base's margin alone: it is above that."
    )
    for kind in kinds:
        yield ""
        yield f"## {kind}, float32 beside itself"
        yield ""
        yield (
            "| candidate | differ | at token | beyond near ties | near ties | not known "
            "| by the base's margin alone |"
        )
        yield "|---|---:|---:|---:|---:|---:|---:|"
        yield from _rows(kind, documents, work)
    if not costs:
        return
    yield ""
    yield "## What recording costs"
    yield ""
    yield (
        "Time of the same texts with the recording over without it, taken in turns, median and "
        "range of the pairs; CPU, one thread."
    )
    yield ""
    yield "| model | texts in a batch | ratio |"
    yield "|---|---:|---:|"
    yield from _costs(work)


def _rows(kind: str, documents: int, work: Path) -> Iterator[str]:
    model = trained(kind, work, documents=documents)
    contexts = _contexts(model, words=_WORDS if kind == STORIES else None)
    base = _answers(model.model, contexts)
    for number, candidate in enumerate(CANDIDATES):
        folder = model.model
        if candidate.make is not None:
            folder = candidate.make(model.model, work / f"{kind}-{number}")
        told = _answers(folder, contexts, **candidate.arguments)
        found = [
            find_first_difference(str(one.text), str(other.text), one.generated, other.generated)
            for one, other in zip(base, told, strict=True)
        ]
        there = [one for one in found if one is not None]
        places = [one.position for one in there if one.position is not None]
        alone = sum((one.base_margin or 0.0) > NEAR_TIE for one in there)
        counts = [sum(one.near_tie is kind for one in there) for kind in (False, True, None)]
        cells = [_with_share(count, len(there)) for count in (*counts, alone)]
        yield (
            f"| {candidate.name}{' (fault)' if candidate.fault else ''} | {len(there)} "
            f"| {f'{statistics.mean(places):.1f}' if places else '-'} | {' | '.join(cells)} |"
        )


def _contexts(model: Trained, *, words: int | None) -> list[str]:
    lines = (model.tasks / "documents.jsonl").read_text().splitlines()
    return [" ".join(json.loads(line)["context"].split()[:words]) for line in lines]


def _with_share(number: int, of: int) -> str:
    return f"{number} ({100 * number / of:.0f}%)" if of else "0"


def _scorer(folder: Path, batch: int = _BATCH, **arguments: Any) -> LMScorer:
    policy = ScoringPolicy(batch_size=batch, device="cpu", threads=1)
    given = {"pretrained": str(folder), "dtype": "float32", **arguments}
    lm = load_lm("hf", given, {}, policy, trust_remote_code=False, allow_pickle=False)
    return LMScorer(lm, policy, model_type="hf", model_args=given)


def _requests(contexts: Sequence[str]) -> list[Request]:
    options: dict[str, Any] = {"until": [], "max_gen_toks": _TOKENS, "temperature": 0.0}
    return [
        Request(task="t", doc_id=n, index=0, kind="generate_until", arguments=(text, options))
        for n, text in enumerate(contexts)
    ]


def _answers(folder: Path, contexts: Sequence[str], **arguments: Any) -> list[Response]:
    scorer = _scorer(folder, **arguments)
    try:
        return scorer.score(_requests(contexts))
    finally:
        scorer.close()


def _costs(work: Path) -> Iterator[str]:
    stories = trained(STORIES, work, documents=64)
    contexts = _contexts(stories, words=_WORDS)
    models = {"stories, 0.26 million weights, 512 tokens": stories.model}
    for vocabulary in (32_000, 128_000):
        name = f"Llama of 8 layers of 512, random, {vocabulary:,} tokens"
        models[name] = _large(stories.model, work / f"large-{vocabulary}", vocabulary)
    for name, folder in models.items():
        for batch in (1, 16):
            ratios = _ratios(folder, contexts[:batch], batch)
            middle, low, high = statistics.median(ratios), min(ratios), max(ratios)
            yield f"| {name} | {batch} | {middle:.3f} [{low:.3f}, {high:.3f}] |"


def _large(tokenizer: Path, folder: Path, vocabulary: int) -> Path:
    """A model as wide as small ones are, with the stories' tokenizer."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    shutil.copytree(tokenizer, folder, ignore=shutil.ignore_patterns("*.safetensors", "config.*"))
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=512, intermediate_size=1376, num_hidden_layers=8,
        num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=512,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@contextlib.contextmanager
def _unwatched(*_: Any) -> Iterator[None]:
    yield


def _ratios(folder: Path, contexts: Sequence[str], batch: int) -> list[float]:
    """Time with the recording over time without, of the same texts in turns."""
    scorer, requests = _scorer(folder, batch), _requests(contexts)
    scorer.score(requests)
    ratios = []
    for number in range(7):
        times = {}
        for watched in (True, False) if number % 2 else (False, True):
            with contextlib.ExitStack() as stack:
                if not watched:
                    stack.enter_context(
                        mock.patch.object(guarded_generation, "watch_generation", _unwatched)
                    )
                start = time.process_time()
                scorer.score(requests)
                times[watched] = time.process_time() - start
        ratios.append(times[True] / times[False])
    scorer.close()
    return ratios


if __name__ == "__main__":
    main()
