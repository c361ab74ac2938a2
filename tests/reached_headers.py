#!/usr/bin/env python3
"""Prints the headers of the sources that some headers reach by #include.

    reached_headers.py ROOT HEADER...

Prints paths from ROOT, sorted, those of the given headers among them. Includes of what is not under
ROOT are passed over.
"""

import os
import re
import sys

INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def reached_headers(root, headers):
    reached = set()
    to_read = list(headers)
    while to_read:
        header = to_read.pop()
        if header in reached:
            continue
        reached.add(header)
        with open(os.path.join(root, header), encoding="utf-8") as file:
            to_read += [path for path in INCLUDE.findall(file.read())
                        if os.path.exists(os.path.join(root, path))]
    return sorted(reached)


def main(arguments):
    for header in reached_headers(arguments[1], arguments[2:]):
        print(header)


if __name__ == "__main__":
    main(sys.argv)
