"""Whatever changes, kept answers are those that the model would give now.

Every case makes a world, changes one thing for real, and holds a run over the kept answers of the
unchanged world against a run that has kept nothing.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from changed_worlds import Answers, answer, answer_afresh, write_world
from gguf_writer import save_gguf

import evalguard
from evalguard.core.settings import Variant
from evalguard.models import identity
from evalguard.run.loading.loaded_files import digest_weights

pytestmark = pytest.mark.slow

Change = Callable[[Path, pytest.MonkeyPatch], Mapping[str, Any] | None]


@dataclass(frozen=True)
class Case:
    """One change.

    Attributes:
        change: of a world; returns options of the run after it.
        prepare: makes of the usual world the one that is changed.
        matters: whether answers are others after it; False: they are the same; None: it depends on
            the machine.
        scored: whether something is scored anew; None: either is right.
        afresh: whether only a new process sees it; ``env``: its variables, of both runs, with
            ``{folder}``; ``after``: more of them, after the change.
        given: options of both runs.
    """

    change: Change
    prepare: Callable[[Path], None] = lambda _: None
    matters: bool | None = True
    scored: bool | None = True
    afresh: bool = False
    env: Mapping[str, str] = field(default_factory=dict)
    after: Mapping[str, str] = field(default_factory=dict)
    given: Mapping[str, Any] = field(default_factory=dict)


def text(name: str, old: str, new: str, *, keep_times: bool = False) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        path = folder / name
        before, told = path.stat(), path.read_text()
        assert old in told, f"{old} is not in {name}"
        path.write_text(told.replace(old, new))
        if keep_times:
            assert len(old) == len(new)
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


def option(**given: Any) -> Change:
    return lambda *_: given


# Weights.


def scale(file: Path, factor: float = 1.5, only: str = "") -> None:
    """Multiply stored weights in place; size and times stay."""
    from safetensors.torch import load_file, save_file

    before = file.stat()
    tensors = {n: t * factor if only in n else t for n, t in load_file(file).items()}
    beside = file.with_name("scaled.tmp")
    save_file(tensors, beside, metadata={"format": "pt"})
    data = beside.read_bytes()
    beside.unlink()
    assert len(data) == before.st_size
    with file.open("r+b") as into:
        into.write(data)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def scaled(name: str) -> Change:
    return lambda folder, _: scale(folder / name)


def copied(folder: Path) -> Path:
    """A second model beside the first one, with other weights."""
    shutil.copytree(folder / "model", folder / "other")
    scale(folder / "other" / "model.safetensors")
    return folder / "other"


def through_a_link(folder: Path) -> None:
    copied(folder)
    (folder / "model").rename(folder / "first")
    (folder / "model").symlink_to("first")


def linked_to_the_other(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "model").unlink()
    (folder / "model").symlink_to("other")


def with_linked_weights(folder: Path) -> None:
    copied(folder)
    stored = folder / "first.safetensors"
    (folder / "model" / "model.safetensors").rename(stored)
    (folder / "model" / "model.safetensors").symlink_to(stored)


def weights_linked_to_the_other(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "model" / "model.safetensors").unlink()
    (folder / "model" / "model.safetensors").symlink_to(folder / "other" / "model.safetensors")


def cut(folder: Path, *, elsewhere: str = "") -> None:
    """Store the weights as two shards with an index, in this folder or another one."""
    from safetensors.torch import load_file, save_file

    whole = folder / "model" / "model.safetensors"
    tensors = load_file(whole)
    names = sorted(tensors)
    weight_map = {}
    (folder / "model" / elsewhere).mkdir(exist_ok=True)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        name = str(Path(elsewhere, f"model-0000{number}-of-00002.safetensors"))
        save_file({n: tensors[n] for n in part}, folder / "model" / name, {"format": "pt"})
        weight_map |= dict.fromkeys(part, name)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    (folder / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    whole.unlink()


def cut_with_a_third(folder: Path) -> None:
    cut(folder)
    second = folder / "model" / "model-00002-of-00002.safetensors"
    third = folder / "model" / "model-00003-of-00002.safetensors"
    shutil.copy(second, third)
    scale(third)


def pickled(folder: Path, *, instead: bool = False, factor: float = 1.5) -> None:
    import torch
    from safetensors.torch import load_file

    stored = folder / "model" / "model.safetensors"
    tensors = {n: t * factor for n, t in load_file(stored).items()}
    torch.save(tensors, folder / "model" / "pytorch_model.bin")
    if instead:
        stored.unlink()


def only_pickled(folder: Path) -> None:
    pickled(folder, instead=True, factor=1.0)
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("model: hf", "model: hf\n    allow_pickle: true"))


def other_pickle(folder: Path, _: pytest.MonkeyPatch) -> None:
    import torch

    file = folder / "model" / "pytorch_model.bin"
    before = file.stat()
    torch.save({n: t * 1.5 for n, t in torch.load(file, weights_only=True).items()}, file)
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def as_gguf(place: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        save_gguf(folder / "model", folder / place)
        (folder / "model" / "model.safetensors").unlink()
        guard = folder / "guard.yaml"
        asked = f"gguf_file: {folder / place}, tokenizer: model, dtype"
        guard.write_text(guard.read_text().replace("dtype", asked))

    return prepare


def flipped(place: str) -> Change:
    def change(folder: Path, _: pytest.MonkeyPatch) -> None:
        data, before = bytearray((folder / place).read_bytes()), (folder / place).stat()
        for at in range(len(data) - 4000, len(data), 4):
            data[at + 3] ^= 0x80  # signs of little-endian floats
        (folder / place).write_bytes(bytes(data))
        os.utime(folder / place, ns=(before.st_atime_ns, before.st_mtime_ns))

    return change


WEIGHTS: dict[str, Case] = {
    "weights in place, times kept": Case(scaled("model/model.safetensors")),
    "a link to the folder swapped": Case(linked_to_the_other, prepare=through_a_link),
    "a link to the weights swapped": Case(weights_linked_to_the_other, prepare=with_linked_weights),
    "one of two shards in place": Case(
        scaled("model/model-00002-of-00002.safetensors"), prepare=cut
    ),
    "a shard in a hidden folder": Case(
        scaled("model/.parts/model-00002-of-00002.safetensors"),
        prepare=lambda folder: cut(folder, elsewhere=".parts"),
    ),
    "the index names another shard": Case(
        text("model/model.safetensors.index.json", "00002-of", "00003-of"),
        prepare=cut_with_a_third,
    ),
    "a pickle beside the safetensors": Case(
        lambda folder, _: pickled(folder), matters=False, scored=None
    ),
    "a pickle in place, times kept": Case(other_pickle, prepare=only_pickled),
    "a GGUF file in place": Case(flipped("model/m.gguf"), prepare=as_gguf("model/m.gguf")),
    "a GGUF file out of the folder": Case(flipped("m.gguf"), prepare=as_gguf("m.gguf")),
}  # fmt: skip


# Adapters, by a stand-in for peft that reads what peft reads: its config, and its weights.

_PEFT = """import json
from importlib.metadata import version
from pathlib import Path

