"""Perfetto's own protobuf classes read the traces of `penstock run --trace`.

Skipped where PyPI's perfetto is not installed (tests/requirements.txt, in the virtual environment
build/python that scripts/test makes). The test of clocks that differ also needs the right to make
a time namespace.
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.extend(str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages"))

MISSING = ""
try:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as proto
except ImportError as error:
    proto = None
    MISSING = str(error)

STEPS = 12
MICROBATCHES = 4
JOB = f"""
[model]
name = "gpt"
layers = 2
width = 32
heads = 2
context = 16
[train]
steps = {STEPS}
batch = 8
validation_sequences = 0
[parallel]
strategy = "STRATEGY"
microbatches = {MICROBATCHES}
[sample]
bytes = 0
"""
# A namespace in which the monotonic clock is this far ahead.
AHEAD_S = 5000
MAX_SKEW_NS = 50_000
MORE_TRACES = 2  # at most, where the processes of one waited too long for a core
OTHER_CLOCK = ["unshare", "--time", "--monotonic", str(AHEAD_S), "--"]


class Trace:
    """Tracks, slices and flows of a trace file."""

    def __init__(self, path):
        trace = proto.Trace()
        trace.ParseFromString(pathlib.Path(path).read_bytes())
        self.names = {}
        self.descriptions = {}
        self.parents = {}
        self.slices = collections.defaultdict(list)  # by track: [name, begin, end, arguments]
        self.counters = {}
        self.flow_begins = {}
        self.flow_ends = {}
        event_names = {}
        annotation_names = {}
        for packet in trace.packet:
            for entry in packet.interned_data.event_names:
                event_names[entry.iid] = entry.name
            for entry in packet.interned_data.debug_annotation_names:
                annotation_names[entry.iid] = entry.name
            if packet.HasField("track_descriptor"):
                self.add_track(packet.track_descriptor)
            if packet.HasField("track_event"):
                event = packet.track_event
                if event.type == proto.TrackEvent.TYPE_SLICE_BEGIN:
                    arguments = {annotation_names[a.name_iid]:
                                 a.int_value if a.HasField("int_value") else a.double_value
                                 for a in event.debug_annotations}
                    piece = [event_names[event.name_iid], packet.timestamp, None, arguments]
                    self.slices[event.track_uuid].append(piece)
                    for flow in event.flow_ids:
                        assert flow not in self.flow_begins
                        self.flow_begins[flow] = (event.track_uuid, piece)
                    for flow in event.terminating_flow_ids:
                        assert flow not in self.flow_ends
                        self.flow_ends[flow] = (event.track_uuid, piece)
                elif event.type == proto.TrackEvent.TYPE_SLICE_END:
                    assert self.slices[event.track_uuid][-1][2] is None
                    self.slices[event.track_uuid][-1][2] = packet.timestamp
                else:
                    assert event.type == proto.TrackEvent.TYPE_COUNTER
                    self.counters[event.track_uuid].append((packet.timestamp, event.counter_value))

    def add_track(self, track):
        assert track.uuid not in self.names
        is_process = track.HasField("process")
        self.names[track.uuid] = track.process.process_name if is_process else track.name
        self.descriptions[track.uuid] = track.description
        if track.parent_uuid:
            assert track.parent_uuid in self.names
            self.parents[track.uuid] = track.parent_uuid
        if track.HasField("counter"):
            self.counters[track.uuid] = []

    def path(self, track):
        names = [self.names[track]]
        while track in self.parents:
            track = self.parents[track]
            names.append(self.names[track])
        return names[::-1]

    def device(self, track):
        return next(name for name in self.path(track) if name.startswith("device "))


class PerfettoTraceTest(unittest.TestCase):
    def setUp(self):
        if not os.access(PENSTOCK, os.X_OK):
            self.skipTest(f"{PENSTOCK} is not built")
        if proto is None:
            self.skipTest(f"{MISSING}: see tests/requirements.txt")
        folder = tempfile.TemporaryDirectory(prefix="penstock_perfetto.")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.job = self.folder / "job.toml"
        self.use("pp=2")
        self.file = self.folder / "run.perfetto-trace"

    def use(self, strategy):
        """Writes the job."""
        self.job.write_text(JOB.replace("STRATEGY", strategy))

    def phases(self):
        """Of each phase of the plan, by device and name: how often it runs a step, and its number
        of actors."""
        plan = self.folder / "job.plan"
        subprocess.run([PENSTOCK, "plan", self.job, "-o", plan], check=True, capture_output=True,
                       timeout=120)
        shown = [subprocess.run([PENSTOCK, "show", plan, *options], check=True, capture_output=True,
                                text=True, timeout=120).stdout for options in ([], ["--json"])]
        phases = {}
        devices = []
        for line in shown[0].splitlines():
            ranges = re.fullmatch(r"  devices? ([\d, -]+)", line)  # those that are alike
            if ranges:
                ends = [[int(end) for end in part.split("-")] for part in ranges.group(1).split(",")]
                devices = [f"device {d}" for end in ends for d in range(end[0], end[-1] + 1)]
            phase = re.match(r"    (\S.*?) +\S+ +(?:compute|per-step|floating) +"
                             r"once a (step|micro-batch) +(\d+) actors? ", line)
            if phase:
                runs = {"step": 1, "micro-batch": MICROBATCHES}[phase.group(2)]
                for device in devices:
                    phases[device, phase.group(1)] = runs, int(phase.group(3))
        self.assertEqual(sum(count for _, count in phases.values()),
                         json.loads(shown[1])["actors"])
        self.assertEqual({runs for runs, _ in phases.values()}, {1, MICROBATCHES})
        return phases

    def check_actors(self, trace):
        """Each actor of the plan has a track, with a slice for each time that it runs; returns by
        device the names of the groups of tracks and how many tracks they have."""
        phases = self.phases()
        groups = collections.defaultdict(collections.Counter)
        actors = collections.Counter()  # by phase
        for track, slices in trace.slices.items():
            path = trace.path(track)
            self.assertTrue(all(piece[2] is not None for piece in slices), path)
            ends = 0
            for _, begin, end, _ in slices:
                self.assertLessEqual(ends, begin, path)
                self.assertLessEqual(begin, end, path)
                ends = end
            if path[0] == "steps":
                self.assertEqual([piece[0] for piece in slices],
                                 [f"step {i + 1}" for i in range(STEPS)])
                continue
            if path[0].startswith("critical path"):
                continue
            # process, stage, device, group, actor or floating phase; a lane runs several phases
            if len(path) == 5:
                groups[path[2]][path[3]] += 1
                name = path[4]
                if path[3] != "floating phases":
                    name = re.fullmatch("In phase (.*)", trace.descriptions[track]).group(1)
                    actors[path[2], name] += 1
                # An actor runs as often as its phase.
                self.assertEqual(len(slices), STEPS * phases[path[2], name][0], path)
            steps = collections.Counter(piece[3]["step"] for piece in slices)
            self.assertEqual(dict(steps),
                             {i + 1: len(slices) // STEPS for i in range(STEPS)}, path)
        self.assertEqual(actors, {phase: count for phase, (_, count) in phases.items()})
        return groups

    def skew_ns(self, trace):
        """Half of the difference between the fastest messages in both directions. A skew of clocks
        adds to the times in one direction what it takes from those in the other; so does a process
        that waits for a core, so that this is at least the skew."""
        # Each message goes from a send of one device to a receive of the other.
        self.assertGreater(len(trace.flow_begins), 0)
        self.assertEqual(trace.flow_begins.keys(), trace.flow_ends.keys())
        fastest_ns = collections.defaultdict(lambda: float("inf"))  # by source and destination
        for flow, (source, send) in trace.flow_begins.items():
            destination, receive = trace.flow_ends[flow]
            self.assertIn("sends", trace.path(source))
            self.assertIn("receives", trace.path(destination))
            self.assertNotEqual(trace.device(source), trace.device(destination))
            self.assertEqual(send[3].get("microbatch"), receive[3].get("microbatch"))
            way = trace.device(source), trace.device(destination)
            fastest_ns[way] = min(fastest_ns[way], receive[2] - send[1])
        self.assertEqual(len(fastest_ns), 2, fastest_ns)
        there, back = fastest_ns.values()
        skew_ns = max(abs(there - back) / 2, -there, -back)  # a receive ends after its send begins
        print(f"{self.id()}: clock skew {skew_ns / 1000:.1f} us", file=sys.stderr)
        return skew_ns

    def check(self, make_trace):
        """What holds of every trace of the job that make_trace returns the file of. Of a few traces,
        the least skew counts, which is the nearest to that of the clocks."""
        trace = Trace(make_trace())
        skew_ns = self.skew_ns(trace)
        for _ in range(MORE_TRACES):
            if skew_ns < MAX_SKEW_NS:
                break
            trace = Trace(make_trace())
            skew_ns = min(skew_ns, self.skew_ns(trace))
        self.assertLess(skew_ns, MAX_SKEW_NS)
        groups = self.check_actors(trace)
        for device in ("device 0", "device 1"):
            self.assertGreater(groups[device]["sends"], 0)
            self.assertGreater(groups[device]["receives"], 0)

        counters = [trace.path(track)[-1] for track in trace.counters]
        for name in ("bytes in channel registers", "communications under way",
                     "bytes of the arena, planned", "bytes of states, planned",
                     "bytes of channels, planned", "bytes of workspace, planned"):
            self.assertEqual(counters.count(name), 2, counters)
        for kind in ("credits in use", "tokens waiting"):
            self.assertTrue(any(name.startswith(f"{kind}, F to B") for name in counters), counters)
        processes = {path[0] for path in map(trace.path, trace.slices) if len(path) > 1}
        for name in ("resident bytes", "bytes of arenas, planned"):
            self.assertEqual(sorted(trace.path(track) for track in trace.counters
                                    if trace.names[track] == name),
                             sorted([process, name] for process in processes))
        for track, samples in trace.counters.items():
            self.assertGreater(max(value for _, value in samples), 0, trace.path(track))
            self.assertGreaterEqual(min(value for _, value in samples), 0, trace.path(track))
            if trace.path(track)[-1].endswith(", planned"):  # a line that does not change
                self.assertEqual(len({value for _, value in samples}), 1, trace.path(track))
            elif trace.names[track] == "resident bytes":
                self.assertGreater(min(value for _, value in samples), 1_000_000)
            else:
                self.assertEqual(samples[-1][1], 0, trace.path(track))
        return trace

    def run_processes(self):
        subprocess.run([PENSTOCK, "run", self.job, "--procs", "2", "--trace", self.file],
                       check=True, capture_output=True, timeout=120)
        return self.file

    def test_every_actor_of_two_processes_is_there(self):
        trace = self.check(self.run_processes)
        processes = {trace.path(track)[0] for track in trace.slices}
        self.assertEqual(len([name for name in processes if name.startswith("node ")]), 2)

    def test_collectives_of_two_processes_are_there(self):
        self.use("dp=2,tp=2")
        trace = Trace(self.run_processes())
        groups = self.check_actors(trace)
        self.assertEqual(sorted(groups), [f"device {d}" for d in range(4)])
        for device, counts in groups.items():
            # Those of tp in the layers, and those of dp for the gradients.
            self.assertGreaterEqual(counts["collectives"], 4, (device, counts))
        collectives = collections.Counter(
            trace.device(track) for track, slices in trace.slices.items()
            if "collectives" in trace.path(track) for _ in slices)
        self.assertEqual(len(set(collectives.values())), 1, collectives)  # each takes part in all
        self.assertEqual(trace.flow_begins.keys(), trace.flow_ends.keys())

    def test_one_process_and_sampled_steps(self):
        subprocess.run([PENSTOCK, "run", self.job, "--trace", self.file, "--trace-every", "3"],
                       check=True, capture_output=True, timeout=120)
        trace = Trace(self.file)
        steps = {piece[3]["step"] for slices in trace.slices.values() for piece in slices
                 if "step" in piece[3]}
        self.assertEqual(steps, set(range(1, STEPS + 1, 3)))

    def test_a_simulation_has_the_tracks_of_a_run(self):
        subprocess.run([PENSTOCK, "run", self.job, "--trace", self.file], check=True,
                       capture_output=True, timeout=120)
        run = Trace(self.file)
        subprocess.run([PENSTOCK, "simulate", self.job, "--trace", self.file], check=True,
                       capture_output=True, timeout=120)
        simulated = Trace(self.file)

        def tracks(trace):
            return {"/".join(trace.path(track)) for track in trace.slices} - {
                path for path in ("/".join(trace.path(track)) for track in trace.slices)
                if path.startswith(("steps", "critical path"))}
        self.assertEqual(tracks(run), tracks(simulated))

    def run_in_two_namespaces(self):
        with subprocess.Popen(
                [PENSTOCK, "run", self.job, "--procs", "2", "--trace", self.file, "--listen",
                 "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                text=True) as run:
            nodes = []
            try:
                for line in run.stdout:
                    match = re.search(r"penstock node --join (\S+) --key-file (\S+)", line)
                    if match:
                        break
                else:
                    self.fail("the run printed no command for nodes")
                for rank, prefix in enumerate(([], OTHER_CLOCK)):
                    nodes.append(subprocess.Popen(
                        [*prefix, PENSTOCK, "node", "--join", match.group(1), "--key-file",
                         match.group(2), "--rank", str(rank)],
                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
                output, _ = run.communicate(timeout=120)
                self.assertEqual(run.returncode, 0, output)
                for node in nodes:
                    self.assertEqual(node.wait(timeout=60), 0)
            finally:
                for process in (run, *nodes):
                    process.kill()
                    process.wait()
        return self.file

    def test_clocks_that_differ_are_aligned(self):
        if subprocess.run([*OTHER_CLOCK, "true"], capture_output=True, check=False).returncode != 0:
            self.skipTest("cannot make a time namespace")
        trace = self.check(self.run_in_two_namespaces)
        times = [piece[1] for slices in trace.slices.values() for piece in slices]
        self.assertLess(max(times) - min(times), AHEAD_S * 1e9 / 2)


if __name__ == "__main__":
    unittest.main()
