"""Documents of runs that the tests of pages show."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from evalguard.core.compare_report import RunDocuments, drift_column

# What models and data sets may say: none of it may run, hide or break anything.
HOSTILE = (
    "<script>window.hit = 1</script>",
    "</script><script>window.hit = 2</script>",
    "<!--<script>",
    "]]><svg onload='window.hit = 3'>",
    "<img src=x onerror=window.hit=4>",
    "<style>* { display: none }</style>",
    "{{ 7 * 7 }} {% raw %} ${window.hit = 5}",
    "javascript:window.hit=6",
    "\u202ereversed\u202c and \u2066isolated",
    "\x1b[31mred\x1b[0m \x07 \x00 \x9b",
    "lone \ud800 half",
    "line\u2028separator\u2029s",
    "zal\u0301\u0302\u0303\u0304\u0305\u0306\u0307\u0308go",
    "ا" * 30 + " العربية",
)


def loglikelihoods(
    texts: Sequence[str],
    *,
    task: str = "lambada_openai",
    metric: str = "perplexity",
    continuation: str = " Rosa",
    tokens: int = 2,
    names: Sequence[str] = (),
    seed: int = 1,
) -> RunDocuments:
    """One likelihood request a document, ``tokens`` long, the candidate somewhat worse."""
    rng, n = np.random.default_rng(seed), len(texts)
    base = -rng.gamma(2.0, 1.0, (n, tokens))
    candidate = base - rng.normal(0.05, 0.3, (n, tokens))
    sides = {"base": base, "candidate": candidate}
    columns: dict[str, list[object]] = {
        "doc_id": list(range(n)),
        "target": [continuation] * n,
        drift_column("none", metric): list((base - candidate).sum(axis=1) / n / 0.02),
    }
    for side, found in sides.items():
        totals = found.sum(axis=1).tolist()
        columns |= {
            f"{side}:prompt": list(texts),
            f"{side}:arguments": [[json.dumps([text, continuation])] for text in texts],
            f"{side}:loglikelihood": [[total] for total in totals],
            f"{side}:is_greedy": [[total > -2.0] for total in totals],
            f"{side}:text": [[None]] * n,
            f"{side}:token_logprobs": [[row] for row in found.tolist()],
            f"{side}:scores": [
                json.dumps({"none": {metric: total, "acc": int(total > -2.0)}}) for total in totals
            ],
        }
    scored = n * tokens
    of_tokens = {
        "doc_id": np.repeat(np.arange(n), tokens),
        "request": np.zeros(scored, dtype=np.int64),
        "position": np.tile(np.arange(tokens), n),
        "token_id": rng.integers(0, 50_000, scored),
        "kl": rng.gamma(1.0, 0.05, scored),
    }
    if names:
        of_tokens["text"] = np.array([names[i % len(names)] for i in range(scored)], dtype=object)
    return RunDocuments(task=task, columns=columns, tokens=of_tokens)


def generated(texts: Sequence[str], answers: Sequence[str], task: str = "gsm8k") -> RunDocuments:
    """One generated text a document; the two sides answer otherwise."""
    n = len(texts)
    columns: dict[str, list[object]] = {"doc_id": list(range(n)), "target": ["42"] * n}
    for side in ("base", "candidate"):
        columns |= {
            f"{side}:prompt": list(texts),
            f"{side}:arguments": [[json.dumps([text, {"until": []}])] for text in texts],
            f"{side}:loglikelihood": [[None]] * n,
            f"{side}:is_greedy": [[None]] * n,
            f"{side}:text": [[f"{side} {answer}"] for answer in answers],
            f"{side}:token_logprobs": [[None]] * n,
            f"{side}:scores": [
                json.dumps({"flexible-extract": {"exact_match": i % 2}}) for i in range(n)
            ],
        }
    return RunDocuments(task=task, columns=columns)


def choices(n: int = 12, task: str = "arc_easy") -> RunDocuments:
    """Three continuations of a context each; the sides find others the likeliest."""
    columns: dict[str, list[object]] = {"doc_id": list(range(n)), "target": ["1"] * n}
    for number, side in enumerate(("base", "candidate")):
        columns |= {
            f"{side}:prompt": [f"question {i}" for i in range(n)],
            f"{side}:arguments": [
                [json.dumps([f"question {i}", f" option {j}"]) for j in range(3)] for i in range(n)
            ],
            f"{side}:loglikelihood": [
                [-1.0 - (j + i * number) % 3 for j in range(3)] for i in range(n)
            ],
            f"{side}:is_greedy": [[False] * 3] * n,
            f"{side}:text": [[None] * 3] * n,
            f"{side}:token_logprobs": [[[-1.0], [-2.0, -0.5], [-3.0]]] * n,
            f"{side}:scores": [json.dumps({"none": {"acc": (i * number) % 2}}) for i in range(n)],
        }
    return RunDocuments(task=task, columns=columns)
