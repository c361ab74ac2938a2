// The status of a job as the commands print it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_JOB_STATUS_TEXT_H_
#define PENSTOCK_CLI_JOB_STATUS_TEXT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "actors/cluster/job_status.h"

namespace penstock::cli {

// Of two looks at a job, one after the other. A device is busy where it is not idle; NaN: not
// known, as where the looks are at different sessions.
double BusyFraction(const actors::JobStatus& before, const actors::JobStatus& after,
                    uint32_t device);

// A stage between two looks. NaN: not known.
struct StageRates {
  uint32_t num_devices = 0;
  double busy = 0;  // mean of its devices
  // Of micro-batches that take longer than about half of the time between the looks, none may have
  // ended in it: then no rate is known.
  double microbatches_per_s = 0;  // likewise: each works on its part of a micro-batch
  double tokens_per_s = 0;        // at the tokens of the job's last step
};

// By stage.
std::vector<StageRates> RatesOfStages(const actors::JobStatus& before,
                                      const actors::JobStatus& after);

// The time between two looks, as the devices tell it; 0: none has answered both.
double SecondsBetween(const actors::JobStatus& before, const actors::JobStatus& after);

// How long a look waits for another one, to tell rates: so that each stage ends some micro-batches
// meanwhile, where the job knows how long those take, within a few seconds.
double SecondsForRates(const actors::JobStatus& first);

// One JSON object, without a newline. With `before`, an earlier look, devices have "busy" and there
// are "stages" and "interval_s".
std::string JobStatusJson(const actors::JobStatus& status, const actors::JobStatus* before);

// What each device does, and which it waits for: a tree below each root, and the cycles.
std::string StackText(const actors::JobStatus& status);

// A table of the stages, with `before`, and one of the devices. At most `max_rows` rows; 0: all.
// Lines are cut at `columns`; 0: not.
std::string TopText(const actors::JobStatus& status, const actors::JobStatus* before, int max_rows,
                    int columns);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_STATUS_TEXT_H_
