"""One rank of PyTorch training a GPT data-parallel, for bench/overlap and bench/zero.

Ranks share the global batch that Penstock dumped and average gradients with
DistributedDataParallel, with its default buckets, over gloo; GLOO_SOCKET_IFNAME names the
interface. With --fsdp, parameters, gradients and states of the optimiser are split over the ranks
instead (fully_shard, a group for each layer), and gathered parameters are freed after the forward
pass (--fsdp 3) or kept for the backward pass (--fsdp 2). With --world 1 the rank trains on its part
of the batch alone, without either. The caller pins the rank to its core.

Prints one JSON object: the losses before each update of this rank's part, the seconds of each step,
and the version of PyTorch. Steps beyond those that were dumped repeat their data.
"""

import argparse
import datetime
import json
import pathlib

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from gpt_job import load
from torch_gpt import Gpt, Trainer


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=pathlib.Path, required=True, help="what Penstock dumped")
    parser.add_argument("--dumped", type=int, default=1, help="steps in the folder")
    parser.add_argument("--layers", type=int, required=True)
    parser.add_argument("--heads", type=int, required=True)
    parser.add_argument("--sequences", type=int, required=True, help="of a rank, each step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=1)
    parser.add_argument("--fsdp", type=int, choices=(2, 3))
    parser.add_argument("--address", help="HOST:PORT of rank 0")
    config = parser.parse_args()

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    weights, data = load(config.folder, config.dumped)
    part = slice(config.rank * config.sequences, (config.rank + 1) * config.sequences)
    data = [(tokens[part], labels[part]) for tokens, labels in data]
    model = Gpt(weights, config.layers, config.heads)
    forward = model
    if config.world > 1:
        dist.init_process_group(
            "gloo", init_method=f"tcp://{config.address}", rank=config.rank,
            world_size=config.world, timeout=datetime.timedelta(seconds=300),
        )
        if config.fsdp:
            mesh = init_device_mesh("cpu", (config.world,))
            for part in [*model.blocks, model]:
                fully_shard(part, mesh=mesh, reshard_after_forward=config.fsdp == 3)
        else:
            forward = DistributedDataParallel(model)
    trainer = Trainer(forward, model, fused=not config.fsdp)
    losses, times = zip(*(trainer.step(*data[i % len(data)]) for i in range(config.steps)))
    print(json.dumps({"losses": losses, "times": times, "version": torch.__version__}), flush=True)
    if config.world > 1:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
