"""The versions of other programs that docs/BENCHMARKS.md names are those that the scripts fetch."""

import pathlib
import re
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent


class VersionsTest(unittest.TestCase):
    def test_taskflow(self):
        script = (ROOT / "bench/peers/actors").read_text(encoding="utf-8")
        docs = (ROOT / "docs/BENCHMARKS.md").read_text(encoding="utf-8")
        fetched = re.search(r"^ *version=v(\d+\.\d+)\.\d+", script, re.MULTILINE)
        named = re.findall(r"Taskflow (\d+\.\d+)", docs)
        self.assertIsNotNone(fetched)
        self.assertTrue(named)
        self.assertEqual(set(named), {fetched[1]})
        self.assertEqual(re.findall(r"v\d+\.\d+\.\d+", script), ["v" + fetched[0].split("=v")[1]])


if __name__ == "__main__":
    unittest.main()
