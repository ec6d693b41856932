"""Which of evalguard's own files make scores, and their digest.

The rule is this list; ``tests/models/test_scoring_code.py`` proves it: these files are all that
scoring imports, here and in a worker, and all whose functions run while a model answers.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

from evalguard.core.settings import digest_of

_PACKAGE = Path(__file__).parent.parent
# Folders count whole.
SCORING = (
    "conversion", "core/__init__.py", "core/chat.py", "core/codec.py", "core/divergence.py",
    "core/document_columns.py", "core/document_statistics.py", "core/logprob_rows.py",
    "core/loops.py", "core/ray_plan.py", "core/redaction.py", "core/scorer.py", "core/scores.py",
    "core/settings.py", "core/shown_tokens.py", "core/split_files.py", "engine/__init__.py",
    "engine/loading", "engine/servers.py", "engine/worker_main.py", "errors.py", "harness",
    "models", "run_token.py", "start_up.py", "worker",
)  # fmt: skip

# What these files import, or what lies in their folders, and why it makes no score.
LEFT_OUT: Mapping[str, str] = {
    "__init__.py": "the names that users import, and a version, which says nothing of code",
    "answers": "figures of answers, which are kept as the model wrote them",
    "conversion/call_process.py": "calls a recipe, whose files prove themselves",
    "core/activation_sums.py": "sums over activations, which no score is read from",
    "core/distribution_comparison.py": "how far two finished models are apart",
    "core/expected_answers.py": "what structure an answer is judged by, once it is there",
    "core/findings.py": "what is said of finished reports, a model's findings among them",
    "core/generation_comparison.py": "how far answers of two finished models are apart",
    "core/hyperparameters.py": "compares what two models hold; a trace shows it",
    "core/option_words.py": "names of choices, each of which acts where it is read",
    "core/structure.py": "judges the structure of an answer that is kept as the model wrote it",
    "core/trace_points.py": "names of activations, which no score is read from",
    "core/trace_record.py": "what is told of activations, which no score is read from",
    "engine/loading/tokenizer_ahead.py": "refuses a model before it is loaded",
    "garbage.py": "when Python looks for garbage",
    "gguf_table.py": "looks at a GGUF file's header before it is loaded; others read it then",
    "harness/finished_runs": "scores that lm-eval has finished",
    "installation.py": "by which command what is missing is installed",
    "models/hyperparameters_read.py": "what a loaded model holds, for a trace to show",
    "models/registered.py": "evalguard's model types for plain lm-eval, whose scores are not kept",
    "models/runtimes/ggml_points.py": "activations of llama.cpp, which no score is read from",
    "models/unloaded_models.py": "compares models by their files, for a search",
    "plugins.py": "finds trackers and recipes by name",
    "regular_file.py": 'refuses to open what is no file: it reads as "open" does',
    "stats": "judges scores, and makes none",
    "store": "how files are written that are kept: their formats have numbers of their own",
    "tools.py": "by which module a tool gives what the spine asks it for",
    "tracing": "activations recorded and forced, which no score is read from",
    "worker/outlines.py": "a model's modules told over a pipe, for a trace",
}


def scoring_files(package: Path = _PACKAGE) -> Iterator[Path]:
    """Files whose text decides what evalguard makes of a model, sorted, relative to the package."""
    for name in SCORING:
        files = [package / name] if name.endswith(".py") else sorted((package / name).rglob("*.py"))
        for file in files:
            inner = file.relative_to(package)
            if not is_left_out(inner):
                yield inner


def is_left_out(file: Path) -> bool:
    """Whether a file of the package, by its path in it, makes no score by ``LEFT_OUT``."""
    return any(file.is_relative_to(folder) for folder in LEFT_OUT)


@functools.cache
def scoring_code() -> str:
    """Digest of evalguard's own code that makes scores, as this process found it.

    Neither the version nor times of files count: a checkout changes without its version, a release
    may change nothing here, and reproducible builds give all files the same time.
    """
    return digest_scoring_files(_PACKAGE)


def digest_scoring_files(package: Path) -> str:
    """Digest of the scoring files of a copy of this package."""
    return digest_of(
        [
            [file.as_posix(), hashlib.sha256((package / file).read_bytes()).hexdigest()]
            for file in scoring_files(package)
        ]
    )
