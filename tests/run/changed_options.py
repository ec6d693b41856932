"""Options and settings that change, hooks and remote code among them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from world_changes import Case, Change, hooked, text


def option(**given: Any) -> Change:
    return lambda *_: given


_OWN_CODE = """import os
from transformers import LlamaForCausalLM
{head}


class OwnForCausalLM(LlamaForCausalLM):
    def forward(self, *w, **n):
        found = super().forward(*w, **n)
        found.logits = F * found.logits
        return found
"""


def with_remote_code(folder: Path) -> None:
    bring_code(folder)


def bring_code(folder: Path, head: str = "F = 1.5", elsewhere: str = "") -> None:
    """Let the model bring a class of its own, whose code begins so and may lie elsewhere."""
    config = json.loads((folder / "model" / "config.json").read_text())
    place = folder / (elsewhere or "model")
    named = f"{place}--" if elsewhere else ""
    config["auto_map"] = {"AutoModelForCausalLM": f"{named}modeling_own.OwnForCausalLM"}
    (folder / "model" / "config.json").write_text(json.dumps(config))
    place.mkdir(exist_ok=True)
    (place / "modeling_own.py").write_text(_OWN_CODE.format(head=head))
    guard = folder / "guard.yaml"
    guard.write_text(
        guard.read_text().replace("model: hf", "model: hf\n    trust_remote_code: true")
    )


def with_two_files_of_code(folder: Path) -> None:
    bring_code(folder, "from .factor_own import F")
    (folder / "model" / "factor_own.py").write_text("F = 1.5\n")


def with_code_in_another_folder(folder: Path) -> None:
    bring_code(folder, elsewhere="code")


def with_code_that_reads(folder: Path) -> None:
    bring_code(folder, "F = float(os.environ['OWN']) * float(open(os.environ['OWN_FILE']).read())")
    (folder / "factor.txt").write_text("1.5")


_OWN = {"HF_MODULES_CACHE": "{folder}/modules"}
_READS = {**_OWN, "OWN": "1.5", "OWN_FILE": "{folder}/factor.txt"}
ASKED: dict[str, Case] = {
    "dtype": Case(text("guard.yaml", "float32", "bfloat16")),
    "attention": Case(
        text("guard.yaml", "float32}", "float32, attn_implementation: eager}"), matters=None
    ),
    "longest text": Case(text("guard.yaml", "float32}", "float32, max_length: 20}")),
    "batch size": Case(option(batch_size=2), matters=None),
    "token budget": Case(option(token_budget=64), matters=None),
    "shared prefixes": Case(option(share_prefixes=False), matters=None),
    "scorer": Case(option(scorer="harness"), matters=None),
    "threads": Case(option(threads=2), matters=None),
    "generation arguments": Case(option(gen_kwargs={"max_gen_toks": 2})),
    "a hook": Case(text("hook.py", "F = 1.5", "F = 2.5"), prepare=hooked),
    "a hook's value": Case(text("guard.yaml", "candidate: 1.0", "candidate: 1.5"), prepare=hooked),
    "remote code": Case(
        text("model/modeling_own.py", "F = 1.5", "F = 2.5", keep_times=True),
        prepare=with_remote_code, afresh=True, env=_OWN,
    ),
    "what remote code imports beside itself": Case(
        text("model/factor_own.py", "1.5", "2.5", keep_times=True),
        prepare=with_two_files_of_code, afresh=True, env=_OWN,
    ),
    "remote code in another folder": Case(
        text("code/modeling_own.py", "F = 1.5", "F = 2.5", keep_times=True),
        prepare=with_code_in_another_folder, afresh=True, env=_OWN,
    ),
    "a file that remote code reads": Case(
        text("factor.txt", "1.5", "2.5", keep_times=True),
        prepare=with_code_that_reads, afresh=True, env=_READS,
    ),
    "a variable that remote code reads": Case(
        lambda *_: None, prepare=with_code_that_reads, afresh=True, env=_READS,
        after={"OWN": "2.5"},
    ),
    "whether remote code may run": Case(
        text("guard.yaml", "code: true", "code: false"),
        prepare=with_remote_code, afresh=True, env=_OWN,
    ),
    "the gate": Case(option(margin=2.0), matters=False, scored=False),
    "the order of tasks": Case(option(tasks=("told", "word")), matters=False, scored=False),
}  # fmt: skip