import torch
from safetensors.torch import load_file

__version__ = "0.17.0"


class PeftModel:
    @staticmethod
    def from_pretrained(model, folder, **_):
        scaling = json.loads((Path(folder) / "adapter_config.json").read_text())["lora_alpha"]
        update = load_file(Path(folder) / "adapter_model.safetensors")["update"]
        with torch.no_grad():
            model.model.norm.weight.add_(scaling * update)
        return model
"""


def with_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    (folder / "front" / "peft").mkdir(parents=True)
    (folder / "front" / "peft" / "__init__.py").write_text(_PEFT)
    (folder / "adapter").mkdir()
    (folder / "adapter" / "adapter_config.json").write_text('{"lora_alpha": 0.5}')
    size = json.loads((folder / "model" / "config.json").read_text())["hidden_size"]
    update = {"update": torch.linspace(-1.0, 1.0, size)}
    save_file(update, folder / "adapter" / "adapter_model.safetensors", {"format": "pt"})
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("dtype", f"peft: {folder / 'adapter'}, dtype"))


def with_two_adapters(folder: Path) -> None:
    with_adapter(folder)
    shutil.copytree(folder / "adapter", folder / "other")
    (folder / "other" / "adapter_config.json").write_text('{"lora_alpha": 0.9}')


_WITH_PEFT = {"PYTHONPATH": "{folder}/front"}
ADAPTERS: dict[str, Case] = {
    "weights of an adapter, times kept": Case(
        scaled("adapter/adapter_model.safetensors"),
        prepare=with_adapter, afresh=True, env=_WITH_PEFT,
    ),
    "config of an adapter, times kept": Case(
        text("adapter/adapter_config.json", "0.5", "0.7", keep_times=True),
        prepare=with_adapter, afresh=True, env=_WITH_PEFT,
    ),
    "another adapter": Case(
        text("guard.yaml", "/adapter,", "/other,"),
        prepare=with_two_adapters,
        afresh=True, env=_WITH_PEFT,
    ),
}  # fmt: skip


# A hub's local copy.

_COMMITS = ("a" * 40, "b" * 40)


def from_the_hub(folder: Path) -> None:
    """Put the model, and another, into a hub's cache; main is the first."""
    home = folder / "hub" / "models--eg--tiny"
    (home / "refs").mkdir(parents=True)
    (home / "refs" / "main").write_text(_COMMITS[0])
    copied(folder)
    for name, commit in zip(("model", "other"), _COMMITS, strict=True):
        shutil.copytree(folder / name, home / "snapshots" / commit)
    guard = folder / "guard.yaml"
    guard.write_text(guard.read_text().replace("pretrained: model", "pretrained: eg/tiny"))


