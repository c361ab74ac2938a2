"""Perfetto's trace processor answers SQL about a trace of `penstock run --trace` as the trace's own
packets do (perfetto_trace_test.py).

Skipped without its program, trace_processor_shell, in the PATH or where PENSTOCK_TRACE_PROCESSOR
says: nothing is downloaded, and no package of Debian or PyPI has it, so that this test has not run
yet. PyPI's perfetto talks to it (tests/requirements.txt).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import collections
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from perfetto_trace_test import JOB, MISSING, PENSTOCK, STEPS, Trace, proto

TRACE_PROCESSOR = os.environ.get("PENSTOCK_TRACE_PROCESSOR") or shutil.which(
    "trace_processor_shell")


class TraceProcessorTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if proto is None:
            self.skipTest(f"{MISSING}: see tests/requirements.txt")
        if TRACE_PROCESSOR is None:
            self.skipTest("no trace_processor_shell is in the PATH, and PENSTOCK_TRACE_PROCESSOR "
                          "names none")
        folder = tempfile.TemporaryDirectory(prefix="penstock_processor.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_it_counts_what_the_packets_say(self):
        from perfetto.trace_processor import TraceProcessor, TraceProcessorConfig
        job, file = self.folder / "job.toml", self.folder / "run.perfetto-trace"
        job.write_text(JOB)
        subprocess.run([PENSTOCK, "run", job, "--procs", "2", "--trace", file], check=True,
                       capture_output=True, timeout=120)
        trace = Trace(file)
        slices = [piece for pieces in trace.slices.values() for piece in pieces]
        with TraceProcessor(trace=str(file),
                            config=TraceProcessorConfig(bin_path=TRACE_PROCESSOR)) as processor:

            def count(query):
                return next(iter(processor.query(f"select count(*) as n from {query}"))).n

            self.assertEqual(
                count("stats where severity in ('error', 'data_loss') and value > 0"), 0)
            self.assertEqual(count("slice"), len(slices))
            self.assertEqual(count("slice where dur < 0"), 0)  # without an end
            self.assertEqual(count("flow"), len(trace.flow_begins))
            self.assertEqual(count("counter"), sum(map(len, trace.counters.values())))
            self.assertEqual(count(f"slice where name = 'step {STEPS}'"), 1)
            rows = processor.query("select name, count(*) as n from slice group by name")
            self.assertEqual({row.name: row.n for row in rows},
                             dict(collections.Counter(piece[0] for piece in slices)))


if __name__ == "__main__":
    unittest.main()
