"""Compares the gradients of each training step in 16 bits with those in f32.

Both runs begin alike and go their own ways, so a gradient differs by what rounding does to it in its
step, and by what earlier steps have done to the weights. The gradient of a step is taken from the
first moments of AdamW in checkpoints: m = 0.9 m + 0.1 g, after clipping.

Prints the distance of all gradients of a step (the root of the sum of squares of differences, over
that of the f32 gradients), and the tensors whose gradients point apart most.
"""

import argparse
import os
import pathlib
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file

from gpt_job import BETA1, job_text

PENSTOCK = os.environ["PENSTOCK"]


def gradients(folder, dtype, options):
    """Of each step from the second on, by the names of the parameters."""
    checkpoints = folder / dtype
    job = folder / f"{dtype}.toml"
    job.write_text(
        job_text(options.layers, options.width, options.width // 32, options.context, options.batch) +
        f'[checkpoint]\npath = "{checkpoints}"\nevery = 1\nkeep = {options.steps}\n')
    subprocess.run([PENSTOCK, "run", job, "--json", "--devices", "1", "--set",
                    f"train.steps={options.steps}", "--set", f'train.dtype="{dtype}"'],
                   check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    before = None
    for path in sorted(checkpoints.glob("step-*")):
        merged = folder / "merged.safetensors"
        subprocess.run([PENSTOCK, "checkpoint", "merge", path, "-o", merged], check=True,
                       stdout=subprocess.DEVNULL)
        moments = {name[:-2]: value.astype(float) for name, value in load_file(merged).items()
                   if name.endswith(".m")}
        merged.unlink()
        if before is not None:
            yield {name: (value - BETA1 * before[name]) / (1 - BETA1) for name, value in moments.items()}
        before = moments


def norm(arrays):
    return np.sqrt(sum((array ** 2).sum() for array in arrays))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 32, a head's width")
    parser.add_argument("--context", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock_gradients.") as name:
        folder = pathlib.Path(name)
        both = zip(gradients(folder, "f32", options), gradients(folder, options.dtype, options))
        for step, (exact, rounded) in enumerate(both, start=2):
            distance = norm(rounded[key] - exact[key] for key in exact) / norm(exact.values())
            cosines = sorted(((exact[key] * rounded[key]).sum() /
                              (norm([exact[key]]) * norm([rounded[key]]) + 1e-30), key) for key in exact)
            apart = ", ".join(f"{key} {cosine:.3f}" for cosine, key in cosines[:3])
            print(f"step {step}: distance {distance:.1e}; cosines: {apart}", flush=True)


if __name__ == "__main__":
    main()
