"""One comparison in this process, with the CPU seconds inside the models' forward passes.

Prints a JSON document. Imports come first and are counted apart. Inside: from entering the
outermost ``forward`` of a model, or of its body, to leaving it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.speed.commands import IMPORTS
from evalguard.garbage import raise_gc_threshold


class Inside:
    """CPU seconds inside of functions that may call one another."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._depth = 0

    def counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, counted."""

        def call(*given: Any, **named: Any) -> Any:
            start = time.process_time()
            self._depth += 1
            try:
                return function(*given, **named)
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self.seconds += time.process_time() - start

        call.__wrapped__ = function  # type: ignore[attr-defined]  # its signature is looked at
        return call


def main() -> None:
    """Compare two models and print what that took."""
    base, candidate, task, tasks, cache = sys.argv[1:]
    raise_gc_threshold()  # as the command does
    exec(IMPORTS)
    imports = time.process_time()
    from transformers.models.llama import modeling_llama

    import evalguard

    inside = Inside()
    for model in (modeling_llama.LlamaForCausalLM, modeling_llama.LlamaModel):
        model.forward = inside.counted(model.forward)  # type: ignore[method-assign]
    start = time.process_time()
    result = evalguard.compare(
        base, candidate, tasks=[task], include_path=[Path(tasks)], quiet=True, device="cpu",
        output_path=Path(cache) / "reports", cache_dir=Path(cache),
    )  # fmt: skip
    result.to_json()
    print(
        json.dumps(
            {
                "imports": imports,
                "whole": time.process_time() - start,
                "forward": inside.seconds,
                "documents": result.comparisons[0].n,
            }
        )
    )


if __name__ == "__main__":
    main()
