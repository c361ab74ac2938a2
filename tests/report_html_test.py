"""The page of `penstock run --report FILE.html`: parsers read it, and its numbers are those of
--json.

PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import html.parser
import json
import os
import pathlib
import sys
import tempfile
import unittest
import xml.etree.ElementTree

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "support"))
from report_run import PENSTOCK, run_with_report  # noqa: E402

VOID = ("meta", "br", "hr", "link", "img", "input")


class Page(html.parser.HTMLParser):
    """Sections by id, numbers by data-key, scripts by id or by the id of their figure."""

    def __init__(self, text):
        super().__init__()
        self.open = []
        self.errors = []
        self.sections = {}
        self.numbers = {}
        self.scripts = {}
        self.classes = {}
        self.urls = []
        self.section = None
        self.figure = None
        self.script = None
        self.feed(text)
        self.close()

    def handle_startendtag(self, tag, attrs):
        self.note(tag, dict(attrs))

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.note(tag, attributes)
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "section":
            self.section = attributes["id"]
            self.sections[self.section] = ""
        elif tag == "figure":
            self.figure = attributes["id"]
        elif tag == "script":
            self.script = attributes.get("id", self.figure)
            self.scripts[self.script] = ""

    def note(self, tag, attributes):
        if "data-key" in attributes:
            self.numbers[attributes["data-key"]] = attributes["data-value"]
        for name in attributes.get("class", "").split():
            self.classes[name] = self.classes.get(name, 0) + 1
        for name in ("src", "href", "action", "data"):
            if name in attributes and not attributes[name].startswith("#"):
                self.urls.append((tag, attributes[name]))

    def handle_endtag(self, tag):
        if not self.open or self.open.pop() != tag:
            self.errors.append(f"</{tag}> in line {self.getpos()[0]}")
        if tag == "section":
            self.section = None
        elif tag == "figure":
            self.figure = None
        elif tag == "script":
            self.script = None

    def handle_data(self, data):
        if self.script is not None or (self.open and self.open[-1] == "script"):
            self.scripts[self.script] += data
        elif self.section is not None:
            self.sections[self.section] += data


class ReportHtmlTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(PENSTOCK, os.X_OK):
            raise unittest.SkipTest(f"{PENSTOCK} is not built")
        folder = tempfile.TemporaryDirectory(prefix="penstock_report.")
        cls.addClassCleanup(folder.cleanup)
        path, cls.lines = run_with_report(folder.name)
        cls.text = path.read_text(encoding="utf-8")
        cls.page = Page(cls.text)
        cls.summary = cls.lines[-1]["summary"]

    def test_it_is_well_formed(self):
        self.assertEqual(self.page.errors, [])
        self.assertEqual(self.page.open, [])
        xml.etree.ElementTree.fromstring(self.text)  # raises where it is not XML
        self.assertLess(len(self.text), 2_000_000)

    def test_it_needs_nothing_else(self):
        self.assertEqual(self.page.urls, [])

    def test_all_parts_are_there(self):
        sections = self.page.sections
        for name in ("run", "curves", "timeline", "path", "stages", "operators", "graph",
                     "checkpoints", "sample"):
            self.assertIn(name, sections)
        run = sections["run"]
        self.assertIn("penstock run job.toml --json --report", run)
        self.assertIn("dp=2,tp=1,pp=2", run)
        self.assertIn("4 devices of 1 thread in 2 processes on 1 host", run)
        self.assertIn("2 stages", run)
        self.assertIn("train.batch", run)
        self.assertIn("devices 2 to 3", run)
        for phase in ("forward", "backward", "update"):
            self.assertIn(phase, sections["stages"])
        self.assertIn("predicted", sections["stages"])
        self.assertIn("measured", sections["stages"])
        self.assertIn("allocated", sections["stages"])
        self.assertIn("attention", sections["operators"])
        self.assertIn("FLOP/s", sections["operators"])
        self.assertIn("Stage 0", sections["graph"])
        self.assertIn("Stage 1", sections["graph"])
        self.assertIn("[mb.dp", sections["graph"])
        self.assertIn("send", sections["graph"])

    def test_numbers_are_those_of_json(self):
        path = self.summary["critical_path"]
        expected = {name: self.summary[name] for name in
                    ("final_loss", "validation_loss", "step_time_s", "tokens_per_s",
                     "replayed_step_time_s")}
        expected.update({name: path[name] for name in
                         ("exposed_communication_s", "hidden_fraction", "bubble_fraction")})
        self.assertEqual({key: json.loads(value) for key, value in self.page.numbers.items()},
                         expected)
        self.assertEqual(json.loads(self.page.scripts["summary"])["summary"], self.summary)

    def test_curves_are_those_of_json(self):
        steps = [line for line in self.lines if "step" in line]
        self.assertEqual(len(steps), 6)
        training, validation = json.loads(self.page.scripts["chart-loss"])["curves"]
        self.assertEqual(training["points"], [[line["step"], line["loss"]] for line in steps])
        self.assertEqual(
            validation["points"],
            [[line["step"], line["validation_loss"]] for line in steps
             if "validation_loss" in line] + [[6, self.summary["validation_loss"]]])
        (times,) = json.loads(self.page.scripts["chart-time"])["curves"]
        for point, line in zip(times["points"], steps, strict=True):
            self.assertAlmostEqual(point[1], 1e3 * line["step_time_s"], places=4)

    def test_the_timeline_has_phases(self):
        # F and B of two micro-batches on four devices, and updates; devices may have run a part of
        # them before the step before was over everywhere.
        self.assertGreaterEqual(self.page.classes["ph"], 8)
        self.assertIn("b", self.page.classes)
        self.assertIn("upd", self.page.classes)
        self.assertIn("comm", self.page.classes)
        kernels = json.loads(self.page.scripts["kernels"])
        self.assertEqual(len(kernels["rows"]), 4)
        for row in kernels["rows"]:
            self.assertGreater(len(row["kernels"]), 0)
            self.assertEqual(len(row["kernels"]) % 5, 0)
            self.assertLess(max(row["kernels"][2::5]), len(kernels["names"]))

    def test_checkpoints_are_those_of_json(self):
        written = [line["checkpoint"] for line in self.lines if "checkpoint" in line]
        self.assertEqual([checkpoint["step"] for checkpoint in written], [3, 6])
        for checkpoint in written:
            self.assertIn(checkpoint["path"], self.page.sections["checkpoints"])


if __name__ == "__main__":
    unittest.main()
