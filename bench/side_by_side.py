"""Two jobs at the same time: what disturbs the machine disturbs both.

From run to run, a step takes up to 10 % more or less time here, and processor time with it; two equal
jobs that run together and share all cores differ by 0.3 %. (With control groups of equal shares they
differ by 7 %, with a core for each by 4 %: neither groups nor cores get the same.)

The kernel shares the cores among threads, not jobs. So what a job does on the threads that compute shows
in the time of its steps; what other threads of it take slows both jobs, and shows in its processor time.
"""

import json
import os
import pathlib
import statistics
import subprocess
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
PENSTOCK = os.environ.get("PENSTOCK", str(ROOT / "build/bin/penstock"))


class Failure(Exception):
    """A job failed: what it said."""


class Job:
    """`penstock run --json` that prints each step, and what else belongs to it. `on_error_line` is called
    with the job and each line of its standard error, `on_step` with the job after each step, both on
    threads of their own."""

    def __init__(self, command, on_error_line=None, on_step=None):
        self.processes = []
        self.process = self.start(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                  start_new_session=True)
        self.done = []  # when each step was, in seconds of time.monotonic
        self.errors = []
        self.on_error_line = on_error_line
        self.on_step = on_step
        self.threads = [threading.Thread(target=target, daemon=True)
                        for target in (self._read_steps, self._read_errors)]
        for thread in self.threads:
            thread.start()

    def start(self, command, **options):
        """Another process of the job."""
        self.processes.append(subprocess.Popen(command, **options))
        return self.processes[-1]

    def _read_steps(self):
        for line in self.process.stdout:
            if "step_time_s" in json.loads(line):
                self.done.append(time.monotonic())
                if self.on_step is not None:
                    self.on_step(self)

    def _read_errors(self):
        for line in self.process.stderr:
            self.errors.append(line)
            if self.on_error_line is not None:
                self.on_error_line(self, line)

    def wait(self):
        """Processor seconds of the job's processes and what these have waited for."""
        for thread in self.threads:
            thread.join()
        seconds = 0
        for process in self.processes:
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            seconds += usage.ru_utime + usage.ru_stime
        if self.process.returncode != 0:
            raise Failure("".join(self.errors))
        return seconds

    def steps_until(self, moment):
        """Steps done at a moment, with a part of the one that was under way."""
        count = sum(done <= moment for done in self.done)
        if count == 0 or count == len(self.done):
            return count
        before, after = self.done[count - 1], self.done[count]
        return count + (moment - before) / (after - before)

    def kill(self):
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                process.wait()


def compare(start_first, start_second, skip, second_starts=False):
    """Runs two jobs, which a function each starts, and compares the second with the first: the time of a
    step, while both run and behind `skip` steps of both, and the processor time of a job's step.
    `second_starts`: it is started before the first."""
    starts = [start_first, start_second]
    jobs = [None, None]
    try:
        for i in (1, 0) if second_starts else (0, 1):
            jobs[i] = starts[i]()
        processor = [job.wait() for job in jobs]
    finally:
        for job in jobs:
            if job is not None:
                job.kill()
    begin = max(job.done[skip - 1] for job in jobs)
    end = min(job.done[-1] for job in jobs)
    if end <= begin:
        raise Failure("the two jobs hardly ran at the same time: more steps are needed")
    steps = [job.steps_until(end) - job.steps_until(begin) for job in jobs]
    per_step = [seconds / len(job.done) for seconds, job in zip(processor, jobs)]
    return {"step_s": (end - begin) / steps[0], "step": steps[0] / steps[1],
            "processor_s": per_step[0], "processor": per_step[1] / per_step[0]}


def summary(rounds):
    """Of what compare gave for each: "time of a step 1.003 (0.982 to 1.031), processor time ...", the
    medians with the rounds that were the least and the largest."""
    return ", ".join(f"{name} {statistics.median(values):.4f} ({min(values):.4f} to {max(values):.4f})"
                     for name, values in (("time of a step", [found["step"] for found in rounds]),
                                          ("processor time", [found["processor"] for found in rounds])))


def parse(parser, steps):
    """The options, with those that all comparisons have."""
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--skip", type=int, default=5, help="first steps, which are not compared")
    parser.add_argument("--procs", type=int, default=2)
    parser.add_argument("--set", action="append", default=[])
    options = parser.parse_args()
    if not 0 < options.skip < options.steps:
        parser.error("--skip must lie between 0 and --steps")
    return options


def demo(options, more_steps=0):
    """The command that runs the demo, of training steps alone, and prints each step."""
    command = [PENSTOCK, "run", str(ROOT / "examples/gpt/demo.toml"), "--json", "--procs", str(options.procs)]
    for setting in (f"train.steps={options.steps + more_steps}", "train.validation_sequences=0",
                    "train.log_every=1", "sample.bytes=0", *options.set):
        command += ["--set", setting]
    return command
