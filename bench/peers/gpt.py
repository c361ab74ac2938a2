"""Trains one GPT in Penstock, PyTorch and JAX, from the same weights on the same data.

`penstock run --dump` writes the initial parameters and the tokens of every step; each peer reads
them, trains with the same optimiser (AdamW, decoupled weight decay on matrices, global-norm
clipping) and reports its losses before each update and its step times. Losses must agree to 1e-4
relative; times are compared as medians after the first steps, which compile and warm up.

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

HEAD = 32  # features of an attention head
LEARNING_RATE = 3e-4
BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
WEIGHT_DECAY, CLIP_NORM = 0.1, 1.0
LAYER_NORM_EPSILON = 1e-5
TOLERANCE = 1e-4
SKIPPED_STEPS = 4  # not timed


def load(folder, config):
    """The parameters by name, and (tokens, labels) of every step."""
    import numpy as np

    weights = {}
    for path in sorted(folder.glob("*.npy")):
        if path.name.startswith("step_"):
            continue
        name = path.name[: -len(".npy")]
        if name.startswith(("h", "wte", "wpe", "ln_f")) and is_parameter(name):
            weights[name] = np.load(path)
    steps = [
        tuple(np.load(folder / f"step_{i + 1}.{name}.npy") for name in ("tokens", "labels"))
        for i in range(config.steps)
    ]
    return weights, steps


def is_parameter(name):
    last = name.rsplit(".", 1)[-1]
    return last in {
        "wte", "wpe", "qkv_w", "qkv_b", "proj_w", "proj_b", "w1", "b1", "w2", "b2", "scale", "bias",
    }


def decays(name):
    """Weight decay goes to matrices, not to biases and norms."""
    return name.rsplit(".", 1)[-1] in {"wte", "wpe", "qkv_w", "proj_w", "w1", "w2"}


def run_torch(folder, config):
    import time

    import torch
    import torch.nn.functional as F

    torch.set_num_threads(config.threads)
    torch.set_num_interop_threads(1)
    arrays, steps = load(folder, config)
    weights = {name: torch.tensor(array, requires_grad=True) for name, array in arrays.items()}

    def norm(x, name):
        return F.layer_norm(
            x, x.shape[-1:], weights[name + ".scale"], weights[name + ".bias"], LAYER_NORM_EPSILON
        )

    def forward(tokens, labels):
        batch, length = tokens.shape
        width = config.width
        x = F.embedding(tokens, weights["wte"]) + weights["wpe"]
        for layer in range(config.layers):
            at = f"h{layer}."
            y = norm(x, at + "ln1")
            qkv = F.linear(
                y,
                weights[at + "attn.qkv_w"].reshape(width, -1).t(),
                weights[at + "attn.qkv_b"].reshape(-1),
            )
            q, k, v = qkv.view(batch, length, 3, config.heads, -1).permute(2, 0, 3, 1, 4)
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            mixed = mixed.transpose(1, 2).reshape(batch, length, width)
            x = x + F.linear(
                mixed, weights[at + "attn.proj_w"].reshape(width, width).t(), weights[at + "attn.proj_b"]
            )
            y = norm(x, at + "ln2")
            y = F.gelu(
                F.linear(y, weights[at + "mlp.w1"].t(), weights[at + "mlp.b1"]), approximate="tanh"
            )
            x = x + F.linear(y, weights[at + "mlp.w2"].t(), weights[at + "mlp.b2"])
        logits = F.linear(norm(x, "ln_f"), weights["wte"])
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))

    optimizer = torch.optim.AdamW(
        [
            {"params": [w for n, w in weights.items() if decays(n)], "weight_decay": WEIGHT_DECAY},
            {"params": [w for n, w in weights.items() if not decays(n)], "weight_decay": 0.0},
        ],
        lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=True,
    )
    parameters = list(weights.values())
    step_of = torch.compile(forward) if config.compile else forward
    losses, times = [], []
    for tokens, labels in steps:
        begin = time.perf_counter()
        loss = step_of(torch.from_numpy(tokens).long(), torch.from_numpy(labels).long())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, CLIP_NORM)
        optimizer.step()
        losses.append(loss.item())
        times.append(time.perf_counter() - begin)
    return losses, times, torch.__version__


def run_jax(folder, config):
    import time

    # The thread pool of XLA's CPU client has as many threads as the process may use cores.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: config.threads])
    os.environ["JAX_PLATFORMS"] = "cpu"
    import jax
    import jax.numpy as jnp

    arrays, steps = load(folder, config)
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
    ]
    if config.dump:
        command += ["--dump", str(folder)]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    rows = [json.loads(line) for line in output.stdout.splitlines()]
    rows = [row for row in rows if "step" in row]
    return [row["loss"] for row in rows], [row["step_time_s"] for row in rows], ""


RUNNERS = {"penstock": run_penstock, "torch": run_torch, "jax": run_jax}


def job_text(config):
    return f"""[model]
name = "gpt"
layers = {config.layers}
width = {config.width}
heads = {config.heads}
context = {config.context}
dropout = 0.0
[train]
batch = {config.batch}
learning_rate = {LEARNING_RATE}
beta1 = {BETA1}
beta2 = {BETA2}
epsilon = {EPSILON}
weight_decay = {WEIGHT_DECAY}
clip_norm = {CLIP_NORM}
validation_sequences = 0
[sample]
bytes = 0
[parallel]
strategy = "dp=1"
"""


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
        "threads": arguments.threads, "compile": int(arguments.compile),
    }
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "job.toml").write_text(job_text(argparse.Namespace(**options)))
        losses, times, versions = {}, {}, {}
        peers = arguments.peers.split(",")
        measure("penstock", folder, {**options, "dump": 1})
        for _ in range(arguments.rounds):
            for name in ["penstock", *peers]:
                print(f"  width {width}: {name}", file=sys.stderr)
                losses[name], step_times, versions[name] = measure(name, folder, options)
                timed = step_times[SKIPPED_STEPS:]
                times.setdefault(name, []).append(statistics.median(timed))
    report = {"width": width, "options": options, "step_time_s": {}, "ratio": {}, "loss_error": {}}
    for name in times:
        report["step_time_s"][name] = statistics.median(times[name])
    for name in peers:
        ratios = [ours / theirs for ours, theirs in zip(times["penstock"], times[name])]
        report["ratio"][name] = statistics.median(ratios)
        report["loss_error"][name] = max(
            abs(a - b) / abs(b) for a, b in zip(losses["penstock"], losses[name])
        )
    report["versions"] = {name: versions[name] for name in peers}
    return report


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="256,768", help="of the model")
    parser.add_argument("--peers", default="torch,jax")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--context", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1, help="of each framework")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--compile", type=int, default=0, help="1: torch.compile the forward")
    parser.add_argument("--json", action="store_true")
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
            if not error <= TOLERANCE:
                print(f"width {report['width']}: losses differ from {name} by {error:.2e}", file=sys.stderr)
                status = 1
    if arguments.json:
        print(json.dumps({"reports": reports}))
        return status
    for report in reports:
        print(f"width {report['width']}, {arguments.threads} thread(s):")
        print(f"  {'':10} {'ms a step':>10} {'ours/theirs':>12} {'loss error':>11}")
        for name, seconds in report["step_time_s"].items():
            ratio = report["ratio"].get(name)
            row = f"  {name:10} {1e3 * seconds:10.1f}"
            if ratio is not None:
                row += f" {ratio:12.2f} {report['loss_error'][name]:11.1e}"
            print(row)
    return status


if __name__ == "__main__":
    sys.exit(main())
