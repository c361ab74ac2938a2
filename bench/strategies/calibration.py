#!/usr/bin/env python3
"""How well a cluster that `penstock calibrate` fits to some measured steps predicts others.

    calibration.py ROWS.csv [--penstock PATH] [-o TABLE.md]

Fits rows 1, 3, 5, ... of ROWS.csv (the columns are those of `penstock calibrate`) and predicts rows
2, 4, 6, ..., then the other way round. With each fit it predicts the configurations of published.py, which
ran on A100s, with the number of sequences in a micro-batch that is predicted fastest, because the
table gives none. The published runs were interleaved; these predictions are not. Prints two tables
in Markdown.
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile

from published import CONTEXT, PUBLISHED, published_seconds

COLUMNS = ["gpus", "global_batch", "micro_batch", "hidden", "heads", "layers", "seq", "tp", "dp",
           "pp", "iteration_ms"]
MICRO_BATCHES = (1, 2, 4, 8)


def published_rows():
    """(configuration, row) for each published configuration and micro-batch that divides it."""
    for configuration in PUBLISHED:
        _, heads, width, layers, tp, pp, gpus, batch, teraflops = configuration
        dp = gpus // tp // pp
        milliseconds = 1e3 * published_seconds(heads, width, layers, gpus, batch, teraflops)
        for micro_batch in MICRO_BATCHES:
            if batch % (dp * micro_batch) == 0:
                yield configuration, dict(zip(COLUMNS, (
                    gpus, batch, micro_batch, width, heads, layers, CONTEXT, tp, dp, pp,
                    milliseconds)))


def write_rows(path, rows):
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)


def fit(penstock, folder, fitted, held_out):
    """Errors of the fitted rows, and predicted seconds of the others."""
    write_rows(f"{folder}/fitted.csv", fitted)
    write_rows(f"{folder}/held_out.csv", held_out)
    run = subprocess.run(
        [penstock, "calibrate", f"{folder}/fitted.csv", "--holdout", f"{folder}/held_out.csv",
         "-o", f"{folder}/cluster.toml", "--json"], stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(run.stdout)
    return errors(fitted, result["predicted_s"]), result["holdout_predicted_s"]


def errors(rows, predicted):
    return [seconds / (float(row["iteration_ms"]) * 1e-3) - 1
            for row, seconds in zip(rows, predicted)]


def summary(values):
    sizes = [abs(value) for value in values]
    return f"{100 * sum(sizes) / len(sizes):.1f} % | {100 * max(sizes):.1f} %"


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", metavar="ROWS.csv")
    parser.add_argument("--penstock", default="build/bin/penstock")
    parser.add_argument("-o", "--output")
    options = parser.parse_args()
    with open(options.rows, newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    published = list(published_rows())
    lines = ["| fitted | mean error | largest | other rows: mean error | largest |",
             "|---|---|---|---|---|"]
    best = {}  # by configuration: of each fit, the micro-batch and the error of the fastest
    halves = {"rows 1, 3, ...": (rows[0::2], rows[1::2]),
              "rows 2, 4, ...": (rows[1::2], rows[0::2])}
    with tempfile.TemporaryDirectory() as folder:
        for name, (fitted, others) in halves.items():
            held_out = others + [row for _, row in published]
            fit_errors, predicted = fit(options.penstock, folder, fitted, held_out)
            lines.append(f"| {name} | {summary(fit_errors)} | "
                         f"{summary(errors(others, predicted))} |")
            fastest = {}
            for (configuration, row), seconds in zip(published, predicted[len(others):]):
                if seconds < fastest.get(configuration, (float("inf"),))[0]:
                    fastest[configuration] = (seconds, row)
            for configuration, (seconds, row) in fastest.items():
                best.setdefault(configuration, []).append(
                    (row["micro_batch"], seconds / (row["iteration_ms"] * 1e-3) - 1))
    lines += ["", "| parameters | GPUs | tp | pp | published | " +
              " | ".join(f"{name}: micro-batch | error" for name in halves) + " |",
              "|---|---|---|---|---|" + "---|---|" * len(halves)]
    for configuration, results in best.items():
        billions, heads, width, layers, tp, pp, gpus, batch, teraflops = configuration
        seconds = published_seconds(heads, width, layers, gpus, batch, teraflops)
        cells = " | ".join(f"{micro_batch} | {100 * error:+.1f} %" for micro_batch, error in results)
        lines.append(f"| {billions} B | {gpus} | {tp} | {pp} | {seconds:.2f} s | {cells} |")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write(text)


if __name__ == "__main__":
    main()
