#!/usr/bin/env python3
"""Checks the links of Markdown pages.

    check_links.py PAGE|FOLDER...

Every link that is no address leads to a file or folder that is there, and one with a #fragment to a
heading of its page. Prints `page:line: reason` for each that does not; the status is 1 if there is any.
"""

import pathlib
import re
import sys

LINK = re.compile(r"\]\(([^()\s]+)\)")
ADDRESS = re.compile(r"[a-z]+:")


def without_code(text):
    """The text with as many lines, but no code: what looks like a link there is none."""
    text = re.sub(r"^```.*?^```", lambda code: "\n" * code[0].count("\n"), text,
                  flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`]*`", lambda code: "code" + "\n" * code[0].count("\n"), text)


def anchors(page):
    """The fragments that GitHub gives the headings of a page."""
    found = set()
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"),
                  flags=re.DOTALL | re.MULTILINE)
    for heading in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        heading = LINK.sub("", heading).lower()
        found.add(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-"))
    return found


def wrong(page, target):
    """Why a link of a page leads nowhere; empty: it does not."""
    path, _, fragment = target.partition("#")
    file = page.parent / path if path else page
    if not file.exists():
        return f"{path} is not there"
    if fragment and file.suffix == ".md" and fragment not in anchors(file):
        return f"{file.name} has no heading #{fragment}"
    return ""


def main(arguments):
    pages = []
    for argument in map(pathlib.Path, arguments[1:]):
        pages += sorted(argument.glob("*.md")) if argument.is_dir() else [argument]
    links = violations = 0
    for page in pages:
        text = without_code(page.read_text(encoding="utf-8"))
        for link in LINK.finditer(text):
            if ADDRESS.match(link[1]):
                continue
            links += 1
            reason = wrong(page, link[1])
            if reason:
                print(f"{page}:{text.count(chr(10), 0, link.start()) + 1}: {reason}")
                violations += 1
    print(f"{len(pages)} pages, {links} links, {violations} that lead nowhere")
    return 1 if violations or not links else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
