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
    "conversion", "core/__init__.py", "core/chat_requests.py", "core/chosen_option.py",
    "core/distribution_tail.py", "core/divergence.py",
    "core/document_fields.py", "core/documents/__init__.py", "core/documents/columns.py",
    "core/documents/likelihoods.py", "core/documents/rescoring.py", "core/early_end.py",
    "core/generated_tokens.py", "core/gguf_parts.py", "core/logprob_rows.py",
    "core/module_names.py", "core/plain.py", "core/redaction.py", "core/reference.py",
    "core/refused_writes.py", "core/rendered_prompt.py", "core/row_tails.py", "core/score_items.py",
    "core/scored_positions.py", "core/scorer.py", "core/scores.py", "core/secret_shapes.py",
    "core/settings.py", "core/shown_tokens.py", "core/task_group.py", "core/thinking.py",
    "core/top_tokens.py", "errors.py", "harness", "models",
    "run/__init__.py", "run/loading", "run/worker.py", "run_token.py", "start_up.py", "worker",
)  # fmt: skip

# What these files import, or what lies in their folders, and why it makes no score.
LEFT_OUT: Mapping[str, str] = {
    "__init__.py": "the names that users import, and a version, which says nothing of code",
    "conversion/call_process.py": "calls a recipe, whose files prove themselves",
    "core/answer_figures.py": "figures of answers, which are kept as the model wrote them",
    "core/distribution_comparison.py": "how far two finished models are apart",
    "core/expected_answers.py": "what structure an answer is judged by, once it is there",
    "core/figure_names.py": "by which names a gate asks for figures",
    "core/reports": "records of finished reports, of which a model's findings are one",
    "core/score_rows.py": "picks rows of tables whose scores are there",
    "core/tool_calls.py": "reads the calls of a message that is kept as the server sent it",
    "core/tracing": "what is told of activations, which no score is read from",
    "garbage.py": "when Python looks for garbage",
    "harness/finished_runs": "scores that lm-eval has finished",
    "installation.py": "by which command what is missing is installed",
    "models/checkpoint_comparison.py": "compares files of weights, for a search",
    "models/empty_model.py": "a model without weights, of which only names and shapes are read",
    "models/load_dtype.py": "foretells a dtype; scores are known by the one that was read back",
    "models/other_classes.py": "loads models of other classes to be traced, which are not scored",
    "models/registered.py": "evalguard's model types for plain lm-eval, whose scores are not kept",
    "models/runtimes/points": "activations of other libraries, which no score is read from",
    "models/token_texts.py": "texts of tokens, for people to read",
    "models/tokenizer_files.py": "compares tokenizers, for a search",
    "models/tracing": "activations recorded and forced, which no score is read from",
    "models/weight_places.py": "names what tensors are for",
    "plugins.py": "finds trackers and recipes by name",
    "regular_file.py": 'refuses to open what is no file: it reads as "open" does',
    "run/tracing": "loads models to be traced, which are not scored",
    "stats": "judges scores, and makes none",
    "store": "how files are written that are kept: their formats have numbers of their own",
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
    return any(file.is_relative_to(place) for place in LEFT_OUT)


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
