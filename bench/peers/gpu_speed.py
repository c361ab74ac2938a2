"""Training steps of GPTs in bf16 mixed precision on a GPU: Penstock beside PyTorch, in one call.

PyTorch trains the same model (bench/peers/torch_gpt.py) under bf16 autocast, with f32 parameters as
Penstock has them, fused AdamW, clipping by the global norm and `scaled_dot_product_attention`, as it
is ("torch") and compiled ("torch-compiled"). Both have the same number of sequences a step, as many
as memory allows by an estimate, of random tokens. Penstock runs before PyTorch and after it, each
time in a process of its own; PyTorch compiles what it has just run as it is. A time is the mean of
the steps after the first ones, over which nothing waits for the device.

MFU: the flops of the model over what the GPU does at most in bf16. A token of a training step has
6 N + 12 L d T flops, with N weights of products (the embedding counts once, for the logits), L
layers of width d and T tokens a sequence (Chowdhery et al., "PaLM", 2022, appendix B; attention is
counted as if it were not causal).

"idle": of a step, the part in which the device runs no kernel. Of Penstock it comes from traced
steps, whose kernels are launched one by one without CUDA graphs, and leaves out gaps between kernels
that were launched in time; of PyTorch, from its profiler. "host time a launch": a step of a model so
small that the device waits for the host, over its launches.

Needs Python alone; what PyTorch cannot run, or where it is not installed, is said and left out.
"""

import argparse
import array
import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

from gpt_job import job_text

VOCABULARY = 50304  # GPT-2's 50,257, padded to a multiple of 64, in both programs
MODELS = {
    "gpt2-124m": {"layers": 12, "width": 768, "heads": 12},
    "gpt2-1558m": {"layers": 48, "width": 1600, "heads": 25},
    # Four layers of a model of 7 billion parameters (gpt3-6.7b).
    "7b-4-layers": {"layers": 4, "width": 4096, "heads": 32},
    "tiny": {"layers": 2, "width": 64, "heads": 2},
}
# Bound by the host: its kernels take less than their launches.
LAUNCHES = {"layers": 12, "width": 64, "heads": 2, "context": 64, "batch": 1, "vocabulary": 512}
# Dense bf16, as planner/cluster/presets.cc has it; H200: as H100 SXM (NVIDIA, "H200" data sheet).
# The first name that is part of the GPU's counts.
PEAKS = [("A100", 312e12), ("H100 PCIe", 756e12), ("H100 NVL", 835e12), ("H100", 989.4e12),
         ("H200", 989.4e12)]
SKIPPED_STEPS = 5  # not timed: they warm up and capture graphs
MAX_TOKENS = 1 << 15  # a step
NO_TORCH = 3  # exit status


def peak_of(gpu):
    return next((peak for part, peak in PEAKS if part in gpu), None)


def weights_of_products(case):
    return 12 * case["layers"] * case["width"] ** 2 + case["vocabulary"] * case["width"]


def flops_a_token(case):
    return (6 * weights_of_products(case)
            + 12 * case["layers"] * case["width"] * case["context"])


def batch_for(case, memory_bytes):
    """Sequences a step: a power of two, 0 if not even one fits.

    Parameters, their gradients and two moments are f32, beside copies in bf16. A layer keeps about
    34 bytes of each token and unit of width in 16 bits (Korthikanti et al., "Reducing Activation
    Recomputation in Large Transformer Models", 2022), and more under autocast; the logits are there
    in 16 and 32 bits, with their gradients.
    """
    parameters = weights_of_products(case) + case["context"] * case["width"]
    a_token = 1.7 * 34 * case["layers"] * case["width"] + 12 * case["vocabulary"]
    tokens = min((0.85 * memory_bytes - 20 * parameters) / a_token, MAX_TOKENS)
    batch = int(tokens / case["context"])
    return 1 << (batch.bit_length() - 1) if batch > 0 else 0


