#!/usr/bin/env python3
"""Holds installed headers to what applications may rely on.

    check_includes.py FOLDER

Every quoted include of a header below FOLDER is itself installed there, so that each header can be
included by itself, and none includes a header of a library that is hidden from applications (rule 3
of layering_check.py). Prints `file:line: reason` for each violation; the status is 1 if there is
any.
"""

import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))

from layering_check import HIDDEN, INCLUDE, without_comments  # noqa: E402


def headers_of(folder):
    for where, _, names in os.walk(folder):
        for name in names:
            if name.endswith(".h"):
                path = os.path.relpath(os.path.join(where, name), folder)
                yield path.replace(os.sep, "/")


def main(arguments):
    folder = arguments[1]
    installed = set(headers_of(folder))
    violations = 0
    if "penstock/penstock.h" not in installed:
        print(f"{folder}: penstock/penstock.h is not installed")
        violations += 1
    for header in sorted(installed):
        with open(os.path.join(folder, header), encoding="utf-8") as file:
            lines = without_comments(file.read()).split("\n")
        for number, line in enumerate(lines, 1):
            include = INCLUDE.match(line)
            if include is None:
                continue
            quote, included = include.groups()
            own = included.split("/")[0] in {path.split("/")[0] for path in installed}
            reason = next((f"includes {library} ({included})" for prefix, library in HIDDEN
                           if included.startswith(prefix)), "")
            if quote == '"' and own and included not in installed:
                reason = f'"{included}" is not installed'
            if reason:
                print(f"{header}:{number}: {reason}")
                violations += 1
    print(f"{len(installed)} headers, {violations} violations")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
