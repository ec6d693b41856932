"""The commands that are compared: two processes of ``lm_eval``, and one ``evalguard compare``."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.speed.process import Ran, run
from benchmarks.speed.workplace import Workplace

# 0 passed, 1 regressed; anything else is no answer.
_ANSWERS = (0, 1)
IMPORTS = (
    "import torch, datasets, lm_eval.tasks, lm_eval.models.huggingface\n"
    "from transformers import LlamaForCausalLM, PreTrainedTokenizerFast\n"
    "import evalguard.comparison.compare, evalguard.models.hf.model, evalguard.cli"
)


@dataclass(frozen=True, slots=True)
class Commands:
    """Runs both sides' commands in a workplace; the data sets' own cache is in it, too."""

    place: Workplace

    def harness(self, model: Path, task: str, batch_size: int) -> Ran:
        """One ``lm_eval`` process, as a user runs it for a comparison by hand."""
        out = self.place.folder / "lm_eval"
        shutil.rmtree(out, ignore_errors=True)
        words = [
            "-m", "lm_eval", "run", "--model", "hf", "--device", "cpu", "--log_samples",
            "--model_args", f"pretrained={model},dtype=float32", "--batch_size", batch_size,
            "--tasks", task, "--include_path", self.place.tasks, "--output_path", out,
        ]  # fmt: skip
        return run([sys.executable, *words], self._env)

    def both(self, base: Path, candidate: Path, task: str, batch_size: int) -> Ran:
        """Two ``lm_eval`` processes, one after the other."""
        one, other = (self.harness(model, task, batch_size) for model in (base, candidate))
        return Ran(
            cpu=one.cpu + other.cpu,
            wall=one.wall + other.wall,
            code=0,
            out="",
        )

    def compare(
        self, base: Path, candidate: Path, task: str, cache: Path | None, *more: object
    ) -> tuple[Ran, dict[str, Any]]:
        """One ``evalguard compare`` and its JSON document.

        ``cache`` None: a fresh one, in which only the device's token budget is known, as it is
        after the first run on a machine.
        """
        fresh = self._fresh
        if cache is None and fresh.exists():
            for found in fresh.iterdir():
                if found.name != "devices":
                    shutil.rmtree(found)
        words = [
            "-m", "evalguard", "compare", "--base", base, "--cand", candidate, "--tasks", task,
            "--include_path", self.place.tasks, "--output-path", self.place.folder / "reports",
            "--cache-dir", cache or fresh, "--device", "cpu", "--quiet", "--json", *more,
        ]  # fmt: skip
        ran = run([sys.executable, *words], self._env, codes=_ANSWERS)
        return ran, json.loads(ran.out)

    def empty(self, name: str) -> Path:
        """A cache in which nothing but the device's token budget is known, where it is by now."""
        cache, devices = self.place.folder / name, self._fresh / "devices"
        shutil.rmtree(cache, ignore_errors=True)
        if devices.exists():
            shutil.copytree(devices, cache / "devices")
        return cache

    def imports(self) -> Ran:
        """What both sides import, in a process that does nothing else."""
        return run([sys.executable, "-c", IMPORTS], self._env)

    def module(self, name: str, *words: object) -> tuple[Ran, dict[str, Any]]:
        """A module of this folder that prints one JSON document."""
        ran = run([sys.executable, "-m", f"benchmarks.speed.{name}", *words], self._env)
        return ran, json.loads(ran.out)

    @property
    def _fresh(self) -> Path:
        return self.place.folder / "fresh-cache"

    @property
    def _env(self) -> dict[str, str]:
        return {"HF_DATASETS_CACHE": str(self.place.folder / "datasets")}
