"""How bench/slow_messages compares the time of each traced step with its critical path."""

import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.dont_write_bytecode = True

loader = importlib.machinery.SourceFileLoader("slow_messages", str(ROOT / "bench/slow_messages"))
slow_messages = importlib.util.module_from_spec(
    importlib.util.spec_from_loader("slow_messages", loader))
loader.exec_module(slow_messages)


class ExplainedTest(unittest.TestCase):
    def test_each_step_is_compared_with_its_own_time(self):
        # Steps 2 and 4 were traced. Their mean is explained within 10 %, and step 4 is not.
        times = [9.0, 1.0, 9.0, 0.5]
        path = {"per_step": [{"step": 2, "step_time_s": 1.0, "idle_s": 0.0},
                             {"step": 4, "step_time_s": 0.5, "idle_s": 0.1}]}
        self.assertEqual(slow_messages.explained_shares(times, path), [1.0, 0.8])

    def test_a_path_of_another_length_than_the_step_does_not_explain_it(self):
        path = {"per_step": [{"step": 1, "step_time_s": 1.5, "idle_s": 0.0}]}
        self.assertEqual(slow_messages.explained_shares([1.0], path), [1.5])


if __name__ == "__main__":
    unittest.main()
