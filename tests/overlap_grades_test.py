"""How bench/overlap grades a row, and on which cores it runs things."""

import importlib.machinery
import importlib.util
import os
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from bench import over_network  # noqa: E402


def load_script():
    loader = importlib.machinery.SourceFileLoader("overlap", str(ROOT / "bench/overlap"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("overlap", loader))
    loader.exec_module(module)
    return module


overlap = load_script()

# Two layers of width 256, and devices that do not slow each other down.
ROUND = {"step_s": 0.40, "replayed_s": 0.40, "alone_s": 0.38, "run_cpu_s": 0.01, "cpu_s": 0.01,
         "kernels_alone_s": 0.30, "kernels_apart_s": 0.30, "kernels_s": 0.30,
         "communication_s": 0.0, "ddp_s": 0.50}


def row(mode="dp", **figures):
    return overlap.summary({"mode": mode, "layers": 2, "width": 256, "sequences": 4,
                            "rate": "10gbit", "rounds": [{**ROUND, **figures}]})


class GradesTest(unittest.TestCase):
    def misses(self, graded):
        """Names of the ratios missed, compared with one device alone and with two apart."""
        return tuple([text.split()[0] for text in overlap.misses(graded, reference)]
                     for reference in (overlap.ALONE, overlap.APART))

    def test_a_good_row_misses_nothing(self):
        self.assertEqual(self.misses(row()), ([], []))
        self.assertEqual(overlap.verdict([row()]),
                         "compared with one device alone: none of 1 rows misses a demand\n"
                         "compared with two devices apart: none of 1 rows misses a demand")

    def test_a_step_is_compared_with_both(self):
        slow = row(step_s=0.43, kernels_apart_s=0.33)
        self.assertGreater(slow["ratio"], overlap.MAX_BOUND_RATIO)
        self.assertLess(slow["ratio_apart"], overlap.MAX_BOUND_RATIO)
        self.assertEqual(self.misses(slow), (["step/bound"], []))
        alone, apart = overlap.verdict([slow]).splitlines()
        self.assertIn("10gbit 2x256x4 dp misses step/bound 1.0", alone)
        self.assertIn("none of 1 rows", apart)
        self.assertEqual(self.misses(row(step_s=0.47)), (["step/bound"], ["step/apart"]))

    def test_kernels_are_compared_with_both(self):
        self.assertEqual(self.misses(row(kernels_s=0.32, kernels_apart_s=0.31)),
                         (["kernels/alone"], []))
        self.assertEqual(self.misses(row(kernels_s=0.32, kernels_apart_s=0.30)),
                         (["kernels/alone"], ["kernels"]))

    def test_the_replayed_bound_has_to_agree_with_both_formulas(self):
        self.assertEqual(self.misses(row(replayed_s=0.43)),
                         (["replayed/bound"], ["replayed/expected"]))
        self.assertEqual(self.misses(row(replayed_s=0.38, cpu_s=0.04, run_cpu_s=0.0)),
                         (["replayed/bound"], []))

    def test_a_step_that_takes_longer_than_ddp_is_a_miss_however_little(self):
        self.assertEqual(self.misses(row(ddp_s=0.399)), (["step/DDP"], ["step/DDP"]))
        exposed = {**row(), "is_hidden": False, "ddp_ratio": 1.005}
        self.assertEqual(self.misses(exposed), (["step/DDP"], ["step/DDP"]))
        self.assertEqual(self.misses({**exposed, "ddp_ratio": 1.0}), ([], []))

    def test_other_modes_are_compared_with_the_replayed_bound(self):
        self.assertEqual(self.misses(row("pp", step_s=0.43)), ([], []))
        self.assertEqual(self.misses(row("pp", step_s=0.45)),
                         (["step/replayed"], ["step/replayed"]))


class CoresTest(unittest.TestCase):
    def test_ranks_are_on_cores_that_are_allowed(self):
        allowed = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, allowed)
        last = max(allowed)
        os.sched_setaffinity(0, {last})
        self.assertEqual([over_network.core_of(rank) for rank in range(2)], [last, last])
        clock = overlap.CoreClock(os.getpid(), over_network.core_of(0))
        while clock.elapsed().total <= 0:
            pass
        with self.assertRaisesRegex(over_network.Failure, "two are needed"):
            sys.argv = ["overlap", "--no-ddp"]
            overlap.main()


if __name__ == "__main__":
    unittest.main()