def moved_branch(folder: Path, _: pytest.MonkeyPatch) -> None:
    (folder / "hub" / "models--eg--tiny" / "refs" / "main").write_text(_COMMITS[1])


def edited_snapshot(folder: Path, _: pytest.MonkeyPatch) -> None:
    scale(folder / "hub/models--eg--tiny/snapshots" / _COMMITS[0] / "model.safetensors")


_HUB = {"HF_HUB_CACHE": "{folder}/hub", "HF_HUB_OFFLINE": "1"}
HUB: dict[str, Case] = {
    "a branch of the hub moved": Case(moved_branch, prepare=from_the_hub, afresh=True, env=_HUB),
    "a hub's local copy edited": Case(edited_snapshot, prepare=from_the_hub, afresh=True, env=_HUB),
}


# What stands beside the weights.

_CHAT = {"apply_chat_template": True}
BESIDE: dict[str, Case] = {
    "epsilon of the config": Case(
        text("model/config.json", '"rms_norm_eps": 1e-06', '"rms_norm_eps": 1e-01')
    ),
    "rotary base of the config, times kept": Case(
        text("model/config.json", "10000.0", "50000.0", keep_times=True)
    ),
    "generation config": Case(
        text("model/generation_config.json", "{", '{"no_repeat_ngram_size": 1,')
    ),
    "rules of the tokenizer": Case(
        text("model/tokenizer.json", '_prefix_space": false', '_prefix_space": true')
    ),
    "special tokens": Case(
        text("model/tokenizer_config.json", '_token": "<s>"', '_token": "</s>"'), matters=None
    ),
    "chat template": Case(
        text("model/chat_template.jinja", "m['content'] }} ", "m['content'] }}!"), given=_CHAT
    ),
    "a readme": Case(
        lambda folder, _: (folder / "model" / ".README").write_text("x") and None,
        matters=False, scored=False,
    ),
    "times of all files": Case(
        lambda folder, _: [os.utime(p, (1, 1)) for p in folder.rglob("*")] and None,
        matters=False, scored=False,
    ),
}  # fmt: skip


# Tasks and their data.


def as_parquet(folder: Path) -> None:
    write_parquet(folder, "boat")
    task = folder / "tasks" / "told.yaml"
    task.write_text(task.read_text().replace("csv", "parquet"))


def write_parquet(folder: Path, word: str) -> None:
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({"text": [f"the {word}", "the fog"]})
    pyarrow.parquet.write_table(table, folder / "tasks" / "told.parquet")


