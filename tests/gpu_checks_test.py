"""scripts/gpu-checks with stand-ins for CUDA's tools and for the programs that it packs and runs."""

import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts/gpu-checks"

PASSES = "#!/bin/sh\necho '[ RUN      ] A.B'\necho '[       OK ] A.B (1 ms)'\necho '1 test ran'\n"
SKIPS = "#!/bin/sh\necho 'a.cc:7: Skipped'\necho 'CUDA finds no GPU'\necho '[  SKIPPED ] A.B (0 ms)'\n"
FAILS = "#!/bin/sh\necho '[  FAILED  ] A.B (1 ms)'\nexit 1\n"


def write_program(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


class GpuChecksTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="penstock_gpu_checks.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.tools = self.folder / "tools"
        self.tools.mkdir()
        self.gpu = self.folder / "gpu"
        self.gpu.mkdir()
        shutil.copy(SCRIPT, self.gpu / "gpu-checks")

    def tool(self, name, text):
        write_program(self.tools / name, text)

    def program(self, name, text):
        write_program(self.gpu / "bin" / name, text)

    def run_script(self, script, *arguments, **environment):
        return subprocess.run([script, *arguments], capture_output=True, text=True, check=False,
                              timeout=60,
                              env=os.environ | {"PATH": f"{self.tools}:/usr/bin:/bin"} | environment)

    def check(self, *stages):
        return self.run_script(self.gpu / "gpu-checks", *stages)

    def losses(self, cpu, gpu, stage="losses"):
        lines = {kind: "\n".join(f'{{"step": {i}, "loss": {loss}, "x": 1}}'
                                 for i, loss in enumerate(losses, 1))
                 for kind, losses in (("cpu", cpu), ("gpu", gpu))}
        self.program("penstock", "#!/bin/sh\ncase \"$*\" in\n"
                     f"*device_kind*) echo '{lines['gpu']}' ;;\n*) echo '{lines['cpu']}' ;;\nesac\n")
        return self.check(stage)

    # ---- Packing.

    def test_a_bundle_holds_the_programs_and_leaves_nothing_behind(self):
        root = self.folder / "root"
        write_program(root / "scripts/build", "#!/bin/sh\n")
        shutil.copy(SCRIPT, root / "scripts/gpu-checks")
        for name in ("docs/GPU.md", "examples/gpt/demo.toml"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("text\n")
        for name in ("bin/penstock", "tests/cuda_kernels_test",
                     "tests/nccl_communicator_test"):
            target = root / "build" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy("/bin/ls", target)  # any program with a library that is not the compiler's
        self.tool("cmake", "#!/bin/sh\n")
        scratch = self.folder / "scratch"
        scratch.mkdir()
        done = self.run_script(root / "scripts/gpu-checks", "bundle", self.folder / "b.tar.gz",
                               TMPDIR=str(scratch))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(list(scratch.iterdir()), [])
        with tarfile.open(self.folder / "b.tar.gz") as bundle:
            names = bundle.getnames()
        for name in ("bin/penstock", "bin/cuda_kernels_test", "bin/nccl_communicator_test",
                     "text/GPU.md", "demo.toml", "gpu-checks"):
            self.assertIn(f"gpu/{name}", names)

    # ---- Stages.

    def test_tests_that_ran_pass(self):
        self.program("cuda_kernels_test", PASSES)
        done = self.check("kernels")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("kernels: passed", done.stdout)

    def test_tests_that_skip_themselves_do_not_pass(self):
        self.program("cuda_kernels_test", SKIPS)
        self.tool("compute-sanitizer", "#!/bin/sh\nwhile [ \"$1\" != 1 ]; do shift; done\nshift\n"
                  "exec \"$@\"\n")
        done = self.check("kernels", "memcheck")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("CUDA finds no GPU", done.stdout)
        self.assertIn("kernels: FAILED", done.stdout)
        self.assertIn("memcheck: FAILED", done.stdout)

    def test_a_failed_test_fails_its_stage(self):
        self.program("cuda_kernels_test", FAILS)
        done = self.check("kernels")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("kernels: FAILED (status 1)", done.stdout)

    def test_a_stage_without_its_tool_is_skipped_and_does_not_pass(self):
        self.program("cuda_kernels_test", PASSES)
        done = self.check("kernels", "racecheck")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("compute-sanitizer is not installed", done.stdout)
        self.assertIn("kernels: passed", done.stdout)
        self.assertIn("racecheck: SKIPPED", done.stdout)

    def test_missing_libraries_are_named_before_a_program_starts(self):
        self.tool("ldd", "#!/bin/sh\necho '\tlibcudart.so.13 => not found'\n")
        self.tool("nvidia-smi", "#!/bin/sh\necho nvidia-smi ran\n")
        self.program("penstock", "#!/bin/sh\necho penstock ran\n")
        self.program("cuda_kernels_test", PASSES)
        done = self.check("machine")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("libcudart.so.13 => not found", done.stderr)
        self.assertNotIn("ran", done.stdout)

    def test_a_library_that_is_loaded_later_is_named_too(self):
        self.tool("ldd", "#!/bin/sh\n")
        self.tool("nvidia-smi", "#!/bin/sh\n")
        self.program("penstock", "#!/bin/sh\necho 'cuda none: cuBLASLt cannot be loaded (no such file)'\n")
        self.program("cuda_kernels_test", PASSES)
        done = self.check("machine")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("cuBLASLt is missing", done.stderr)

    # ---- Losses.

    def test_losses_may_drift_apart_after_five_steps(self):
        done = self.losses([5, 4, 3, 2, 1, 1, 1], [5.0001, 4, 3, 2, 1, 1.005, 0.995])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("7 steps, largest difference 0.005", done.stdout)

    def test_losses_that_differ_early_fail(self):
        done = self.losses([5, 4, 3], [5, 4.01, 3])
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("step 2: the losses are 4 and 4.01", done.stdout)

    def test_losses_of_16_bits_may_differ_by_their_rounding(self):
        done = self.losses([5, 4, 3], [5.05, 4, 3], stage="bf16")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.losses([5, 4, 3], [5.2, 4, 3], stage="bf16")
        self.assertNotEqual(done.returncode, 0)

    def test_losses_that_are_no_numbers_fail(self):
        for cpu, gpu in ((["null"] * 3, ["null"] * 3), ([5, 4, 3], [5, 4]), ([5], [5])):
            done = self.losses(cpu, gpu)
            self.assertNotEqual(done.returncode, 0, (cpu, gpu, done.stdout))


if __name__ == "__main__":
    unittest.main()
