#!/usr/bin/env python3
"""Holds names in anonymous namespaces to be unique in a directory, as unity builds need it.

    unity_names_check.py [ROOT]

A unity build (cmake/Unity.cmake) compiles several sources of a directory as one, so what their
anonymous namespaces define must not have the same names. Prints `file:line: reason` for each name
that an earlier source of its directory has, and exits with status 1 if there is any. So must test
suites, by whose names ctest tells the files of a program apart.

Functions may share a name if their parameters differ, aliases if they are the same. Tests differ
from other sources. Sources that CMakeLists.txt lists behind ALONE, or tests/CMakeLists.txt in
`single_programs`, are compiled on their own.
"""

import os
import re
import sys

FOLDERS = ("base", "graph", "kernels", "transport", "planner", "actors", "penstock", "cli", "bench",
           "tests")
# Backends have flags of their own, which keep their sources out of unity builds.
EXEMPT = re.compile(r"(^|/)(cuda|cudnn|cudnn_frontend|nccl|programs|support|fuzz|sanitizers|install)/")
TOKENS = re.compile(r'R"(\w*)\((?:.|\n)*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\''
                    r"|//[^\n]*|/\*(?:.|\n)*?\*/|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.M)


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def blanked(text):
    """The text without comments, directives and literals, its lines where they were."""
    def blank(match):
        literal = match[0][0] in "R\"" or (match[0][0] == "'" and not match[0][1:2].isdigit())
        return ("0" if literal else "") + "\n" * match[0].count("\n")
    text = re.sub(r"(?<=[0-9a-fA-F])'(?=[0-9a-fA-F])", "", text)  # 1'000
    return TOKENS.sub(blank, text)


def definitions(text):
    """Yields (namespace, head, line) of what anonymous namespaces hold at their top level."""
    text = blanked(text)
    stack = []  # names of namespaces; None: other braces
    begin = 0
    for match in re.finditer(r"[{};]", text):
        head = text[begin:match.start()]
        begin = match.end()
        is_top = None not in stack and "" in stack
        line = text.count("\n", 0, match.start() - len(head.lstrip())) + 1
        head = " ".join(head.split())
        if match[0] == "}":
            if stack:
                stack.pop()
            continue
        if match[0] == "{":
            namespace = re.search(r"(?:^| )namespace ?([\w:]*)$", head)
            stack.append(namespace[1] if namespace else None)
            if namespace:
                continue
        if is_top and head:
            yield "::".join(name for name in stack if name), head, line


def named(head):
    """What a definition is called: a name, a name with parameters, or None if it has none."""
    if not re.match(r"[\w\[]", head):
        return None  # what follows a braced expression
    head = re.sub(r"^template ?<.*?> (?=\w)", "", head)
    head = re.sub(r"^(\[\[.*?\]\] |inline |static )*", "", head)
    match = re.match(r"(?:using|namespace) (\w+) = ", head)
    if match:
        return None  # The compiler takes the same alias twice, and reports another one.
    if re.match(r"(TYPED_)?TEST(_F|_P|_SUITE)?\(|using |[A-Z_]+\(|static_assert", head):
        return None
    match = re.match(r"(?:class|struct|union|enum class|enum)(?: alignas\(.*?\))? (\w+)", head)
    if match:
        return match[1]
    match = re.match(r"[^(=]*?(\w+)(?:\[[^\]]*\])* =", head + " =" if "(" not in head else head)
    if match:
        return match[1]
    match = re.search(r"(\w+)\((.*)\)(?: const| noexcept| ->.*)*$", head)
    if match:
        parameters = re.sub(r"=[^,]*", "", match[2])
        return match[1] + "(" + re.sub(r"(?<=[\w&*>.]) \w+(?=,|$)", "", parameters) + ")"
    return None


def suites(text):
    """Yields (name, line) of each test suite, where it is first used."""
    seen = set()
    for match in re.finditer(r"^(?:TYPED_)?TEST(?:_F|_P)?\(\s*(\w+)", blanked(text), re.M):
        if match[1] not in seen:
            seen.add(match[1])
            yield match[1], text.count("\n", 0, match.start()) + 1


def alone(root):
    """The sources that are not compiled with others."""
    found = set()
    for folder in FOLDERS:
        path = os.path.join(root, folder, "CMakeLists.txt")
        text = read(path) if os.path.exists(path) else ""
        for block in re.findall(r"\bALONE\b([^)A-Z]*)", text):
            found.update(f"{folder}/{name}" for name in block.split())
        programs = re.search(r'set\(single_programs "\^\((.*?)\)_test\$"', text, re.S)
        if programs:
            found.update(re.sub(r"\\\n", "", programs[1]).split("|"))
    return found


def main():
    root = sys.argv[1] if len(sys.argv) > 1 else "."
    skipped = alone(root)
    status = 0
    for folder in FOLDERS:
        for directory, _, files in sorted(os.walk(os.path.join(root, folder))):
            seen = {}
            seen_suites = {}
            for file in sorted(files):
                path = os.path.join(directory, file)
                relative = os.path.relpath(path, root)
                is_test = file.endswith("_test.cc")
                if (not file.endswith(".cc") or EXEMPT.search(relative) or relative in skipped or
                        file[:-len("_test.cc")] in skipped):
                    continue
                here = set()
                for namespace, head, line in definitions(read(path)):
                    name = named(head)
                    key = (is_test, namespace, name)
                    if name and key not in here and key in seen:
                        print(f"{relative}:{line}: {name} is in the anonymous namespace of "
                              f"{seen[key]}, too: unity builds compile both together")
                        status = 1
                    here.add(key)
                for key in here:
                    seen.setdefault(key, relative)
                for suite, line in suites(read(path)):
                    first = seen_suites.setdefault(suite, relative)
                    if first != relative:
                        print(f"{relative}:{line}: the test suite {suite} is in {first}, too: unity "
                              f"builds make one program of both")
                        status = 1
    return status


if __name__ == "__main__":
    sys.exit(main())
