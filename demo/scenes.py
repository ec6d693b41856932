"""Scenes: what may happen in a story, and the sentences that can only be finished by who read it.

A scene tells facts (one of `told`) and offers closings. A closing ends with the slot that is to be
predicted; everything needed to fill it stands in the telling. `{a}`, `{b}` and `{c}` are people,
called by their name or by their role; `{thing2}` is a second member of the category `thing`;
`{total}` is `{number}` and `{number2}` together.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """One happening: ways to tell it, and sentences that ask for one of its facts."""

    name: str
    told: tuple[str, ...]
    closings: tuple[str, ...]


GIFT = Scene(
    name="gift",
    told=(
        "{a} had a {thing} and gave it to {b}. {c} only had a {thing2}.",
        "{b} got a {thing} from {a} as a gift, while {c} bought a {thing2}.",
        "{a} handed {b} the old {thing}. The {thing2} stayed with {c}.",
        "For the feast {c} was given a {thing2}. {b} was given a {thing} by {a}.",
    ),
    closings=(
        "From then on the {thing} belonged to {b}",
        "Nobody but {c} owned the {thing2}",
        "The {thing} had been a gift from {a}",
        "At night {b} looked for a long time at the {thing}",
        "At home {c} still had the {thing2}",
    ),
)
CHAIN = Scene(
    name="chain",
    told=(
        "{a} lent the {thing} to {b}, and {b} lent it to {c}.",
        "{a} sold a {thing} to {b}. A week later {b} sold it to {c}.",
        "{b} took the {thing} from {a}, but then {c} took it from {b}.",
        "The {thing} went from {a} to {b} and from {b} to {c}.",
    ),
    closings=(
        "In the end the {thing} was in the hands of {c}",
        "The {thing} had once been the pride of {a}",
        "So the last to have the {thing} was {c}",
        "{c} walked away with the {thing}",
    ),
)
HIDE = Scene(
    name="hide",
    told=(
        "{a} hid the {thing} in the {spot}. {b} put the {thing2} in the {spot2}.",
        "There was a {thing} in the {spot} and a {thing2} in the {spot2}. Both were kept by {a}.",
        "{a} kept the {thing2} in the {spot2}, but the {thing} lay in the {spot}.",
    ),
    closings=(
        "To fetch the {thing}, one had to open the {spot}",
        "The {thing2} was still inside the {spot2}",
        "What lay in the {spot} was the {thing}",
        "In the {spot2} somebody found the {thing2}",
    ),
)
MOVE = Scene(
    name="move",
    told=(
        "{a} left a {thing} in the {spot}. While {a.he} was away, {b} moved it to the {spot2}.",
        "The {thing} was in the {spot} until {b} carried it to the {spot2}. {a} saw nothing.",
        "{a} locked the {thing} in the {spot}, but at night {b} brought it to the {spot2}.",
    ),
    closings=(
        "Now the {thing} was in the {spot2}",
        "But {a} believed that the {thing} was in the {spot}",
        "The {thing} had been moved in secret by {b}",
        "When {b} showed where the {thing} was, {b.he} pointed at the {spot2}",
    ),
)
PROMISE = Scene(
    name="promise",
    told=(
        "{a} promised to bring {b} a {thing}. {c} promised a {thing2}.",
        "{b} asked {a} for a {thing} and {c} for a {thing2}, and both said yes.",
        "{c} swore to find a {thing2}, and {a} swore to find a {thing} for {b}.",
    ),
    closings=(
        "{a} kept {a.his} word and came with the {thing}",
        "{c} kept {c.his} word and came with the {thing2}",
        "The {thing} had been promised by {a}",
        "It was {b} who waited for {a} and the {thing}",
    ),
)
MEET = Scene(
    name="meet",
    told=(
        "{a} and {b} agreed to meet at the {place} on {day}. {c} would be at the {place2}.",
        "On {day} {a} was to wait at the {place} for {b}. {c} went to the {place2} on {day2}.",
        "{c} chose the {place2} and {day2}. {a} and {b} chose the {place} and {day}.",
    ),
    closings=(
        "When the time came, {a} walked to the {place}",
        "When the time came, {c} walked to the {place2}",
        "{b} was happy that it was {day}",
        "At the {place} {a} looked around for {b}",
    ),
)
TASTE = Scene(
    name="taste",
    told=(
        "{a} loved {food}, but {b} liked {food2} better.",
        "Nothing pleased {b} more than {food2}. {a} would do anything for {food}.",
        "{a} always ate {food}. {b} always ate {food2}, and {c} ate nothing.",
    ),
    closings=(
        "For {a} they brought a plate of {food}",
        "For {b} they brought a plate of {food2}",
        "The {food} were all eaten by {a}",
        "The smell of {food2} made them think of {b}",
    ),
)
PET = Scene(
    name="pet",
    told=(
        "{a} had a {animal} called {pet}. {b} had a {animal2} called {pet2}.",
        "The {animal2} of {b} was named {pet2}, and the {animal} of {a} was named {pet}.",
        "{pet} was the {animal} of {a}, and {pet2} was the {animal2} of {b}.",
    ),
    closings=(
        "{a} stood at the gate and called for {pet}",
        "{b} stood at the gate and called for {pet2}",
        "Nobody was afraid of {pet}, for {pet} was only a {animal}",
        "The {animal2} ran back to {b}",
    ),
)
HOME = Scene(
    name="home",
    told=(
        "{a} came from {town}, and {b} came from {town2}.",
        "{b} was born in {town2}. {a} had grown up in {town}.",
        "Far away in {town} lived the mother of {a}. The mother of {b} lived in {town2}.",
    ),
    closings=(
        "{a} wrote a letter home to {town}",
        "{b} wrote a letter home to {town2}",
        "A rider from {town} asked for {a}",
        "The news from {town2} was meant for {b}",
    ),
)
TRADE = Scene(
    name="trade",
    told=(
        "{a} had a {thing} and {b} had a {thing2}, so they traded.",
        "{a} gave {b} a {thing} and got a {thing2} for it.",
        "{b} swapped {b.his} {thing2} for the {thing} of {a}.",
    ),
    closings=(
        "After the trade {b} had the {thing}",
        "After the trade {a} had the {thing2}",
        "The new owner of the {thing} was {b}",
        "The {thing2} now stood in the room of {a}",
    ),
)
DRESS = Scene(
    name="dress",
    told=(
        "{a} wore a {colour} {garment}. The {garment} of {b} was {colour2}.",
        "{b} had a {colour2} {garment}, and {a} had a {colour} one.",
        "In a {colour} {garment} came {a}, and in a {colour2} {garment} came {b}.",
    ),
    closings=(
        "One could tell {a} by the {garment}, which was {colour}",
        "One could tell {b} by the {garment}, which was {colour2}",
        "The {colour} {garment} was worn by {a}",
        "Somebody in a {colour2} {garment} waved, and it was {b}",
    ),
)
DEBT = Scene(
    name="debt",
    told=(
        "{a} owed {b} {number} coins, and {c} owed {number2}.",
        "{c} borrowed {number2} coins. {a} borrowed {number} from {b}.",
        "{b} counted: {number} coins from {a} and {number2} coins from {c}.",
    ),
    closings=(
        "How many coins {a} had to pay was clear, it was {number}",
        "How many coins {c} had to pay was clear, it was {number2}",
        "{a} brought the money to {b}",
        "The one who paid {number2} was {c}",
        "Both debts together came to {total}",
        "The coins of both, put in one heap, were {total}",
    ),
)
LOST = Scene(
    name="lost",
    told=(
        "{a} lost a {thing} near the {place}. It was {b} who found it.",
        "Near the {place} {b} found a {thing}, which {a} had lost.",
        "{b} picked up a {thing} near the {place}. {a} had dropped it there.",
    ),
    closings=(
        "{a} wanted to thank {b.him}, so {a.he} ran to {b}",
        "The {thing} had been lost by {a}",
        "They spoke of the {thing} that lay near the {place}",
        "The finder of the {thing} was {b}",
        "What had been found near the {place} was the {thing}",
    ),
)
RACE = Scene(
    name="race",
    told=(
        "In the race {a} was first, {b} was second and {c} was third.",
        "{b} ran faster than {c}, but {a} ran faster than both.",
        "{a} won the race. {c} came in last, after {b}.",
    ),
    closings=(
        "The prize of the race went to {a}",
        "The slowest of them had been {c}",
        "Neither first nor last had been {b}",
    ),
)

SCENES: tuple[Scene, ...] = (
    GIFT,
    CHAIN,
    HIDE,
    MOVE,
    PROMISE,
    MEET,
    TASTE,
    PET,
    HOME,
    TRADE,
    DRESS,
    DEBT,
    LOST,
    RACE,
)

INTRODUCTIONS: tuple[str, ...] = (
    "{a} was a {a.role}, {b} was a {b.role}, {c} was a {c.role}, and {d} was a {d.role}.",
    "There were {a} the {a.role}, {b} the {b.role}, {c} the {c.role} and {d} the {d.role}.",
    "{a} worked as a {a.role} and {b} as a {b.role}. {c} was a {c.role}, like {c.his} father, and "
    "{d} was a {d.role}.",
    "The {a.role} was called {a}, the {b.role} {b}, the {c.role} {c}, and the {d.role} {d}.",
)
OPENINGS: tuple[str, ...] = (
    "It was a cold morning.",
    "Once there lived four friends.",
    "This happened in the year of the great snow.",
    "The summer had been long.",
    "People still tell this story.",
    "It began like any other day.",
    "The village was quiet.",
    "Long ago, when the roads were bad, people helped each other.",
)
FILLERS: tuple[str, ...] = (
    "It rained the whole night.",
    "The wind blew from the sea.",
    "{a} laughed.",
    "{b} said nothing.",
    "{c} was tired.",
    "{a} and {c} talked until late.",
    "{b} closed the door.",
    "Then the sun came out.",
    "Nobody knew what would come next.",
    "The children sang in the street.",
    "Some days passed.",
    "{c} smiled at {b}.",
    "{a} made a fire, and they sat around it.",
    "Snow fell on the roofs.",
    "{b} thought about it for a while.",
    "The old people shook their heads.",
    "{a} asked {b} to stay a little longer.",
    "{c} did not know about this.",
)