DATA: dict[str, Case] = {
    "documents (JSON), times kept": Case(
        text("tasks/test.jsonl", "lantern", "harbour", keep_times=True)
    ),
    "documents (CSV), times kept": Case(text("tasks/told.csv", "mara", "fogs", keep_times=True)),
    "documents (parquet)": Case(
        lambda folder, _: write_parquet(folder, "pier"), prepare=as_parquet
    ),
    "few-shot documents": Case(text("tasks/train.jsonl", "lantern", "harbour", keep_times=True)),
    "a function of the task": Case(text("tasks/reading.py", "WORD + doc", "doc")),
    "what that function imports": Case(text("tasks/beside.py", "so ", "or so "), afresh=True),
    "a file that that function reads": Case(text("tasks/word.txt", "then", "thus"), afresh=True),
    "the prompt": Case(text("tasks/told.yaml", "{{text}}", "{{text}} and")),
    "a file that the task includes": Case(text("tasks/base.inc", '". "', '"; "')),
    "few-shot examples": Case(text("tasks/word.yaml", "fewshot: 1", "fewshot: 2")),
    "where generation ends": Case(text("tasks/told.yaml", '["@"]', '["e"]')),
    "how long generation goes": Case(text("tasks/told.yaml", "max_gen_toks: 8", "max_gen_toks: 3")),
    "a metric of the task": Case(
        text("tasks/base.inc", "metric: perplexity, aggregation: perplexity", "metric: acc"),
        matters=False, scored=False,
    ),
}  # fmt: skip


# Options and settings.

_HOOK = "import torch\n\nF = 1.5\n\n\ndef edit(model, value):\n    with torch.no_grad():\n"
_HOOK += "        model.model.norm.weight.mul_(F * value)\n"


def hooked(folder: Path) -> None:
    (folder / "hook.py").write_text(_HOOK)
    guard = folder / "guard.yaml"
    setting = "    settings:\n      edit: {reference: 1.0, candidate: 1.0, target: "
    setting += '"call:hook.py:edit"}\n'
    guard.write_text(guard.read_text().replace("tasks: [word", f"{setting}tasks: [word"))


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


# Builds.


def built(folder: Path) -> None:
    (folder / "convert.py").write_text(
        "import shutil, sys\n\nfrom factor import F\n"
        "from safetensors.torch import load_file, save_file\n\n"
        "source, target = sys.argv[1:]\nshutil.copytree(source, target)\n"
        "file = target + '/model.safetensors'\n"
        "tensors = {n: F * t for n, t in load_file(file).items()}\n"
        "save_file(tensors, file, metadata={'format': 'pt'})\n"
    )
    (folder / "factor.py").write_text("F = 1.5\n")
    guard = folder / "guard.yaml"
    recipe = "    build: {command: [python, convert.py, '{base}', '{output}'], "
    recipe += f"inputs: {{base: {folder / 'model'}}}, output: built}}\n"
    told = guard.read_text().replace("pretrained: model, ", "")
    guard.write_text(told.replace("tasks: [word", f"{recipe}tasks: [word"))


BUILT: dict[str, Case] = {
    "an input of the build": Case(scaled("model/model.safetensors"), prepare=built),
    "the script of the build": Case(text("convert.py", "F * t", "2 * t"), prepare=built),
    "what that script imports": Case(text("factor.py", "1.5", "2.5"), prepare=built),
}


# torch's switches.


@contextmanager
def switches_as_before() -> Iterator[None]:
    import torch

    deterministic = torch.are_deterministic_algorithms_enabled()
    precision, mkldnn = torch.get_float32_matmul_precision(), torch.backends.mkldnn.enabled
    yield
    torch.use_deterministic_algorithms(deterministic)
    torch.set_float32_matmul_precision(precision)
    torch.backends.mkldnn.enabled = mkldnn  # type: ignore[assignment]


def deterministic(*_: Any) -> None:
    import torch

    torch.use_deterministic_algorithms(True)


def medium_precision(*_: Any) -> None:
    import torch

    torch.set_float32_matmul_precision("medium")


def without_mkldnn(*_: Any) -> None:
    import torch

    torch.backends.mkldnn.enabled = False  # type: ignore[assignment]


def variable(name: str, value: str) -> Change:
    return lambda _, patch: patch.setenv(name, value)


SWITCHED: dict[str, Case] = {
    "deterministic algorithms": Case(deterministic, matters=None),
    "precision of float32 products": Case(medium_precision, matters=None),
    "oneDNN off": Case(without_mkldnn, matters=None),
    "a variable of MKL": Case(variable("MKL_CBWR", "COMPATIBLE"), matters=None),
    "a variable of oneDNN": Case(variable("ONEDNN_MAX_CPU_ISA", "AVX2"), matters=None),
}


