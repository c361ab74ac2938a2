#!/usr/bin/env python3
"""Holds the sources to the rules about folders, headers and names.

    layering_check.py [ROOT]

Prints `file:line: reason` for each violation and exits with status 1 if there is any. The rules:

 1. A folder includes only the folders that MAY_INCLUDE gives it, and no two folders include each
    other, directly or round about. A sub-folder in SUBFOLDERS includes only sub-folders before it.
    Files named *_test.* and the folder tests/ are exempt.
 2. A quoted include of one of our files is written from the repository root.
 3. A public header includes no header of a library that is meant to be replaceable, and declares
    none of its types, but for FORWARD_DECLARED. Headers in folders named ucx/, cuda/, cudnn/,
    cudnn_frontend/ or nccl/ and headers named *_internal.h are not public.
 4. There are no macros with parameters outside of tests and the files in MACRO_FILES.
 5. Files and folders are named in snake_case, sources end in .h, .cc or .cu.
 6. A header has the guard PENSTOCK_<PATH>_H_.
 7. In cli/, JSON becomes text through DumpJson (cli/json.h): nlohmann's dump() throws where a
    string is not UTF-8. Tests are exempt.
"""

import os
import re
import sys

ALL = ("base", "graph", "planner", "kernels", "transport", "actors",
       "penstock", "cli", "bench", "tests", "examples")

# folder -> what it may include besides itself: a folder, or one header.
MAY_INCLUDE = {
    "base": (),
    "graph": ("base",),
    "planner": ("graph", "base"),
    "kernels": ("graph", "base"),
    "transport": ("base",),
    "actors": ("planner/plan/plan.h", "planner/plan/plan_io.h",
               "planner/plan/launch_order.h", "planner/plan/failure_flags.h",
               "planner/plan/stage_schedule.h", "planner/policy/policy.h",
               "kernels", "transport", "graph", "base"),
    "penstock": ("actors", "planner", "kernels", "graph", "base"),
    "cli": ALL,
    "bench": ALL,
    "tests": ALL,
    "examples": ALL,
}

# folder -> its sub-folders, each of which may include those before it; "" is the folder itself.
SUBFOLDERS = {
    "planner": ("cluster", "policy", "plan", "cost", "sharding", "strategy", "lower", "search",
                "simulator", "chakra", "draw", ""),
    "actors": ("engine", "trace", "checkpoint", "session", "cluster"),
}

# What no public header may include, as the beginning of the included path.
HIDDEN = (
    ("caf/", "CAF"),
    ("ucp/", "UCX"), ("uct/", "UCX"), ("ucs/", "UCX"), ("ucm/", "UCX"),
    ("cuda", "CUDA"), ("cublas", "CUDA"), ("cudnn", "cuDNN"), ("nccl", "NCCL"),
    ("oneapi/", "oneDNN"), ("dnnl", "oneDNN"),
    ("capnp/", "Cap'n Proto"), ("kj/", "Cap'n Proto"),
)
# What declares something of these libraries without their headers.
FORWARD = re.compile(
    r"\s*(?:namespace\s+(?P<namespace>caf|kj|capnp|dnnl)\b"
    r"|(?:typedef\s+)?(?:struct|class|enum)\s+"
    r"(?P<type>CU\w+|cuda\w+|nccl\w+|uc[pts]_\w+|dnnl_\w+)\b)")
# The public headers that may, each for one type.
FORWARD_DECLARED = {
    # Actors of an application may live in the actor system of a session.
    "actors/engine/host.h": "caf",
    "actors/session/engine.h": "caf",
    "actors/session/session.h": "caf",
    # Devices of users take and give streams of their GPU.
    "base/gpu_stream.h": "CUstream_st",
}
PRIVATE_FOLDERS = ("ucx", "cuda", "cudnn", "cudnn_frontend", "nccl")

