"""The job of examples/digits learns handwritten digits that it has not seen.

Skipped where the images are not there: scripts/fetch-test-files takes them out of a package.
PENSTOCK_COMMAND names the command (default: build/bin/penstock), PENSTOCK_DIGITS the images (default:
build/test_files/digits.csv.gz).
"""

import json
import os
import pathlib
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
DIGITS = os.environ.get("PENSTOCK_DIGITS", str(ROOT / "build/test_files/digits.csv.gz"))


class DigitsTest(unittest.TestCase):
    def test_the_example_reads_digits(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if not os.path.exists(DIGITS):
            self.skipTest("there are no images of digits: see scripts/fetch-test-files")
        done = subprocess.run(
            [PENSTOCK, "run", str(ROOT / "examples/digits/digits.toml"), "--json", "--set",
             f'data.csv="{DIGITS}"'], capture_output=True, text=True, timeout=280, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        summary = json.loads(done.stdout.splitlines()[-1])["summary"]
        self.assertEqual(summary["steps"], 300)
        # One in ten would be chance; the example reaches 0.98 of them.
        self.assertGreaterEqual(summary["validation_accuracy"], 0.95)
        self.assertLess(summary["validation_loss"], 0.2)


if __name__ == "__main__":
    unittest.main()
