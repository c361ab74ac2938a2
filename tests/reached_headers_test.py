#!/usr/bin/env python3
"""Tests reached_headers.py on a small tree."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from reached_headers import reached_headers  # pylint: disable=wrong-import-position

FILES = {
    "penstock/penstock.h": '#include <string>\n\n#include "absl/status/status.h"\n\n'
                           '#include "base/a.h"\n#include "graph/b.h"\n',
    "base/a.h": '#include "base/deep.h"\n',
    "base/deep.h": '#include "base/a.h"\n',  # a cycle ends, too
    "graph/b.h": '// #include "graph/other.h"\n#include "base/a.h"\n',
    "graph/other.h": "",
}


class ReachedHeadersTest(unittest.TestCase):

    def setUp(self):
        self.root = tempfile.TemporaryDirectory()
        self.addCleanup(self.root.cleanup)
        for path, text in FILES.items():
            full = os.path.join(self.root.name, path)
            os.makedirs(os.path.dirname(full), exist_ok=True)
            with open(full, "w", encoding="utf-8") as file:
                file.write(text)

    def test_includes_are_followed(self):
        self.assertEqual(reached_headers(self.root.name, ["penstock/penstock.h"]),
                         ["base/a.h", "base/deep.h", "graph/b.h", "penstock/penstock.h"])

    def test_headers_of_several_roots_are_named_once(self):
        headers = ["graph/other.h", "graph/b.h", "base/a.h"]
        self.assertEqual(reached_headers(self.root.name, headers),
                         ["base/a.h", "base/deep.h", "graph/b.h", "graph/other.h"])

    def test_a_header_that_is_not_there_is_an_error(self):
        with self.assertRaises(FileNotFoundError):
            reached_headers(self.root.name, ["penstock/gone.h"])


if __name__ == "__main__":
    unittest.main()
