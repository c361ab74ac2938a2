"""Generates from one checkpoint in Penstock and in its peers, all with a key-value cache.

The same model, prompts and number of threads; greedy, so that the texts can be compared. Each runs
alone, in turns; a ratio is the median over rounds of ours divided by theirs: above 1 is faster.
"""

import argparse
import json
import math
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

TEXT = pathlib.Path("/usr/share/common-licenses/Apache-2.0")
FIGURES = ("prompt_tokens_per_s", "tokens_per_s")
# Each reads a request from standard input: the file of weights, the model's sizes, the number of
# threads, of bytes to make, and the prompts. It prints the texts, the figures and its version.
PEERS = {"torch": "torch_generate.py", "llama.cpp": "llama_cpp_generate.py"}


def comparable(text, encoding):
    return text.encode(encoding, "replace").decode("utf8", "replace").encode("utf8", "replace")


def run_ours(penstock, checkpoints, options, prompts):
    words = [word for prompt in prompts for word in ("--prompt", prompt)]
    return json.loads(subprocess.run(
        [penstock, "generate", checkpoints, "--json", "--temperature", "0", "--bytes",
         str(options.bytes), "--strategy", options.strategy, "--threads",
         str(options.threads // options.devices), "--slots", str(options.slots),
         *words], check=True, stdout=subprocess.PIPE, text=True).stdout)


def run_peer(name, request):
    script = pathlib.Path(__file__).with_name(PEERS[name])
    return json.loads(subprocess.run([sys.executable, script], check=True, input=request,
                                     stdout=subprocess.PIPE, text=True).stdout)


def write_checkpoint(penstock, folder, options, heads):
    """A checkpoint of the model after two steps, as Penstock writes it and as one file."""
    checkpoints, merged = f"{folder}/checkpoints", f"{folder}/model.safetensors"
    job = pathlib.Path(folder) / "job.toml"
    job.write_text(
        f'[model]\nname = "gpt"\nlayers = {options.layers}\nwidth = {options.width}\n'
        f"heads = {heads}\ncontext = {options.context}\n"
        f"vocabulary = {options.vocabulary}\n"
        "[train]\nsteps = 2\nbatch = 2\nvalidation_sequences = 0\nlearning_rate = 0.02\n"
        f'[sample]\nbytes = 0\n[checkpoint]\npath = "{checkpoints}"\n')
    for command in (["run", job], ["checkpoint", "merge", checkpoints, "-o", merged]):
        subprocess.run([penstock, *command], check=True, stdout=subprocess.DEVNULL)
    return checkpoints, merged


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["torch"])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256, help="a multiple of 32, a head's width")
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--slots", type=int,
                        help="sequences that Penstock continues at a time (all prompts): with fewer "
                        "than prompts, it reads prompts while others go on; a peer continues all")
    parser.add_argument("--prompt-bytes", type=int, default=128)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2, help="Penstock's devices share them")
    parser.add_argument("--strategy", default="dp=1", help="sizes of axes, for Penstock alone")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    options.slots = options.slots or options.prompts
    sizes = [int(axis.partition("=")[2]) for axis in options.strategy.split(",")]
    options.devices = math.prod(sizes)
    if options.threads % options.devices:
        parser.error("the devices of --strategy do not share --threads evenly")
    if options.prompt_bytes + options.bytes > options.context:
        parser.error("the prompt and the bytes do not fit into --context")
    penstock = os.environ["PENSTOCK"]
    text = TEXT.read_text(encoding="latin1")
    prompts = [text[1000 * i:1000 * i + options.prompt_bytes] for i in range(options.prompts)]
    heads = options.width // 32
    with tempfile.TemporaryDirectory(prefix="penstock_generate.") as folder:
        checkpoints, merged = write_checkpoint(penstock, folder, options, heads)
        request = json.dumps({
            "weights": merged, "layers": options.layers, "width": options.width, "heads": heads,
            "context": options.context, "threads": options.threads, "bytes": options.bytes,
            "prompts": prompts})
        ratios = {name: [] for name in options.peers}
        versions = {}
        for number in range(options.rounds):
            ours = run_ours(penstock, checkpoints, options, prompts)
            print(f"round {number + 1}: Penstock reads {ours[FIGURES[0]]:.0f} tokens/s of prompts "
                  f"and decodes {ours[FIGURES[1]]:.0f}", flush=True)
            for name in options.peers:
                theirs = run_peer(name, request)
                versions[name] = theirs["version"]
                same = sum(comparable(a, "utf8") == comparable(b, "latin1")
                           for a, b in zip(ours["texts"], theirs["texts"]))
                ratio = [ours[key] / theirs[key] for key in FIGURES]
                ratios[name].append(ratio)
                print(f"  {name}: {theirs[FIGURES[0]]:.0f} ({ratio[0]:.2f}) and "
                      f"{theirs[FIGURES[1]]:.0f} ({ratio[1]:.2f}); {same} of {options.prompts} "
                      "texts the same", flush=True)
        for name, rows in ratios.items():
            prompt, decode = (statistics.median(column) for column in zip(*rows))
            print(f"median: prompt {prompt:.2f}, decode {decode:.2f} of {name} {versions[name]}")


if __name__ == "__main__":
    main()
