#!/usr/bin/env python3
"""Checks the links of a site that mdBook has made: pages, pictures and headings are there. Nothing is fetched.

Usage: scripts/book-check.py target/book
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """What a page links to, and what can be linked to in it."""

    def __init__(self, text):
        super().__init__()
        self.links, self.places = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        values = dict(attributes)
        self.places.update(values[name] for name in ("id", "name") if values.get(name))
        self.links += [values[name] for name in ("href", "src") if values.get(name)]


def main():
    book = Path(sys.argv[1]).resolve()
    pages = {path: Page(path.read_text()) for path in book.rglob("*.html")}
    broken, checked = [], 0
    for path, page in sorted(pages.items()):
        # It is shown at any address, and has links from the root.
        if path.name == "404.html":
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            checked += 1
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not target.is_relative_to(book) or not target.exists():
                broken.append(f"{path.relative_to(book)}: there is no {link}")
            elif parts.fragment and target in pages and unquote(parts.fragment) not in pages[target].places:
                broken.append(f"{path.relative_to(book)}: there is no such place: {link}")
    print("\n".join([*broken, f"{len(pages)} pages, {checked} links, {len(broken)} of them broken"]))
    sys.exit(1 if broken or not checked else 0)


if __name__ == "__main__":
    main()
