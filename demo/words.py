"""The words that the stories are made of, by category."""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


GIRLS = _words("""
    Mira Lena Tilda Nora Edda Ruth Sofia Clara Ida Hanna Vera Olga Petra Rosa Emma Alma Greta
    Luise Marta Paula Selma Wanda Yara Zoe Agnes Bella Dora Flora Gerda Irma Julia Katrin
""")
BOYS = _words("""
    Tobin Jonas Emil Karl Otto Felix Hugo Anton Bruno Oskar Linus Simon Theo Viktor Walter Ivan
    Leon Max Nils Peter Rolf Stefan Erik Fritz Georg Henrik Jakob Konrad Lars Milo Noah Robin
""")

POOLS: dict[str, tuple[str, ...]] = {
    "thing": _words("""
        lantern key ring book map drum flute knife rope candle mirror clock bell coin letter
        kettle hammer compass needle feather stone cup bowl spoon basin saddle bridle wheel
        ladder broom bucket blanket pillow violin whistle locket bracelet telescope barrow
        shovel sword lamp brush comb jug plate doll kite
    """),
    "place": _words("""
        mill barn harbor chapel market bridge well tower orchard quarry forge tavern school
        garden stable meadow ferry library bakery cellar lighthouse cottage station fountain
    """),
    "spot": _words("""
        chest basket drawer cupboard sack barrel trunk oven attic crate pot wardrobe hollow
        closet bag tin
    """),
    "food": _words("""
        plums pears cherries apples walnuts figs grapes onions turnips dumplings radishes
        pancakes carrots beans berries mushrooms
    """),
    "colour": _words("red blue green yellow black white grey brown purple pink silver golden"),
    "role": _words("""
        baker miller sailor tailor farmer teacher doctor painter hunter weaver potter gardener
        shepherd carpenter cook singer guard fisher barber mason
    """),
    "animal": _words("dog cat goat horse parrot donkey goose pony rabbit duck lamb crow"),
    "pet": _words("""
        Rex Bramble Pip Shadow Star Button Biscuit Storm Ginger Pepper Domino Cricket Thunder
        Misty Patch Copper
    """),
    "town": _words("""
        Ardel Brenwick Corsa Dunmore Elvas Farrow Glenholm Havenport Istrel Jorvik Kelso Lindau
        Morwen Norden Ostera Pellin Ravenna Selby Torvald Umber
    """),
    "garment": _words("coat hat scarf shawl cloak vest hood cap"),
    "day": _words("Monday Tuesday Wednesday Thursday Friday Saturday Sunday"),
    "number": _words("two three four five six seven eight nine ten"),
}

TOTALS = _words("""
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen
    fifteen sixteen seventeen eighteen nineteen twenty
""")
