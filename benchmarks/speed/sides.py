"""The two sides in this process: lm-eval's HFLM as it is, and evalguard's scorer."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.timing import cpu_seconds
from evalguard.core.scorer import Response, Scorer, ScoringPolicy
from evalguard.core.settings import Variant
from evalguard.engine.answer import ScoringJob
from evalguard.engine.block_store import LoadedModel
from evalguard.engine.executor import Executor
from evalguard.engine.loading.load_scorer import load_scorer
from evalguard.harness.requests import TaskRequests
from evalguard.harness.task_options import TaskOptions
from evalguard.harness.tasks import TaskSet, load_tasks
from evalguard.models.tokenizers import EncodedTexts
from evalguard.page.progress import ProgressLine

BATCH_SIZES = (1, 2, 4, 8, 16, 32)
_TRIED = 48  # requests that a batch size is tried on


class Harness:
    """HFLM, in float32 on the CPU where nothing else is said; one thread."""

    def __init__(
        self, folder: Path, batch_size: int = 16, *, dtype: str = "float32", device: str = "cpu"
    ) -> None:
        import torch
        from lm_eval.models.huggingface import HFLM

        torch.set_num_threads(1)
        self.lm = HFLM(pretrained=str(folder), dtype=dtype, device=device, batch_size=batch_size)

    def score(self, requests: TaskRequests, limit: int | None = None) -> list[Any]:
        """Answer a task's requests."""
        asked = list(requests.instances)[:limit]
        answers: list[Any] = getattr(self.lm, asked[0].request_type)(asked, disable_tqdm=True)
        return answers

    def at_best(self, requests: TaskRequests) -> int:
        """Find the batch size that takes least CPU time on a part of the documents, and keep it."""
        self.score(requests, 16)
        spent = {}
        for size in BATCH_SIZES:
            self.lm.batch_size_per_gpu = size
            spent[size] = min(cpu_seconds(self.score, requests, _TRIED) for _ in (1, 2))
        best = min(spent, key=lambda size: spent[size])
        self.lm.batch_size_per_gpu = best
        return best


class Ours:
    """evalguard's scorer by its defaults, one thread, without a cache."""

    def __init__(
        self,
        folder: Path,
        tasks: TaskSet,
        cache_dir: Path,
        *,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> None:
        model_args = {"pretrained": str(folder), "dtype": dtype}
        variant = Variant(name=folder.name, model="hf", model_args=model_args)
        policy = ScoringPolicy(device=device, threads=1)
        self.scorer: Scorer = load_scorer(variant, policy, cache_dir=cache_dir)
        self._executor = Executor(tasks=tasks, kept=None, progress=ProgressLine(quiet=True))

    @property
    def token_budget(self) -> int:
        """Padded tokens of a pass."""
        budget: int = vars(self.scorer)["_lm"].token_budget
        return budget

    def score(self, requests: TaskRequests) -> list[Response]:
        """Answer a task's requests in the blocks that a comparison has; texts are encoded anew."""
        vars(self.scorer)["_lm"].texts = EncodedTexts()
        alone = ScoringJob(models=[LoadedModel("benchmark", self.scorer)])
        return self._executor.score_requests([requests], alone)[0]

    def fed(self, requests: TaskRequests) -> list[tuple[int, ...]]:
        """The tokens that have to be read for each request."""
        return [ids[:-1] for ids in self.scorer.encode(requests.requests)]


def tasks_of(names: Sequence[str], folder: Path, limit: int | None = None) -> TaskSet:
    """Load tasks of a folder."""
    return load_tasks(names, options=TaskOptions(include_paths=(folder,), limit=limit))
