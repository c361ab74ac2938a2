"""Penstock in Python: compile a graph to a plan and run it.

    import numpy as np
    import penstock

    graph = penstock.Graph.parse('''
    graph model {
      %x = input : f32[8, 4]
      %w = parameter : f32[4, 2]
      %y = matmul(%x, %w) : f32[8, 2]
      return %y
    }''')
    plan = penstock.compile(graph, strategy="dp=2")
    with penstock.Session(plan, seed=1) as session:
        y = session.run({"x": np.ones((8, 4), np.float32)})["y"].numpy()

Feeds are anything that NumPy or the DLPack protocol can describe, in host memory. Results are
Tensors, which own their memory: Tensor.numpy(), numpy.asarray and the DLPack protocol
(torch.from_dlpack) give views of it without a copy.

Errors are subclasses of penstock.Error, and of the built-in exception that fits.
"""

from ._errors import (
    CancelledError, DataLossError, DeadlineExceededError, Error, FailedPreconditionError,
    InvalidArgumentError, NotFoundError, ResourceExhaustedError, UnimplementedError)
from ._penstock import Graph, Plan, Session, Tensor, __version__, compile

__all__ = [
    "CancelledError", "DataLossError", "DeadlineExceededError", "Error",
    "FailedPreconditionError", "Graph", "InvalidArgumentError", "NotFoundError", "Plan",
    "ResourceExhaustedError", "Session", "Tensor", "UnimplementedError", "__version__", "compile",
]
