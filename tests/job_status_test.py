"""A job that runs and that hangs, looked at with `penstock stack`, `penstock top` and Prometheus.

PENSTOCK_COMMAND names the command (default: build/bin/penstock).
"""

import json
import os
import pathlib
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.append(str(pathlib.Path(__file__).resolve().parent / "support"))
from watched_job import BOUND_S, PENSTOCK, WatchedJobTest  # noqa: E402


class JobStatusTest(WatchedJobTest):
    def test_a_stopped_process_is_the_root_of_the_chain(self):
        job = self.start_job("--strategy", "pp=2", "--devices", "2", "--procs", "2")
        status = self.await_look(lambda s: s["step"] >= 2)
        self.assertEqual(status["job"]["pid"], job.pid)
        self.assertEqual([p["answers"] for p in status["processes"]], [True, True])
        self.assertEqual([d["rank"] for d in status["devices"]], [0, 1])
        self.assertTrue(all(d["state"] != "silent" for d in status["devices"]))
        self.assertTrue(all(p["resident_bytes"] > 0 for p in status["processes"]))
        for wait in status["waits"]:
            self.assertTrue(wait["actor"] and wait["for"] and wait["device"] in (0, 1))

        top = self.call("top", str(job.pid), "--once", "--json")
        self.assertEqual(top.returncode, 0, top.stderr)
        table = json.loads(top.stdout)
        self.assertIn("waits", table)
        self.assertTrue(any((d["busy"] or 0) > 0 for d in table["devices"]), table)
        self.assertGreater(table["tokens_per_s"], 0)
        self.assertGreater(table["loss"], 0)

        stopped = status["processes"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            hanging = self.await_look(
                lambda s: s["devices"][0]["waits_for"] == [1] and s["devices"][0]["waiting_s"] > 1)
            self.assertEqual(hanging["devices"][1]["state"], "silent")
            self.assertFalse(hanging["processes"][1]["answers"])
            self.assertEqual([r["device"] for r in hanging["roots"]], [1])
            self.assertEqual(hanging["roots"][0]["pid"], stopped)
            self.assertIn("does not answer", hanging["roots"][0]["why"])
            named = [w for w in hanging["waits"] if w["device"] == 0 and w["devices"] == [1]]
            self.assertTrue(named, hanging["waits"])
            self.assertTrue(all("device 1" in w["for"] for w in named))
            begin = time.monotonic()
            text = self.call("stack").stdout
            seconds = time.monotonic() - begin
            self.assertRegex(text, rf"(?m)^device 1 does not answer: node 1 \(process {stopped} on "
                                   r".*<- root")
            self.assertRegex(text, r"(?m)^  device 0 waits ")
            self.assertLess(seconds, BOUND_S / 4)
            top = json.loads(self.call("top", "--once", "--json").stdout)
            self.assertTrue([w for w in top["waits"] if w["devices"] == [1]], top)
            self.assertIn("is silent for", self.call("top", "--once").stdout)
        finally:
            os.kill(stopped, signal.SIGCONT)
        done = hanging["step"]
        self.await_look(lambda s: s["step"] > done + 2 and s["processes"][1]["answers"])
        self.end(job)
        outcome = self.call("stack")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("no job of this user runs on this host", outcome.stderr)

    def test_a_validation_is_seen(self):
        job = self.start_job("--strategy", "tp=2", "--devices", "2", "--procs", "2", "--set",
                             "train.validation_every=1", "--set", "train.validation_sequences=500")
        status = self.await_look(lambda s: s["job"]["activity"] == "validating" and
                                 any(d["state"] == "running" for d in s["devices"]))
        stopped = status["processes"][1]["pid"]
        # A process that is stopped between two sessions hangs no device.
        for _ in range(10):
            os.kill(stopped, signal.SIGSTOP)
            try:
                time.sleep(0.5)
                hanging = self.look()
            finally:
                os.kill(stopped, signal.SIGCONT)
            if (hanging["job"]["activity"] == "validating" and
                    hanging["devices"][0]["waits_for"] == [1]):
                break
            done = hanging["step"]
            self.await_look(lambda s: s["step"] > done)  # pylint: disable=cell-var-from-loop
        self.assertEqual(hanging["job"]["activity"], "validating")
        self.assertEqual(hanging["devices"][0]["waits_for"], [1], hanging)
        self.assertEqual([r["pid"] for r in hanging["roots"]], [stopped])
        self.end(job)

    def test_a_generation_is_seen(self):
        checkpoints = self.folder / "checkpoints"
        trained = self.start_job("--devices", "1", "--set", "train.steps=1", "--set",
                                 f'checkpoint.path="{checkpoints}"')
        self.assertEqual(trained.wait(timeout=BOUND_S), 0, trained.err.read_text())
        generating = self.start("generate", str(checkpoints), "--prompt", "the quick", "--tokens",
                                "10000000", "--strategy", "tp=2", "--procs", "2", "--json")
        status = self.await_look(lambda s: s["step"] >= 2 and s["tokens_per_s"] > 0)
        self.assertEqual(status["job"]["activity"], "generating")
        self.assertEqual(status["job"]["pid"], generating.pid)
        self.assertEqual([d["rank"] for d in status["devices"]], [0, 1])
        top = self.call("top", str(generating.pid), "--once")
        self.assertIn("tokens/s", top.stdout)
        self.assertNotIn("nan", top.stdout)
        stopped = status["processes"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        try:
            hanging = self.await_look(lambda s: s["devices"][0]["waits_for"] == [1])
            self.assertEqual([r["pid"] for r in hanging["roots"]], [stopped])
        finally:
            os.kill(stopped, signal.SIGCONT)
        # Of a long generation a line now and then.
        deadline = time.monotonic() + BOUND_S
        while "/10000000 tokens  " not in generating.err.read_text():
            self.assertLess(time.monotonic(), deadline, generating.err.read_text())
            time.sleep(0.2)

    def test_a_job_in_one_process(self):
        job = self.start_job("--strategy", "dp=2", "--devices", "2")
        status = self.await_look(lambda s: s["step"] >= 2)
        self.assertEqual(len(status["processes"]), 1)
        self.assertEqual(len(status["devices"]), 2)
        self.assertIn("device 1", self.call("stack", str(job.pid)).stdout)
        table = self.call("top", "--once").stdout
        self.assertRegex(table, r"\nBUSY and rates: over the last \d+\.\d s; -: n/a\n")
        self.assertRegex(table, r"(?m)^ +0 +2 +\d+ % +[1-9][\d.]* +[1-9][\d.]*$")
        sockets = list((self.folder / "host" / "penstock").glob("*.sock"))
        self.assertEqual(len(sockets), 1)
        self.assertEqual(self.look(str(sockets[0]))["job"]["id"], status["job"]["id"])
        self.assertEqual(self.look(f"unix:{sockets[0]}")["job"]["id"], status["job"]["id"])

        # Clients that are silent or do not speak the protocol.
        others = []
        for i in range(60):
            client = socket.socket(socket.AF_UNIX)
            client.connect(str(sockets[0]))
            if i % 2:
                client.send(b"\xff\xff\xff\x7f" * 100)
            others.append(client)
        self.await_look(lambda s: s["step"] > status["step"] + 2)
        for client in others:
            client.close()

        # One that is stopped as a whole.
        os.kill(job.pid, signal.SIGSTOP)
        try:
            outcome = self.call("stack")
        finally:
            os.kill(job.pid, signal.SIGCONT)
        self.assertEqual(outcome.returncode, 1)
        self.assertIn(f"process {job.pid} is stopped", outcome.stderr)

        # Another job needs a name.
        other = self.start_job("--devices", "1", "--strategy", "dp=1")
        self.await_look(lambda s: s["step"] >= 1, str(other.pid))
        outcome = self.call("stack")
        self.assertEqual(outcome.returncode, 2)
        self.assertIn("several jobs run here", outcome.stderr)
        self.assertIn(f"process {job.pid} ", outcome.stderr)
        self.assertEqual(self.call("stack", "1").returncode, 2)

        # What a killed job leaves behind is removed.
        other.kill()
        other.wait()
        self.assertEqual(self.look()["job"]["pid"], job.pid)
        self.assertEqual(len(list((self.folder / "host" / "penstock").glob("*.sock"))), 1)
        self.end(job)
        self.assertEqual(list((self.folder / "host" / "penstock").glob("*.sock")), [])

    def test_a_folder_that_others_may_enter_is_not_used(self):
        (self.folder / "host" / "penstock").mkdir(mode=0o755)
        job = self.start_job("--devices", "1", "--strategy", "dp=1", "--set", "train.steps=2")
        self.assertEqual(job.wait(timeout=BOUND_S), 0, job.err.read_text())
        self.assertIn("this user alone may enter", job.err.read_text())
        self.assertEqual(self.call("stack").returncode, 2)

    def test_top_is_live_and_ends_in_order(self):
        job = self.start_job("--strategy", "dp=2", "--devices", "2")
        self.await_look(lambda s: s["step"] >= 1)
        parent, child = pty.openpty()
        top = subprocess.Popen([PENSTOCK, "top"], stdout=child, stderr=child,
                               env=self.environment)
        os.close(child)
        self.addCleanup(top.kill)
        shown = b""
        deadline = time.monotonic() + BOUND_S
        while shown.count(b"\x1b[H") < 3 and time.monotonic() < deadline:
            if select.select([parent], [], [], 1)[0]:
                shown += os.read(parent, 65536)
        top.send_signal(signal.SIGINT)
        while True:
            try:
                more = os.read(parent, 65536)
            except OSError:  # the other end is closed
                break
            if not more:
                break
            shown += more
        os.close(parent)
        self.assertEqual(top.wait(timeout=BOUND_S), 0)
        text = shown.decode()
        self.assertGreaterEqual(text.count("\x1b[H"), 3)
        self.assertTrue(text.startswith("\x1b[?1049h\x1b[?25l"), text[:40])
        self.assertTrue(text.endswith("\x1b[?25h\x1b[?1049l"), text[-40:])
        self.assertRegex(text, r"\d+ %")
        self.assertIn("MICRO-BATCHES/S", text)
        # One that watches sees the end of the job.
        watching = self.start("top", "--json")
        json.loads("{" + self.read_line(watching.out, "{"))
        self.end(job)
        self.assertEqual(watching.wait(timeout=BOUND_S), 0, watching.err.read_text())
        self.assertIn("the job has ended", watching.err.read_text())

    def test_a_node_on_another_host_tells_of_the_job(self):
        away = self.host("away")
        job = self.start_job("--devices", "1", "--strategy", "dp=1", "--procs", "1", "--listen",
                             "127.0.0.1:0")
        address, key_file = re.fullmatch(r"(\S+) --key-file (\S+)", self.read_line(
            job.err, "  penstock node --join ")).groups()
        self.assertEqual(os.stat(key_file).st_mode & 0o777, 0o600)
        key = pathlib.Path(key_file).read_text().strip()
        node = self.start("node", "--join", address, "--key-file", key_file, environment=away)
        status = self.await_look(lambda s: s["step"] >= 1)
        self.assertEqual(status["processes"][0]["pid"], node.pid)
        through_node = self.look(environment=away)
        self.assertEqual(through_node["job"]["id"], status["job"]["id"])
        self.assertEqual(self.look(str(node.pid), environment=away)["job"]["pid"], job.pid)
        elsewhere = {**self.host("elsewhere"), "PENSTOCK_KEY": key}
        self.assertEqual(self.look(address, environment=elsewhere)["job"]["pid"], job.pid)
        outcome = self.call("stack", address, environment={**elsewhere, "PENSTOCK_KEY": "0" * 64})
        self.assertNotEqual(outcome.returncode, 0)
        self.assertIn("key", outcome.stderr)
        self.end(job)
        node.wait(timeout=BOUND_S)
        self.assertEqual(list((self.folder / "away" / "penstock").glob("*.sock")), [])
        self.assertFalse(os.path.exists(key_file))

    def join(self, job, name):
        """A node that joins the job from a host of its own, the environment of which is returned,
        too."""
        environment = self.host(name)
        address, key_file = re.fullmatch(r"(\S+) --key-file (\S+)", self.read_line(
            job.err, "  penstock node --join ")).groups()
        return self.start("node", "--join", address, "--key-file", key_file,
                          environment=environment), environment

    def test_a_hanging_job_names_its_root_on_another_host(self):
        job = self.start_job("--strategy", "pp=2", "--devices", "2", "--procs", "2", "--listen",
                             "127.0.0.1:0")
        nodes = dict(self.join(job, name) for name in ("here", "there"))
        status = self.await_look(lambda s: s["step"] >= 1)
        pids = [process["pid"] for process in status["processes"]]
        self.assertEqual(sorted(pids), sorted(node.pid for node in nodes))
        away = next(host for node, host in nodes.items() if node.pid == pids[0])
        os.kill(pids[1], signal.SIGSTOP)
        try:
            hanging = self.await_look(lambda s: s["devices"][0]["waits_for"] == [1] and
                                      not s["processes"][1]["answers"], environment=away)
            text = self.call("stack", environment=away).stdout
        finally:
            os.kill(pids[1], signal.SIGCONT)
        self.assertEqual([root["pid"] for root in hanging["roots"]], [pids[1]])
        self.assertIn("does not answer", hanging["roots"][0]["why"])
        self.assertRegex(text, rf"(?m)^device 1 does not answer: node 1 \(process {pids[1]} on "
                               r".*<- root")
        self.assertRegex(text, r"(?m)^  device 0 waits ")
        done = hanging["step"]
        self.await_look(lambda s: s["step"] > done + 2, environment=away)
        self.end(job)

    def test_a_stopped_coordinator_is_named_on_another_host(self):
        job = self.start_job("--devices", "1", "--strategy", "dp=1", "--procs", "1", "--listen",
                             "127.0.0.1:0")
        node, away = self.join(job, "away")
        done = self.await_look(lambda s: s["step"] >= 1, environment=away)["step"]
        os.kill(job.pid, signal.SIGSTOP)
        try:
            outcomes = [self.call("stack", environment=away),
                        self.call("top", "--once", environment=away)]
        finally:
            os.kill(job.pid, signal.SIGCONT)
        for outcome in outcomes:
            self.assertEqual(outcome.returncode, 1, outcome)
            self.assertRegex(outcome.stderr, rf"the coordinator \(pid {job.pid} on \S+\) has not "
                                             rf"answered this node of the job \(pid {node.pid}\)")
            # Which is the process to continue; the one asked is not.
            self.assertNotIn(f"-CONT {node.pid}", outcome.stderr)
        self.await_look(lambda s: s["step"] > done + 2, environment=away)
        self.end(job)

    def scrape(self, url):
        """The samples that a server of metrics gives, by name with labels."""
        with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
            lines = answer.read().decode().splitlines()
        return {name: float(value) for name, value in
                (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}

    def test_counters_never_fall_while_a_job_validates_and_samples(self):
        """A server takes a counter that falls for one of a process that was started again, and one
        that is missing for the end of its series."""
        (self.folder / "text.txt").write_text(
            "".join(f"the quick brown fox {i} jumps; " for i in range(8000)))
        job = self.start_job("--strategy", "tp=2", "--devices", "2", "--procs", "2", "--metrics",
                             "0", "--set", "train.steps=300", "--set", "train.validation_every=50",
                             "--set", "train.validation_sequences=5000", "--set",
                             "sample.bytes=2000")
        url = self.read_line(job.err, "metrics: ")
        last = {}
        clocks = []  # of the wall, and the time of device 0 in all
        while job.poll() is None:
            try:
                now = self.scrape(url)
            except OSError:  # the job has ended
                break
            counters = {name: value for name, value in now.items()
                        if re.match(r"[a-z_]+_(total|count|sum|bucket)\b", name)}
            self.assertFalse(last.keys() - counters.keys(), job.err.read_text())
            fallen = {name: (last[name], value) for name, value in counters.items()
                      if value < last.get(name, 0)}
            self.assertFalse(fallen, job.err.read_text())
            last = counters
            times = [value for name, value in counters.items() if re.match(
                r'penstock_device_(busy|idle)_seconds_total\{device="0"', name)]
            if times:
                clocks.append((time.monotonic(), sum(times)))
        self.assertEqual(job.wait(timeout=BOUND_S), 0, job.err.read_text())
        # It has validated between steps and has sampled, whether or not a look came at that time.
        validated = re.findall(r"step (\d+)/300  validation loss ", job.err.read_text())
        self.assertEqual(validated, ["50", "100", "150", "200", "250"])
        summary = json.loads(job.out.read_text().splitlines()[-1])["summary"]
        self.assertTrue(summary["sample"], summary)
        self.assertGreater(summary["validation_loss"], 0)
        # A device has as much time as a clock on the wall, over all sessions.
        wall, device = (end - begin for begin, end in zip(clocks[0], clocks[-1]))
        self.assertAlmostEqual(device, wall, delta=0.1 * wall + 0.5)
        # What validations have done is counted, too: it is more than steps under way have.
        self.assertGreater(last['penstock_device_microbatches_total{device="1",stage="0"}'],
                           2 * last["penstock_steps_total"] + 10)

    def read_metrics(self, url):
        with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
            text = answer.read().decode()
        values = {}
        for line in text.splitlines():
            if not line.startswith("#"):
                name, value = line.rsplit(" ", 1)
                values[name] = float(value)
        return values

    def test_metrics_tell_exposed_communication(self):
        """Without a pipeline, devices wait for collectives alone."""
        job = self.start_job("--strategy", "tp=2", "--devices", "2", "--procs", "2", "--metrics",
                             "0")
        url = self.read_line(job.err, "metrics: ")
        self.await_look(lambda s: s["step"] >= 7)
        values = self.read_metrics(url)
        for device in "01":
            idle = f'penstock_device_idle_seconds_total{{device="{device}",stage="0",during='
            self.assertGreater(values[idle + '"collective"}'], 0)
            self.assertEqual(values[idle + '"transfer"}'], 0)

    def test_metrics(self):
        job = self.start_job("--strategy", "pp=2", "--devices", "2", "--procs", "2", "--metrics",
                             "0", "--set", f'checkpoint.path="{self.folder}/checkpoints"', "--set",
                             "checkpoint.every=3")
        url = self.read_line(job.err, "metrics: ")
        self.assertRegex(url, r"^http://127\.0\.0\.1:\d+/metrics$")
        status = self.await_look(lambda s: s["step"] >= 7)
        values = self.read_metrics(url)
        self.assertGreaterEqual(values["penstock_step"], 7)
        self.assertGreaterEqual(values["penstock_steps_total"], 7)
        self.assertEqual(values["penstock_step_duration_seconds_count"],
                         values["penstock_steps_total"])
        self.assertEqual(values["penstock_tokens_total"],
                         values["penstock_steps_total"] * 8 * 16)
        self.assertGreater(values["penstock_loss"], 0)
        self.assertGreaterEqual(values['penstock_checkpoints_total{result="written"}'], 1)
        for device in "01":
            labels = f'device="{device}",stage="{device}"'
            self.assertGreater(values[f"penstock_device_busy_seconds_total{{{labels}}}"], 0)
            self.assertGreater(
                values[f'penstock_device_idle_seconds_total{{{labels},during="transfer"}}'], 0)
            planned = values[f"penstock_device_planned_memory_bytes{{{labels}}}"]
            self.assertGreater(planned, 0)
            self.assertLess(values[f"penstock_device_channel_memory_bytes{{{labels}}}"], planned)
            self.assertGreater(values[f"penstock_device_credits{{{labels}}}"], 0)
            self.assertLessEqual(values[f"penstock_device_credits_in_use{{{labels}}}"],
                                 values[f"penstock_device_credits{{{labels}}}"])
            self.assertIn(f"penstock_device_tokens_waiting{{{labels}}}", values)
            self.assertGreaterEqual(values[f"penstock_device_microbatches_total{{{labels}}}"], 7)
        self.assertEqual(sum(v for k, v in values.items() if k.startswith("penstock_node_up")), 2)

        request = urllib.request.Request(url, headers={"Host": "evil.example"})
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=BOUND_S)
        self.assertEqual(refused.exception.code, 403)

        stopped = status["processes"][1]["pid"]
        os.kill(stopped, signal.SIGSTOP)
        # It may answer once more while it stops. Once lost, it ends the job.
        deadline = time.monotonic() + BOUND_S
        hanging = ""
        try:
            while not re.search(r'penstock_node_up\{rank="1",host="[^"]*"\} 0\n', hanging):
                self.assertLess(time.monotonic(), deadline, hanging)
                with urllib.request.urlopen(url, timeout=BOUND_S) as answer:
                    hanging = answer.read().decode()
        finally:
            os.kill(stopped, signal.SIGCONT)
        self.end(job)


if __name__ == "__main__":
    unittest.main()
