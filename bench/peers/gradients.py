"""Compares the gradients of each training step in 16 bits with those in f32.

Each step in 16 bits continues a checkpoint of the run in f32, so that both have the same weights, and
the gradients differ by what rounding does to them in one step. With --apart, a run in 16 bits goes its
own way instead, and what earlier steps have done to the weights counts, too. The gradient of a step is
taken from the first moments of AdamW in checkpoints: m = 0.9 m + 0.1 g, after clipping.

Prints the distance of all gradients of a step (the root of the sum of squares of differences, over
that of the f32 gradients), and the tensors whose gradients point apart most.
"""

import argparse
import os
import pathlib
import shutil
import subprocess
import tempfile

import numpy as np
from safetensors.numpy import load_file

from gpt_job import BETA1, job_text

PENSTOCK = os.environ["PENSTOCK"]


class Runs:
    """Runs of one job in a folder, which differ in their types."""

    def __init__(self, folder, options):
        self.folder = folder
        self.options = options

    def train(self, name, steps, settings, *more):
        """Writes a checkpoint of each step into the folder `name`, which is returned."""
        options = self.options
        checkpoints = self.folder / name
        job = self.folder / "job.toml"
        job.write_text(
            job_text(options.layers, options.width, options.width // 32, options.context, options.batch) +
            f'[checkpoint]\npath = "{checkpoints}"\nevery = 1\nkeep = {options.steps}\n')
        settings = [f"train.steps={steps}", *settings]
        command = [PENSTOCK, "run", job, "--json", "--devices", "1", *more]
        subprocess.run(command + [word for setting in settings for word in ("--set", setting)], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        return checkpoints

    def moments(self, checkpoint):
        """By the names of the parameters."""
        merged = self.folder / "merged.safetensors"
        subprocess.run([PENSTOCK, "checkpoint", "merge", checkpoint, "-o", merged], check=True,
                       stdout=subprocess.DEVNULL)
        moments = {name[:-2]: value.astype(float) for name, value in load_file(merged).items()
                   if name.endswith(".m")}
        merged.unlink()
        return moments

    def compare(self):
        """(step, gradients in f32, gradients in 16 bits) from the second step on."""
        settings = [f'train.dtype="{self.options.dtype}"', *self.options.set]
        steps = self.options.steps
        exact = sorted(self.train("f32", steps, []).glob("step-*"))
        apart = sorted(self.train("apart", steps, settings).glob("step-*")) if self.options.apart else []
        for step in range(2, steps + 1):
            before = self.moments(exact[step - 2])
            if self.options.apart:
                rounded = gradients(self.moments(apart[step - 2]), self.moments(apart[step - 1]))
            else:
                shutil.copytree(exact[step - 2], self.folder / "one" / exact[step - 2].name)
                one = self.train("one", step, settings, "--resume")
                rounded = gradients(before, self.moments(one / exact[step - 1].name))
                shutil.rmtree(one)
            yield step, gradients(before, self.moments(exact[step - 1])), rounded


def gradients(before, after):
    return {name: (after[name] - BETA1 * before[name]) / (1 - BETA1) for name in after}


def norm(arrays):
    return np.sqrt(sum((array ** 2).sum() for array in arrays))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dtype", choices=["bf16", "f16"], default="bf16")
    parser.add_argument("--apart", action="store_true", help="compare runs that go their own ways")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of the runs in 16 bits")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 32, a head's width")
    parser.add_argument("--context", type=int, default=128, help="tokens a sequence")
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--steps", type=int, default=30)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock_gradients.") as name:
        for step, exact, rounded in Runs(pathlib.Path(name), options).compare():
            distance = norm(rounded[key] - exact[key] for key in exact) / norm(exact.values())
            cosines = sorted(((exact[key] * rounded[key]).sum() /
                              (norm([exact[key]]) * norm([rounded[key]]) + 1e-30), key) for key in exact)
            apart = ", ".join(f"{key} {cosine:.3f}" for cosine, key in cosines[:3])
            print(f"step {step}: distance {distance:.1e}; cosines: {apart}", flush=True)


if __name__ == "__main__":
    main()
