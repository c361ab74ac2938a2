"""Python's safetensors package opens checkpoints, and Penstock opens its files.

Skipped where the package is not installed (tests/requirements.txt, in the virtual environment
build/python that scripts/test makes).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
# The layouts between which the C++ tests convert checkpoints, each to each.
LAYOUTS = ("dp=1", "dp=2", "tp=2", "pp=2", "dp=2,tp=2", "dp=2,tp=2,pp=2", "zero=3,dp=4")
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.extend(str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages"))

try:
    import numpy
    import safetensors
    import safetensors.numpy
except ImportError as error:
    numpy = safetensors = None
    MISSING = str(error)

JOB = """
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[train]
steps = 2
batch = 8
validation_sequences = 0
[sample]
bytes = 0
[checkpoint]
path = "checkpoints"
"""


def penstock(*arguments):
    return subprocess.run([PENSTOCK, *map(str, arguments)], capture_output=True, text=True,
                          timeout=120, check=True).stdout


class SafetensorsPackageTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if safetensors is None:
            self.skipTest(f"{MISSING}: see tests/requirements.txt")
        folder = tempfile.TemporaryDirectory(prefix="penstock_safetensors.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def check(self, *options):
        """Trains a few steps, and compares what the package reads with the states that a resumed
        run begins with."""
        folder = pathlib.Path(tempfile.mkdtemp(dir=self.folder))
        checkpoints = folder / "checkpoints"
        (folder / "job.toml").write_text(JOB)
        job = [folder / "job.toml"]
        penstock("run", *job, *options)
        dump = folder / "dump"
        penstock("run", *job, "--resume", "--dump", dump, "--strategy", "dp=1", "--procs", 1)
        newest = sorted(checkpoints.glob("step-*"))[-1]
        shown = json.loads(penstock("checkpoint", "show", newest, "--json"))
        merged = folder / "merged.safetensors"
        penstock("checkpoint", "merge", newest, "-o", merged)
        tensors = safetensors.numpy.load_file(merged)
        self.assertEqual(sorted(tensors), sorted(row["name"] for row in shown["tensors"]))
        for name, value in tensors.items():
            expected = numpy.load(dump / f"{name}.npy")
            self.assertEqual(value.dtype, expected.dtype, name)
            self.assertTrue(numpy.array_equal(value, expected), name)
        with safetensors.safe_open(merged, "numpy") as file:
            self.assertEqual(file.metadata()["step"], "2")
        for part in newest.glob("*.safetensors"):
            with safetensors.safe_open(part, "numpy") as file:
                for name in file.keys():
                    file.get_tensor(name)
        return sorted(tensors), newest

    def test_every_layout(self):
        names = None
        for layout in LAYOUTS:
            with self.subTest(layout):
                # Each process writes a part.
                count = 1 if layout == "dp=1" else 2
                found, newest = self.check("--strategy", layout, "--procs", count)
                parts = list(newest.glob("*.safetensors"))
                self.assertEqual(len(parts), count)
                with safetensors.safe_open(parts[0], "numpy") as file:
                    strategy = file.metadata()["strategy"].split(",")
                for axis in layout.split(","):
                    self.assertIn(axis, strategy)
                names = names or found
                self.assertEqual(found, names)

    def test_its_files_are_read(self):
        path = self.folder / "model.safetensors"
        tensors = {"a.b": numpy.arange(12, dtype=numpy.float32).reshape(3, 4),
                   "half": numpy.ones(3, dtype=numpy.float16),
                   "scalar": numpy.array(7, dtype=numpy.int64)}
        safetensors.numpy.save_file(tensors, path, {"format": "np"})
        shown = json.loads(penstock("checkpoint", "show", path, "--json"))
        self.assertEqual(shown["step"], None)
        self.assertEqual(shown["tensors"], [{"name": "a.b", "dtype": "f32", "shape": [3, 4]},
                                            {"name": "half", "dtype": "f16", "shape": [3]},
                                            {"name": "scalar", "dtype": "i64", "shape": []}])
        merged = self.folder / "merged.safetensors"
        penstock("checkpoint", "merge", path, "-o", merged)
        for name, value in safetensors.numpy.load_file(merged).items():
            self.assertTrue(numpy.array_equal(value, tensors[name]), name)


if __name__ == "__main__":
    unittest.main()
