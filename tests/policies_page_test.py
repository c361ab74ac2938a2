"""The plug-in of docs/policies.md and the commands of the page do what it says.

Its C++ is the program policies_page (tests/CMakeLists.txt).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = pathlib.Path(os.environ.get("PENSTOCK_COMMAND", ROOT / "build/bin/penstock"))
PAGE = (ROOT / "docs/policies.md").read_text()
# Each chunk of eight stages has a layer.
JOB = """
[model]
name = "gpt"
layers = 8
width = 32
heads = 2
context = 16
[train]
steps = 2
batch = 8
validation_sequences = 0
[sample]
bytes = 0
"""
TIMEOUT_S = 240


class PoliciesPageTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if shutil.which("gcc") is None:
            self.skipTest("there is no gcc, which the page calls")
        folder = tempfile.TemporaryDirectory(prefix="penstock_policies_page.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def shell(self, command):
        """Runs a command as a user types it, and returns what it prints."""
        environment = {**os.environ, "PATH": f"{PENSTOCK.parent}:{os.environ['PATH']}"}
        done = subprocess.run(["sh", "-c", command], cwd=self.folder, env=environment, text=True,
                              capture_output=True, timeout=TIMEOUT_S)
        self.assertEqual(done.returncode, 0, f"{command}\n{done.stdout}{done.stderr}")
        return done.stdout

    def build_plugin(self):
        [source] = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
        (self.folder / "my.c").write_text(source)
        [command] = re.findall(r"^    (gcc .*)$", PAGE, re.MULTILINE)
        self.shell(command.replace("PATH_TO_PENSTOCK", str(ROOT)) + " -Wall -Wextra -Werror")

    def test_the_plugin_runs_forwards_first(self):
        self.build_plugin()
        rows = self.shell("penstock schedule ./my.so --stages 4 --microbatches 8 --csv").splitlines()
        self.assertEqual(len(rows), 4)
        for stage, row in enumerate(rows):
            actions = [cell for cell in row.split(",") if cell]
            self.assertEqual(actions[:8], [f"{stage}F{m}" for m in range(8)])
            self.assertEqual(sorted(actions[8:]),
                             sorted(f"{stage}{kind}{m}" for kind in "IW" for m in range(8)))

    def test_the_commands_run(self):
        self.build_plugin()
        (self.folder / "JOB.toml").write_text(JOB)
        commands = re.findall(r"^    (penstock .*)$", PAGE, re.MULTILINE)
        # Those of a large job need minutes.
        commands = [command for command in commands
                    if "gpt3-175b" not in command and "simulate traces" not in command]
        self.assertGreaterEqual(len(commands), 10)
        for command in commands:
            with self.subTest(command):
                self.shell(command)
        for picture in ("zb-h1.svg", "step.svg", "timeline.svg"):
            self.assertTrue((self.folder / picture).read_text().startswith("<svg "), picture)


if __name__ == "__main__":
    unittest.main()
