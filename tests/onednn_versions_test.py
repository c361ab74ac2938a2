"""What is written for oneDNN compiles with its version 3 as well as with the one that the system has.

Skipped where the headers of PyPI's onednn-devel are not installed (tests/requirements.txt).
CXX names the compiler (default: c++).
"""

import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = ROOT / "build/python/include"


class OneDnnVersionsTest(unittest.TestCase):
    def compile(self, *arguments, text=None):
        return subprocess.run(
            [os.environ.get("CXX", "c++"), "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
             "-isystem", INCLUDE, "-I", ROOT, *arguments], input=text, capture_output=True, text=True,
            timeout=280, check=False)

    def test_sources_compile_with_version_3(self):
        if not (INCLUDE / "oneapi/dnnl/dnnl_version.h").exists():
            self.skipTest("onednn-devel is not installed")
        found = self.compile("-x", "c++", "-", text='#include "oneapi/dnnl/dnnl.hpp"\n'
                             'static_assert(DNNL_VERSION_MAJOR == 3);\n')
        self.assertEqual(found.returncode, 0, found.stderr)
        sources = sorted((ROOT / "kernels/cpu").glob("onednn*.cc"))
        self.assertGreater(len(sources), 3)
        for source in sources:
            done = self.compile(source)
            self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
