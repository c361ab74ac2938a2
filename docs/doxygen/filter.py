#!/usr/bin/env python3
"""Prints a header with its comments as Doxygen wants them.

    filter.py HEADER

The comments of the sources are plain text. A comment before a declaration documents it, one behind
a member documents that, and the one at the top of a file documents the file. Characters that
Doxygen would take for commands or markup are escaped. Comparisons of all members, which need no
comment, are left out.
"""

import re
import sys

COMMENT = re.compile(r"^(\s*)//(?!/) ?(.*)$")
TRAILING = re.compile(r"^(.*\S.*?)\s+//(?!/) (.*)$")
COMPARISON = re.compile(r"\s*friend (bool|auto) operator(==|<=>)\(.*\) = default;$")
SPECIAL = re.compile(r"([\\@<>#%&$])")


def escaped(text):
    return SPECIAL.sub(r"\\\1", text)


def main(arguments):
    with open(arguments[1], encoding="utf-8") as file:
        lines = file.read().split("\n")
    at_top = True
    column = None  # where the comment above begins, if it is behind a member: it may go on
    for line in lines:
        comment, trailing = COMMENT.match(line), TRAILING.match(line)
        if comment is not None:
            indent, text = comment.groups()
            if at_top:
                print(r"/// \file" + "\n///")
                at_top = False
            if column != len(indent):
                column = None
            print(f"{indent}///{'' if column is None else '<'} {escaped(text)}")
            continue
        at_top = False
        column = None
        if COMPARISON.match(line):
            print()
            continue
        # Not what only ends a block, nor text in quotes.
        is_member = trailing is not None and not re.match(r"\s*(}|#)", line) \
            and trailing.group(1).count('"') % 2 == 0 \
            and trailing.group(1).rstrip().endswith((";", ",", "{", ")")) \
            and not trailing.group(1).rstrip().endswith("{")
        if is_member:
            print(f"{trailing.group(1)}  ///< {escaped(trailing.group(2))}")
            column = line.index("//", len(trailing.group(1)))
        else:
            print(line)


if __name__ == "__main__":
    main(sys.argv)
