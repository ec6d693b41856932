"""Write the documents of the three tasks: `python -m demo.documents --output tasks/data`."""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from demo.corpus import Closing, Story, stories

SEED = 7
LASTWORD_DOCUMENTS = 2048
CHOICE_DOCUMENTS = 512
ROLLING_DOCUMENTS = 200
SECOND_PASSAGE_SHARE = 0.5  # of the stories give two passages
STORY_RANGES = {"evalguard_lastword": 0, "evalguard_choice": 10_000, "evalguard_rolling": 20_000}

Document = dict[str, Any]


def lastword_documents(count: int = LASTWORD_DOCUMENTS) -> list[Document]:
    """Passages whose last word is to be predicted; up to two passages share a story."""
    return list(islice(_lastword_passages(), count))


def choice_documents(count: int = CHOICE_DOCUMENTS) -> list[Document]:
    """Stories with four endings, of which the story allows one."""
    source = stories("test", SEED, start=STORY_RANGES["evalguard_choice"])
    return [_choice(story, story.closings[0]) for story in islice(source, count)]


def rolling_documents(count: int = ROLLING_DOCUMENTS) -> list[Document]:
    """Whole stories with three closings each."""
    source = stories("test", SEED, start=STORY_RANGES["evalguard_rolling"])
    return [_whole(story) for story in islice(source, count)]


def write(path: Path, documents: Iterable[Document]) -> None:
    """Write documents as compressed JSON lines, byte for byte the same each time."""
    lines = "".join(json.dumps(document) + "\n" for document in documents)
    path.write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))


def _lastword_passages() -> Iterator[Document]:
    for story in stories("test", SEED, start=STORY_RANGES["evalguard_lastword"]):
        passages = 2 if random.Random(story.number).random() < SECOND_PASSAGE_SHARE else 1
        for closing in story.closings[:passages]:
            yield {"story": story.number, "kind": closing.scene, "text": story.passage(closing)}


def _choice(story: Story, closing: Closing) -> Document:
    answers = [closing.answer, *closing.rivals]
    random.Random(story.number).shuffle(answers)
    return {
        "story": story.number,
        "kind": closing.scene,
        "context": story.body,
        "choices": [f"{closing.lead} {answer}." for answer in answers],
        "gold": answers.index(closing.answer),
    }


def _whole(story: Story) -> Document:
    endings = " ".join(f"{closing.sentence}." for closing in story.closings[:3])
    return {"story": story.number, "text": f"{story.body} {endings}"}


def main() -> None:
    """Write all three files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("tasks/data"))
    output = parser.parse_args().output
    output.mkdir(parents=True, exist_ok=True)
    write(output / "evalguard_lastword.jsonl.gz", lastword_documents())
    write(output / "evalguard_choice.jsonl.gz", choice_documents())
    write(output / "evalguard_rolling.jsonl.gz", rolling_documents())


if __name__ == "__main__":
    main()
