#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "cli/bench_groups.h"
#include "fmt/format.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/collectives_bench.h"
#include "bench/messages_bench.h"
#include "bench/transport_bench.h"
#include "kernels/kernel.h"
#include "planner/cost/collective_choice.h"

namespace penstock::cli {
namespace {

std::string Size(size_t num_bytes) {
  if (num_bytes >= 1 << 20) return StrCat(num_bytes >> 20, " MiB");
  if (num_bytes >= 1 << 10) return StrCat(num_bytes >> 10, " KiB");
  return StrCat(num_bytes, " B");
}

struct CollectiveMetric {
  std::string name;
  bench::CollectiveCase measured;
};

// The planner's choice, the memory's bound, and every algorithm in every size of chunks that
// differs.
std::vector<CollectiveMetric> CollectiveMetricsOf(CollectiveKind kind, int num_processes,
                                                  int num_hosts, size_t num_bytes) {
  const std::string prefix =
      StrCat("collectives/", Name(kind), "/", num_processes, "/", num_bytes, "/");
  std::vector<CollectiveMetric> metrics;
  const auto add = [&](const std::string& name, CollectiveAlgorithm algorithm, int64_t chunk_bytes,
                       bool is_copy) {
    metrics.push_back({prefix + name, {kind, num_bytes, algorithm, chunk_bytes, is_copy}});
  };
  const planner::CollectiveVariant choice =
      planner::ChooseCollective(kind, num_processes, num_hosts, static_cast<int64_t>(num_bytes));
  add("planned", choice.algorithm, choice.chunk_bytes, false);
  add("bound", CollectiveAlgorithm::kDirect, 0, true);
  const bool is_split = kind != CollectiveKind::kAllGather;
  const auto piece_bytes = static_cast<int64_t>(is_split ? num_bytes / num_processes : num_bytes);
  std::vector<CollectiveAlgorithm> algorithms = {CollectiveAlgorithm::kDirect};
  if (kind != CollectiveKind::kAllToAll) {
    algorithms.push_back(CollectiveAlgorithm::kRing);
    if (num_hosts > 1) algorithms.push_back(CollectiveAlgorithm::kHierarchical);
  }
  for (const auto algorithm : algorithms) {
    for (int64_t chunk_bytes = 64 << 10; chunk_bytes <= 4 << 20; chunk_bytes *= 4) {
      add(StrCat(Name(algorithm), "/", chunk_bytes), algorithm, chunk_bytes, false);
      if (chunk_bytes >= piece_bytes) break;
    }
  }
  return metrics;
}

constexpr const char* kCollectiveRow =
    "{:15} {:>5} {:>8} {:>11} {:>16} {:>11} {:>16} {:>11} {:>6}\n";

// A line of the table: what was measured of one kind, size and number of processes.
std::string CollectiveLine(const std::vector<CollectiveMetric>& measured,
                           const std::vector<double>& times, size_t begin, size_t end,
                           int num_processes) {
  std::optional<size_t> planned, best, bound;
  for (size_t i = begin; i < end; ++i) {
    if (measured[i].measured.is_copy) {
      bound = i;
    } else if (measured[i].name.ends_with("/planned")) {
      planned = i;
    } else if (!best || times[i] < times[*best]) {
      best = i;
    }
  }
  const auto time = [&](std::optional<size_t> i) {
    return i ? fmt::format("{:.4g}", times[*i]) : std::string("-");
  };
  const auto describe = [&](std::optional<size_t> i) {
    if (!i) return std::string("-");
    const bench::CollectiveCase& found = measured[*i].measured;
    return StrCat(Name(found.algorithm), " ", Size(static_cast<size_t>(found.chunk_bytes)));
  };
  const std::optional<size_t> ours = planned ? planned : best;
  const bench::CollectiveCase& first = measured[begin].measured;
  return fmt::format(
      fmt::runtime(kCollectiveRow), Name(first.kind), num_processes, Size(first.num_bytes),
      time(planned), describe(planned), time(best), describe(best), time(bound),
      ours && bound ? fmt::format("{:.3g}", times[*ours] / times[*bound]) : std::string("-"));
}

}  // namespace

absl::StatusOr<BenchReport> BenchTransport(const BenchOptions& asked) {
  const std::string& filter = asked.filter;
  struct Kind {
    const char* name;
    const char* transports;
  };
  constexpr Kind kKinds[] = {{"shared_memory", "posix"}, {"tcp", "tcp"}};
  constexpr const char* kRow = "{:14} {:>8} {:>10} {:>8} {:>6} {:>8} {:>10} {:>8} {:>6} {:>8}\n";
  const std::regex pattern(filter);
  const bool has_perftest = bench::HasPerftest();
  BenchReport report;
  std::string idle_costs;
  report.table = fmt::format(fmt::runtime(kRow), "transport", "message", "one way us", "ucx -e",
                             "ratio", "ucx", "GB/s", "ucx -e", "ratio", "ucx");
  for (const Kind& kind : kKinds) {
    const auto metrics_of = [&](const bench::TransportBenchRow& row) {
      const std::string prefix = StrCat("transport/", kind.name, "/", row.num_bytes, "/");
      std::vector<BenchMetric> metrics = {
          {prefix + "one_way", row.ours.one_way_us, "us"},
          {prefix + "bandwidth", row.ours.bytes_per_s / 1e9, "GB/s"}};
      const auto add = [&](const std::string& name, const bench::MessageSpeed& speed) {
        metrics.push_back({prefix + name + "_one_way", speed.one_way_us, "us"});
        metrics.push_back({prefix + name + "_bandwidth", speed.bytes_per_s / 1e9, "GB/s"});
      };
      if (row.perftest.one_way_us <= 0 || row.perftest.bytes_per_s <= 0) return metrics;
      add("perftest", row.perftest);
      metrics.push_back(
          {prefix + "one_way_ratio", row.ours.one_way_us / row.perftest.one_way_us, "1"});
      metrics.push_back(
          {prefix + "bandwidth_ratio", row.ours.bytes_per_s / row.perftest.bytes_per_s, "1"});
      if (row.plain_perftest.one_way_us > 0 && row.plain_perftest.bytes_per_s > 0) {
        add("plain_perftest", row.plain_perftest);
      }
      return metrics;
    };
    const auto is_wanted = [&](const BenchMetric& metric) {
      return std::regex_search(metric.name, pattern);
    };
    bench::TransportBenchOptions options;
    options.transports = kind.transports;
    const auto add_size = [&](size_t num_bytes) {
      const double perftest = has_perftest ? 1 : 0;  // any number: the names count
      const bench::TransportBenchRow all = {
          num_bytes, {1, 1}, {perftest, perftest}, {perftest, perftest}};
      const std::vector<BenchMetric> names = metrics_of(all);
      if (std::any_of(names.begin(), names.end(), is_wanted)) options.sizes.push_back(num_bytes);
    };
    for (const size_t num_bytes : bench::kMessageSizes) add_size(num_bytes);
    std::vector<bench::TransportBenchRow> rows;
    if (!options.sizes.empty()) {
      ASSIGN_OR_RETURN(rows, bench::MeasureTransport(options));
    }
    for (const bench::TransportBenchRow& row : rows) {
      std::vector<BenchMetric> metrics = metrics_of(row);
      const auto column = [&](size_t i) {
        return i < metrics.size() ? fmt::format("{:.3g}", metrics[i].value) : std::string("-");
      };
      report.table +=
          fmt::format(fmt::runtime(kRow), kind.name, Size(row.num_bytes), column(0), column(2),
                      column(4), column(6), column(1), column(3), column(5), column(7));
      std::copy_if(metrics.begin(), metrics.end(), std::back_inserter(report.metrics), is_wanted);
    }
    BenchMetric idle = {StrCat("transport/", kind.name, "/idle"), 0, "%"};
    if (!is_wanted(idle)) continue;
    ASSIGN_OR_RETURN(const double share, bench::MeasureIdleTransport(options));
    idle.value = 100 * share;
    idle_costs +=
        fmt::format("{}: a process that waits takes {:.2g} % of a core\n", kind.name, idle.value);
    report.metrics.push_back(std::move(idle));
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  report.table += idle_costs;
  if (has_perftest) {
    report.table +=
        "ucx: ucx_perftest; ucx -e: with error handling, as Penstock uses it; ratio: to ucx -e\n";
  } else {
    report.table += "ucx_perftest is not installed; install the package ucx-utils to compare.\n";
  }
  return report;
}

absl::StatusOr<BenchReport> BenchCollectives(const BenchOptions& asked) {
  const std::string& filter = asked.filter;
  constexpr CollectiveKind kKinds[] = {CollectiveKind::kAllReduce, CollectiveKind::kAllGather,
                                       CollectiveKind::kReduceScatter, CollectiveKind::kAllToAll};
  const std::regex pattern(filter);
  BenchReport report;
  report.table = fmt::format(fmt::runtime(kCollectiveRow), "collective", "procs", "size",
                             "planned us", "by", "best us", "by", "bound us", "ratio");
  std::vector<std::string> hosts;
  if (!asked.hosts.empty()) hosts = absl::StrSplit(ToAbsl(asked.hosts), ',');
  const int num_hosts = std::max<int>(1, static_cast<int>(hosts.size()));
  if (num_hosts != 1 && num_hosts != 2 && num_hosts != 4) {
    return absl::InvalidArgumentError(
        StrCat("--hosts ", asked.hosts, ": expected 1, 2 or 4 names"));
  }
  for (const int num_processes : {2, 4}) {
    if (num_processes % num_hosts != 0) continue;
    std::vector<CollectiveMetric> wanted;
    std::vector<size_t> line_ends;
    for (const CollectiveKind kind : kKinds) {
      for (size_t num_bytes = 1 << 10; num_bytes <= 64 << 20; num_bytes *= 4) {
        for (CollectiveMetric& metric :
             CollectiveMetricsOf(kind, num_processes, num_hosts, num_bytes)) {
          if (std::regex_search(metric.name, pattern)) wanted.push_back(std::move(metric));
        }
        if (wanted.size() > (line_ends.empty() ? 0 : line_ends.back())) {
          line_ends.push_back(wanted.size());
        }
      }
    }
    if (wanted.empty()) continue;
    bench::CollectivesBenchOptions options;
    options.num_processes = num_processes;
    options.hosts = hosts;
    for (const CollectiveMetric& metric : wanted) options.cases.push_back(metric.measured);
    ASSIGN_OR_RETURN(std::vector<double> times, bench::MeasureCollectives(options));
    for (size_t i = 0; i < wanted.size(); ++i) {
      const bench::CollectiveCase& measured = wanted[i].measured;
      if (measured.is_copy) times[i] *= bench::LeastTraffic(measured.kind, num_processes) / 2;
      report.metrics.push_back({wanted[i].name, times[i], "us"});
    }
    size_t begin = 0;
    for (const size_t end : line_ends) {
      report.table += CollectiveLine(wanted, times, begin, end, num_processes);
      begin = end;
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  report.table +=
      "size: bytes per rank; bound: time to copy the bytes that a process must read and write at\n"
      "least, with all processes copying; ratio: planned time, or else best, over the bound\n";
  return report;
}

absl::StatusOr<BenchReport> BenchMessages(const BenchOptions& asked) {
  const std::string& filter = asked.filter;
  struct Kind {
    const char* name;
    bench::Placement placement;
    int64_t round_trips;
    bool is_asleep = false;
  };
  constexpr Kind kKinds[] = {{"threads", bench::Placement::kThreads, 10000},
                             {"processes", bench::Placement::kProcesses, 10000},
                             {"processes_one_core", bench::Placement::kProcessesOneCore, 500},
                             {"threads_asleep", bench::Placement::kThreads, 200, true},
                             {"processes_asleep", bench::Placement::kProcesses, 200, true}};
  const std::regex pattern(filter);
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  BenchReport report;
  for (const Kind& kind : kKinds) {
    for (const uint64_t num_bytes : {uint64_t{8}, uint64_t{64} << 10, uint64_t{1} << 20}) {
      const std::string name = StrCat("messages/", kind.name, "/", num_bytes);
      if (!std::regex_search(name, pattern)) continue;
      bench::MessagesBenchOptions options;
      options.placement = kind.placement;
      options.is_asleep = kind.is_asleep;
      options.num_bytes = num_bytes;
      const bool is_fewer = num_bytes > 8 && !kind.is_asleep;
      options.round_trips = is_fewer ? kind.round_trips / 20 : kind.round_trips;
      options.kernels = &kernels;
      ASSIGN_OR_RETURN(const double us, bench::MeasureMessages(options));
      report.metrics.push_back({name, us, "us"});
    }
  }
  if (report.metrics.empty()) {
    return absl::InvalidArgumentError(StrCat("--filter ", filter, ": nothing matches"));
  }
  return report;
}

}  // namespace penstock::cli
