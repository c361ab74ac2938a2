"""A browser draws the page of `penstock run --report FILE.html`: its script adds the kernels, zooms
and shows values, without an error.

Skipped where there is no Chromium (Debian: chromium). PENSTOCK_COMMAND names the command (default:
build/bin/penstock).
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "support"))
from report_run import PENSTOCK, run_with_report  # noqa: E402

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

# What a user does: zooms into the timeline, and moves over the chart of losses.
USE = """<script>
const lanes = document.querySelector('.lanes');
const note = (name, value) => { document.documentElement.dataset[name] = value; };
// Zooming in keeps the middle half.
const middle = Array.from(lanes.querySelectorAll('.t')).find((shape) => {
  const x = parseFloat(shape.getAttribute('x'));
  return x >= 25 && x + parseFloat(shape.getAttribute('width')) <= 75;
});
const width = () => middle.getAttribute('width');
note('before', width());
document.querySelector('[data-zoom="in"]').click();
note('after', width());
document.querySelector('[data-zoom="all"]').click();
note('again', width());
const plot = document.querySelector('#chart-loss .plot');
const box = plot.getBoundingClientRect();
plot.dispatchEvent(new PointerEvent('pointermove',
    {clientX: box.right, clientY: box.top + 5, bubbles: true}));
note('tip', plot.querySelector('.tip').textContent);
note('wide', document.documentElement.scrollWidth > window.innerWidth);
</script></body>"""


class ReportChromiumTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        if not os.access(PENSTOCK, os.X_OK):
            raise unittest.SkipTest(f"{PENSTOCK} is not built")
        if CHROMIUM is None:
            raise unittest.SkipTest("there is no chromium")
        folder = tempfile.TemporaryDirectory(prefix="penstock_report.")
        cls.addClassCleanup(folder.cleanup)
        cls.folder = pathlib.Path(folder.name)
        path, cls.lines = run_with_report(folder.name)
        cls.text = path.read_text(encoding="utf-8")

    def dom(self, text, width=1280):
        page = self.folder / "used.html"
        page.write_text(text, encoding="utf-8")
        result = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder / 'chromium'}", f"--window-size={width},900",
             "--enable-logging=stderr", "--v=0", "--dump-dom", page.as_uri()],
            capture_output=True, text=True, timeout=120, check=True)
        messages = [line for line in result.stderr.splitlines() if ":CONSOLE" in line]
        self.assertEqual(messages, [])  # errors of scripts, and what the page may not load
        return result.stdout

    def test_the_script_draws_kernels(self):
        dom = self.dom(self.text)
        self.assertIn('data-ready="true"', dom)
        kernels = re.findall(r'<rect class="k [a-z]+"', dom)
        self.assertGreater(len(kernels), 8)
        for section in ("run", "curves", "timeline", "path", "stages", "operators", "graph",
                        "checkpoints"):
            self.assertIn(f'<section id="{section}">', dom)

    def test_zoom_and_values(self):
        for width in (1280, 800):
            with self.subTest(width=width):
                dom = self.dom(self.text.replace("</body>", USE), width)
                notes = dict(re.findall(r'data-(before|after|again|tip|wide)="([^"]*)"',
                                        dom[:dom.index(">", dom.index("<html")) + 1]))
                percent = {name: float(notes[name].rstrip("%")) for name in
                           ("before", "after", "again")}
                self.assertAlmostEqual(percent["after"], 2 * percent["before"], places=3)
                self.assertAlmostEqual(percent["again"], percent["before"], places=6)
                loss = self.lines[-1]["summary"]["final_loss"]
                self.assertIn("step 6\ntraining ", notes["tip"])
                self.assertIn(f"{loss:.6g}"[:6], notes["tip"])
                self.assertIn("validation ", notes["tip"])
                self.assertEqual(notes["wide"], "false")  # nothing reaches beyond the window


if __name__ == "__main__":
    unittest.main()
