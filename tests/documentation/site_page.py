"""A page of the documentation site, as a test reads it."""

from __future__ import annotations

from html.parser import HTMLParser


class Page(HTMLParser):
    """What a page of the site links to, loads, and shows in its article."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.shown = ""
        self.prose = ""  # what is shown outside code blocks
        self._article = False
        self._code = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attributes}
        self.ids.add(values.get("id", ""))
        self._article = self._article or tag == "article"
        self._code += tag == "pre"
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif "src" in values or (tag == "link" and values.get("rel") != "canonical"):
            self.loaded.append(values.get("src") or values["href"])

    def handle_endtag(self, tag: str) -> None:
        self._article = self._article and tag != "article"
        self._code -= tag == "pre"

    def handle_data(self, data: str) -> None:
        if self._article:
            self.shown += data
            self.prose += "" if self._code else data
