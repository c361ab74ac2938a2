"""Generates from one checkpoint in Penstock and in PyTorch, both with a key-value cache.

The same model, prompts and number of threads; greedy, so that the texts can be compared. PyTorch
writes keys and values into tensors of the full context, and attends to the part that is filled
(scaled_dot_product_attention). Each framework runs alone, in turns; a ratio is the median over
rounds of ours divided by theirs: above 1 is faster.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

TEXT = pathlib.Path("/usr/share/common-licenses/Apache-2.0")


def run_torch(options):
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file

    from torch_gpt import Gpt

    torch.set_num_threads(options.threads)
    torch.set_num_interop_threads(1)
    weights = {name: value.numpy() for name, value in load_file(options.torch).items()
               if name.startswith(("h", "wte", "wpe", "ln_f")) and not name.endswith((".m", ".v"))}
    model = Gpt(weights, options.layers, options.width // 32).eval()
    prompts = [list(prompt.encode()) for prompt in json.loads(sys.stdin.read())]
    batch, heads = len(prompts), options.width // 32
    shape = (options.layers, 2, batch, heads, options.context, 32)

    def step(cache, tokens, start):
        length = tokens.shape[1]
        x = F.embedding(tokens, model.weight("wte")) + model.weight("wpe")[start:start + length]
        for index, block in enumerate(model.blocks):
            y = block.norm(x, "ln1")
            qkv = F.linear(y, block.weight("attn.qkv_w").reshape(options.width, -1).t(),
                           block.weight("attn.qkv_b").reshape(-1))
            q, k, v = qkv.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = cache[index, 0], cache[index, 1]
            keys[:, :, start:start + length] = k
            values[:, :, start:start + length] = v
            mixed = F.scaled_dot_product_attention(
                q, keys[:, :, :start + length], values[:, :, :start + length],
                is_causal=length > 1)
            mixed = mixed.transpose(1, 2).reshape(batch, length, options.width)
            x = x + F.linear(mixed, block.weight("attn.proj_w").reshape(options.width, -1).t(),
                             block.weight("attn.proj_b"))
            y = F.linear(block.norm(x, "ln2"), block.weight("mlp.w1").t(), block.weight("mlp.b1"))
            y = F.gelu(y, approximate="tanh")
            x = x + F.linear(y, block.weight("mlp.w2").t(), block.weight("mlp.b2"))
        return F.linear(model.norm(x[:, -1], "ln_f"), model.weight("wte"))

    with torch.inference_mode():
        step(torch.zeros(shape), torch.tensor(prompts), 0)  # warms up
        cache = torch.zeros(shape)
        begin = time.perf_counter()
        logits = step(cache, torch.tensor(prompts), 0)
        prefill_s = time.perf_counter() - begin
        made = []
        begin = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + options.bytes):
            token = logits[:, :256].argmax(-1, keepdim=True)
            made.append(token)
            if len(made) < options.bytes:
                logits = step(cache, token, position)
        decode_s = time.perf_counter() - begin
    texts = [bytes(row).decode("latin1") for row in torch.cat(made, 1).tolist()]
    # The first token comes with the prompt: one step fewer than tokens.
    print(json.dumps({"texts": texts, "torch": torch.__version__,
                      "prompt_tokens_per_s": batch * len(prompts[0]) / prefill_s,
                      "tokens_per_s": batch * (options.bytes - 1) / decode_s}))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--context", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--prompts", type=int, default=1)
    parser.add_argument("--prompt-bytes", type=int, default=128)
    parser.add_argument("--bytes", type=int, default=100)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--torch", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.torch:
        run_torch(options)
        return
    if options.prompt_bytes + options.bytes > options.context:
        parser.error("the prompt and the bytes do not fit into --context")
    penstock = os.environ["PENSTOCK"]
    text = TEXT.read_text(encoding="latin1")
    prompts = [text[1000 * i:1000 * i + options.prompt_bytes] for i in range(options.prompts)]
    with tempfile.TemporaryDirectory(prefix="penstock_generate.") as folder:
        checkpoints = f"{folder}/checkpoints"
        job = pathlib.Path(folder) / "job.toml"
        job.write_text(
            f'[model]\nname = "gpt"\nlayers = {options.layers}\nwidth = {options.width}\n'
            f"heads = {options.width // 32}\ncontext = {options.context}\n"
            f"vocabulary = {options.vocabulary}\n"
            "[train]\nsteps = 2\nbatch = 2\nvalidation_sequences = 0\nlearning_rate = 0.02\n"
            f'[sample]\nbytes = 0\n[checkpoint]\npath = "{checkpoints}"\n')
        subprocess.run([penstock, "run", job], check=True, capture_output=True)
        merged = f"{folder}/model.safetensors"
        subprocess.run([penstock, "checkpoint", "merge", checkpoints, "-o", merged], check=True,
                       capture_output=True)
        ratios = []
        for number in range(options.rounds):
            ours = json.loads(subprocess.run(
                [penstock, "generate", checkpoints, "--json", "--temperature", "0", "--bytes",
                 str(options.bytes), "--threads", str(options.threads), "--slots",
                 str(options.prompts), *(word for prompt in prompts for word in ("--prompt", prompt))],
                check=True, capture_output=True, text=True).stdout)
            theirs = json.loads(subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--torch", merged], check=True,
                input=json.dumps(prompts), capture_output=True, text=True).stdout)
            same = sum(a == b for a, b in zip(
                [t.encode("utf8", "replace") for t in ours["texts"]],
                [t.encode("latin1").decode("utf8", "replace").encode("utf8", "replace")
                 for t in theirs["texts"]]))
            ratios.append([ours[key] / theirs[key]
                           for key in ("prompt_tokens_per_s", "tokens_per_s")])
            print(f"round {number + 1}: prompt {ours['prompt_tokens_per_s']:.0f} and "
                  f"{theirs['prompt_tokens_per_s']:.0f} tokens/s ({ratios[-1][0]:.2f}), decode "
                  f"{ours['tokens_per_s']:.0f} and {theirs['tokens_per_s']:.0f} "
                  f"({ratios[-1][1]:.2f}); {same} of {options.prompts} texts the same", flush=True)
        print(f"median: prompt {statistics.median(r[0] for r in ratios):.2f}, decode "
              f"{statistics.median(r[1] for r in ratios):.2f} of PyTorch {theirs['torch']}")


if __name__ == "__main__":
    main()
