"""The pages of docs/reference are made from the code; this writes them.

    python -m documentation.reference

Guard-file keys come from the JSON Schema that ``evalguard schema`` prints, keys of JSON documents
from the schemas of ``evalguard schema NAME``, options from the command line's own help, and exit
codes from their table. A test holds the files to what is made here.
"""

from __future__ import annotations

from pathlib import Path

from documentation.command_reference import command_reference
from documentation.markdown_text import cell
from documentation.schema_tables import schema_tables
from evalguard.cli.main import cli
from evalguard.comparison.listing import read_named_schema
from evalguard.config.guard_writing import build_guard_schema
from evalguard.core.exit_code import EXIT_CODES

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
CONTRACTS = ("compare", "trace", "tensors", "floor", "nightly", "plan")

_GUARD_FILE = """# Guard-file keys

Made from the JSON Schema that `evalguard schema` prints. What the keys are for:
[Guard files](../guard-files.md). An editor that knows JSON Schema completes and checks a guard file
whose first line is `# yaml-language-server: $schema=FILE`, with FILE that output."""

_JSON = """# JSON keys

Made from the JSON Schemas that `evalguard schema NAME` prints. What the documents promise, and
those without a schema of their own: [JSON documents](../json.md)."""

_EXIT_CODES = """# Exit codes

0 and 1 mean that there is a verdict, and that stdout took it. No exception, signal, full disk,
closed stream or broken installation ends with 0 or 1."""

_EXIT_CODES_END = """In CI, treat 1 as a failed check, and 2 and 3 as a broken one: an alert for
whoever keeps the pipeline, not for whoever wrote the change. What cannot be written or kept after
the verdict (an `-o` file, a page, a row of the history) changes no exit code: a warning on stderr
tells it.

| command | ends with |
|---|---|
| `compare` of several candidates, `nightly` | the first of 1, 3 and 4 that any pair has, else 0 |
| `trace` | 1 where a module is beyond the floor, 0 where none is, 3 where nothing is known |
| `tensors` | 0 where all are equal within tolerance, or all invariants hold; 1 where not; 3 where \
one could not be read |
| `history check` | 1 if something is damaged |
| all that judge nothing | 0, or 2 or 3 as above |"""


def reference_pages() -> dict[str, str]:
    """Return the text of every page of docs/reference by its file name."""
    return {
        "commands.md": command_reference(cli),
        "exit-codes.md": _exit_codes(),
        "guard-file.md": _join(
            _GUARD_FILE, *schema_tables(build_guard_schema(), title="The file", level=2)
        ),
        "json.md": _join(_JSON, *(part for name in CONTRACTS for part in _contract(name))),
    }


def _contract(name: str) -> tuple[str, ...]:
    schema = read_named_schema(name)
    return tuple(schema_tables(schema, title=f"evalguard.{name}/1", level=2, prefix=f"{name}: "))


def _exit_codes() -> str:
    rows = ["| code | meaning | what to do |", "|---|---|---|"]
    rows += [
        f"| {code} | **{told.name}**: {cell(told.meaning)} | {cell(told.next)} |"
        for code, told in EXIT_CODES.items()
    ]
    return _join(_EXIT_CODES, "\n".join(rows), _EXIT_CODES_END)


def _join(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for page, text in reference_pages().items():
        (FOLDER / page).write_text(text, encoding="utf-8")
