"""Models of the tests of systems: the demo's, and a random RWKV-7 as rwkv-pip reads it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from evalguard.core.settings import OwnEnvironment
from evalguard.worker.environments import clean_environment, prepare_interpreter

ROOT = Path(__file__).parent.parent.parent
MODEL = ROOT / "demo" / "model"

Compare = Callable[..., dict[str, Any]]

ORIGINAL = {"model_args": {"pretrained": str(MODEL), "dtype": "float32"}}


def perplexity(document: dict[str, Any]) -> dict[str, Any]:
    return next(one for one in document["comparisons"] if one["metric"] == "perplexity")


def kl_mean(document: dict[str, Any]) -> float:
    (one,) = document["distributions"]
    return float(one["kl"]["value"])


def largest_difference(document: dict[str, Any]) -> float:
    """The largest difference of a document's log-likelihood, in nats, to first order.

    A contribution is in standard errors of the base, whose log-scale value is ``base_stderr`` /
    ``base``, and of the mean over ``n`` documents.
    """
    one = perplexity(document)
    if one["bit_identical"]:
        return 0.0
    unit = one["base_stderr"] / one["base"] * one["n"]
    return abs(one["influence"]["documents"][0]["contribution"]) * unit


def named(document: dict[str, Any]) -> set[str]:
    """Culprits and suspects: everything that is blamed in any way."""
    bisect = document["bisect"]
    suspects = {one["setting"] for search in bisect["searches"] for one in search["suspects"]}
    return {one["setting"] for one in bisect["culprits"]} | suspects


def healthy(settings: dict[str, Any]) -> list[str]:
    """All settings at reference."""
    return [word for name in settings for word in ("--set", f"{name}=reference")]


def run_in(requirements: list[str], cache_dir: Path, *words: str) -> str:
    """What a script says in an environment of these packages, evalguard's files beside it."""
    own = OwnEnvironment(python="", requirements=tuple(requirements))
    python = prepare_interpreter(own, {}, cache_dir, name="test").python
    variables = {**clean_environment(), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [python, "-W", "ignore", *words], capture_output=True, text=True, env=variables, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


LOAD = """
import json, sys
from evalguard.errors import EvalguardError
from evalguard.models.runtimes.runtime import RuntimeArguments
from evalguard.models.runtimes.types import load_runtime

told = []
for given in json.loads(sys.argv[2]):
    try:
        load_runtime(sys.argv[1], RuntimeArguments(model_type=sys.argv[1], given=given)).close()
        told.append(["", ""])
    except EvalguardError as error:
        told.append([type(error).__name__, str(error)])
print(json.dumps(told))
"""


def list_refusals(
    kind: str, requirements: list[str], given: list[dict[str, Any]], cache_dir: Path
) -> list[tuple[str, str]]:
    """Class and message of what a runtime says of each of these model_args; ("", ""): nothing."""
    said = run_in(requirements, cache_dir, "-c", LOAD, kind, json.dumps(given))
    return [(error, message) for error, message in json.loads(said.splitlines()[-1])]


def save_rwkv7(
    file: Path, *, vocabulary: int, width: int = 64, layers: int = 2, head: int = 32, rank: int = 16
) -> Path:
    """Write a ``.pth`` file with weights large enough for varied scores.

    Names and shapes are those of BlinkDL's checkpoints.
    """
    generator = torch.Generator().manual_seed(7)

    def normal(*shape: int, scale: float = 1.0) -> torch.Tensor:
        return scale * torch.randn(*shape, generator=generator)

    def uniform(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator)

    matrix = width**-0.5
    weights = {
        "emb.weight": normal(vocabulary, width),
        "head.weight": normal(vocabulary, width, scale=4 * matrix),
    }
    for name in ("ln_out", "blocks.0.ln0"):
        weights |= {f"{name}.weight": torch.ones(width), f"{name}.bias": torch.zeros(width)}
    for layer in range(layers):
        block = f"blocks.{layer}"
        for name in ("ln1", "ln2", "att.ln_x"):
            weights[f"{block}.{name}.weight"] = 1.0 + normal(width, scale=0.1)
            weights[f"{block}.{name}.bias"] = normal(width, scale=0.1)
        for name in ("x_r", "x_w", "x_k", "x_v", "x_a", "x_g"):
            weights[f"{block}.att.{name}"] = uniform(1, 1, width)
        for name in ("w", "a", "v"):
            weights[f"{block}.att.{name}0"] = normal(1, 1, width)
            weights[f"{block}.att.{name}1"] = normal(width, rank, scale=matrix)
            weights[f"{block}.att.{name}2"] = normal(rank, width, scale=rank**-0.5)
        weights[f"{block}.att.g1"] = normal(width, rank, scale=matrix)
        weights[f"{block}.att.g2"] = normal(rank, width, scale=rank**-0.5)
        weights[f"{block}.att.k_k"] = 0.7 + normal(1, 1, width, scale=0.1)
        weights[f"{block}.att.k_a"] = 1.0 + normal(1, 1, width, scale=0.1)
        weights[f"{block}.att.r_k"] = normal(width // head, head, scale=0.1)
        for name in ("receptance", "key", "value", "output"):
            weights[f"{block}.att.{name}.weight"] = normal(width, width, scale=matrix)
        weights[f"{block}.ffn.x_k"] = uniform(1, 1, width)
        weights[f"{block}.ffn.key.weight"] = normal(4 * width, width, scale=matrix)
        weights[f"{block}.ffn.value.weight"] = normal(width, 4 * width, scale=0.5 * matrix)
    torch.save(weights, file)
    return file