def gpu_here():
    """(name, bytes of memory) of the first GPU; None without one."""
    try:
        out = subprocess.run(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
                             check=True, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    name, mebibytes = out.splitlines()[0].rsplit(",", 1)
    return name.strip(), int(mebibytes) << 20


# ---- Penstock.


def write_tokens(path, case, steps):
    count = max(case["batch"] * case["context"] * steps * 2, 1 << 16)
    chosen = random.Random(1).choices(range(case["vocabulary"]), k=min(count, 1 << 20))
    with open(path, "wb") as file:
        array.array("H", chosen).tofile(file)


def run_penstock(case, options, seconds, trace=False, graphs=True):
    """{"step_s", "mfu", "launches", "busy_s"}, or {"error"}. Steps count that ended in time."""
    steps = SKIPPED_STEPS + (8 if trace else options.steps)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        sizes = {key: case[key] for key in ("layers", "width", "heads", "context", "batch")}
        (folder / "job.toml").write_text(job_text(**sizes))
        write_tokens(folder / "tokens.bin", case, steps)
        settings = [
            f"model.vocabulary={case['vocabulary']}", f"train.steps={steps}", f'train.dtype="{options.dtype}"',
            f'data.tokens="{folder}/tokens.bin"', "cluster.processes=1", "cluster.devices=1", "train.log_every=1",
            f'cluster.device_kind="{options.device}"', f"cluster.graphs={str(graphs).lower()}",
        ]
        command = [options.penstock, "run", str(folder / "job.toml"), "--json"]
        for setting in settings:
            command += ["--set", setting]
        if trace:
            command += ["--trace", str(folder / "trace.json")]
        with open(folder / "errors", "w+", encoding="utf-8", errors="replace") as errors:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            # It ends as an interrupted run does, and then at once.
            timers = [threading.Timer(seconds, process.send_signal, [signal.SIGINT]),
                      threading.Timer(seconds + 10, process.kill)]
            for timer in timers:
                timer.start()
            rows = []
            for line in process.stdout:
                try:
                    rows.append(json.loads(line))
                except ValueError:
                    pass  # cut off
            process.wait()
            for timer in timers:
                timer.cancel()
            errors.seek(0)
            said = errors.read()
    times = [row["step_time_s"] for row in rows if "step" in row][SKIPPED_STEPS:]
    if not times:
        why = said.strip().splitlines()
        return {"error": f"no step after the first {SKIPPED_STEPS} in {seconds:.0f} s: " + (why[-1] if why else "")}
    result = {"step_s": statistics.fmean(times), "steps": len(times)}
    actors = re.search(r"(\d+) actors", said)
    if actors:
        result["launches"] = int(actors[1])
    for row in rows:
        summary = row.get("summary", {})
        if summary.get("mfu"):
            result["mfu_of_plan"] = summary["mfu"]
        path = summary.get("mean_critical_path")
        if path:
            result["step_s"] = path["step_time_s"]
            result["busy_s"] = path["device_compute_s"][0]
    return result


# ---- PyTorch, in a process of its own.


def random_weights(case, device):
    import torch

    width, heads = case["width"], case["heads"]
    shapes = {"wte": (case["vocabulary"], width), "wpe": (case["context"], width),
              "ln_f.scale": (width,), "ln_f.bias": (width,)}
    for layer in range(case["layers"]):
        for name, shape in {
            "ln1.scale": (width,), "ln1.bias": (width,), "attn.qkv_w": (width, 3, heads, width // heads),
            "attn.qkv_b": (3, heads, width // heads), "attn.proj_w": (heads, width // heads, width),
            "attn.proj_b": (width,), "ln2.scale": (width,), "ln2.bias": (width,), "mlp.w1": (width, 4 * width),
            "mlp.b1": (4 * width,), "mlp.w2": (4 * width, width), "mlp.b2": (width,),
        }.items():
            shapes[f"h{layer}.{name}"] = shape
    return {name: torch.ones(shape, device=device) if name.endswith("scale")
            else 0.02 * torch.randn(shape, device=device) for name, shape in shapes.items()}


def torch_steps(trainer, batches, steps, seconds):
    """Mean seconds a step, over which nothing waits for the device, of as many steps as fit after the first."""
    for i in range(SKIPPED_STEPS):  # the first one compiles, if anything does
        trainer.step(*batches[i % len(batches)])
    done, begin = 0, time.perf_counter()
    end = begin + seconds
    while done < steps and (done == 0 or time.perf_counter() < end):
        for _ in range(min(5, steps - done)):
            loss = trainer.launch(*batches[done % len(batches)])
            done += 1
        loss.item()
    return (time.perf_counter() - begin) / done


def torch_profile(trainer, batches, device):
    """Kernels and busy seconds of a step; nothing without a profiler for the device."""
    import torch

    steps = 2
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            for i in range(steps):
                trainer.launch(*batches[i % len(batches)])
            if device == "cuda":
                torch.cuda.synchronize()
        events = [event for event in profile.events()
                  if event.device_type == torch.autograd.DeviceType.CUDA]
        intervals = sorted((event.time_range.start, event.time_range.end) for event in events)
    except Exception as error:  # the profiler's library may be missing or another version
        print(f"PyTorch's profiler: {error}", file=sys.stderr)
        return {}
    busy, last = 0.0, float("-inf")
    for begin, end in intervals:
        busy += max(end - max(begin, last), 0)
        last = max(last, end)
    if not events:
        return {}
    return {"launches": len(events) // steps, "busy_s": 1e-6 * busy / steps}


def torch_main(case, options):
    """Prints a JSON line for each way of running."""
    try:
        import torch
    except ImportError as error:
        print(f"PyTorch is not installed here: {error}", file=sys.stderr)
        return NO_TORCH
    from torch_gpt import Gpt, Trainer

    if options.device == "cuda" and not torch.cuda.is_available():
        print(f"PyTorch {torch.__version__} finds no GPU", file=sys.stderr)
        return NO_TORCH
    end = time.perf_counter() + options.seconds
    name = "torch"
    torch.manual_seed(1)
    autocast = torch.bfloat16 if options.dtype == "bf16" else None
    try:
        model = Gpt(random_weights(case, options.device), case["layers"], case["heads"])
        shape = (case["batch"], case["context"] + 1)
        batches = []
        for _ in range(4):
            tokens = torch.randint(case["vocabulary"], shape).numpy()
            batches.append((tokens[:, :-1].copy(), tokens[:, 1:].copy()))
        for name in ("torch", "torch-compiled"):
            left = end - time.perf_counter()
            if left <= 0:
                print(json.dumps({"name": name, "error": "no time was left"}), flush=True)
                continue
            forward = torch.compile(model) if name == "torch-compiled" else model
            trainer = Trainer(forward, model, autocast=autocast, device=options.device)
            result = {"name": name, "version": torch.__version__}
            try:
                # Compiling takes the rest.
                result["step_s"] = torch_steps(trainer, batches, options.steps, 0.3 * left)
                result.update(torch_profile(trainer, batches, options.device))
            except torch.OutOfMemoryError:
                raise
            except Exception as error:  # such as a compiler that is not installed
                result["error"] = f"{type(error).__name__}: {str(error).strip().splitlines()[-1:]}"
            print(json.dumps(result), flush=True)
            del trainer, forward
    except torch.OutOfMemoryError:
        print(json.dumps({"name": name, "error": "out of memory"}), flush=True)
    return 0


def run_torch(case, options, seconds):
    """{name: result}; empty without PyTorch."""
    command = [options.python, __file__, "--torch", json.dumps(case), "--seconds", str(seconds), "--device",
               options.device, "--dtype", options.dtype, "--steps", str(options.steps)]
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=seconds + 10, check=False)
        out, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired as late:
        out, status = late.stdout or b"", 0
        out = out.decode() if isinstance(out, bytes) else out
    if status == NO_TORCH:
        return {}
    results = {}
    for line in out.splitlines():
        row = json.loads(line)
        results[row.pop("name")] = row
    for name in ("torch", "torch-compiled"):
        if name not in results:
            why = f"did not end in {seconds:.0f} s" if status == 0 else f"ended with status {status}"
            results[name] = {"error": why}
    return results


# ---- Both.


def complete(result, case, peak):
    """Adds what follows from the step time."""
    if "step_s" not in result:
        return result
    result["tokens_per_s"] = case["batch"] * case["context"] / result["step_s"]
    if peak:
        result["mfu"] = result["tokens_per_s"] * flops_a_token(case) / peak
    if "busy_s" in result:
        result["idle"] = max(1 - result["busy_s"] / result["step_s"], 0)
    return result


def measure(name, case, options, seconds, peak):
    end = time.monotonic() + seconds

    def left(share):
        return max(share * (end - time.monotonic()), 5)

    results = {}
    if options.torch != "only":
        ours = run_penstock(case, options, left(0.3))
        results["penstock"] = ours
    if options.torch != "no":
        results.update(run_torch(case, options, left(0.7)))
    if "penstock" in results and "step_s" in ours:
        traced = run_penstock(case, options, left(0.5), trace=True)
        if "busy_s" in traced:
            ours["traced_step_s"] = traced["step_s"]
            ours["idle"] = max(1 - traced["busy_s"] / traced["step_s"], 0)
        if end - time.monotonic() > 10:
            again = run_penstock(case, options, left(1))
            if "step_s" in again:
                ours["runs_step_s"] = [ours["step_s"], again["step_s"]]
                ours["step_s"] = statistics.fmean(ours["runs_step_s"])
    for result in results.values():
        complete(result, case, peak)
    fastest = min((r["step_s"] for n, r in results.items() if n != "penstock" and "step_s" in r), default=None)
    if fastest and "step_s" in results.get("penstock", {}):
        results["penstock"]["over_faster"] = results["penstock"]["step_s"] / fastest
    print_case(name, case, results)
    return {"model": name, **case, "results": results}


def print_case(name, case, results):
    print(f"{name}, {case['batch']} x {case['context']} tokens a step:")
    for who, result in results.items():
        if "step_s" not in result:
            print(f"  {who:15} {result.get('error', 'nothing')}")
            continue
        line = f"  {who:15} {1e3 * result['step_s']:9.2f} ms  {result['tokens_per_s']:10.0f} tokens/s"
        line += f"  MFU {100 * result['mfu']:5.1f} %" if "mfu" in result else "  MFU unknown (no peak for this GPU)"
        if "idle" in result:
            line += f"  idle {100 * result['idle']:.1f} %"
        if "over_faster" in result:
            line += f"  {result['over_faster']:.2f} of the faster PyTorch's time"
        print(line)
    if results.keys() == {"penstock"}:
        print("  PyTorch was not run: it is not installed here, or finds no GPU")
    sys.stdout.flush()


def measure_launches(options, seconds):
    """Host time a launch of each: what bounds steps of a very small model."""
    results = {}
    if options.torch != "only":
        results["penstock"] = run_penstock(LAUNCHES, options, 0.5 * seconds, graphs=False)
    if options.torch != "no":
        results.update({name: result for name, result in run_torch(LAUNCHES, options, 0.5 * seconds).items()
                        if name == "torch"})
    print("host time a launch, without graphs:")
    for name, result in results.items():
        if "step_s" in result and result.get("launches"):
            result["host_s_a_launch"] = result["step_s"] / result["launches"]
            print(f"  {name:15} {1e6 * result['host_s_a_launch']:9.2f} us ({result['launches']} launches a step)")
        else:
            print(f"  {name:15} {result.get('error', 'the number of launches is not known')}")
    return results


def main():
    here = pathlib.Path(__file__).resolve().parent
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="gpt2-124m,gpt2-1558m,7b-4-layers", help=", ".join(MODELS))
    parser.add_argument("--contexts", default="1024,2048", help="tokens a sequence")
    parser.add_argument("--batch", type=int, help="sequences a step (what memory allows)")
    parser.add_argument("--vocabulary", type=int, default=VOCABULARY)
    parser.add_argument("--steps", type=int, default=20, help="timed, at most")
    parser.add_argument("--seconds", type=float, default=540, help="for everything")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f32"))
    parser.add_argument("--torch", default="yes", help='"no": ours alone; "only": PyTorch alone')
    parser.add_argument("--launches", action="store_true", help="also measure the host time a launch")
    parser.add_argument("--output", help="file for the results in JSON")
    parser.add_argument("--penstock", default=os.environ.get("PENSTOCK", str(here / "../bin/penstock")))
    parser.add_argument("--python", default=sys.executable, help="that has PyTorch")
    options = parser.parse_args()
    if options.torch.startswith("{"):
        return torch_main(json.loads(options.torch), options)

    gpu = gpu_here() if options.device == "cuda" else ("CPU", 8 << 30)
    if gpu is None:
        print("gpu_speed: nvidia-smi shows no GPU", file=sys.stderr)
        return 1
    peak = peak_of(gpu[0])
    print(f"{gpu[0]}, {gpu[1] >> 30} GiB, {options.dtype}, peak "
          + (f"{1e-12 * peak:.1f} TFLOP/s" if peak else "unknown"))
    report = {"gpu": gpu[0], "peak_flops_per_s": peak, "dtype": options.dtype, "cases": []}
    cases = []
    for name in options.models.split(","):
        for context in options.contexts.split(","):
            case = {**MODELS[name], "context": int(context), "vocabulary": options.vocabulary}
            case["batch"] = options.batch or batch_for(case, gpu[1])
            cases.append((name, case))
    end = time.monotonic() + options.seconds
    status = 0
    parts = len(cases) + (1 if options.launches else 0)
    if options.launches:
        report["launches"] = measure_launches(options, options.seconds / parts / 2)
        parts -= 1
    for name, case in cases:
        left = (end - time.monotonic()) / parts
        parts -= 1
        if case["batch"] == 0:
            print(f"{name}, context {case['context']}: does not fit into this GPU")
            continue
        report["cases"].append(measure(name, case, options, left, peak))
        if options.torch != "only" and "step_s" not in report["cases"][-1]["results"]["penstock"]:
            status = 1
    if options.output:
        pathlib.Path(options.output).write_text(json.dumps(report, indent=1) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
