// What a run tells Prometheus: `penstock run --metrics PORT`.
//
// Steps and checkpoints are counted as they happen, once a step; what devices and processes do is
// looked at when somebody asks.
//
// Thread rule: thread-safe.

#ifndef PENSTOCK_CLI_METRICS_H_
#define PENSTOCK_CLI_METRICS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/device_totals.h"

#include "actors/cluster/job_status.h"
#include "actors/session/checkpoint_writer.h"

namespace penstock::cli {

// "HOST:PORT" or "PORT", on 127.0.0.1. An error says what is wrong with the text.
struct MetricsAddress {
  std::string host = "127.0.0.1";
  unsigned port = 0;
};
absl::StatusOr<MetricsAddress> ParseMetricsAddress(const std::string& text);

// What is looked at.
struct JobMetrics {
  actors::JobStatus status;
  std::vector<DeviceTotals::Device> devices = {};  // since the job began
};

class Metrics {
 public:
  // `look` looks at the job; it outlives the serving.
  explicit Metrics(std::function<absl::StatusOr<JobMetrics>()> look);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  // Serves from now on. Returns the URL.
  absl::StatusOr<std::string> Serve(const MetricsAddress& address);

  void OnStep(double loss, double step_s, int64_t tokens);
  void OnCheckpoint(const actors::CheckpointResult& result);

  // All metrics in Prometheus's text format.
  std::string Text() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_METRICS_H_
