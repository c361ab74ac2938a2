"""The matrix products of a training step of Penstock's GPT, alone, in PyTorch: the time they take."""

import statistics
import time

import torch


def products(layers, width, heads, context, batch, vocabulary):
    """(count, batch, rows, inner, columns) of the forward products of a step.

    Of attention, which is causal, half of each product: rows beyond the diagonal are not needed.
    """
    tokens = batch * context
    return [
        (layers, 1, tokens, width, 3 * width),
        (layers, 1, tokens, width, width),
        (layers, 1, tokens, width, 4 * width),
        (layers, 1, tokens, 4 * width, width),
        (layers / 2, batch * heads, context, width // heads, context),
        (layers / 2, batch * heads, context, context, width // heads),
        (1, 1, tokens, width, vocabulary),
    ]


def seconds(size, repetitions=5):
    """Of a forward product and the two of its gradients: x w, dy w^T and x^T dy."""
    batch, rows, inner, columns = size
    shape = (batch,) if batch > 1 else ()
    x, w, dy = (torch.randn(*shape, *pair)
                for pair in ((rows, inner), (inner, columns), (rows, columns)))
    y, dx, dw = torch.empty_like(dy), torch.empty_like(x), torch.empty_like(w)
    times = []
    for _ in range(repetitions + 1):
        begin = time.perf_counter()
        torch.matmul(x, w, out=y)
        torch.matmul(dy, w.mT, out=dx)
        torch.matmul(x.mT, dy, out=dw)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


def step_seconds(threads, **sizes):
    torch.set_num_threads(threads)
    return sum(count * seconds(size) for count, *size in products(**sizes))