# Files that exist to define macros, each for something that a function cannot do.
MACRO_FILES = (
    "base/status_macros.h",  # returning from the caller on an error
    "kernels/cuda/simulated_simt.h",  # CUDA's keywords on the host
)

JSON_FILES = ("cli/json.cc",)

SOURCE_SUFFIXES = (".h", ".cc", ".cu")
WRONG_SUFFIXES = (".hpp", ".hh", ".hxx", ".cpp", ".cxx", ".c++", ".c", ".cuh")
NAMED_SUFFIXES = SOURCE_SUFFIXES + (".capnp", ".py")

SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*$")
INCLUDE = re.compile(r'\s*#\s*include\s*(["<])([^">]+)[">]')
MACRO = re.compile(r"\s*#\s*define\s+(\w+)\(")
JSON_DUMP = re.compile(r"(\.|->)dump\(")
# Comments, and the literals in which something might look like one.
TOKEN = re.compile(
    r'//(?:\\\n|[^\n])*|/\*.*?\*/'
    r'|\bR"(?P<mark>[^\s()\\]{0,16})\(.*?\)(?P=mark)"'
    r'|"(?:\\.|[^"\\\n])*"'
    r"|(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])+'",
    re.DOTALL)


def without_comments(text):
    """The text with comments and raw strings blanked out, line for line."""
    def blank(match):
        token = match.group(0)
        if token[0] == "/" or token[0] == "R":
            return "\n" * token.count("\n") or " "
        return token
    return TOKEN.sub(blank, text)


def source_files(root):
    """Paths from the root, with '/', of all files below the known folders, sorted."""
    found = []
    for folder in ALL:
        for where, folders, files in os.walk(os.path.join(root, folder)):
            folders[:] = [f for f in folders if not f.startswith(".") and f != "__pycache__"]
            for name in files:
                if not name.startswith("."):
                    path = os.path.relpath(os.path.join(where, name), root)
                    found.append(path.replace(os.sep, "/"))
    return sorted(found)


def is_test(path):
    return path.startswith("tests/") or os.path.splitext(path)[0].endswith("_test")


def is_public_header(path):
    return (path.endswith(".h") and not path.endswith("_internal.h") and not is_test(path)
            and not any(part in PRIVATE_FOLDERS for part in path.split("/")[:-1]))


def guard_of(path):
    return "PENSTOCK_" + re.sub(r"[^A-Za-z0-9]", "_", path).upper() + "_"


def subfolder(path):
    """The folder below the first one in which a file lies; "" for files of the first one."""
    parts = path.split("/")
    return parts[1] if len(parts) > 2 else ""


def check_name(path):
    stem, suffix = os.path.splitext(path)
    if suffix in WRONG_SUFFIXES:
        yield 1, f"sources end in {', '.join(SOURCE_SUFFIXES)}, not in {suffix}"
    if suffix not in NAMED_SUFFIXES + WRONG_SUFFIXES:
        return
    for part in stem.split("/"):
        if not SNAKE_CASE.match(part):
            yield 1, f"'{part}' is not in snake_case"


def check_guard(path, lines):
    guard = guard_of(path)
    directives = [(number, line.split()) for number, line in enumerate(lines, 1)
                  if line.lstrip().startswith("#")]
    words = [w for _, w in directives]
    if not words or words[0][:2] != ["#ifndef", guard]:
        yield (directives[0][0] if directives else 1), f"the header must open with #ifndef {guard}"
    elif len(words) < 2 or words[1][:2] != ["#define", guard]:
        yield directives[0][0], f"#ifndef {guard} must be followed by #define {guard}"
    elif words[-1][0] != "#endif":
        yield directives[-1][0], "the header must close with #endif"


