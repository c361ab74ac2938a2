"""Runs the unittest cases of one file, for ctest: run_python_tests.py FILE.

Exits with 77, "skipped", only if every case was: a file of which one case is skipped has passed or
failed by its others. Each skipped case is named with its reason.
"""

import importlib.util
import pathlib
import sys
import unittest

ALL_SKIPPED = 77


def main():
    path = pathlib.Path(sys.argv[1]).resolve()
    sys.path.insert(0, str(path.parent))  # as if the file were run, for what it imports
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    result = unittest.TextTestRunner().run(unittest.defaultTestLoader.loadTestsFromModule(module))
    for case, reason in result.skipped:
        print(f"skipped: {case.id()}: {reason}", file=sys.stderr)
    if not result.wasSuccessful():
        return 1
    # A class or module that skips all of its cases counts as one, and none of them as run.
    return ALL_SKIPPED if result.testsRun <= len(result.skipped) else 0


if __name__ == "__main__":
    sys.exit(main())
