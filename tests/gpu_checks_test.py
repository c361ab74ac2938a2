"""scripts/gpu-checks with stand-ins for CUDA's tools and for the programs that it packs and runs."""

import json
import os
import pathlib
import shutil
import subprocess
import tarfile
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCRIPT = ROOT / "scripts/gpu-checks"

RAN = "echo '[==========] 1 test from 1 test suite ran. (1 ms total)'\n"
PASSES = "#!/bin/sh\necho '[ RUN      ] A.B'\necho '[       OK ] A.B (1 ms)'\n" + RAN
SKIPS = ("#!/bin/sh\necho 'a.cc:7: Skipped'\necho 'CUDA finds no GPU'\necho '[  SKIPPED ] A.B (0 ms)'\n"
         + RAN)
# Lists cases as GoogleTest does, or says which it was to run.
CASES = """#!/bin/sh
case "$*" in
  *--gtest_list_tests*)
    echo Kernels/C.
    printf '  Agrees/%s\\n' 'add_0  # x' add_1 add_2 add_3 gelu_4 ;;
  *) for i in "$@"; do case $i in --gtest_filter=*) echo "filter ${i#*=}" ;; esac; done
""" + RAN + "esac\n"
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

    # `graphs`: of the summary.
    def losses(self, cpu, gpu, stage="losses", notes="", graphs="3 of 5 phases"):
        lines = {kind: "\n".join(f'{{"step": {i}, "loss": {loss}, "x": 1}}'
                                 for i, loss in enumerate(losses, 1))
                 for kind, losses in (("cpu", cpu), ("gpu", gpu))}
        self.program("penstock", "#!/bin/sh\n"
                     f"echo \"$*\" >> {self.folder}/calls\n"
                     f"echo '{notes}' >&2\n"
                     "case \"$*\" in\n"
                     f"*--json*device_kind*) echo '{lines['gpu']}' ;;\n"
                     f"*--json*) echo '{lines['cpu']}' ;;\n"
                     f"*) echo 'graphs: {graphs}' ;;\nesac\n")
        return self.check(stage)

    def calls(self):
        return (self.folder / "calls").read_text().splitlines()

    # ---- Packing.

    # A tree whose build makes stand-ins.
    def tree(self):
        root = self.folder / "root"
        (root / "scripts").mkdir(parents=True)
        shutil.copy(SCRIPT, root / "scripts/gpu-checks")
        fetch = root / "scripts/fetch-cudnn-frontend"
        fetch.write_text("#!/bin/sh\n")
        fetch.chmod(0o755)
        for name in ("docs/GPU.md", "examples/gpt/demo.toml"):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text("text\n")
        shutil.copytree(ROOT / "bench/peers", root / "bench/peers")
        runtime = self.folder / "libcudart.so.13.0.88"
        driver = self.folder / "libcuda.so.1"
        for name in (runtime, driver):
            name.write_text("")
        # Any program with a library that is not the compiler's.
        self.tool("cmake", f"#!/bin/sh\necho \"$*\" >> {self.folder}/calls\n"
                  f"for name in bin/penstock tests/cuda_kernels_test tests/nccl_communicator_test; do\n"
                  f"  mkdir -p {root}/build-gpu/bin {root}/build-gpu/tests\n"
                  f"  cp /bin/ls {root}/build-gpu/$name\ndone\n")
        self.tool("ldd", "#!/bin/sh\nprintf '\\tlibcudart.so.13 => %s (0x1)\\n\\tlibcuda.so.1 => %s (0x2)\\n' "
                  f"{runtime} {driver}\n/usr/bin/ldd \"$@\"\n")
        return root

    def test_a_bundle_that_is_too_large_is_refused(self):
        root = self.tree()
        done = self.run_script(root / "scripts/gpu-checks", "bundle", self.folder / "b.tar.gz",
                               MAX_BUNDLE_BYTES="1000")
        self.assertEqual(done.returncode, 1)
        self.assertRegex(done.stderr, "the bundle has [0-9]{5,} bytes, more than 1000\n")

    def test_a_bundle_holds_the_programs_and_leaves_nothing_behind(self):
        root = self.tree()
        scratch = self.folder / "scratch"
        scratch.mkdir()
        done = self.run_script(root / "scripts/gpu-checks", "bundle", self.folder / "b.tar.gz",
                               TMPDIR=str(scratch))
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(list(scratch.iterdir()), [])
        with tarfile.open(self.folder / "b.tar.gz") as bundle:
            names = bundle.getnames()
            version = bundle.extractfile("gpu/cuda-version").read().decode()
        for name in ("bin/penstock", "bin/cuda_kernels_test", "bin/nccl_communicator_test",
                     "text/GPU.md", "demo.toml", "gpu-checks", "lib/libcudart.so.13.0.88",
                     "peers/gpu_speed.py", "peers/torch_gpt.py", "peers/gpt_job.py"):
            self.assertIn(f"gpu/{name}", names)
        self.assertNotIn("gpu/lib/libcuda.so.1", names)  # of the driver
        self.assertEqual(version, "13\n")
        # For any processor, and not in the user's build.
        self.assertIn("-DPENSTOCK_NATIVE=OFF", self.calls()[0])
        self.assertIn("-DPENSTOCK_ONEDNN=OFF", self.calls()[0])
        self.assertIn(f"-B {root}/build-gpu ", self.calls()[0])
        self.assertFalse((root / "build").exists())

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

    def machine(self, *libraries, devices="GPU 0: H100"):
        self.tool("ldd", "#!/bin/sh\n")
        self.tool("nvidia-smi", "#!/bin/sh\n")
        self.tool("ldconfig", "#!/bin/sh\n")
        self.program("penstock", f"#!/bin/sh\necho '{devices}'\necho \"path $LD_LIBRARY_PATH\"\n")
        self.program("cuda_kernels_test", PASSES)
        (self.gpu / "cuda-version").write_text("13\n")
        for name in libraries:
            path = self.folder / "site/nvidia" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")
        return self.run_script(self.gpu / "gpu-checks", "machine", PYTHONPATH=str(self.folder / "site"))

    def test_libraries_of_python_packages_are_found(self):
        done = self.machine("cu13/lib/libcublasLt.so.13", "nccl/lib/libnccl.so.2")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn(f"path {self.gpu}/lib:", done.stdout)
        self.assertIn(f"{self.folder}/site/nvidia/cu13/lib", done.stdout)
        self.assertRegex(done.stdout,
                         f"NCCL: wants libnccl.so.2; found .*{self.folder}/site/nvidia/nccl/lib/libnccl.so.2")
        self.assertIn("cuDNN: wants libcudnn.so.9; ", done.stdout)

    def test_a_library_of_another_version_is_named(self):
        done = self.machine("cublas/lib/libcublasLt.so.12",
                            devices="cuda none: cuBLASLt cannot be loaded (no such file)")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "cuBLASLt: wants libcublasLt.so.13; found "
                                      ".*site/nvidia/cublas/lib/libcublasLt.so.12")
        self.assertIn("no cuBLASLt of the CUDA that this bundle was built with, 13", done.stderr)

    def test_without_a_library_the_folders_are_named(self):
        done = self.machine(devices="cuda none: cuBLASLt cannot be loaded (no such file)")
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, f"cuBLASLt: wants libcublasLt.so.13; (not found in {self.gpu}/lib|found )")

    def test_a_program_that_runs_no_test_does_not_pass(self):
        self.program("nccl_communicator_test", "#!/bin/sh\necho '[==========] 0 tests from 0 test suites ran.'\n")
        done = self.check("nccl")
        self.assertIn("nccl: FAILED", done.stdout)
        self.assertIn("no test ran", done.stdout)
        self.program("nccl_communicator_test", PASSES)
        self.assertEqual(self.check("nccl").returncode, 0)

    def test_convolutions_need_cudnn(self):
        self.program("cuda_kernels_test", CASES)
        self.program("penstock", "#!/bin/sh\necho 'no cuDNN: none'\n")
        self.assertIn("cudnn: SKIPPED", self.check("cudnn").stdout)
        self.program("penstock", "#!/bin/sh\necho 'cuDNN 9.19'\n")
        done = self.check("cudnn")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("filter *conv2d*", done.stdout)
        self.assertNotIn("filter *attention*", done.stdout)
        self.program("penstock", "#!/bin/sh\necho 'cuDNN 9.19 (convolutions, attention)'\n")
        self.assertIn("filter *attention*", self.check("cudnn").stdout)

    def test_sanitizers_see_some_cases_of_each_operator(self):
        self.program("cuda_kernels_test", CASES)
        self.tool("compute-sanitizer", "#!/bin/sh\necho \"tool $2\"\nshift 4\nexec \"$@\"\n")
        done = self.check("memcheck", "racecheck")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("tool memcheck", done.stdout)
        self.assertIn("filter Kernels/C.Agrees/add_0:Kernels/C.Agrees/add_1:Kernels/C.Agrees/gelu_4:"
                      "Kernels/C.Agrees/add_3:\n", done.stdout)
        self.assertIn("filter Kernels/C.Agrees/add_0:Kernels/C.Agrees/gelu_4:Kernels/C.Agrees/add_3:\n", done.stdout)
        done = self.run_script(self.gpu / "gpu-checks", "memcheck", SANITIZER_CASES="all")
        self.assertIn("filter *AgreesWithTheCpu*\n", done.stdout)

    def test_a_profile_is_measured_and_planned_for(self):
        self.program("penstock", "#!/bin/sh\ncase $1 in\n"
                     "profile) while [ \"$1\" != -o ]; do shift; done; echo rates > \"$2\"; echo '1 device: H100' ;;\n"
                     "plan | simulate) echo \"$*\" ;;\nesac\n")
        done = self.check("profile")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for subcommand in ("plan", "simulate"):
            self.assertIn(f"{subcommand} {self.gpu}/demo.toml --cluster {self.gpu}/results/gpu.toml", done.stdout)
        self.program("penstock", "#!/bin/sh\nexit 1\n")
        self.assertNotEqual(self.check("profile").returncode, 0)

    # ---- Order, time, and what is left.

    def quick_programs(self):
        self.machine("cu13/lib/libcublasLt.so.13")
        self.program("nccl_communicator_test", PASSES)
        for name in self.gpu.glob("results/*"):
            name.unlink()

    def test_a_second_call_goes_on_with_what_is_left(self):
        self.quick_programs()
        first = self.check("nccl", "kernels")
        self.assertEqual(first.returncode, 0, first.stdout + first.stderr)
        # The rest fails at once, for want of what it runs.
        second = self.check()
        self.assertNotIn("== nccl\n", second.stdout)
        self.assertNotIn("== kernels\n", second.stdout)
        self.assertIn("== machine\n", second.stdout)
        self.assertIn("== nccl_training\n", second.stdout)
        self.assertIn("\nnccl: passed", second.stdout)
        self.assertRegex(second.stdout, "losses: FAILED")
        self.assertNotEqual(second.returncode, 0)
        third = self.check()
        self.assertNotIn("==", third.stdout)
        # What is named runs again.
        self.assertIn("== nccl\n", self.check("nccl").stdout)

    def test_without_time_stages_are_left_for_later(self):
        self.quick_programs()
        done = self.run_script(self.gpu / "gpu-checks", "--seconds", "3", "nccl")
        self.assertNotIn("== nccl", done.stdout)
        self.assertIn("nccl: not run: no time was left", done.stdout)
        self.assertNotEqual(done.returncode, 0)
        done = self.run_script(self.gpu / "gpu-checks", "--seconds", "30", "nccl")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertEqual(self.run_script(self.gpu / "gpu-checks", "--seconds", "x").returncode, 2)

    def test_a_stage_that_the_time_cuts_off_is_left_for_later(self):
        self.program("nccl_communicator_test", "#!/bin/sh\nexec sleep 60\n")
        script = (self.gpu / "gpu-checks").read_text()
        self.assertIn("least_seconds=15", script)
        (self.gpu / "gpu-checks").write_text(script.replace("least_seconds=15", "least_seconds=1"))
        done = self.run_script(self.gpu / "gpu-checks", "--seconds", "2", "nccl")
        self.assertIn("nccl: not run: no time was left", done.stdout)
        self.assertFalse((self.gpu / "results/summary").exists())

    # ---- Losses.

    def test_losses_that_agree_pass(self):
        done = self.losses([5, 4, 3, 2, 1, 1, 1], [5.0001, 4, 3, 2, 1, 1, 0.99995])
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("7 steps, largest relative difference 5e-05 of at most 0.0001", done.stdout)
        self.assertEqual(len([call for call in self.calls() if "train.steps=50" in call]), 2)

    def test_losses_that_differ_fail_in_any_step(self):
        for gpu in ([5, 4.01] + [3] * 8, [5, 4] + [3] * 7 + [3.001]):
            done = self.losses([5, 4] + [3] * 8, gpu)
            self.assertNotEqual(done.returncode, 0)
        self.assertIn("step 10: the losses are 3 and 3.001", done.stdout)

    def test_losses_of_16_bits_may_differ_by_their_rounding(self):
        done = self.losses([5, 4, 3], [5.05, 4, 3], stage="bf16")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        done = self.losses([5, 4, 3], [5.2, 4, 3], stage="bf16")
        self.assertNotEqual(done.returncode, 0)

    def test_losses_that_are_no_numbers_fail(self):
        for cpu, gpu in ((["null"] * 3, ["null"] * 3), ([5, 4, 3], [5, 4]), ([5], [5])):
            done = self.losses(cpu, gpu)
            self.assertNotEqual(done.returncode, 0, (cpu, gpu, done.stdout))

    def test_pipelines_run_in_both_types_with_and_without_a_cpu(self):
        done = self.losses([5, 4, 3], [5, 4, 3], stage="pipeline")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for dtype in ("f32", "bf16"):
            for kind in ('["cpu", "cuda"]', '"cuda"'):
                self.assertTrue(any(f'train.dtype="{dtype}"' in call and f"device_kind={kind}" in call
                                    and "pp=2" in call and "train.steps=50" in call for call in self.calls()),
                                (dtype, kind))
        # All of them are compared, and those in f32 are held to its bound.
        done = self.losses([5, 4, 3], [5, 4, 3.01], stage="pipeline")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("step 3: the losses are 3 and 3.01"), 2)
        self.assertEqual(done.stdout.count("largest relative difference"), 4)

    def test_what_the_host_keeps_and_f16_are_compared(self):
        done = self.losses([5, 4, 3], [5, 4, 3], stage="host")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for dtype, kind, strategy in (("f32", '["cpu", "cuda"]', "optimizer=host"),
                                      ("bf16", '["cpu", "cuda"]', "optimizer=host"),
                                      ("f32", '"cuda"', "offload=all"), ("f16", '"cuda"', "dp=1")):
            self.assertTrue(any(f'train.dtype="{dtype}"' in call and f"device_kind={kind}" in call
                                and strategy in call for call in self.calls()), (dtype, strategy))
        done = self.losses([5, 4, 3], [5, 4, 3.1], stage="host")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stdout.count("step 3: the losses are 3 and 3.1"), 5)

    def test_graphs_must_be_captured_and_change_nothing(self):
        done = self.losses([5, 4, 3], [5, 4, 3], stage="graphs")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertTrue(any("cluster.graphs=false" in call for call in self.calls()))
        done = self.losses([5, 4, 3], [5, 4, 3], stage="graphs", graphs="0 of 5 phases")
        self.assertNotEqual(done.returncode, 0)
        self.program("penstock", "#!/bin/sh\ncase \"$*\" in\n"
                     "*graphs=false*) echo '{\"step\": 1, \"loss\": 4, \"x\": 1}' ;;\n"
                     "*) echo '{\"step\": 1, \"loss\": 5, \"x\": 1}' ;;\nesac\n")
        done = self.check("graphs")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("with graphs and without them differ", done.stdout)

    def test_training_through_nccl_needs_two_gpus_and_nccl(self):
        self.tool("nvidia-smi", "#!/bin/sh\necho 'GPU 0: H100'\n")
        done = self.losses([5, 4], [5, 4], stage="nccl_training")
        self.assertIn("needs two GPUs, and this machine has 1: not run", done.stdout)
        self.assertIn("nccl_training: SKIPPED", done.stdout)
        self.tool("nvidia-smi", "#!/bin/sh\nprintf 'GPU 0: H100\\nGPU 1: H100\\n'\n")
        note = "note: what the GPUs exchange goes through NCCL 2.28.9"
        done = self.losses([5, 4], [5, 4], stage="nccl_training", notes=note)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        for note in ("note: through the host: no NCCL",
                     "note: collectives of the GPUs go through NCCL 2.28.9, messages through the memory of the host"):
            done = self.losses([5, 4], [5, 4], stage="nccl_training", notes=note)
            self.assertNotEqual(done.returncode, 0)

    # ---- Speed.

    def speed(self, stage="speed_124m", gpu="NVIDIA H100 80GB HBM3, 81559"):
        shutil.copytree(ROOT / "bench/peers", self.gpu / "peers", dirs_exist_ok=True)
        self.tool("nvidia-smi", f"#!/bin/sh\necho '{gpu}'\n")
        return self.run_script(self.gpu / "gpu-checks", "--seconds", "60", stage)

    STEPS = ("#!/bin/sh\necho '      1 device, 50 actors, 3 channels' >&2\n"
             "for i in 1 2 3 4 5 6 7 8 9 10; do echo \"{\\\"step\\\": $i, \\\"step_time_s\\\": 0.5}\"; done\n"
             "case \"$*\" in *--trace*) echo '{\"summary\": {\"mean_critical_path\": "
             "{\"step_time_s\": 0.5, \"device_compute_s\": [0.4]}}}' ;; esac\n")

    def test_speed_without_pytorch_is_ours_alone(self):
        self.tool("python3", "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n")  # without packages
        self.program("penstock", self.STEPS)
        done = self.speed()
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        self.assertIn("PyTorch was not run: it is not installed here", done.stdout)
        self.assertIn("gpt2-124m, 32 x 1024 tokens a step:", done.stdout)
        report = json.loads((self.gpu / "results/speed-gpt2-124m.json").read_text())
        ours = report["cases"][0]["results"]["penstock"]
        self.assertAlmostEqual(ours["tokens_per_s"], 65536)
        # 6 (12 layers x 12 x 768^2 + 50304 x 768) + 12 x 12 x 768 x 1024 flops a token.
        self.assertAlmostEqual(ours["mfu"], 65536 * (6 * 123568128 + 113246208) / 989.4e12)
        self.assertAlmostEqual(ours["idle"], 0.2)
        self.assertAlmostEqual(report["launches"]["penstock"]["host_s_a_launch"], 0.01)
        self.assertEqual([case["context"] for case in report["cases"]], [1024, 2048])

    def test_speed_names_why_a_run_failed(self):
        self.tool("python3", "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n")
        self.program("penstock", "#!/bin/sh\necho 'penstock: out of memory' >&2\nexit 1\n")
        done = self.speed("speed_7b")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("penstock: out of memory", done.stdout)
        self.assertIn("7b-4-layers", done.stdout)

    def test_a_model_that_does_not_fit_is_left_out(self):
        self.tool("python3", "#!/bin/sh\nexec /usr/bin/python3 -S \"$@\"\n")
        self.program("penstock", self.STEPS)
        done = self.speed("speed_1558m", gpu="Tesla T4, 15360")
        self.assertIn("gpt2-1558m, context 1024: does not fit", done.stdout)


if __name__ == "__main__":
    unittest.main()