# Installed packages, what Python runs first, evalguard's own code: for models here, and for those
# of a library in an environment of its own.


def overlay(folder: Path, package: str, inner: str, old: str, new: str) -> None:
    """Put a package before the installed one: links to its files, but for one that is edited."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    source, target = Path(spec.origin).parent, folder / "front" / package
    *above, last = Path(inner).parts
    for part in ("", *above):
        source, target = source / part, target / part
        target.mkdir(parents=True, exist_ok=True)
        for one in source.iterdir():
            if one.name != "__pycache__" and not (target / one.name).exists():
                (target / one.name).symlink_to(one)
        nearer = (*above, last)[("", *above).index(part)] if part in ("", *above) else last
        (target / nearer).unlink()
        if nearer != last:
            (target / nearer).mkdir()
    told = (source / last).read_text()
    assert old in told
    (target / last).write_text(told.replace(old, new))


def patched_library(folder: Path, _: pytest.MonkeyPatch) -> None:
    overlay(
        folder, "transformers", "models/llama/modeling_llama.py",
        "return self.weight * hidden_states", "return 1.5 * self.weight * hidden_states",
    )  # fmt: skip


def with_a_copy_of_evalguard(folder: Path) -> None:
    shutil.copytree(
        Path(evalguard.__file__).parent, folder / "front" / "evalguard",
        ignore=shutil.ignore_patterns("__pycache__"),
    )  # fmt: skip


def of_a_runtime(folder: Path) -> None:
    guard = folder / "guard.yaml"
    guard.write_text(
        guard.read_text().replace("model: hf", f"model: hf\n    python: {sys.executable}")
    )


def hooked_runtime(folder: Path) -> None:
    hooked(folder)
    of_a_runtime(folder)


def runtime_with_a_copy(folder: Path) -> None:
    of_a_runtime(folder)
    with_a_copy_of_evalguard(folder)


_FRONT = {"PYTHONPATH": "{folder}/front"}
_SITE = (
    "import json\n\nF = 1.0\nread = json.loads\n\n\n"
    "def loads(*words, **named):\n    found = read(*words, **named)\n"
    "    if isinstance(found, dict) and 'rms_norm_eps' in found:\n"
    "        found['rms_norm_eps'] *= F\n    return found\n\n\njson.loads = loads\n"
)


def customized(name: str) -> Callable[[Path], None]:
    def prepare(folder: Path) -> None:
        (folder / "front").mkdir(exist_ok=True)
        (folder / "front" / f"{name}.py").write_text(_SITE)

    return prepare


SCORED_TOKENS = text(
    "front/evalguard/models/hf/scored_tokens.py",
    "def build_likelihood_responses(", "EDITED = 1\n\n\ndef build_likelihood_responses(",
)  # fmt: skip
REPORTS = text(
    "front/evalguard/report/terminal.py",
    "def render_terminal(",
    "EDITED = 1\n\n\ndef render_terminal(",
)
RUN: dict[str, Case] = {
    "a library patched in place": Case(patched_library, afresh=True, env=_FRONT),
    "sitecustomize patches what a library calls": Case(
        text("front/sitecustomize.py", "F = 1.0", "F = 1e5"),
        prepare=customized("sitecustomize"), afresh=True, env=_FRONT,
    ),
    "usercustomize": Case(
        text("front/usercustomize.py", "F = 1.0", "F = 1e5"),
        prepare=customized("usercustomize"), matters=None, afresh=True, env=_FRONT,
    ),
    "evalguard's scoring code": Case(
        SCORED_TOKENS, prepare=with_a_copy_of_evalguard, matters=None, afresh=True, env=_FRONT
    ),
    "evalguard's reports": Case(
        REPORTS,
        prepare=with_a_copy_of_evalguard, matters=False, scored=False, afresh=True, env=_FRONT,
    ),
    "weights of a model in an environment of its own": Case(
        scaled("model/model.safetensors"), prepare=of_a_runtime, afresh=True
    ),
    "evalguard's scoring code, for a model in an environment of its own": Case(
        SCORED_TOKENS, prepare=runtime_with_a_copy, matters=None, afresh=True, env=_FRONT
    ),
    "a hook of a model in an environment of its own": Case(
        text("hook.py", "F = 1.5", "F = 2.5", keep_times=True),
        prepare=hooked_runtime, scored=None, afresh=True,  # nothing is kept
    ),
    "evalguard's reports, for a model in an environment of its own": Case(
        REPORTS,
        prepare=runtime_with_a_copy, matters=False, scored=False, afresh=True, env=_FRONT,
    ),
    "threads of a model in an environment of its own": Case(
        lambda *_: None, prepare=of_a_runtime, matters=None, afresh=True,
        env={"OMP_NUM_THREADS": "1"}, after={"OMP_NUM_THREADS": "2"},
    ),
    "a variable of MKL, of a model in an environment of its own": Case(
        lambda *_: None, prepare=of_a_runtime, matters=None, afresh=True,
        after={"MKL_CBWR": "COMPATIBLE"},
    ),
}  # fmt: skip

TABLES = (WEIGHTS, ADAPTERS, HUB, BESIDE, DATA, ASKED, BUILT, SWITCHED, RUN)
CASES = {name: case for table in TABLES for name, case in table.items()}


def ask(case: Case, folder: Path, cache: Path, given: Mapping[str, Any], env: Any) -> Answers:
    """The answers now; nothing that this process read before counts."""
    for read_once in (identity.package_versions, identity.kernel_versions):
        read_once.cache_clear()
    for name in ("beside", "factor", "hook"):
        sys.modules.pop(name, None)
    if not case.afresh:
        return answer(folder, cache, given)
    paths = [part.replace("{folder}", str(folder)) for part in [env.get("PYTHONPATH", "")]]
    variables = {n: v.replace("{folder}", str(folder)) for n, v in env.items()}
    # a file path of a script comes first; this package of the tests' environment comes last
    variables["PYTHONPATH"] = os.pathsep.join([*filter(None, paths), *filter(None, sys.path)])
    return answer_afresh(folder, cache, given, variables)


def test_an_adapter_counts_by_its_files_in_place_too(tmp_path: Path) -> None:
    """Its library need not be installed where the digest is taken."""
    for name in ("model", "adapter"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.safetensors").write_text("weights")
    arguments = {name: str(tmp_path / place) for name, place in
                 (("pretrained", "model"), ("peft", "adapter"))}  # fmt: skip
    variant = Variant(name="m", model="hf", model_args={**arguments})
    before = digest_weights(variant, variant.model_args)
    file = tmp_path / "adapter" / "adapter_model.safetensors"
    times = file.stat()
    file.write_text("others!")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert digest_weights(variant, variant.model_args) != before


# Processes of their own take most of the table's time; these stand for the others by day.
BY_DAY = ("what that function imports", "sitecustomize patches what a library calls")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[pytest.mark.nightly] if case.afresh and name not in BY_DAY else []
        )
        for name, case in CASES.items()
    ],
)
def test_answers_over_kept_ones_are_those_of_now(
    name: str, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[name]
    folder = write_world(tmp_path / "world", tiny_llama)
    case.prepare(folder)
    cache, nothing = tmp_path / "cache", tmp_path / "nothing"
    with switches_as_before():
        before = ask(case, folder, cache, case.given, case.env)
        given = {**case.given, **(case.change(folder, monkeypatch) or {})}
        over_kept = ask(case, folder, cache, given, {**case.env, **case.after})
        now = ask(case, folder, nothing, given, {**case.env, **case.after})
    assert sorted(over_kept.told, key=str) == sorted(now.told, key=str)
    if case.matters is not None:
        assert (sorted(now.told, key=str) != sorted(before.told, key=str)) == case.matters
    if case.scored is not None:
        assert (over_kept.scored > 0) == case.scored, "kept answers were used, or not used"


def test_the_table_is_long_and_nothing_is_scored_twice_for_nothing(
    tiny_llama: Path, tmp_path: Path
) -> None:
    assert len(CASES) >= 55
    folder = write_world(tmp_path / "world", tiny_llama)
    first = answer(folder, tmp_path / "cache", {})
    again = answer(folder, tmp_path / "cache", {})
    assert first.told == again.told
    assert (first.scored > 0, again.scored) == (True, 0)
