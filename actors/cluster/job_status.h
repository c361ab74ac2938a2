// What a job does at a moment: for `penstock stack` and `penstock top`.
//
// Thread rule: values.

#ifndef PENSTOCK_ACTORS_CLUSTER_JOB_STATUS_H_
#define PENSTOCK_ACTORS_CLUSTER_JOB_STATUS_H_

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "actors/cluster/answers.h"
#include "actors/engine/device_snapshot.h"
#include "actors/engine/wait_chain.h"

namespace penstock::actors {

// What `penstock stack` and `penstock top` show of a job. Counts and times are of the moment of the
// look.
struct JobStatus {
  // A device of the plan.
  struct Device {
    DeviceSnapshot state;             // without `communications` and `waits`
    uint32_t stage = 0;               // of the pipeline that it belongs to
    uint64_t memory_bytes = 0;        // that the plan gives it
    uint32_t num_pending = 0;         // sends, receives and collectives under way
    std::vector<uint32_t> waits_for;  // indices of the devices that keep it waiting
  };

  std::string id;        // the same from whichever process the status comes
  std::string name;      // of the plan
  std::string strategy;  // that the plan was made for, such as "dp=2,pp=2"
  std::string host;      // of the coordinator
  int64_t pid = 0;       // likewise
  std::string activity;  // "training", "loading", ...
  std::string note;      // why there are no devices; empty: there are
  // Whose devices these are, counted from 1: times and counts of devices are those of one session,
  // and of two looks can be compared where it is the same. 0: there are no devices.
  uint64_t session = 0;
  int64_t steps_done = 0;    // of the job, those of earlier runs included
  int64_t steps = 0;         // of the job
  int64_t microbatches = 1;  // of a step
  double loss = std::numeric_limits<double>::quiet_NaN();  // of the last step; NaN: none yet
  double step_time_s = 0;                                  // mean of the last steps; 0: none yet
  double tokens_per_s = 0;                                 // likewise
  double age_s = 0;                                        // of the job
  std::vector<ProcessSnapshot> processes;                  // by rank
  std::vector<Device> devices;                             // by index
  std::vector<ActorWait> waits;                            // see WaitChains
  std::vector<uint32_t> roots;                             // indices of devices: WaitChains::roots
  std::vector<std::vector<uint32_t>> cycles;               // likewise: WaitChains::cycles
};

// Answers what a job does.
using StatusAnswers = Answers<JobStatus>;

// Adds what the devices of a plan do.
void AddDevices(const planner::Plan& plan, EngineSnapshot snapshot, JobStatus* status);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_JOB_STATUS_H_
