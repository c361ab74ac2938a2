"""Installs the Python package into a fresh virtual environment and runs its tests and the example of
README.md there.

The package links with the libraries of this build, so that only its own module is compiled: those
that penstock_DIR names, and those that a plain `pip install .` finds in the clone. What it is built
and tested with comes from the environment build/python that scripts/test makes, or else from the
Python that runs this test; skipped where something is missing (tests/requirements.txt).
PENSTOCK_COMMAND names the command (default: build/bin/penstock), which lies in that build.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = pathlib.Path(os.environ.get("PENSTOCK_COMMAND", ROOT / "build/bin/penstock")).parent.parent
NEEDED = ("nanobind", "numpy", "pip", "pytest", "scikit_build_core")
PROBE = """
import importlib.util, json, os, sys, sysconfig
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
if not os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h")):
    missing.append("Python.h (python3-dev)")
packages = [path for path in sys.path if path.endswith("-packages")]
print(json.dumps({"missing": missing, "packages": packages}))
"""


def run(*command, folder="/", timeout=280):
    """Standard output of a command; an assertion with all of its output if it fails."""
    done = subprocess.run([str(word) for word in command], cwd=folder, capture_output=True,
                          text=True, timeout=timeout,
                          env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"})
    assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
    return done.stdout


class ConfigurationTest(unittest.TestCase):
    def test_a_clean_clone_is_configured_as_scripts_build_does(self):
        with tempfile.TemporaryDirectory(prefix="penstock_clone.") as folder:
            clone = pathlib.Path(folder)
            shutil.copytree(ROOT / "python", clone / "python")
            (clone / "penstock").mkdir()
            for name in ("penstock/version.h", "CMakePresets.json"):
                shutil.copy(ROOT / name, clone / name)
            # Ends the configuration of the libraries where it begins.
            (clone / "CMakeLists.txt").write_text(
                "cmake_minimum_required(VERSION 3.25)\nproject(libraries NONE)\n"
                'message(FATAL_ERROR "several sources at once: ${PENSTOCK_UNITY}")\n')
            done = subprocess.run(
                ["cmake", "-S", clone / "python", "-B", clone / "module", "-DSKBUILD=ON",
                 "-DCMAKE_FIND_USE_PACKAGE_REGISTRY=OFF"],
                capture_output=True, text=True, timeout=120, check=False)
            self.assertIn("several sources at once: ON", done.stderr, done.stdout)
            self.assertIn("-DPENSTOCK_UNITY=ON", (ROOT / "scripts/build").read_text())


class PythonPackageTest(unittest.TestCase):
    def setUp(self):
        own = ROOT / "build/python/bin/python"
        self.python = own if own.exists() else sys.executable
        probed = json.loads(run(self.python, "-c", PROBE, *NEEDED))
        if not (BUILD / "lib/libpenstock_penstock.a").exists():
            probed["missing"].append(f"{BUILD}/lib/libpenstock_penstock.a")
        if probed["missing"]:
            self.skipTest(f"{self.python} lacks {', '.join(probed['missing'])}")
        self.packages = probed["packages"]

    def install(self, *settings):
        """The Python of a fresh environment with the package, in which the README's example runs."""
        folder = tempfile.TemporaryDirectory(prefix="penstock_python.")
        self.addCleanup(folder.cleanup)
        run(self.python, "-m", "venv", "--without-pip", folder.name)
        python = pathlib.Path(folder.name, "bin/python")
        site = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
        # The fresh environment sees the packages of the other.
        pathlib.Path(site.strip(), "other.pth").write_text("\n".join(self.packages) + "\n")
        run(python, "-m", "pip", "install", "--no-index", "--no-deps", "--no-build-isolation",
            "--quiet", *(f"--config-settings={setting}" for setting in settings), ROOT)
        # -I: what is imported is what was installed, not a folder at hand.
        where = run(python, "-I", "-c", "import penstock; print(penstock.__file__)")
        self.assertTrue(where.startswith(os.path.realpath(folder.name)), where)
        example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
        run(python, "-I", "-c", example.group(1))
        return python

    def test_installs_into_a_fresh_environment_and_passes_its_tests(self):
        python = self.install(f"cmake.define.penstock_DIR={BUILD}")
        run(python, "-I", "-m", "pytest", "-q", "-p", "no:cacheprovider", ROOT / "python/tests",
            folder=python.parent)

    def test_installs_from_the_clone(self):
        if BUILD.resolve() != ROOT / "build":
            self.skipTest(f"{BUILD} is not the folder that a clone is built in")
        # The folder of the test above remembers where its libraries were.
        with tempfile.TemporaryDirectory(prefix="penstock_module.") as folder:
            self.install(f"build-dir={folder}")


if __name__ == "__main__":
    unittest.main()
