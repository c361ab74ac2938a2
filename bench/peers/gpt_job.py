"""What Penstock and its peers share to train one GPT: the job, its parameters and its data.

`penstock run --dump` writes the initial parameters and the tokens of every step; `load` reads them.
"""

LEARNING_RATE = 3e-4
BETA1, BETA2, EPSILON = 0.9, 0.95, 1e-8
WEIGHT_DECAY, CLIP_NORM = 0.1, 1.0
LAYER_NORM_EPSILON = 1e-5
TOLERANCE = {"f32": 1e-4, "bf16": 2e-2}  # relative, of losses


def job_text(layers, width, heads, context, batch, strategy="dp=1", microbatches=1):
    """The job file for Penstock; `batch` is in sequences a step."""
    return f"""[model]
name = "gpt"
layers = {layers}
width = {width}
heads = {heads}
context = {context}
dropout = 0.0
[train]
batch = {batch}
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
strategy = "{strategy}"
microbatches = {microbatches}
"""


def load(folder, steps):
    """The parameters by name, and (tokens, labels) of each of the first `steps` steps."""
    import numpy as np

    weights = {}
    for path in sorted(folder.glob("*.npy")):
        if path.name.startswith("step_"):
            continue
        name = path.name[: -len(".npy")]
        if is_weight(name):
            weights[name] = np.load(path)
    data = [
        tuple(np.load(folder / f"step_{i + 1}.{name}.npy") for name in ("tokens", "labels"))
        for i in range(steps)
    ]
    return weights, data


def is_weight(name):
    """Whether this is a parameter of the model, and not a state of the optimizer."""
    last = name.rsplit(".", 1)[-1]
    return name.startswith(("h", "wte", "wpe", "ln_f")) and last in {
        "wte", "wpe", "qkv_w", "qkv_b", "proj_w", "proj_b", "w1", "b1", "w2", "b2", "scale", "bias",
    }


def decays(name):
    """Weight decay goes to matrices, not to biases and norms."""
    return name.rsplit(".", 1)[-1] in {"wte", "wpe", "qkv_w", "proj_w", "w1", "w2"}
