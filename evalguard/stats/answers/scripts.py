"""Of which script the letters of a text are: whether an answer went over to another language's.

Python knows names of characters and no scripts. The first word of a letter's name is the script's
in nearly all cases (LATIN, CYRILLIC, ARABIC, DEVANAGARI, THAI ...; Unicode Standard Annex 24 says
which are), and what has other first words is put to where it belongs here. Han characters, kana and
hangul are counted apart and judged together: a text with kana is Japanese, one with hangul Korean,
however many Han characters are among them.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from functools import lru_cache

# Fewer letters than this tell nothing: a name, a unit, a symbol of a formula.
_FEWEST = 10
# A script is a text's main one from this share of its letters on; below, it is mixed.
_MAIN = 0.6
# A tenth of kana, or of hangul, makes a text with Han characters Japanese, or Korean.
_TELLING = 0.1
# First words of names that are no script's own.
_FIRST_WORDS = {
    "CJK": "HAN",
    "KANGXI": "HAN",
    "HALFWIDTH": "KATAKANA",
    "FULLWIDTH": "LATIN",
    "KATAKANA-HIRAGANA": "KATAKANA",
    "HANGUL": "HANGUL",
    "MODIFIER": "",
    "MATHEMATICAL": "",
    "DOUBLE-STRUCK": "",
    "SCRIPT": "",
    "BLACK-LETTER": "",
    "FEMININE": "LATIN",
    "MASCULINE": "LATIN",
    "MICRO": "",
    "OHM": "",
    "KELVIN": "",
    "ANGSTROM": "",
    "PLANCK": "",
    "INFORMATION": "",
    "ALEF": "",
    "BET": "",
    "GIMEL": "",
    "DALET": "",
    "SUPERSCRIPT": "",
    "SUBSCRIPT": "",
    "TURNED": "LATIN",
}
_NO_LETTERS = bytes(code for code in range(128) if not chr(code).isalpha())
_JAPANESE, _KOREAN, _HAN = "JAPANESE", "HANGUL", "HAN"


def count_scripts(text: str) -> Counter[str]:
    """Count a text's letters by script, in the words of Unicode's names: {"LATIN": 12}.

    Letters of no script (of mathematics, of phonetics) are left out.
    """
    scripts: Counter[str] = Counter()
    for character, times in Counter(text).items():
        script = _script(character)
        if script:
            scripts[script] += times
    return scripts


def main_script(text: str) -> str | None:
    """The script of most of a text's letters; None where there are few, or none has most."""
    if text.isascii():
        return "LATIN" if len(text.encode().translate(None, _NO_LETTERS)) >= _FEWEST else None
    scripts = count_scripts(text)
    letters = scripts.total()
    kana = scripts.pop("HIRAGANA", 0) + scripts.pop("KATAKANA", 0)
    # Each of these is a syllable or a word, where a letter is a part of one.
    if letters + kana + scripts[_HAN] + scripts[_KOREAN] < _FEWEST:
        return None
    eastern = kana + scripts[_HAN] + scripts[_KOREAN]
    if eastern:
        if kana >= max(_TELLING * eastern, scripts[_KOREAN]):
            scripts[_JAPANESE] = kana + scripts.pop(_HAN, 0)
        elif scripts[_KOREAN] >= _TELLING * eastern:
            scripts[_KOREAN] += scripts.pop(_HAN, 0)
    script, most = scripts.most_common(1)[0]
    return script if most >= _MAIN * letters else None


def is_other_script(base: str, candidate: str) -> bool | None:
    """Whether most letters of a candidate's text are of another script than those of the base's.

    None where either text has too few, or no script has most of them.
    """
    ours = main_script(base)
    theirs = ours if base == candidate else main_script(candidate)
    return None if ours is None or theirs is None else ours != theirs


@lru_cache(maxsize=2**16)
def _script(character: str) -> str:
    if not character.isalpha():
        return ""
    first, _, rest = unicodedata.name(character, "").partition(" ")
    if first in ("HALFWIDTH", "FULLWIDTH"):
        own = rest.partition(" ")[0]
        return own if own in ("HANGUL", "KATAKANA", "LATIN") else ""
    return _FIRST_WORDS.get(first, first)
