"""Small stories from a seeded grammar: who has what, where things are, what was promised.

A story is a body (its people and their roles, then some scenes, with idle sentences between them)
and closings. A closing is a sentence whose last word is decided by the body, never by the closing
alone. People are called by their name or by their role ("the miller"), so that some answers take
two steps. A story belongs to the `train` or to the `test` split by its people, so that no company
of the test split was ever trained on.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from string import Formatter

from demo.scenes import FILLERS, INTRODUCTIONS, OPENINGS, SCENES, Scene
from demo.words import BOYS, GIRLS, POOLS, TOTALS

PEOPLE = 4
SCENES_PER_STORY = 2
TEST_SHARE = 10  # one company of people in ten is kept for the test split
ROLE_SHARE = 0.2  # how often somebody is called by role


@dataclass(frozen=True, slots=True)
class Person:
    """A person of a story, with the pronouns that templates need."""

    name: str
    role: str
    he: str
    him: str
    his: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ByRole:
    """A person as seen by a template that speaks of "the miller"."""

    person: Person

    def __str__(self) -> str:
        return f"the {self.person.role}"

    def __getattr__(self, pronoun: str) -> str:
        return getattr(self.person, pronoun)


@dataclass(frozen=True, slots=True, kw_only=True)
class Closing:
    """A last sentence: `lead`, then `answer`; `rivals` are wrong answers, nearest first."""

    scene: str
    lead: str
    answer: str
    rivals: tuple[str, ...]

    @property
    def sentence(self) -> str:
        """The whole sentence without a full stop, as last-word passages end."""
        return f"{self.lead} {self.answer}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """A body and the closings that it decides, in the order in which they may be told."""

    number: int
    people: tuple[str, ...]
    body: str
    closings: tuple[Closing, ...]

    def passage(self, closing: Closing) -> str:
        """The body and one closing: a last-word passage."""
        return f"{self.body} {closing.sentence}"


Slots = Mapping[str, Person | ByRole | str]


def is_test_company(names: Iterable[str]) -> bool:
    """Whether stories about these people belong to the test split."""
    return zlib.crc32(" ".join(sorted(names)).encode()) % TEST_SHARE == 0


def story(split: str, seed: int, number: int) -> Story:
    """Story `number` of a split ("train" or "test"); the same arguments give the same story."""
    rng = random.Random(f"evalguard demo {split} {seed} {number}")
    people = _people(rng, test=split == "test")
    pools = {name: rng.sample(words, len(words)) for name, words in POOLS.items()}
    scenes = [(scene, _cast(rng, scene, people, pools)) for scene in _scenes(rng)]
    told = [_fill(rng, rng.choice(scene.told), slots) for scene, slots in scenes]
    body = " ".join(_body(rng, told, people))
    closings = [
        _closing(rng, template, slots, scene.name, words_of(body))
        for scene, slots in scenes
        for template in scene.closings
        if _is_decided(template, slots, words_of(body))
    ]
    rng.shuffle(closings)
    names = tuple(person.name for person in people)
    return Story(number=number, people=names, body=body, closings=tuple(closings))


def stories(split: str, seed: int, *, start: int = 0) -> Iterator[Story]:
    """All stories of a split from `start` on, without end."""
    number = start
    while True:
        yield story(split, seed, number)
        number += 1


def words_of(text: str) -> set[str]:
    """The words of a text without punctuation."""
    return {word.strip(".,:") for word in text.split()}


def _people(rng: random.Random, *, test: bool) -> tuple[Person, ...]:
    while True:
        names = rng.sample(GIRLS + BOYS, PEOPLE)
        if is_test_company(names) == test:
            roles = rng.sample(POOLS["role"], PEOPLE)
            return tuple(_person(*pair) for pair in zip(names, roles, strict=True))


def _person(name: str, role: str) -> Person:
    return Person(name, role, *(("she", "her", "her") if name in GIRLS else ("he", "him", "his")))


def _scenes(rng: random.Random) -> list[Scene]:
    return rng.sample(SCENES, SCENES_PER_STORY)


def _slot_names(template: str) -> list[str]:
    fields = (field for _, field, _, _ in Formatter().parse(template) if field)
    return [field.partition(".")[0] for field in fields]


def _cast(
    rng: random.Random, scene: Scene, people: tuple[Person, ...], pools: dict[str, list[str]]
) -> Slots:
    """Who and what fills the slots of one scene; no thing takes part in two scenes."""
    slots: dict[str, Person | str] = dict(zip("abc", rng.sample(people, 3), strict=True))
    for name in sorted({name for text in scene.told for name in _slot_names(text)} - slots.keys()):
        slots[name] = pools[name.rstrip("123")].pop()
    if "number2" in slots:
        owed = (TOTALS.index(str(slots[name])) for name in ("number", "number2"))
        slots["total"] = TOTALS[sum(owed)]
    return slots


def _fill(rng: random.Random, template: str, slots: Slots) -> str:
    """The template with its slots filled, people by name or by role, sentences capitalised."""
    named = {
        slot: ByRole(value) if isinstance(value, Person) and rng.random() < ROLE_SHARE else value
        for slot, value in slots.items()
    }
    sentences = template.format_map(named).split(". ")
    return ". ".join(sentence[0].upper() + sentence[1:] for sentence in sentences)


def _body(rng: random.Random, told: list[str], people: tuple[Person, ...]) -> Iterator[str]:
    if rng.random() < 0.2:
        yield rng.choice(OPENINGS)
    yield rng.choice(INTRODUCTIONS).format_map(
        dict(zip("abcd", rng.sample(people, PEOPLE), strict=True))
    )
    for sentence in told[:-1]:
        yield sentence
        if rng.random() < 0.2:
            yield _filler(rng, people)
    yield told[-1]
    if rng.random() < 0.6:
        yield _filler(rng, people)


def _filler(rng: random.Random, people: tuple[Person, ...]) -> str:
    return _fill(rng, rng.choice(FILLERS), dict(zip("abc", rng.sample(people, 3), strict=True)))


def _is_decided(template: str, slots: Slots, words: set[str]) -> bool:
    """Whether the telling that was chosen names every thing that the closing speaks of."""
    names = _slot_names(template.replace("{total}", "{number}{number2}"))
    values = (slots[name] for name in names)
    return all(isinstance(value, Person) or value in words for value in values)


def _closing(
    rng: random.Random, template: str, slots: Slots, scene: str, words: set[str]
) -> Closing:
    lead, answer = _fill(rng, template, slots).rsplit(" ", 1)
    pool = next(pool for pool in (GIRLS + BOYS, TOTALS, *POOLS.values()) if answer in pool)
    others = [word for word in rng.sample(pool, len(pool)) if word != answer]
    rivals = sorted(others, key=lambda word: word not in words)[:3]
    return Closing(scene=scene, lead=lead, answer=answer, rivals=tuple(rivals))
