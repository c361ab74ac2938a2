#!/usr/bin/env python3
"""Checks with Clang that what a lock guards (ABSL_GUARDED_BY) is used only where the lock is held.

Usage: thread_safety_check.py SOURCE_FOLDER BUILD_FOLDER [FILE...]

Analyses the sources that have a lock or such an annotation, and those of a header that has one:
names.cc and names_more.cc of names.h or names_internal.h; no tests. Sources that a unity build
compiles together are analysed together. The flags are those of the compile database of the build
folder. Returns 77, "skipped", where there is no clang++.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

SKIPPED = 77
JOBS = 2
COMPILERS = ["clang++"] + [f"clang++-{version}" for version in range(20, 13, -1)]
LOCKED = re.compile(r"\bABSL_(PT_)?GUARDED_BY\b|\bABSL_\w+_LOCKS?_REQUIRED\b|\babsl::\w*Mutex")
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
ERROR = re.compile(r"^([^:\n]+):\d+:\d+: (?:fatal )?error:", re.MULTILINE)
# Flags with a path as their next word.
WITH_PATH = ("-I", "-isystem", "-iquote")


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


def clang_flags(command):
    """Of a command for any compiler: include paths, definitions and the standard."""
    words = iter(shlex.split(command))
    next(words)
    flags = []
    for word in words:
        if word in WITH_PATH:
            flags += [word, next(words)]
        elif word.startswith(("-I", "-isystem", "-D", "-std=")):
            flags.append(word)
    return flags


def has_lock(source_folder, path):
    full = os.path.join(source_folder, path)
    return os.path.exists(full) and LOCKED.search(read(full)) is not None


def is_of(path, header):
    """Whether a source may define functions of a header."""
    name = re.sub(r"(_internal)?\.h$", "", header)
    return re.match(re.escape(name) + r"(_\w+)?\.cc$", path)


def single_entries(database):
    """Entries for the sources of the batches of a unity build (cmake/Unity.cmake), and the others."""
    for entry in database:
        if os.path.basename(os.path.dirname(entry["file"])) == "Unity":
            batch = read(os.path.join(entry["directory"], entry["file"]))
            for path in INCLUDE.findall(batch):
                yield {**entry, "file": path, "batch": entry["file"]}
        else:
            yield entry


def sources_to_check(source_folder, database):
    """The entries of the compile database, by path in the source folder."""
    entries = {}
    for entry in single_entries(database):
        full = os.path.join(entry["directory"], entry["file"])
        path = os.path.relpath(full, source_folder)
        if path.startswith("..") or not path.endswith(".cc") or path.endswith("_test.cc"):
            continue
        if not os.path.exists(full):
            continue
        headers = [header for header in INCLUDE.findall(read(full)) if is_of(path, header)]
        if any(has_lock(source_folder, file) for file in [path, *headers]):
            entries.setdefault(path, entry)
    return dict(sorted(entries.items()))


def batches(sources):
    """Lists of entries that are checked together: those that a unity build compiles together."""
    groups = {}
    for path, entry in sources.items():
        groups.setdefault(entry.get("batch", path), []).append(entry)
    return list(groups.values())


def check(compiler, entries):
    """What Clang reports of sources that compile together; nothing if all is well."""
    command = entries[0].get("command") or shlex.join(entries[0]["arguments"])
    directory = entries[0]["directory"]
    paths = [os.path.join(directory, entry["file"]) for entry in entries]
    result = subprocess.run(
        [compiler, *clang_flags(command), "-fsyntax-only", "-Wno-everything", "-Wthread-safety",
         "-Werror=thread-safety", "-fno-caret-diagnostics", "-ferror-limit=0", "-x", "c++", "-"],
        cwd=directory, input="".join(f'#include "{path}"\n' for path in paths),
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if result.returncode == 0:
        return ""
    return result.stdout or f"{' '.join(paths)}: {compiler} failed without a word\n"


def main(arguments):
    if len(arguments) < 3:
        print(__doc__.strip(), file=sys.stderr)
        return 2
    source_folder, build_folder = arguments[1:3]
    compiler = next(filter(None, map(shutil.which, COMPILERS)), None)
    if compiler is None:
        print("skipped: there is no clang++, which alone checks the annotations")
        return SKIPPED
    database = json.loads(read(os.path.join(build_folder, "compile_commands.json")))
    sources = sources_to_check(source_folder, database)
    if arguments[3:]:
        sources = {path: entry for path, entry in sources.items() if path in arguments[3:]}
    if not sources:
        print("no source has a lock: is the compile database complete?", file=sys.stderr)
        return 1
    with ThreadPoolExecutor(JOBS) as pool:
        reports = "".join(pool.map(lambda entries: check(compiler, entries), batches(sources)))
    sys.stdout.write(reports)
    wrong = set(ERROR.findall(reports))
    print(f"{len(wrong)} of {len(sources)} sources have errors")
    return 1 if reports else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
