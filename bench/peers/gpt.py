"""Trains one GPT in Penstock, PyTorch and JAX, from the same weights on the same data.

`penstock run --dump` writes the initial parameters and the tokens of every step; each peer reads
them, trains with the same optimiser (AdamW, decoupled weight decay on matrices, global-norm
clipping) and reports its losses before each update and its step times. Losses must agree to 1e-4
relative; times are compared as medians after the first steps, which compile and warm up.

With `--dtype bf16`, all train in mixed precision: PyTorch under bf16 autocast, as it is ("torch") and
compiled ("torch-compiled"). Losses must agree to 2e-2.

The peer "products" only multiplies the matrices of a step in PyTorch, which shows what is left to gain; "f32" is
Penstock in f32, which shows what 16 bits do to the losses.

Each framework runs alone, in a process of its own, with the same number of threads. The rounds
alternate between them, so that a slow spell of the machine does not fall on one of them only; a
ratio is the median over rounds of ours divided by theirs.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

from gpt_job import (BETA1, BETA2, CLIP_NORM, EPSILON, LAYER_NORM_EPSILON, LEARNING_RATE,
                     TOLERANCE, WEIGHT_DECAY, decays, job_text, load)

HEAD = 32  # features of an attention head
SKIPPED_STEPS = 4  # not timed
MODEL_KEYS = ("layers", "width", "heads", "context", "batch")


def run_torch(folder, config):
    import torch

    from torch_gpt import Gpt, Trainer

    torch.set_num_threads(config.threads)
    torch.set_num_interop_threads(1)
    weights, steps = load(folder, config.steps)
    model = Gpt(weights, config.layers, config.heads)
    autocast = torch.bfloat16 if config.dtype == "bf16" else None
    trainer = Trainer(torch.compile(model) if config.compile else model, model, autocast=autocast)
    losses, times = zip(*(trainer.step(tokens, labels) for tokens, labels in steps))
    return losses, times, torch.__version__


def run_compiled_torch(folder, config):
    config.compile = 1
    return run_torch(folder, config)


def run_jax(folder, config):
    import time

    # The thread pool of XLA's CPU client has as many threads as the process may use cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: config.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp

    arrays, steps = load(folder, config.steps)
    weights = {name: jnp.asarray(array) for name, array in arrays.items()}

    def norm(x, scale, bias):
        mean = x.mean(-1, keepdims=True)
        variance = ((x - mean) ** 2).mean(-1, keepdims=True)
        return (x - mean) * jax.lax.rsqrt(variance + LAYER_NORM_EPSILON) * scale + bias

    def forward(w, tokens, labels):
        length = tokens.shape[1]
        x = w["wte"][tokens] + w["wpe"]
        mask = jnp.tril(jnp.ones((length, length), bool))
        for layer in range(config.layers):
            at = f"h{layer}."
            y = norm(x, w[at + "ln1.scale"], w[at + "ln1.bias"])
            qkv = jnp.einsum("bsd,dchk->bschk", y, w[at + "attn.qkv_w"]) + w[at + "attn.qkv_b"]
            q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
            scores = jnp.einsum("bshk,bthk->bhst", q, k) / q.shape[-1] ** 0.5
            scores = jax.nn.softmax(jnp.where(mask, scores, -jnp.inf), axis=-1)
            mixed = jnp.einsum("bhst,bthk->bshk", scores, v)
            x = x + jnp.einsum("bshk,hkd->bsd", mixed, w[at + "attn.proj_w"]) + w[at + "attn.proj_b"]
            y = norm(x, w[at + "ln2.scale"], w[at + "ln2.bias"])
            y = jax.nn.gelu(y @ w[at + "mlp.w1"] + w[at + "mlp.b1"], approximate=True)
            x = x + y @ w[at + "mlp.w2"] + w[at + "mlp.b2"]
        logits = norm(x, w["ln_f.scale"], w["ln_f.bias"]) @ w["wte"].T
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return (jax.nn.logsumexp(logits, axis=-1) - picked).mean()

    def update(w, m, v, step, tokens, labels):
        loss, grads = jax.value_and_grad(forward)(w, tokens, labels)
        total = jnp.sqrt(sum((g**2).sum() for g in grads.values()))
        scale = jnp.minimum(1.0, CLIP_NORM / (total + 1e-6))
        new_w, new_m, new_v = {}, {}, {}
        for name, grad in grads.items():
            grad = grad * scale
            new_m[name] = BETA1 * m[name] + (1 - BETA1) * grad
            new_v[name] = BETA2 * v[name] + (1 - BETA2) * grad**2
            mean = new_m[name] / (1 - BETA1**step)
            root = jnp.sqrt(new_v[name] / (1 - BETA2**step))
            decay = WEIGHT_DECAY if decays(name) else 0.0
            new_w[name] = w[name] * (1 - LEARNING_RATE * decay) - LEARNING_RATE * mean / (root + EPSILON)
        return loss, new_w, new_m, new_v

    update = jax.jit(update, donate_argnums=(0, 1, 2))
    m = {name: jnp.zeros_like(w) for name, w in weights.items()}
    v = {name: jnp.zeros_like(w) for name, w in weights.items()}
    losses, times = [], []
    for i, (tokens, labels) in enumerate(steps):
        begin = time.perf_counter()
        loss, weights, m, v = update(weights, m, v, jnp.float32(i + 1), tokens, labels)
        jax.block_until_ready((loss, weights, m, v))
        losses.append(float(loss))
        times.append(time.perf_counter() - begin)
    return losses, times, jax.__version__


def run_penstock(folder, config):
    command = [
        os.environ["PENSTOCK"], "run", str(folder / "job.toml"), "--json", "--devices", "1",
        "--set", f"train.steps={config.steps}", "--set", f"cluster.threads={config.threads}",
        "--set", f'train.dtype="{config.dtype}"',
    ]
    if config.dump:
        command += ["--dump", str(folder)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    rows = [row for row in rows if "step" in row]
    return [row["loss"] for row in rows], [row["step_time_s"] for row in rows], ""


def run_penstock_in_f32(folder, config):
    config.dtype = "f32"
    return run_penstock(folder, config)


def run_products(folder, config):
    import torch

    from torch_products import step_seconds

    weights, _ = load(folder, 0)
    sizes = {key: getattr(config, key) for key in MODEL_KEYS}
    return [], [step_seconds(config.threads, vocabulary=len(weights["wte"]), **sizes)], torch.__version__


RUNNERS = {
    "penstock": run_penstock, "torch": run_torch, "torch-compiled": run_compiled_torch, "jax": run_jax,
    "products": run_products, "f32": run_penstock_in_f32,
}
PEERS = {"f32": "torch,jax", "bf16": "torch,torch-compiled"}  # JAX has no autocast


def measure(name, folder, options):
    """(losses, step times, version) of one framework in a process of its own."""
    command = [sys.executable, __file__, "--only", name, "--folder", str(folder)]
    command += [f"--{key}={value}" for key, value in options.items()]
    environment = dict(os.environ)
    for key in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[key] = str(options["threads"])
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=environment)
    return json.loads(output.stdout.splitlines()[-1])


def compare(width, arguments):
    options = {
        "layers": arguments.layers, "width": width, "heads": width // HEAD if width < 512 else width // 64,
        "context": arguments.context, "batch": arguments.batch, "steps": arguments.steps,
        "threads": arguments.threads, "compile": int(arguments.compile), "dtype": arguments.dtype,
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "job.toml").write_text(job_text(**{key: options[key] for key in MODEL_KEYS}))
        losses, times, versions = {}, {}, {}
        peers = (arguments.peers or PEERS[arguments.dtype]).split(",")
        measure("penstock", folder, {**options, "dump": 1})
        for _ in range(arguments.rounds):
            for name in ["penstock", *peers]:
                print(f"  width {width}: {name}", file=sys.stderr)
                losses[name], step_times, versions[name] = measure(name, folder, options)
                timed = step_times[SKIPPED_STEPS:] or step_times
                times.setdefault(name, []).append(statistics.median(timed))
    report = {"width": width, "options": options, "step_time_s": {}, "ratio": {}, "loss_error": {},
              "loss_difference": {}}
    for name in times:
        report["step_time_s"][name] = statistics.median(times[name])
    for name in peers:
        ratios = [ours / theirs for ours, theirs in zip(times["penstock"], times[name])]
        report["ratio"][name] = statistics.median(ratios)
        pairs = list(zip(losses["penstock"], losses[name]))
        report["loss_error"][name] = max((abs(a - b) / abs(b) for a, b in pairs), default=0.0)
        report["loss_difference"][name] = max((abs(a - b) for a, b in pairs), default=0.0)
    report["versions"] = {name: versions[name] for name in peers}
    return report


def print_rows(reports, arguments):
    """A Markdown table: milliseconds a step, and ours over the fastest peer's of the same rounds."""
    peers = list(reports[0]["ratio"])
    rivals = [name for name in peers if name != "products"]
    header = ["layers x width", "threads", "Penstock", *peers]
    if "products" in peers:
        header.append("ours / products")
    print("| " + " | ".join([*header, "ours / faster", "loss error"]) + " |")
    print("|---|" + "---:|" * (len(header) + 1))
    for report in reports:
        times = [report["step_time_s"][name] for name in ["penstock", *peers]]
        cells = [f"{arguments.layers} x {report['width']}", str(arguments.threads)]
        cells += [f"{1e3 * seconds:.1f} ms" for seconds in times]
        if "products" in peers:
            cells.append(f"{report['ratio']['products']:.2f}")
        cells += [f"{max(report['ratio'][name] for name in rivals):.2f}",
                  f"{max(report['loss_error'].values()):.0e}"]
        print("| " + " | ".join(cells) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="256,768", help="of the model")
    parser.add_argument("--dtype", choices=sorted(PEERS), default="f32", help="bf16: mixed precision")
    parser.add_argument("--peers", help="of torch, torch-compiled, jax, products (a step's matrix products alone, "
                        "in PyTorch and f32), f32 (Penstock itself); the default depends on --dtype")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of each framework")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", type=int, default=0, help="1: torch.compile the forward")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--markdown", action="store_true", help="print the rows of a table for docs/PERFORMANCE.md")
    parser.add_argument("--only", help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    for name in ("width", "heads", "dump"):
        parser.add_argument(f"--{name}", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only:
        print(json.dumps(RUNNERS[arguments.only](pathlib.Path(arguments.folder), arguments)))
        return 0

    reports = [compare(int(width), arguments) for width in arguments.widths.split(",")]
    status = 0
    for report in reports:
        for name, error in report["loss_error"].items():
            if not error <= TOLERANCE[arguments.dtype]:
                print(f"width {report['width']}: losses differ from {name} by {error:.2e}", file=sys.stderr)
                status = 1
    if arguments.json:
        print(json.dumps({"reports": reports}))
        return status
    if arguments.markdown:
        print_rows(reports, arguments)
        return status
    for report in reports:
        print(f"width {report['width']}, {arguments.dtype}, {arguments.threads} thread(s):")
        print(f"  {'':14} {'ms a step':>10} {'ours/theirs':>12} {'loss error':>11} {'absolute':>9}")
        for name, seconds in report["step_time_s"].items():
            ratio = report["ratio"].get(name)
            row = f"  {name:14} {1e3 * seconds:10.1f}"
            if ratio is not None:
                row += f" {ratio:12.2f} {report['loss_error'][name]:11.1e} {report['loss_difference'][name]:9.1e}"
            print(row)
    return status


if __name__ == "__main__":
    sys.exit(main())
