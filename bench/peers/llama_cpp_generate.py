"""Generates greedily with the GPT of Penstock in llama.cpp, weights and cached keys and values in f32.

The weights are written as a GGUF file of the architecture "gpt2", without a tokenizer. The request
is JSON on standard input (see generate.py), and so is the answer.
"""

import ctypes
import json
import pathlib
import sys
import tempfile
import time

import gguf
import llama_cpp
import numpy as np
from safetensors.numpy import load_file

from gpt_job import LAYER_NORM_EPSILON, is_weight

# Of one layer: name here -> name in Penstock, and whether a matrix has to be transposed, as rows
# of a GGUF matrix are the products' results.
LAYER = {
    "attn_norm.weight": ("ln1.scale", False), "attn_norm.bias": ("ln1.bias", False),
    "attn_qkv.weight": ("attn.qkv_w", True), "attn_qkv.bias": ("attn.qkv_b", False),
    "attn_output.weight": ("attn.proj_w", True), "attn_output.bias": ("attn.proj_b", False),
    "ffn_norm.weight": ("ln2.scale", False), "ffn_norm.bias": ("ln2.bias", False),
    "ffn_up.weight": ("mlp.w1", True), "ffn_up.bias": ("mlp.b1", False),
    "ffn_down.weight": ("mlp.w2", True), "ffn_down.bias": ("mlp.b2", False),
}


def write_gguf(path, weights, request):
    layers, width = request["layers"], request["width"]
    writer = gguf.GGUFWriter(path, "gpt2")
    writer.add_block_count(layers)
    writer.add_context_length(request["context"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(weights["h0.mlp.b1"].size)
    writer.add_head_count(request["heads"])
    writer.add_layer_norm_eps(LAYER_NORM_EPSILON)
    writer.add_vocab_size(len(weights["wte"]))
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    writer.add_tensor("token_embd.weight", weights["wte"])
    writer.add_tensor("position_embd.weight", weights["wpe"])
    writer.add_tensor("output_norm.weight", weights["ln_f.scale"])
    writer.add_tensor("output_norm.bias", weights["ln_f.bias"])
    for layer in range(layers):
        for name, (ours, transposed) in LAYER.items():
            value = weights[f"h{layer}.{ours}"]
            if transposed:
                rows = width if ours != "mlp.w2" else value.shape[0]
                value = np.ascontiguousarray(value.reshape(rows, -1).T)
            writer.add_tensor(f"blk.{layer}.{name}", value.reshape(-1) if not transposed else value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Session:
    """A model with one sequence a prompt."""

    def __init__(self, path, request):
        batch = len(request["prompts"])
        self.model = llama_cpp.llama_model_load_from_file(
            str(path).encode(), llama_cpp.llama_model_default_params())
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = request["context"] * batch
        options.n_batch = options.n_ubatch = request["context"] * batch
        options.n_seq_max = batch
        options.n_threads = options.n_threads_batch = request["threads"]
        options.type_k = options.type_v = llama_cpp.GGML_TYPE_F32
        options.no_perf = True
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        if not self.model or not self.context:
            sys.exit("llama.cpp did not load the model")
        vocabulary = llama_cpp.llama_model_get_vocab(self.model)
        self.words = llama_cpp.llama_vocab_n_tokens(vocabulary)
        self.batch = llama_cpp.llama_batch_init(options.n_batch, 0, 1)

    def clear(self):
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), True)

    def step(self, rows, start):
        """The most likely byte after each row of new tokens, which begin at position `start`."""
        batch, used, last = self.batch, 0, []
        for sequence, row in enumerate(rows):
            for offset, token in enumerate(row):
                batch.token[used] = token
                batch.pos[used] = start + offset
                batch.n_seq_id[used] = 1
                batch.seq_id[used][0] = sequence
                batch.logits[used] = offset + 1 == len(row)
                used += 1
            last.append(used - 1)
        batch.n_tokens = used
        code = llama_cpp.llama_decode(self.context, batch)
        if code:
            sys.exit(f"llama_decode returned {code}")
        return [int(np.ctypeslib.as_array(
            llama_cpp.llama_get_logits_ith(self.context, index), (self.words,))[:256].argmax())
            for index in last]


def main():
    request = json.load(sys.stdin)
    log = llama_cpp.llama_log_callback(lambda level, text, data: None)
    llama_cpp.llama_log_set(log, ctypes.c_void_p(0))
    weights = {name: value for name, value in load_file(request["weights"]).items()
               if is_weight(name)}
    prompts = [list(prompt.encode()) for prompt in request["prompts"]]
    with tempfile.TemporaryDirectory(prefix="penstock_gguf.") as folder:
        path = pathlib.Path(folder) / "model.gguf"
        write_gguf(path, weights, request)
        session = Session(path, request)
    session.step(prompts, 0)  # warms up
    session.clear()
    begin = time.perf_counter()
    made = [session.step(prompts, 0)]
    prompt_s = time.perf_counter() - begin
    begin = time.perf_counter()
    for position in range(len(prompts[0]), len(prompts[0]) + request["bytes"] - 1):
        made.append(session.step([[token] for token in made[-1]], position))
    decode_s = time.perf_counter() - begin
    print(json.dumps({"texts": [bytes(row).decode("latin1") for row in zip(*made)],
                      "version": llama_cpp.__version__,
                      "prompt_tokens_per_s": sum(map(len, prompts)) / prompt_s,
                      "tokens_per_s": len(prompts) * (request["bytes"] - 1) / decode_s}))


if __name__ == "__main__":
    main()
