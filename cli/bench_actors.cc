#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "cli/bench_groups.h"
#include "fmt/format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/actors_bench.h"
#include "bench/count_allocations.h"

namespace penstock::cli {
namespace {

// Metrics of one shape and number of actors; the names alone where it was not measured.
std::vector<BenchMetric> ActsMetrics(bench::ActsShape shape, uint32_t num_actors,
                                     const bench::ActsBenchResult& acts,
                                     double allocations_per_act) {
  const std::string prefix = StrCat("actors/", Name(shape), "/", num_actors, "/");
  std::vector<BenchMetric> metrics = {{prefix + "act", acts.ns_per_act, "ns"},
                                      {prefix + "step", acts.step_us, "us"}};
  if (shape == bench::ActsShape::kCommunication) {
    metrics.push_back({prefix + "communication", acts.communication_us, "us"});
  }
  if (bench::CountsAllocations()) {
    metrics.push_back({prefix + "allocations_per_act", allocations_per_act, "1"});
  }
  return metrics;
}

}  // namespace

absl::StatusOr<BenchReport> BenchActors(const BenchOptions& asked) {
  constexpr int kWakeRounds = 1000;
  constexpr uint32_t kFewest = 10;  // what a step allocates whatever its size
  const std::regex pattern(asked.filter);
  const auto is_wanted = [&](const BenchMetric& metric) {
    return std::regex_search(metric.name, pattern);
  };
  const auto measure = [](bench::ActsShape shape, uint32_t num_actors, double seconds) {
    bench::ActsBenchOptions options;
    options.shape = shape;
    options.num_actors = num_actors;
    options.seconds = seconds;
    if (bench::CountsAllocations()) options.count_allocations = bench::NumAllocations;
    return bench::MeasureActs(options);
  };
  constexpr const char* kRow = "{:14} {:>9} {:>8} {:>12} {:>17} {:>16}\n";
  BenchReport report;
  std::string rows;
  for (const bench::ActsShape shape : bench::kActsShapes) {
    std::optional<double> allocations_per_step;
    for (const uint32_t num_actors : {100u, 1000u, 10000u, 100000u, 1000000u}) {
      const std::vector<BenchMetric> names = ActsMetrics(shape, num_actors, {}, 0);
      if (std::none_of(names.begin(), names.end(), is_wanted)) continue;
      if (!allocations_per_step) {
        ASSIGN_OR_RETURN(const bench::ActsBenchResult fewest, measure(shape, kFewest, 0.1));
        allocations_per_step = fewest.allocations_per_step;
      }
      // A long step is seldom left undisturbed by other programs: there have to be more of them.
      const double seconds = num_actors < 100'000 ? 0.5 : 2;
      ASSIGN_OR_RETURN(const bench::ActsBenchResult acts, measure(shape, num_actors, seconds));
      const double allocations_per_act = (acts.allocations_per_step - *allocations_per_step) /
                                         static_cast<double>(acts.acts_per_step);
      const std::vector<BenchMetric> metrics =
          ActsMetrics(shape, num_actors, acts, allocations_per_act);
      rows += fmt::format(
          fmt::runtime(kRow), Name(shape), num_actors, fmt::format("{:.1f}", acts.ns_per_act),
          fmt::format("{:.1f}", acts.step_us),
          acts.communication_us > 0 ? fmt::format("{:.2f}", acts.communication_us) : "-",
          bench::CountsAllocations() ? fmt::format("{:.5f}", allocations_per_act) : "-");
      std::copy_if(metrics.begin(), metrics.end(), std::back_inserter(report.metrics), is_wanted);
    }
  }
  if (!rows.empty()) {
    report.table = fmt::format(fmt::runtime(kRow), "shape", "actors", "ns/act", "step us",
                               "communication us", "allocations/act") +
                   rows;
  }
  const auto wake_metrics = [](const bench::WakeLatency& wake) {
    return std::vector<BenchMetric>{
        {"actors/wake/polling", wake.polling.median_us, "us"},
        {"actors/wake/polling_fastest", wake.polling.fastest_us, "us"},
        {"actors/wake/sleeping", wake.sleeping.median_us, "us"},
        {"actors/wake/sleeping_fastest", wake.sleeping.fastest_us, "us"}};
  };
  const std::vector<BenchMetric> names = wake_metrics({});
  if (std::any_of(names.begin(), names.end(), is_wanted)) {
    ASSIGN_OR_RETURN(const bench::WakeLatency wake, bench::MeasureWakeLatency(kWakeRounds));
    for (BenchMetric& metric : wake_metrics(wake)) {
      if (!is_wanted(metric)) continue;
      report.table += fmt::format("{:35} {:9.3g} us\n", metric.name, metric.value);
      report.metrics.push_back(std::move(metric));
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", asked.filter, ": nothing matches"));
  }
  return report;
}

}  // namespace penstock::cli
