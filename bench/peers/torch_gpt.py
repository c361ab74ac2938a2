"""The GPT of Penstock in PyTorch, and its training step: AdamW, fused, with clipping."""

import re
import time

import torch
import torch.nn.functional as F

from gpt_job import (BETA1, BETA2, CLIP_NORM, EPSILON, LAYER_NORM_EPSILON, LEARNING_RATE,
                     WEIGHT_DECAY, decays)


class Named(torch.nn.Module):
    """Its parameters start as the arrays or tensors in `weights`, by their names in Penstock."""

    def __init__(self, weights):
        super().__init__()
        for name, array in weights.items():
            if not isinstance(array, torch.Tensor):
                array = torch.tensor(array)
            self.register_parameter(self.key(name), torch.nn.Parameter(array))

    @staticmethod
    def key(name):
        return name.replace(".", "__")  # PyTorch forbids dots

    def weight(self, name):
        return getattr(self, self.key(name))

    def norm(self, x, name):
        scale, bias = self.weight(name + ".scale"), self.weight(name + ".bias")
        return F.layer_norm(x, x.shape[-1:], scale, bias, LAYER_NORM_EPSILON)


class Block(Named):
    """A layer: attention and a feed-forward network."""

    def __init__(self, weights, heads):
        super().__init__(weights)
        self.heads = heads

    def forward(self, x):
        batch, length, width = x.shape
        y = self.norm(x, "ln1")
        qkv = F.linear(y, self.weight("attn.qkv_w").reshape(width, -1).t(),
                       self.weight("attn.qkv_b").reshape(-1))
        q, k, v = qkv.view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        mixed = mixed.transpose(1, 2).reshape(batch, length, width)
        x = x + F.linear(mixed, self.weight("attn.proj_w").reshape(width, width).t(),
                         self.weight("attn.proj_b"))
        y = self.norm(x, "ln2")
        y = F.linear(y, self.weight("mlp.w1").t(), self.weight("mlp.b1"))
        y = F.gelu(y, approximate="tanh")
        return x + F.linear(y, self.weight("mlp.w2").t(), self.weight("mlp.b2"))


class Gpt(Named):
    """All layers. `weights`: arrays by their names in Penstock, "h0.ln1.scale" and so on."""

    def __init__(self, weights, layers, heads):
        in_blocks = [{} for _ in range(layers)]
        others = {}
        for name, array in weights.items():
            match = re.fullmatch(r"h(\d+)\.(.*)", name)
            if match:
                in_blocks[int(match[1])][match[2]] = array
            else:
                others[name] = array
        super().__init__(others)
        self.blocks = torch.nn.ModuleList(Block(part, heads) for part in in_blocks)

    def forward(self, tokens, labels):
        """The mean loss over the batch."""
        x = F.embedding(tokens, self.weight("wte")) + self.weight("wpe")
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x, "ln_f"), self.weight("wte"))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Trainer:
    """Trains `model`; `forward` is the model itself or a wrapper of it, such as DDP.

    `autocast`: the dtype in which the forward pass computes where PyTorch deems it safe; None: f32.
    `device`: where the model is, "cpu" or "cuda".
    """

    def __init__(self, forward, model, fused=True, autocast=None, device="cpu"):
        self.forward = forward
        self.device = device
        self.autocast = autocast
        self.parameters = list(model.parameters())
        decayed, others = [], []
        for key, parameter in model.named_parameters():
            (decayed if decays(key.replace("__", ".")) else others).append(parameter)
        self.optimizer = torch.optim.AdamW(
            [{"params": decayed, "weight_decay": WEIGHT_DECAY},
             {"params": others, "weight_decay": 0.0}],
            lr=LEARNING_RATE, betas=(BETA1, BETA2), eps=EPSILON, fused=fused,
        )

    def launch(self, tokens, labels):
        """Trains on arrays of integers; returns the loss before the update, which a GPU may still compute."""
        with torch.autocast(self.device, dtype=self.autocast, enabled=self.autocast is not None):
            loss = self.forward(self.to_device(tokens), self.to_device(labels))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, CLIP_NORM)
        self.optimizer.step()
        return loss

    def to_device(self, array):
        tensor = torch.from_numpy(array).long()
        if self.device == "cpu":
            return tensor
        return tensor.pin_memory().to(self.device, non_blocking=True)  # not awaited

    def step(self, tokens, labels):
        """Likewise; returns the loss and the seconds until it was there."""
        begin = time.perf_counter()
        loss = self.launch(tokens, labels).item()
        return loss, time.perf_counter() - begin
