#!/usr/bin/env python3
"""Tests of unity_names_check.py."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import unity_names_check  # noqa: E402

SOURCE = "namespace penstock {\nnamespace {\n\n%s\n\n}  // namespace\n}  // namespace penstock\n"


class UnityNamesCheckTest(unittest.TestCase):

    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text if path.endswith("txt") else SOURCE % text)
            output = io.StringIO()
            arguments, sys.argv = sys.argv, ["unity_names_check.py", root]
            try:
                with contextlib.redirect_stdout(output):
                    status = unity_names_check.main()
            finally:
                sys.argv = arguments
        return status, output.getvalue()

    def assert_collides(self, name, first, second=None):
        status, output = self.run_on({"base/a.cc": first, "base/b.cc": second or first})
        self.assertEqual(status, 1)
        self.assertIn(f"base/b.cc:4: {name} is in the anonymous namespace of base/a.cc", output)

    def assert_fine(self, files):
        self.assertEqual(self.run_on(files), (0, ""))

    def test_what_two_sources_define_is_reported(self):
        self.assert_collides("kMost", "constexpr size_t kMost = size_t{1} << 20;",
                             "constexpr int kMost = 7;  // kMost = {};")
        self.assert_collides("Clock", "class Clock : public Base { int F() { return 1; } };",
                             "struct Clock {};")
        self.assert_collides("Add(int, double)", "int Add(int a, double b) { return 1; }",
                             "int Add(int c, double d) { return 2; }")
        self.assert_collides("Invalid(const Parts&...)",
                             "template <typename... Parts>\nint Invalid(const Parts&... parts) {}")

    def test_a_suite_in_two_files_is_reported(self):
        status, output = self.run_on({"base/a_test.cc": "TEST(AddTest, Adds) {}",
                                      "base/b_test.cc": "TEST(BTest, B) {}\nTEST_F(AddTest, C) {}"})
        self.assertEqual(status, 1)
        self.assertIn("base/b_test.cc:5: the test suite AddTest is in base/a_test.cc, too", output)

    def test_overloads_aliases_and_members_may_share_names(self):
        self.assert_fine({"base/a.cc": "int Add(int a) { return 1; }",
                          "base/b.cc": "int Add(double a) { return 1; }"})
        self.assert_fine({"base/a.cc": "using Json = J;", "base/b.cc": "using Json = J;"})
        self.assert_fine({"base/a.cc": "struct A { int Add(int a) { return 1; } };",
                          "base/b.cc": "struct B { int Add(int a) { return 1; } };"})

    def test_what_is_not_compiled_together_may_share_names(self):
        same = "constexpr int kMost = 7;"
        self.assert_fine({"base/a.cc": same, "base/a_test.cc": same})
        self.assert_fine({"actors/a/a.cc": same, "actors/b/a.cc": same})
        self.assert_fine({"kernels/cpu/a.cc": same, "kernels/cpu/b.cc": same,
                          "kernels/CMakeLists.txt": "f(kernels INSTALL\n  ALONE cpu/b.cc)\n"})


if __name__ == "__main__":
    unittest.main()
