#!/usr/bin/env python3
"""Tests layering_check.py on small trees, each with one violation (or none)."""

import contextlib
import io
import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layering_check  # pylint: disable=wrong-import-position


def header(path, body=""):
    guard = "PENSTOCK_" + path.replace("/", "_").replace(".", "_").upper() + "_"
    return f"// What it is for.\n#ifndef {guard}\n#define {guard}\n{body}\n#endif  // {guard}\n"


class LayeringCheckTest(unittest.TestCase):

    def run_on(self, files):
        with tempfile.TemporaryDirectory() as root:
            for path, text in files.items():
                full = os.path.join(root, path)
                os.makedirs(os.path.dirname(full), exist_ok=True)
                with open(full, "w", encoding="utf-8") as file:
                    file.write(text)
            output = io.StringIO()
            with contextlib.redirect_stdout(output), contextlib.redirect_stderr(io.StringIO()):
                status = layering_check.main(["layering_check.py", root])
            return status, output.getvalue()

    def assert_clean(self, files):
        self.assertEqual(self.run_on(files), (0, ""))

    def assert_reported(self, files, place, reason):
        status, output = self.run_on(files)
        self.assertEqual(status, 1, output)
        lines = [line for line in output.splitlines() if line.startswith(place + ": ")]
        self.assertTrue(any(reason in line for line in lines), output)

    def test_empty_tree(self):
        self.assert_clean({})

    def test_allowed_includes(self):
        includes = {
            "graph": ["base/a.h"],
            "planner": ["graph/a.h", "base/a.h"],
            "kernels": ["graph/a.h", "base/a.h"],
            "transport": ["base/a.h"],
            "actors/session": ["planner/plan/plan.h", "planner/policy/policy.h", "kernels/a.h",
                               "transport/a.h", "graph/a.h", "base/a.h", "actors/session/b.h",
                               "actors/engine/a.h"],
            "cli": ["actors/a.h", "planner/anything.h", "bench/a.h"],
            "examples": ["actors/a.h", "planner/anything.h"],
        }
        self.assert_clean({f"{folder}/x.cc": "".join(f'#include "{i}"\n' for i in names)
                           for folder, names in includes.items()})

    def test_forbidden_includes(self):
        folders = ("base", "graph", "planner", "kernels", "transport", "actors")
        allowed = {"graph": "base", "planner": "graph base", "kernels": "graph base",
                   "transport": "base", "actors": "kernels transport graph base"}
        for folder in folders:
            for other in folders + ("cli", "bench", "tests", "examples"):
                if other == folder or other in allowed.get(folder, "").split():
                    continue
                with self.subTest(folder=folder, other=other):
                    self.assert_reported(
                        {f"{folder}/sub/x.cc": f'#include <vector>\n#include "{other}/a.h"\n'},
                        f"{folder}/sub/x.cc:2", f"{folder}/ may not include")

    def test_subfolders_keep_their_order(self):
        self.assert_clean({"planner/lower/x.cc": '#include "planner/plan/a.h"\n',
                           "planner/x.cc": '#include "planner/lower/a.h"\n'})
        for path, other in (("planner/plan/x.cc", "planner/lower/a.h"),
                            ("planner/policy/x.cc", "planner/a.h"),
                            ("actors/engine/x.cc", "actors/cluster/a.h"),
                            ("actors/engine/x.cc", "actors/a.h")):
            with self.subTest(path=path, other=other):
                self.assert_reported({path: f'#include "{other}"\n'}, f"{path}:1",
                                     "may not include")
        self.assert_reported({"actors/x.cc": '#include "actors/engine/a.h"\n'},
                             "actors/x.cc:1", "no sub-folder")

    def test_actors_see_three_headers_of_the_planner(self):
        for name in ("plan.capnp.h", "sub/plan.h", "compile.h"):
            with self.subTest(name=name):
                self.assert_reported({"actors/x.cc": f'#include "planner/{name}"\n'},
                                     "actors/x.cc:1", "may not include")

    def test_tests_are_exempt_from_the_table(self):
        text = '#include "actors/a.h"\n#define CASE(x) x\n'
        self.assert_clean({"base/x_test.cc": text, "tests/support/x.cc": text})

    def test_test_is_a_suffix_and_not_a_part(self):
        self.assert_reported({"base/x_test_device.cc": '#include "actors/a.h"\n'},
                             "base/x_test_device.cc:1", "may not include")

    def test_cycles_between_folders_that_may_include_all(self):
        self.assert_reported(
            {"cli/x.cc": '#include "bench/a.h"\n', "bench/x.cc": '\n#include "cli/a.h"\n'},
            "cli/x.cc:1", "folders include each other: bench -> cli -> bench")

    def test_includes_from_the_root(self):
        for name in ("shape.h", "../base/shape.h", "base/../base/a.h"):
            with self.subTest(name=name):
                self.assert_reported({"base/x.cc": f'#include "{name}"\n'}, "base/x.cc:1",
                                     "not written from the repository root")
        self.assert_clean({"base/x.cc": '#include "absl/status/status.h"\n'})

    def test_libraries_hidden_from_public_headers(self):
        for name in ("caf/all.hpp", "ucp/api/ucp.h", "uct/api/uct.h", "ucs/type/status.h",
                     "cuda_runtime.h", "cudnn.h", "cublas_v2.h", "nccl.h", "dnnl.hpp",
                     "oneapi/dnnl/dnnl.hpp", "capnp/message.h", "kj/async.h"):
            with self.subTest(name=name):
                self.assert_reported(
                    {"transport/x.h": header("transport/x.h", f"#include <{name}>")},
                    "transport/x.h:4", "a public header may not include")
                self.assert_clean({"transport/x.cc": f"#include <{name}>\n"})
                for private in ("transport/ucx/x.h", "kernels/cuda/x.h", "transport/nccl/x.h",
                                "kernels/cpu/x_internal.h"):
                    self.assert_clean({private: header(private, f"#include <{name}>")})

    def test_types_of_libraries_hidden_from_public_headers(self):
        for text, declared in (("namespace caf {\nclass actor_system;\n}", "caf"),
                               ("namespace kj { class Timer; }", "kj"),
                               ("struct CUstream_st;", "CUstream_st"),
                               ("typedef struct ucp_worker ucp_worker_t;", "ucp_worker")):
            with self.subTest(text=text):
                self.assert_reported({"actors/session/x.h": header("actors/session/x.h", text)},
                                     "actors/session/x.h:4",
                                     f"a public header may not declare {declared}")
                self.assert_clean({"actors/session/x.cc": text + "\n"})
                self.assert_clean({"actors/session/x_internal.h":
                                   header("actors/session/x_internal.h", text)})
        # One header may declare one of them, and no other one.
        path = "actors/session/session.h"
        self.assert_clean({path: header(path, "namespace caf {\nclass actor_system;\n}")})
        self.assert_reported({path: header(path, "namespace kj { class Timer; }")}, f"{path}:4",
                             "may not declare kj")

    def test_generated_schemas_hidden_from_public_headers(self):
        path = "planner/x.h"
        self.assert_reported({path: header(path, '#include "planner/plan/plan.capnp.h"')},
                             f"{path}:4", "Cap'n Proto")

    def test_macros_with_parameters(self):
        self.assert_reported({"base/x.cc": "#define A 1\n# define TWICE(x) (2 * (x))\n"},
                             "base/x.cc:2", "macro with parameters: TWICE")
        self.assert_clean({"base/x.cc": "#define A (1)\n"})
        path = "base/status_macros.h"
        self.assert_clean({path: header(path, "#define RETURN_IF_ERROR(x) x")})

    def test_commands_dump_json_with_one_function(self):
        text = "void F(const Json& json) { out << json.dump(); }\n"
        for statement in (text, text.replace("()", "(-1, ' ')"), text.replace(".", "->")):
            with self.subTest(statement=statement):
                self.assert_reported({"cli/x.cc": statement}, "cli/x.cc:1", "DumpJson")
        self.assert_clean({"cli/json.cc": text, "cli/x_test.cc": text, "graph/x.cc": text})

    def test_names(self):
        for path in ("graph/Graph.cc", "graph/my-file.cc", "graph/ops/AddOp.cc", "graph/Ops/add.cc",
                     "graph/two__lines.cc", "planner/Plan.capnp"):
            with self.subTest(path=path):
                self.assert_reported({path: ""}, f"{path}:1", "snake_case")
        self.assert_reported({"graph/x.cpp": ""}, "graph/x.cpp:1", "not in .cpp")
        self.assert_clean({"graph/conv_2d.cc": "", "graph/CMakeLists.txt": "",
                           "tests/data/Model-1.onnx": ""})

    def test_guards(self):
        path = "kernels/cpu/add.h"
        good = header(path)
        self.assertIn("PENSTOCK_KERNELS_CPU_ADD_H_", good)
        self.assert_clean({path: good})
        self.assert_reported({path: ""}, f"{path}:1", "PENSTOCK_KERNELS_CPU_ADD_H_")
        self.assert_reported({path: "#pragma once\n"}, f"{path}:1", "must open with #ifndef")
        self.assert_reported({path: good.replace("CPU_", "")}, f"{path}:2", "must open with")
        self.assert_reported({path: good.replace("#define", "#undef")}, f"{path}:2",
                             "must be followed by")
        self.assert_reported({"tests/support/x.h": "int x;\n"}, "tests/support/x.h:1",
                             "PENSTOCK_TESTS_SUPPORT_X_H_")

    def test_comments_and_strings_do_not_count(self):
        self.assert_clean({"base/x.cc": (
            '// #include "actors/a.h"\n'
            '/* one\n#include "actors/a.h"\n#define F(x) x\n*/\n'
            'const char* text = R"(\n#include "actors/a.h"\n)";\n')})
        self.assert_reported({"base/x.cc": (
            'const char* glob = "a/*";\nint n = 1\'000\'000;\nchar q = \'"\';\n'
            '#include "actors/a.h"\nconst char* end = "*/";\n')},
            "base/x.cc:4", "may not include")


if __name__ == "__main__":
    unittest.main()
