#!/usr/bin/env python3
"""A preprocessor of mdBook: links that lead out of docs/, where the site has nothing, become their text."""

import json
import re
import sys
from pathlib import PurePosixPath

LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")


def leads_out(page, target):
    if "://" in target or target.startswith(("#", "mailto:")):
        return False
    depth = len(PurePosixPath(page).parent.parts)
    for part in PurePosixPath(target.split("#")[0]).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
            return True
    return False


def inside(page, text):
    """The text of a page without such links; code stays as it is, unless it is the text of a link."""
    def replaced(link):
        return link.group(1) if leads_out(page, link.group(2)) else link.group(0)

    blocks = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(block if block.startswith("```") else LINK.sub(replaced, block) for block in blocks)


def walk(items):
    for item in items:
        chapter = item.get("Chapter") if isinstance(item, dict) else None
        if chapter:
            if chapter.get("path"):
                chapter["content"] = inside(chapter["path"], chapter["content"])
            walk(chapter["sub_items"])


def main():
    if sys.argv[1:2] == ["supports"]:
        return
    _, book = json.load(sys.stdin)
    # mdBook 0.5 calls them items, earlier versions sections.
    walk(book.get("items") or book.get("sections") or [])
    json.dump(book, sys.stdout)


if __name__ == "__main__":
    main()
