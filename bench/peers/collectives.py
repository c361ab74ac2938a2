"""Collectives between processes of this host: Penstock's beside those of torch.distributed's gloo.

The size of a collective is the bytes that one rank brings: the whole vector of an all_reduce,
reduce_scatter and all_to_all, a rank's part of an all_gather. Elements are float32, an all_reduce
is in place, and a rank runs one thread of computation. On both sides a time is the median, on rank
0, of runs made back to back after warming up. The rounds alternate between the two, so that a slow
spell of the machine does not fall on one of them only; a ratio is the median over rounds of ours
divided by theirs. Penstock runs twice: through shared memory, as between processes of a host, and
over TCP, as gloo does.
"""

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time

KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
SIZES = tuple(1024 * 4**i for i in range(9))  # 1 KiB to 64 MiB
TOTAL_BYTES = 1 << 29  # that a measurement moves, about


def runs_of(size):
    return max(12, min(TOTAL_BYTES // size, 1000))


def operation(dist, torch, kind, size, world):
    """A function that runs the collective once."""
    count = size // 4
    own = torch.zeros(count)
    if kind == "all_reduce":
        return lambda: dist.all_reduce(own)
    if kind == "all_gather":
        parts = list(torch.zeros(count * world).chunk(world))
        return lambda: dist.all_gather(parts, own)
    if kind == "reduce_scatter":
        part = torch.zeros(count // world)
        if hasattr(dist, "reduce_scatter_single"):
            return lambda: dist.reduce_scatter_single(part, own)
        return lambda: dist.reduce_scatter_tensor(part, own)
    everything = torch.zeros(count)
    return lambda: dist.all_to_all_single(everything, own)


def run_rank(rank, world, port, sizes, kinds):
    import datetime

    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=world,
        timeout=datetime.timedelta(seconds=120),
    )
    for kind in kinds:
        for size in sizes:
            run = operation(dist, torch, kind, size, world)
            runs = runs_of(size)
            times = []
            for i in range(runs // 8 + 1 + runs):
                begin = time.perf_counter()
                run()
                if i > runs // 8:
                    times.append(time.perf_counter() - begin)
            if rank == 0:
                print(json.dumps([kind, size, statistics.median(times) * 1e6]), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def measure_gloo(world, config):
    """Microseconds by (kind, size)."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--world", str(world), "--port", str(port)]
    command += ["--sizes", *map(str, config.sizes), "--kinds", *config.kinds]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        subprocess.Popen([*command, "--rank", str(rank)], env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True)
        for rank in range(world)
    ]
    outputs = [process.communicate() for process in processes]
    for process, (_, errors) in zip(processes, outputs):
        if process.returncode != 0:
            sys.exit(f"collectives: a gloo rank failed:\n{errors}")
    rows = [json.loads(line) for line in outputs[0][0].splitlines()]
    return {(kind, size): us for kind, size, us in rows}


def measure_ours(world, config, **environment):
    """Microseconds by (kind, size), and the memory's bound."""
    kinds = "|".join(config.kinds)
    sizes = "|".join(map(str, config.sizes))
    pattern = f"/({kinds})/{world}/({sizes})/(planned|bound)"
    output = subprocess.run(
        [os.environ["PENSTOCK"], "bench", "collectives", "--json", "--filter", pattern],
        check=True, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment},
    ).stdout
    metrics = json.loads(output)["metrics"]
    keys = [(kind, size) for kind in config.kinds for size in config.sizes]
    name = "collectives/{}/{}/{}/{}".format
    times = {(k, s): metrics[name(k, world, s, "planned")] for k, s in keys}
    bounds = {(k, s): metrics[name(k, world, s, "bound")] for k, s in keys}
    return times, bounds


def size_text(size):
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"


def main():
    parser = argparse.ArgumentParser(
        prog="bench/peers/collectives", description=__doc__.split("\n\n")[0],
        epilog=__doc__.split("\n\n")[1],
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, nargs="+", default=[2, 4], choices=[2, 4])
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES), help="bytes")
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--json", action="store_true")
    for hidden in ("--rank", "--world", "--port"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    config = parser.parse_args()
    if config.rank is not None:
        run_rank(config.rank, config.world, config.port, config.sizes, config.kinds)
        return

    rows = []
    for world in config.processes:
        ours, bounds, tcp, gloo = [], [], [], []
        for _ in range(config.rounds):
            times, bound = measure_ours(world, config)
            ours.append(times)
            bounds.append(bound)
            tcp.append(measure_ours(world, config, UCX_TLS="tcp,self")[0])
            gloo.append(measure_gloo(world, config))
        for key in ours[0]:
            bound = statistics.median(times[key] for times in bounds)
            us = statistics.median(times[key] for times in ours)
            rows.append({
                "kind": key[0], "processes": world, "bytes": key[1],
                "penstock_us": us,
                "gloo_us": statistics.median(times[key] for times in gloo),
                "ratio": statistics.median(a[key] / b[key] for a, b in zip(ours, gloo)),
                "tcp_us": statistics.median(times[key] for times in tcp),
                "tcp_ratio": statistics.median(a[key] / b[key] for a, b in zip(tcp, gloo)),
                "bound_us": bound, "bound_ratio": us / bound,
            })
    if config.json:
        print(json.dumps({"rows": rows}))
        return
    print(f"{'collective':15} {'procs':>5} {'size':>8} {'penstock us':>12} {'gloo us':>10} "
          f"{'ratio':>6} {'tcp us':>10} {'ratio':>6} {'bound us':>9} {'ratio':>6}")
    for row in rows:
        print(f"{row['kind']:15} {row['processes']:5} {size_text(row['bytes']):>8} "
              f"{row['penstock_us']:12.1f} {row['gloo_us']:10.1f} {row['ratio']:6.3f} "
              f"{row['tcp_us']:10.1f} {row['tcp_ratio']:6.3f} {row['bound_us']:9.1f} "
              f"{row['bound_ratio']:6.2f}")
    print("bound: the least that a process has to read and write, at the speed of copies that all\n"
          "processes make at once (penstock bench collectives)")


if __name__ == "__main__":
    main()
