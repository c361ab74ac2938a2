"""What a signal or a time limit does to a launch whose hosts are still being probed or started: it ends
with a message and the status of the signal, and so do the programs that start nodes, with what they have
started. Where `launch` itself is killed, they end as well.

These programs are a script that runs the command of a node here, or hangs. PENSTOCK_COMMAND names the
command (default: build/bin/penstock).
"""

import os
import pathlib
import signal
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
sys.dont_write_bytecode = True

from tests.support.deaths import PENSTOCK, DeathTest, command_of, marked_processes  # noqa: E402
from tests.support.launched_job import PATIENCE_S, job_text  # noqa: E402
from tests.support.ssh_server import await_true  # noqa: E402

# Of an end in order; that of programs which end when they are asked to takes a fraction of it.
BOUND_S = 8
# Without `launch`, programs are asked to end after 5 s, and killed two seconds later.
KILLED_BOUND_S = 11
NAMES = {signal.SIGINT: "Interrupt", signal.SIGTERM: "Terminated", signal.SIGHUP: "Hangup"}
WHERE = {"auto": "while the hosts were probed",
         "dp=2": "while the processes of the job were started"}


class InterruptedStartTest(DeathTest):
    def begin(self, strategy="dp=2", hanging=("127.0.0.1", "127.0.0.2"), before="", options=(),
              hosts="127.0.0.1,127.0.0.2"):
        """Starts a launch, which waits for the hosts that hang. `before`: what their programs do first."""
        self.job.write_text(job_text(strategy))
        starter = self.folder / "starter"
        starter.write_text(f"""#!/bin/sh
for word; do host=$command; command=$word; done
case "$host" in
{"|".join(hanging)}) {before or ":"}; sleep 1000; exit 1 ;;
*) exec /bin/sh -c "$command" ;;
esac
""")
        starter.chmod(0o755)
        self.begin_program([str(self.program), "launch", "-H", hosts, "--through", str(starter),
                            "--remote-program", str(self.program), "--log-dir", str(self.logs), *options,
                            "--", str(self.job)])
        await_true(lambda: len(self.sleeps()) == len(hanging) or self.run_.poll() is not None,
                   "the hosts hang")
        self.assertIsNone(self.run_.poll(), self.output.text())
        self.begin_s = time.monotonic()

    def sleeps(self):
        return [pid for pid in marked_processes(self.folder.name)
                if command_of(pid).startswith("sleep ")]

    def check_end(self, status, pattern, bound_s=BOUND_S):
        self.assertEqual(self.run_.wait(PATIENCE_S), status, self.output.text())
        self.output.thread.join(PATIENCE_S)
        self.assertRegex(self.output.text(), pattern)
        self.check_gone(self.begin_s, bound_s)

    def check_signal(self, strategy, number):
        self.begin(strategy)
        self.run_.send_signal(number)
        self.check_end(128 + number, rf"penstock: interrupted \({NAMES[number]}\) {WHERE[strategy]}; missing: "
                       r"127\.0\.0\.1 \(rank 0\) and 127\.0\.0\.2 \(rank 1\)\n")
        self.assertIn("penstock: interrupted; ending what was started (again: at once)\n",
                      self.output.text())

    def test_an_interrupt(self):
        self.check_signal("dp=2", signal.SIGINT)

    def test_a_termination(self):
        self.check_signal("dp=2", signal.SIGTERM)

    def test_a_hangup(self):
        self.check_signal("dp=2", signal.SIGHUP)

    def test_an_interrupt_of_the_probe(self):
        self.check_signal("auto", signal.SIGINT)

    def test_a_termination_of_the_probe(self):
        self.check_signal("auto", signal.SIGTERM)

    def test_a_hangup_of_the_probe(self):
        self.check_signal("auto", signal.SIGHUP)

    def test_an_interrupt_when_one_host_has_joined(self):
        self.begin(hanging=("127.0.0.2",))
        await_true(lambda: self.output.time_of("joined: rank 0"), "one host joins")
        self.begin_s = time.monotonic()
        self.run_.send_signal(signal.SIGINT)
        self.check_end(130, rf"penstock: interrupted \(Interrupt\) {WHERE['dp=2']}; missing: "
                       r"127\.0\.0\.2 \(rank 1\)\n")

    def test_an_interrupt_of_the_probe_when_one_host_runs(self):
        self.begin("auto", hanging=("127.0.0.2",))
        await_true(lambda: self.processes("node"), "one host runs")
        self.begin_s = time.monotonic()
        self.run_.send_signal(signal.SIGINT)
        # That it has joined is not told here.
        self.check_end(130, rf"penstock: interrupted \(Interrupt\) {WHERE['auto']}; missing: "
                       r"(127\.0\.0\.1 \(rank 0\) and )?127\.0\.0\.2 \(rank 1\)\n")

    def test_the_ranks_of_a_host_that_is_probed(self):
        """One node is started on it, which stands for all."""
        self.begin("auto", hosts="127.0.0.1:2,127.0.0.2:2")
        self.run_.send_signal(signal.SIGINT)
        self.check_end(130, r"missing: 127\.0\.0\.1 \(ranks 0-1\) and 127\.0\.0\.2 \(ranks 2-3\)\n")

    def test_programs_that_do_not_end_are_killed(self):
        self.begin(before="trap '' TERM")
        self.run_.send_signal(signal.SIGINT)
        self.check_end(130, r"penstock: interrupted \(Interrupt\)")

    def test_a_second_interrupt_ends_them_at_once(self):
        self.begin(before="trap '' TERM")
        self.run_.send_signal(signal.SIGINT)
        await_true(lambda: self.output.time_of("again: at once"), "the first one")
        begin = time.monotonic()
        self.run_.send_signal(signal.SIGINT)
        self.check_end(130, r"penstock: interrupted \(Interrupt\)")
        self.assertLess(time.monotonic() - begin, 2.8)  # they would have 3 s

    def check_time_limit(self, strategy):
        self.begin(strategy, options=("--timeout", "2s"))
        self.check_end(124, r"penstock: the time limit of 2s is over; ending what was started(.|\n)*"
                       rf"penstock: ended at its time limit of 2s {WHERE[strategy]}; missing: ")

    def test_a_time_limit(self):
        self.check_time_limit("dp=2")

    def test_a_time_limit_of_the_probe(self):
        self.check_time_limit("auto")

    def test_a_join_timeout_of_the_probe(self):
        self.begin("auto", options=("--join-timeout", "2"))
        self.check_end(69, rf"penstock: {WHERE['auto']}: not all nodes joined \S+ in 2s: missing ranks "
                       r"0 on 127\.0\.0\.1, 1 on 127\.0\.0\.2\n")

    def check_kill(self, **how):
        self.begin(**how)
        self.run_.kill()
        self.run_.wait(PATIENCE_S)
        self.check_gone(self.begin_s, KILLED_BOUND_S)

    def test_a_launch_that_is_killed(self):
        self.check_kill()

    def test_a_launch_that_is_killed_while_it_probes(self):
        self.check_kill(strategy="auto")

    def test_a_launch_that_is_killed_when_one_host_runs(self):
        self.check_kill(hanging=("127.0.0.2",))

    def test_a_launch_that_is_killed_before_programs_that_do_not_end(self):
        self.check_kill(before="trap '' TERM")


class InterruptedRunTest(DeathTest):
    """Before anything was started."""

    def test_a_job_that_is_read(self):
        fifo = self.folder / "fifo.toml"
        os.mkfifo(fifo)
        for number, name in NAMES.items():
            with self.subTest(name):
                run = subprocess.Popen([PENSTOCK, "run", str(fifo)], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.PIPE, text=True)
                self.addCleanup(run.wait)
                self.addCleanup(run.kill)
                self.addCleanup(run.stderr.close)

                def is_read():
                    """The fifo opens once it has a reader; that then waits for something to read."""
                    try:
                        fd = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
                    except OSError:
                        return False
                    self.addCleanup(os.close, fd)
                    return True
                await_true(is_read, "the job is read")
                run.send_signal(number)
                self.assertEqual(run.wait(PATIENCE_S), 128 + number)
                self.assertEqual(run.stderr.read(),
                                 f"penstock: interrupted ({name}) while the job was read\n")


if __name__ == "__main__":
    unittest.main()
