"""A worker with a model that is nothing but its settings; some of their values do harm."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping, Sequence

from evalguard.core.scorer import ModelDescription, Request, Response, ScoringPolicy
from evalguard.core.settings import Value, Variant
from evalguard.errors import EvaluationError, SettingError
from evalguard.worker.messages import Load

_loads = 0


def harm(value: Value) -> None:
    if value == "bad":
        raise SettingError("it did not take")
    if value == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if value == "hang":
        time.sleep(600)
    if value == "first process only" and _loads > 1:
        raise EvaluationError("CUDA out of memory")


class Settings:
    """Shows the process that it runs in, the loads of that process, and the assignment."""

    def __init__(self, variant: Variant, policy: ScoringPolicy) -> None:
        self.variant, self.policy, self.way = variant, policy, "loaded"

    def describe(self) -> ModelDescription:
        told: dict[str, Value] = {
            "pid": os.getpid(),
            "loads": _loads,
            "way": self.way,
            "seed": self.policy.seed,
            "flag": os.environ.get("REUSE_FLAG"),
        }
        effective = dict(self.variant.assignment)
        return ModelDescription(model_type="hf", effective=effective, environment=told)

    def reassign(self, variant: Variant) -> bool:
        for value in variant.assignment.values():
            harm(value)
        self.variant, self.way = variant, "reassigned"
        return "not without loading" not in variant.assignment.values()

    def encode(self, requests: Sequence[Request]) -> list[tuple[int, ...]]:
        return [() for _ in requests]

    def score(self, requests: Sequence[Request]) -> list[Response]:
        harm(requests[0].arguments[0])
        return [Response(text="") for _ in requests]

    def render_chat(
        self, messages: Sequence[Mapping[str, str]], add_generation_prompt: bool
    ) -> str:
        return ""

    def close(self) -> None:
        pass


def open_settings(load: Load) -> Settings:
    global _loads
    _loads += 1
    assert load.reusable
    for value in load.variant.assignment.values():
        harm(value)
    return Settings(load.variant, load.policy)


if __name__ == "__main__":
    from evalguard.engine import worker_main as worker

    sys.exit(worker.main(sys.argv[2:], open_scorer=open_settings))
