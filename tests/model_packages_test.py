"""Models of the package transformers give the same logits here, tokenizers of the package tokenizers
the same tokens: tests/data/models/make_models.py makes new ones, with other weights than those in
the tree, and the C++ tests compare with them.

Skipped where tokenizers is not installed (tests/requirements.txt). Logits are compared where torch
and transformers are installed, too. These are not in tests/requirements.txt, because PyPI's torch
comes with CUDA's libraries (5 GB). By hand, beside the command:

    python3 -m venv build/models && build/models/bin/pip install torch transformers tokenizers
    build/models/bin/python tests/model_packages_test.py

This passed with transformers 5.24.0 and torch 2.15.0.
PENSTOCK_COMMAND names the command (default: build/bin/penstock). The C++ tests are beside it, in
programs of their own or, where PENSTOCK_UNITY is on, in one of several files. It is an error if no
program has them.
"""

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMAND = pathlib.Path(os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock")))
TESTS = COMMAND.parent.parent / "tests"
PACKAGES = [str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages")]
sys.path.extend(PACKAGES)
SEED = "11"


def has(package):
    return importlib.util.find_spec(package) is not None


class ModelPackagesTest(unittest.TestCase):
    def make(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock_models.")
        self.addCleanup(folder.cleanup)
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *PACKAGES]))
        subprocess.run([sys.executable, ROOT / "tests/data/models/make_models.py", folder.name,
                        SEED], check=True, capture_output=True, timeout=280,
                       env={**os.environ, "PYTHONPATH": path})
        return folder.name

    def program(self, name, tests):
        """The program that has the tests: that of the file alone, or one of several files. A build
        folder may have both, of which the one that was built last is current."""
        suite = tests.split(".")[0].lstrip("*")
        programs = [path for path in (TESTS / name, *TESTS.glob("cli_tests_*"))
                    if path.is_file() and os.access(path, os.X_OK)]
        for program in sorted(programs, key=lambda path: path.stat().st_mtime, reverse=True):
            listed = subprocess.run([program, "--gtest_list_tests", f"--gtest_filter={tests}"],
                                    capture_output=True, text=True, check=True, timeout=60).stdout
            if f"{suite}.\n" in listed:
                return program
        self.fail(f"no program in {TESTS} has {tests}: build the tests of the command")

    def run_test(self, name, folder, tests):
        done = subprocess.run([self.program(name, tests), f"--gtest_filter={tests}"],
                              capture_output=True, text=True, check=False, timeout=280,
                              env={**os.environ, "PENSTOCK_TEST_MODELS": folder})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertRegex(done.stdout, r"\[  PASSED  \] [1-9]")
        self.assertNotIn("SKIPPED", done.stdout)

    def test_tokens_are_those_of_tokenizers(self):
        if not has("tokenizers"):
            self.skipTest("tokenizers is not installed: see tests/requirements.txt")
        self.run_test("tokenizer_test", self.make(), "*TokenizerFilesTest.*")

    def test_logits_are_those_of_transformers(self):
        for package in ("tokenizers", "torch", "transformers"):
            if not has(package):
                self.skipTest(f"{package} is not installed: the head of this file says how to run it")
        self.run_test("model_folder_test", self.make(), "ModelFolderTest.*Transformers*")


if __name__ == "__main__":
    unittest.main()
