"""Generates greedily with the GPT of Penstock in PyTorch, with a key-value cache.

Keys and values are written into tensors of the full context; scaled_dot_product_attention reads the
part that is filled. The request is JSON on standard input (see generate.py), and so is the answer.
"""

import json
import sys
import time

import torch
import torch.nn.functional as F
from safetensors.torch import load_file

from gpt_job import is_weight
from torch_gpt import Gpt


def main():
    request = json.load(sys.stdin)
    layers, width, context = request["layers"], request["width"], request["context"]
    torch.set_num_threads(request["threads"])
    torch.set_num_interop_threads(1)
    weights = {name: value.numpy() for name, value in load_file(request["weights"]).items()
               if is_weight(name)}
    heads = request["heads"]
    model = Gpt(weights, layers, heads).eval()
    prompts = [list(prompt.encode()) for prompt in request["prompts"]]
    batch = len(prompts)
    shape = (layers, 2, batch, heads, context, width // heads)

    def step(cache, tokens, start):
        length = tokens.shape[1]
        x = F.embedding(tokens, model.weight("wte")) + model.weight("wpe")[start:start + length]
        for index, block in enumerate(model.blocks):
            y = block.norm(x, "ln1")
            qkv = F.linear(y, block.weight("attn.qkv_w").reshape(width, -1).t(),
                           block.weight("attn.qkv_b").reshape(-1))
            q, k, v = qkv.view(batch, length, 3, heads, -1).permute(2, 0, 3, 1, 4)
            keys, values = cache[index, 0], cache[index, 1]
            keys[:, :, start:start + length] = k
            values[:, :, start:start + length] = v
            mixed = F.scaled_dot_product_attention(
                q, keys[:, :, :start + length], values[:, :, :start + length],
                is_causal=length > 1)
            mixed = mixed.transpose(1, 2).reshape(batch, length, width)
            x = x + F.linear(mixed, block.weight("attn.proj_w").reshape(width, -1).t(),
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
        prompt_s = time.perf_counter() - begin
        made = []
        begin = time.perf_counter()
        for position in range(len(prompts[0]), len(prompts[0]) + request["bytes"]):
            token = logits[:, :256].argmax(-1, keepdim=True)
            made.append(token)
            if len(made) < request["bytes"]:
                logits = step(cache, token, position)
        decode_s = time.perf_counter() - begin
    texts = [bytes(row).decode("latin1") for row in torch.cat(made, 1).tolist()]
    # The first token comes with the prompt: one step fewer than tokens.
    print(json.dumps({"texts": texts, "version": torch.__version__,
                      "prompt_tokens_per_s": batch * len(prompts[0]) / prompt_s,
                      "tokens_per_s": batch * (request["bytes"] - 1) / decode_s}))


if __name__ == "__main__":
    main()
