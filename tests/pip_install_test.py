"""What a user does: `pip install .` in a clean clone and a fresh virtual environment, where pip fetches
what the build needs from PyPI, then the package's tests and the example of README.md.

It takes minutes and the network, so it is run on demand only. .ci/run asks for the module, which takes about 45 s
of processor time:

    PENSTOCK_TEST_PIP=all python3 tests/pip_install_test.py       compiles the whole library
    PENSTOCK_TEST_PIP=module python3 tests/pip_install_test.py    links with the libraries of the build

Skipped where pip does not reach its index. python_package_test.py installs without the network.
PENSTOCK_COMMAND names the command (default: build/bin/penstock), which lies in that build.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from python_package_test import BUILD, ROOT, run

MODE = os.environ.get("PENSTOCK_TEST_PIP", "")


class PipInstallTest(unittest.TestCase):
    @unittest.skipIf(MODE not in ("all", "module"),
                     "takes minutes: PENSTOCK_TEST_PIP=all or module asks for it")
    def test_a_clean_clone_is_installed(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock_pip.")
        self.addCleanup(folder.cleanup)
        environment, clone = pathlib.Path(folder.name, "venv"), pathlib.Path(folder.name, "clone")
        run(sys.executable, "-m", "venv", environment)
        python = environment / "bin/python"
        # Not out of pip's cache.
        reached = subprocess.run([python, "-m", "pip", "download", "--quiet", "--no-deps",
                                  "--no-cache-dir", "--dest", folder.name, "scikit-build-core"],
                                 capture_output=True, text=True, timeout=280, check=False)
        if reached.returncode != 0:
            self.skipTest(f"pip does not reach its index: {reached.stderr.strip()[-200:]}")
        run("git", "clone", "--quiet", ROOT, clone)
        settings = ([f"--config-settings=cmake.define.penstock_DIR={BUILD}"]
                    if MODE == "module" else [])
        run(python, "-m", "pip", "install", "--quiet", *settings, f"{clone}[test]", folder=clone,
            timeout=3600)
        where = run(python, "-I", "-c", "import penstock; print(penstock.__file__)")
        self.assertTrue(where.startswith(os.path.realpath(environment)), where)
        example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        run(python, "-I", "-c", example.group(1))
        run(python, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", clone / "python/tests",
            folder=environment)


if __name__ == "__main__":
    unittest.main()
