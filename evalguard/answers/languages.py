"""Which script a text is in, and which language of those in Latin letters.

Short words tell languages apart in 95% and more of texts of 15 words or more (Grefenstette 1995,
"Comparing two language identification schemes"). Those that two languages share count for both, so
that only a clear winner is one. Lists, code, names and numbers have few of them and are unknown.

Python knows names of characters and no scripts. The first word of a letter's name is the script's
in nearly all cases (LATIN, CYRILLIC, ARABIC, DEVANAGARI, THAI ...; Unicode Standard Annex 24 says
which are), and what has other first words is put to where it belongs here. Han characters, kana and
hangul are counted apart and judged together: a text with kana is Japanese, one with hangul Korean,
however many Han characters are among them.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from functools import lru_cache
from typing import Literal

_WORDS = {
    "english": (
        "the of and to in is was that for it with as his on be at by had not are but from or "
        "have an they which you were her all she there would their we him been has when who "
        "will more no if out so what up its about than into them can only other then this does "
        "each"
    ),
    "german": (
        "der die und in den von zu das mit sich des auf für ist im dem nicht ein eine als auch "
        "es an werden aus er hat dass sie nach wird bei einer um am sind noch wie einem über "
        "einen so zum war haben nur oder aber vor zur bis mehr durch man kann ich wir wenn dann "
        "diese"
    ),
    "french": (
        "de la le et les des en un du une que est pour qui dans a par plus pas au sur ne se ce "
        "il sont avec ses mais comme ou si leur y dont elle deux aux cette nous vous je son sa "
        "été être fait donc lui même ces"
    ),
    "spanish": (
        "de la que el en y a los del se las por un para con no una su al lo como más pero sus "
        "le ya o este sí porque esta entre cuando muy sin sobre también me hasta hay donde "
        "quien desde todo nos durante todos uno les ni contra es son fue"
    ),
    "italian": (
        "di e il la che in un a per è una sono con non si da come le dei nel alla più anche ha "
        "lo della gli ma al del i delle se o dal suo nella questo essere ci ed era sua due"
    ),
    "portuguese": (
        "de a o que e do da em um para com não uma os no se na por mais as dos como mas ao ele "
        "das à seu sua ou quando muito nos já eu também só pelo pela até isso ela entre depois "
        "são foi é"
    ),
    "dutch": (
        "de van het een en in is dat op te zijn met voor niet aan er om hij ook als bij maar "
        "door naar heeft uit dan nog worden ze wordt over deze hebben kan die geen ik je was "
        "wij"
    ),
    "polish": (
        "w i na z do nie się to że jest o od za jak ale po co jego dla przez są tak przy może "
        "już tylko być ich był przed gdy czy tego"
    ),
}
_NAMES = (
    "german|deutsch|austria|swiss|english|french|fran|spanish|espa|ital|portug|brazil|dutch|nederl"
    "|polish|polsk|translat|langu|latin|mexic"
)
_LANGUAGES: dict[str, tuple[str, ...]] = {}
for _name, _words in _WORDS.items():
    for _word in _words.split():
        _LANGUAGES[_word] = (*_LANGUAGES.get(_word, ()), _name)
_FEWEST_WORDS, _LEAST_SHARE, _TIMES_SECOND = 12, 0.2, 2.0
_LONGEST_PROMPT = 2_000
_WORD = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=16)
def main_language(text: str) -> str | None:
    """The language of a text; None where it has few words, or none is clear.

    >>> main_language("The farm has so many eggs that it sells all of them at the market.")
    'english'
    """
    words = _WORD.findall(text.lower())
    (first, most), (_, second) = (*_times(words).most_common(2), ("", 0), ("", 0))[:2]
    return first if _is_clear(most, second, len(words)) else None


def find_other_language(text: str, prompt: str, target: str) -> bool:
    """Whether a text, or half of it, is in a language that its prompt and target are not in.

    Which one need not be clear, as between Spanish and Portuguese. Nobody knows where the prompt's
    is not clear, or where it speaks of languages.
    """
    words = _WORD.findall(text.lower())
    if len(words) < _FEWEST_WORDS:
        return False
    prompt = prompt[-_LONGEST_PROMPT:]
    asked = main_language(prompt)
    if asked is None:
        return False
    shown = {asked, main_language(target) or asked}
    foreign = {name: many for name, many in _times(words).items() if name not in shown}
    if max(foreign.values(), default=0) < _LEAST_SHARE * (len(words) // 2):  # not even of a half
        return False
    half = len(words) // 2
    is_other = any(_is_other(part, shown) for part in (words, words[:half], words[half:]))
    return is_other and re.search(_NAMES, prompt.lower()) is None


def _is_other(words: list[str], shown: set[str]) -> bool:
    times = _times(words)
    most = max((many for name, many in times.items() if name not in shown), default=0)
    return _is_clear(most, max(times[name] for name in shown), len(words))


def _times(words: list[str]) -> Counter[str]:
    times: Counter[str] = Counter()
    for word, many in Counter(words).items():
        for name in _LANGUAGES.get(word, ()):
            times[name] += many
    return times


def _is_clear(most: int, second: int, words: int) -> bool:
    return (
        words >= _FEWEST_WORDS and most >= _LEAST_SHARE * words and most >= _TIMES_SECOND * second
    )


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


# Names by which a prompt asks for a script, where they are not the script's own.
_ASKED_BY = {
    "CYRILLIC": "russia|ukrain|bulgar|serb|macedon|belarus|kazakh|kyrgyz|tajik|mongol|cyrillic",
    "HAN": "chin|mandarin|cantonese|taiwan|hong kong|kanji|hanzi|japan|korea",
    "HIRAGANA": "japan|kanji|kana",
    "KATAKANA": "japan|kanji|kana",
    "HANGUL": "korea|hangul",
    "ARABIC": "arab|persia|farsi|iran|urdu|pashto|dari|uyghur|kurd|sindhi|islam|quran",
    "DEVANAGARI": "hindi|marathi|nepal|sanskrit|devanagari|bhojpuri|india",
    "BENGALI": "bengal|bangla|assam",
    "GURMUKHI": "punjab|gurmukhi|sikh",
    "HEBREW": "hebr|yiddish|israel|jew",
    "MYANMAR": "burm|myanmar",
    "ETHIOPIC": "ethiop|amhar|tigr",
    "ORIYA": "oriya|odia",
}
_ASKS_ANY = "translat|alphabet|etymolog|multilingual"
# A few ideographs or syllables are a word; of other scripts a word is so many letters in a row.
_EASTERN = frozenset({"HAN", "HIRAGANA", "KATAKANA", "HANGUL"})
_FEWEST_EASTERN, _FEWEST_IN_ROW = 2, 4


def find_other_scripts(text: str, prompt: str, target: str) -> Literal["all", "some"] | None:
    """How much of a text is of scripts that prompt and target neither have nor ask for.

    "all": most of its letters; "some": at least a word. A text in Latin letters is another one only
    beside a target of another script: numbers, code and names are asked for in any language.
    """
    if text.isascii():
        return "all" if _is_latin_alone(text, prompt, target) else None
    shown = count_scripts(prompt) + count_scripts(target)
    if shown["HIRAGANA"] or shown["KATAKANA"] or shown[_KOREAN]:
        shown[_HAN] += 1
    asked = prompt.lower()
    scripts = count_scripts(text)
    foreign = {
        script: times
        for script, times in scripts.items()
        if script != "LATIN" and not _is_asked(script, shown, asked)
    }
    if not foreign:
        return "all" if _is_latin_alone(text, prompt, target) else None
    weight = sum(times * (2 if script in _EASTERN else 1) for script, times in foreign.items())
    if weight >= _FEWEST and sum(foreign.values()) >= _MAIN * scripts.total():
        return "all"
    has_word = any(
        times >= _FEWEST_EASTERN and (script in _EASTERN or _has_word(text, script))
        for script, times in foreign.items()
    )
    return "some" if has_word else None


def _is_asked(script: str, shown: Counter[str], asked: str) -> bool:
    if shown[script]:
        return True
    names = _ASKED_BY.get(script, script.lower())
    return re.search(f"{names}|{_ASKS_ANY}", asked) is not None


def _is_latin_alone(text: str, prompt: str, target: str) -> bool:
    """Whether a Latin text stands beside a prompt and a target that hardly have Latin letters."""
    if target.isascii() or main_script(target) in (None, "LATIN"):
        return False
    shown = count_scripts(prompt) + count_scripts(target)
    return shown["LATIN"] < _FEWEST and main_script(text) == "LATIN"


def _has_word(text: str, script: str) -> bool:
    length = 0
    for character in text:
        # A vowel's sign belongs to the letter before it.
        is_mark = length > 0 and unicodedata.category(character)[0] == "M"
        length = length + 1 if is_mark or _script(character) == script else 0
        if length >= _FEWEST_IN_ROW:
            return True
    return False


@lru_cache(maxsize=2**16)
def _script(character: str) -> str:
    if not character.isalpha():
        return ""
    first, _, rest = unicodedata.name(character, "").partition(" ")
    if first in ("HALFWIDTH", "FULLWIDTH"):
        own = rest.partition(" ")[0]
        return own if own in ("HANGUL", "KATAKANA", "LATIN") else ""
    return _FIRST_WORDS.get(first, first)
