// Measures this machine for predictions: a description of a cluster whose rates are those of its
// kernels and of messages between its processes.
//
//   products     square, of growing sizes: the peak rate of each dtype, and in f32 the part of it
//                that a product of so many flops reaches
//   memory       a sum of two tensors that no cache holds, on all cores at once
//   kernels      of small models, by operator, dtype and size, in mixed precision as well: the time
//                that they take beyond that (model_kernels.h)
//   messages     between two processes, over shared memory: the latency
//   all_reduce   between two processes: the rate, sums included
//   collectives  of every kind between two processes, and between four if there are as many
//   devices:
//                by which the planner chooses algorithms and chunks
//
// Thread rule: from a process without transports of its own: it forks.

#ifndef PENSTOCK_BENCH_PROFILE_H_
#define PENSTOCK_BENCH_PROFILE_H_

#include <cstdint>
#include <functional>
#include <string_view>

#include "absl/status/statusor.h"

#include "planner/cluster/cluster_model.h"

namespace penstock::bench {

struct ProfileOptions {
  int64_t num_devices = 1;  // of one thread each, on this host
  int64_t num_cores = 1;    // that they share
  // Of every measurement: the fastest counts. Other programs and virtual machines take turns on the
  // cores, and where processes are placed differs from time to time. REQUIRES: at least 1.
  int num_attempts = 3;
  // Told of each part before it is measured: how many of all parts are done, and what comes next.
  // May be null.
  std::function<void(int done, int all, std::string_view next)> on_progress = nullptr;
};

absl::StatusOr<planner::Cluster> MeasureMachine(const ProfileOptions& options);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_PROFILE_H_
