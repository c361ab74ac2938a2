// A run of `penstock run`: its processes and session, the training, and what follows it.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_JOB_RUN_H_
#define PENSTOCK_CLI_JOB_RUN_H_

#include <memory>

#include "absl/status/status.h"
#include "cli/checkpoints.h"
#include "cli/environment.h"
#include "cli/feeds.h"
#include "cli/interrupts.h"
#include "cli/job.h"
#include "cli/recorded_lines.h"
#include "cli/run_program.h"

namespace penstock::cli {

// Trains the program, validates and samples, writes what the options name, and prints the summary.
// `recorded` is the environment with a stream for messages that keeps the notes among them in
// `lines`. `checkpoints` may be null. `interrupts` end it.
absl::Status RunJob(const Environment& environment, const Environment& recorded,
                    RecordedLines& lines, Interrupts& interrupts, const RunOptions& options,
                    const Job& job, RunProgram program, StepFeeds feeds, ResumePoint start,
                    std::unique_ptr<Checkpoints> checkpoints);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_RUN_H_
