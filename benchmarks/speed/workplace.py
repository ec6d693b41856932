"""The folder that a run works in: models, candidates and tasks, each made when it is needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from benchmarks.speed import documents, random_models
from benchmarks.speed.sides import Harness, Ours, tasks_of
from evalguard.harness.requests import TaskRequests

_PILOT = 512
_SIGMA = 5.0
_NOISES = tuple(0.01 * 2.0 ** (step / 2) for step in range(15))


@dataclass(slots=True)
class Workplace:
    """Attributes:
    quick: whether everything is to be small.
    batch_sizes: the harness's best batch size for a model, once it is known.
    """

    folder: Path
    quick: bool = False
    batch_sizes: dict[str, int] = field(default_factory=dict)
    noise: float = 0.0

    @property
    def tasks(self) -> Path:
        """Folder of the task files."""
        return self.folder / "tasks"

    def model(self, shape: str) -> Path:
        """A random model."""
        return self._made(shape, lambda path: random_models.save_random(path, shape))

    def candidate(self, kind: str) -> Path:
        """A candidate of the model with a 32k vocabulary: lossless, bf16, or 5-sigma."""
        base = self.model("32k")
        makers = {
            "lossless": lambda path: random_models.lossless(base, path),
            "bf16": lambda path: random_models.rounded(base, path),
            "5-sigma": self._five_sigma,
        }
        return self._made(kind, makers[kind])

    def lastword(self, shape: str, n: int) -> str:
        """A task of n last words; what the model itself says is the target of most."""
        name = f"speed_lastword_{shape}_{n}"
        if not (self.tasks / f"{name}.yaml").exists():
            made = documents.last_words(self.model(shape), n)
            documents.write_lastword(self.tasks, name, made)
        return name

    def choice(self, n: int) -> str:
        """A task of n documents with four continuations each."""
        name = f"speed_choice_{n}"
        if not (self.tasks / f"{name}.yaml").exists():
            documents.write_choice(self.tasks, name, list(documents.choices(n)))
        return name

    def few_shot(self, n: int) -> str:
        """A task of n documents with four continuations each, after the same examples."""
        name = f"speed_few_shot_{n}"
        if not (self.tasks / f"{name}.yaml").exists():
            documents.write_choice(self.tasks, name, list(documents.few_shot(n)))
        return name

    def requests(self, task: str) -> TaskRequests:
        """What a task asks."""
        return tasks_of([task], self.tasks).requests(task)

    def ours(self, shape: str, task: str) -> Ours:
        """evalguard's side."""
        return Ours(self.model(shape), tasks_of([task], self.tasks), self.folder / "cache")

    def harness(self, shape: str, requests: TaskRequests) -> Harness:
        """lm-eval's side at its best batch size for these requests."""
        side = Harness(self.model(shape))
        self.batch_sizes[shape] = side.at_best(requests)
        return side

    def best_batch(self, shape: str) -> int:
        """The harness's best batch size on last words."""
        if shape not in self.batch_sizes:
            self.harness(shape, self.requests(self.lastword(shape, 64)))
        return self.batch_sizes[shape]

    def _made(self, name: str, make: Callable[[Path], Path]) -> Path:
        path = self.folder / "models" / name
        if not path.exists():
            make(path)
        return path

    def _five_sigma(self, path: Path) -> Path:
        """Noise on the weights: the smallest of a ladder with which 5,153 documents lose 5 sigma.

        Seen on the first 512 documents: sigma grows with the square root of their number.
        """
        task = self.lastword("32k", _PILOT)
        requests, tasks = self.requests(task), tasks_of([task], self.tasks)
        base = self._scores(self.ours("32k", task), requests)
        needed = _SIGMA * np.std(base, ddof=1) / np.sqrt(5153)
        for share in _NOISES:
            tried = random_models.noisy(self.model("32k"), path, share=share)
            lost = base - self._scores(Ours(tried, tasks, self.folder / "cache"), requests)
            if np.mean(lost) >= needed:
                self.noise = share
                return tried
            for file in sorted(path.iterdir()):
                file.unlink()
            path.rmdir()
        raise RuntimeError(f"no noise up to {_NOISES[-1]:.2f} costs {_SIGMA} sigma")

    @staticmethod
    def _scores(side: Ours, requests: TaskRequests) -> np.ndarray:
        answers = side.score(requests)
        return np.array([answer.loglikelihood for answer in answers], dtype=np.float64)
