#!/usr/bin/env python3
"""Tests thread_safety_check.py on small trees: one that is right, and some with a mistake each."""

import contextlib
import io
import json
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import thread_safety_check  # pylint: disable=wrong-import-position

HEADER = """
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

class Counter {
 public:
  void Increment();
  int Read() const {
    BODY
    return count_;
  }

 private:
  mutable absl::Mutex mutex_;
  int count_ ABSL_GUARDED_BY(mutex_) = 0;
};
"""
LOCK = "const absl::MutexLock lock(&mutex_);"
SOURCE = '#include "things/counter.h"\nvoid Counter::Increment() { BODY ++count_; }\n'


class ThreadSafetyCheckTest(unittest.TestCase):

    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text.replace("ROOT", root))
            batched = any("Unity/" in path for path in files)
            database = [{
                "directory": root,
                "file": os.path.join(root, path),
                "command": f"c++ -I. -std=c++20 -O2 -fno-such-flag -o {path}.o -c {path}",
            } for path in files if path.endswith(".cxx" if batched else ".cc")]
            with open(os.path.join(root, "compile_commands.json"), "w", encoding="utf-8") as file:
                json.dump(database, file)
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
                status = thread_safety_check.main(["thread_safety_check.py", root, root])
        if status == thread_safety_check.SKIPPED:
            self.skipTest(output.getvalue())
        return status, output.getvalue()

    def test_what_holds_its_lock_is_right(self):
        status, output = self.run_on({
            "things/counter.h": HEADER.replace("BODY", LOCK),
            "things/counter.cc": SOURCE.replace("BODY", LOCK),
            "things/other.cc": "this is not looked at",
        })
        self.assertEqual((status, output), (0, "0 of 1 sources have errors\n"))

    def test_a_source_without_its_lock_is_reported(self):
        status, output = self.run_on({
            "things/counter.h": HEADER.replace("BODY", LOCK),
            "things/counter.cc": SOURCE.replace("BODY", ""),
        })
        self.assertEqual(status, 1)
        self.assertRegex(output, r"counter\.cc:2:\d+: error: writing variable 'count_' requires "
                                 r"holding mutex 'mutex_' exclusively")

    def test_a_source_of_a_batch_is_reported(self):
        status, output = self.run_on({
            "things/counter.h": HEADER.replace("BODY", LOCK),
            "things/counter.cc": SOURCE.replace("BODY", ""),
            "Unity/unity_things_0_cxx.cxx": '#include "ROOT/things/counter.cc"\n',
        })
        self.assertEqual(status, 1)
        self.assertRegex(output, r"counter\.cc:2:\d+: error: writing variable 'count_'")

    def test_a_header_without_its_lock_is_reported(self):
        status, output = self.run_on({
            "things/counter_internal.h": HEADER.replace("BODY", ""),
            "things/counter_more.cc":
                SOURCE.replace("counter.h", "counter_internal.h").replace("BODY", LOCK),
        })
        self.assertEqual(status, 1)
        self.assertRegex(output, r"counter_internal\.h:10:\d+: error: reading variable 'count_'")

    def test_a_tree_without_locks_is_a_mistake(self):
        status, output = self.run_on({"things/counter.cc": "int main() {}\n"})
        self.assertEqual(status, 1)
        self.assertIn("no source has a lock", output)

    def test_without_a_compiler_it_is_skipped(self):
        compilers = thread_safety_check.COMPILERS
        thread_safety_check.COMPILERS = ["no-such-compiler"]
        self.addCleanup(setattr, thread_safety_check, "COMPILERS", compilers)
        output = io.StringIO()
        with contextlib.redirect_stdout(output):
            status = thread_safety_check.main(["thread_safety_check.py", "", ""])
        self.assertEqual(status, thread_safety_check.SKIPPED)
        self.assertIn("skipped: there is no clang++", output.getvalue())


if __name__ == "__main__":
    unittest.main()
