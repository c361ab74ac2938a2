"""Classes that protoc generates from Chakra's published schema read the traces of
`penstock simulate --chakra`.

Skipped where PyPI's grpcio-tools is not installed (tests/requirements.txt, in the virtual
environment build/python that scripts/test makes).
PENSTOCK_COMMAND names the command (default: build/bin/penstock).
CHAKRA_TEST_JOB=large plans gpt3-175b on 1,024 devices instead of a small model on 16.
"""

import collections
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
SCHEMA = ROOT / "planner/chakra/schema"
PENSTOCK = os.environ.get("PENSTOCK_COMMAND", str(ROOT / "build/bin/penstock"))
sys.path.extend(str(path) for path in (ROOT / "build/python/lib").glob("python3*/site-packages"))

try:
    from grpc_tools import protoc
except ImportError as error:
    protoc = None
    MISSING = str(error)

JOB = """
[model]
name = "gpt"
layers = 4
width = 64
heads = 4
context = 32
[train]
batch = 32
"""
LARGE = os.environ.get("CHAKRA_TEST_JOB") == "large"
STRATEGY = "dp=16,tp=8,pp=8" if LARGE else "dp=4,tp=2,pp=2"
CLUSTER = "hgx-h100:128" if LARGE else "hgx-h100:2"
MICROBATCHES = 8


def read_varint(data, offset):
    value = shift = 0
    while True:
        value |= (data[offset] & 0x7f) << shift
        shift += 7
        offset += 1
        if data[offset - 1] < 0x80:
            return value, offset


@unittest.skipIf(protoc is None, f"protoc for Python: {globals().get('MISSING')}")
class ChakraTraceTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        folder = pathlib.Path(cls.folder.name)
        status = protoc.main(["protoc", f"-I{SCHEMA}", f"--python_out={folder}",
                              str(SCHEMA / "et_def.proto")])
        assert status == 0, status
        sys.path.insert(0, str(folder))
        cls.proto = importlib.import_module("et_def_pb2")
        cls.job = folder / "job.toml"
        cls.job.write_text('[model]\nname = "gpt3-175b"\n[train]\nbatch = 128\ndtype = "bf16"\n'
                           if LARGE else JOB, encoding="utf-8")
        cls.traces = folder / "traces"
        cls.plan = cls.simulate(cls.job, "--strategy", STRATEGY, "--set",
                                f"parallel.microbatches={MICROBATCHES}", "--chakra", cls.traces,
                                "--chakra-ranks", "programs", "--aggregate")

    @staticmethod
    def simulate(*arguments):
        done = subprocess.run(
            [PENSTOCK, "simulate", *map(str, arguments), "--cluster", CLUSTER, "--json"],
            capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def read(self, path):
        """The metadata and the nodes of a trace."""
        data = path.read_bytes()
        messages = []
        offset = 0
        while offset < len(data):
            size, offset = read_varint(data, offset)
            message = self.proto.Node() if messages else self.proto.GlobalMetadata()
            message.ParseFromString(data[offset:offset + size])
            messages.append(message)
            offset += size
        return messages[0], messages[1:]

    @staticmethod
    def attributes(message):
        return {attr.name: getattr(attr, attr.WhichOneof("value")) for attr in message.attr}

    def test_every_program_is_read_and_every_send_is_received(self):
        proto = self.proto
        groups = json.loads((self.traces / "comm_groups.json").read_text(encoding="utf-8"))
        messages = collections.Counter()
        runs = collections.defaultdict(set)  # of a collective: ranks
        ranks = set()
        represented = 0
        for path in self.traces.glob("*.et"):
            rank = int(path.name.split(".")[1])
            ranks.add(rank)
            metadata, nodes = self.read(path)
            represented += self.attributes(metadata)["stands_for"]
            seen = set()
            for node in nodes:
                self.assertNotIn(node.id, seen)
                # Whatever a node depends on comes before it.
                self.assertLessEqual(set(node.ctrl_deps) | set(node.data_deps), seen, node.name)
                seen.add(node.id)
                attributes = self.attributes(node)
                if node.type == proto.COMP_NODE:
                    self.assertGreaterEqual(attributes["num_ops"], 1)
                    self.assertGreaterEqual(attributes["tensor_size"], 1)
                    self.assertLessEqual(
                        abs(1000 * node.duration_micros - attributes["duration_ns"]), 1000)
                elif node.type in (proto.COMM_SEND_NODE, proto.COMM_RECV_NODE):
                    is_send = node.type == proto.COMM_SEND_NODE
                    self.assertEqual(attributes["comm_src" if is_send else "comm_dst"], rank)
                    key = tuple(attributes[f"comm_{name}"] for name in ("src", "dst", "tag", "size"))
                    messages[key] += 1 if is_send else 1000
                elif node.type == proto.COMM_COLL_NODE:
                    self.assertIn(rank, groups[attributes["pg_name"]])
                    self.assertGreater(attributes["comm_size"], 0)
                    runs[attributes["pg_name"], attributes["comm_tag"]].add(rank)
                else:
                    self.assertEqual(node.type, proto.METADATA_NODE)
        self.assertEqual(represented, 1024 if LARGE else 16)
        self.assertLess(len(ranks), represented)
        self.assertEqual(self.plan["chakra"]["traces"], len(ranks))
        self.assertGreater(len(messages), 0)
        self.assertEqual(set(messages.values()), {1001})
        for (group, _), members in runs.items():
            self.assertEqual(members, ranks & set(groups[group]))

    def test_the_traces_take_as_long_as_the_plan(self):
        again = self.simulate(self.traces)
        self.assertAlmostEqual(again["step_time_s"] / self.plan["step_time_s"], 1, delta=0.02)


if __name__ == "__main__":
    unittest.main()