def check_include(path, quote, included):
    """Rules 1 to 3 for one include of one file; the reasons against it."""
    folder = path.split("/")[0]
    first = included.split("/")[0]
    if quote == '"':
        if "/" not in included or ".." in included.split("/"):
            yield f'"{included}" is not written from the repository root'
        elif first in ALL and first != folder and not is_test(path):
            allowed = MAY_INCLUDE[folder]
            if first not in allowed and included not in allowed:
                yield (f'{folder}/ may not include "{included}"'
                       f" (allowed: {', '.join(allowed) or 'nothing'})")
        elif first == folder and folder in SUBFOLDERS and not is_test(path):
            order = SUBFOLDERS[folder]
            own, other = subfolder(path), subfolder(included)
            if own not in order:
                yield f"{folder}/ has no sub-folder '{own}' in SUBFOLDERS"
            elif other not in order[:order.index(own) + 1]:
                yield (f'{folder}/{own} may not include "{included}"'
                       f" (the order is {', '.join(o or folder for o in order)})")
    if is_public_header(path):
        for prefix, library in HIDDEN:
            if included.startswith(prefix):
                yield f"a public header may not include {library} ({included})"
        if included.endswith(".capnp.h"):
            yield f"a public header may not include Cap'n Proto ({included})"


def find_cycles(edges):
    """Cycles in {(from, to): (path, line)}, each once, as lists of folders."""
    nexts = {}
    for a, b in sorted(edges):
        nexts.setdefault(a, []).append(b)
    cycles, seen = [], set()

    def walk(folder, trail):
        if folder in trail:
            cycle = trail[trail.index(folder):]
            if frozenset(cycle) not in seen:
                seen.add(frozenset(cycle))
                cycles.append(cycle)
            return
        for following in nexts.get(folder, ()):
            walk(following, trail + [folder])

    for folder in sorted(nexts):
        walk(folder, [])
    return cycles


def check(root):
    """All violations below `root`, as (path, line, reason), sorted."""
    found = []
    edges = {}  # (folder, included folder) -> where, the first place
    for path in source_files(root):
        found += [(path, line, reason) for line, reason in check_name(path)]
        if not path.endswith(SOURCE_SUFFIXES):
            continue
        with open(os.path.join(root, path), encoding="utf-8", errors="replace") as file:
            lines = without_comments(file.read()).split("\n")
        if path.endswith(".h"):
            found += [(path, line, reason) for line, reason in check_guard(path, lines)]
        for number, line in enumerate(lines, 1):
            macro = MACRO.match(line)
            if macro and not is_test(path) and path not in MACRO_FILES:
                found.append((path, number, f"macro with parameters: {macro.group(1)}"))
            if (path.startswith("cli/") and JSON_DUMP.search(line) and not is_test(path)
                    and path not in JSON_FILES):
                found.append((path, number, "dump() throws where a string is not UTF-8; use "
                              "DumpJson of cli/json.h"))
            forward = FORWARD.match(line)
            if forward and is_public_header(path):
                declared = forward["namespace"] or forward["type"]
                if FORWARD_DECLARED.get(path) != declared:
                    found.append((path, number, f"a public header may not declare {declared}, "
                                  "which belongs to a library that it hides"))
            include = INCLUDE.match(line)
            if include is None:
                continue
            quote, included = include.groups()
            found += [(path, number, reason) for reason in check_include(path, quote, included)]
            first, folder = included.split("/")[0], path.split("/")[0]
            if quote == '"' and first in ALL and first != folder and not is_test(path):
                edges.setdefault((folder, first), (path, number))
    for cycle in find_cycles(edges):
        path, line = edges[(cycle[-1], cycle[0])]
        found.append((path, line, "folders include each other: "
                      + " -> ".join(cycle + [cycle[0]])))
    return sorted(found)


def main(arguments):
    here = os.path.dirname(os.path.abspath(__file__))
    root = arguments[1] if len(arguments) > 1 else os.path.dirname(here)
    violations = check(root)
    for path, line, reason in violations:
        print(f"{path}:{line}: {reason}")
    if violations:
        print(f"{len(violations)} violation(s)", file=sys.stderr)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
