#include "bench/profile.h"

#include <algorithm>
#include <barrier>
#include <iterator>
#include <limits>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/collectives_bench.h"
#include "bench/kernel_timing.h"
#include "bench/model_kernels.h"
#include "bench/transport_bench.h"

namespace penstock::bench {
namespace {

constexpr int64_t kProductSizes[] = {8, 16, 32, 64, 128, 256, 512, 1024};
// Of the other floats: one size is near the peak.
constexpr DType kOtherFloats[] = {DType::kF64, DType::kBF16, DType::kF16};
constexpr int64_t kOtherSize = 512;
// Of a tensor in a sum.
constexpr int64_t kSumElements = int64_t{1} << 24;
constexpr int kSums = 8;
constexpr size_t kShortMessageBytes = 8;
constexpr size_t kReductionBytes = size_t{1} << 20;
constexpr int kMaxMessages = 2000;
constexpr int kMaxReductions = 200;
// Of collectives: by how many ranks, of which sizes, in which chunks, how often.
constexpr int kGroupSizes[] = {2, 4};
constexpr size_t kCollectiveBytes[] = {64 << 10, 1 << 20, 16 << 20};
constexpr int64_t kChunkBytes[] = {256 << 10, 1 << 20};
constexpr int kMaxCollectives = 20;

double ProductFlops(int64_t size) {
  const auto n = static_cast<double>(size);
  return 2 * n * n * n;
}

absl::StatusOr<double> MeasureProductFlopsPerS(int64_t size, DType dtype) {
  const kernels::TileDesc tile = WholeTile({size, size}, dtype);
  ASSIGN_OR_RETURN(const double seconds,
                   MeasureKernelSeconds(MakeKernelSpec("matmul", {}, {tile, tile}, {tile})));
  return ProductFlops(size) / seconds;
}

// Of one core while all of them add tensors that no cache holds.
absl::StatusOr<double> MeasureMemoryBytesPerS(int64_t num_cores) {
  const kernels::TileDesc tile = WholeTile({kSumElements});
  std::vector<PreparedKernel> sums;
  for (int64_t i = 0; i < num_cores; ++i) {
    ASSIGN_OR_RETURN(PreparedKernel sum,
                     PreparedKernel::Create(MakeKernelSpec("add", {}, {tile, tile}, {tile})));
    sums.push_back(std::move(sum));
  }
  const SteadyClock clock;
  std::barrier all_are_warm(num_cores);
  std::vector<absl::Status> statuses(sums.size());
  std::vector<int64_t> times_ns(sums.size());
  std::vector<std::thread> threads;
  for (size_t i = 0; i < sums.size(); ++i) {
    threads.emplace_back([&, i] {
      statuses[i] = sums[i].Run();
      all_are_warm.arrive_and_wait();
      const int64_t begin_ns = clock.NowNs();
      for (int run = 0; run < kSums; ++run) statuses[i].Update(sums[i].Run());
      times_ns[i] = clock.NowNs() - begin_ns;
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : statuses) RETURN_IF_ERROR(status);
  const double seconds =
      1e-9 * static_cast<double>(*std::max_element(times_ns.begin(), times_ns.end()));
  return 3 * kSums * static_cast<double>(tile.num_bytes()) / seconds;
}

// Counts the parts of a profile for its user.
class Parts {
 public:
  Parts(const ProfileOptions& options, int all) : options_(options), all_(all) {}

  void Begin(std::string_view what) {
    if (options_.on_progress) options_.on_progress(done_, all_, what);
    ++done_;
  }

 private:
  const ProfileOptions& options_;
  const int all_;
  int done_ = 0;
};

absl::StatusOr<planner::DeviceKind> MeasureCore(const ProfileOptions& options, Parts* parts) {
  planner::DeviceKind kind;
  kind.name = "core of " + HostName();
  const auto measure = [&kind](DType dtype, int64_t size) -> absl::StatusOr<double> {
    ASSIGN_OR_RETURN(const double rate, MeasureProductFlopsPerS(size, dtype));
    double& peak = kind.peak_flops_per_s[static_cast<size_t>(dtype)];
    peak = std::max(peak, rate);
    return rate;
  };
  std::vector<double> rates(std::size(kProductSizes));
  ModelKernels model_kernels;
  for (int attempt = 0; attempt < options.num_attempts; ++attempt) {
    parts->Begin("products");
    for (size_t i = 0; i < rates.size(); ++i) {
      ASSIGN_OR_RETURN(const double rate, measure(DType::kF32, kProductSizes[i]));
      rates[i] = std::max(rates[i], rate);
    }
    for (const DType dtype : kOtherFloats) RETURN_IF_ERROR(measure(dtype, kOtherSize).status());
    parts->Begin("memory");
    ASSIGN_OR_RETURN(const double bytes_per_s, MeasureMemoryBytesPerS(options.num_cores));
    kind.memory_bytes_per_s = std::max(kind.memory_bytes_per_s, bytes_per_s);
    RETURN_IF_ERROR(model_kernels.Measure(options.num_cores, [parts](std::string_view model) {
      parts->Begin(StrCat("kernels of ", model));
    }));
  }
  const double peak = kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)];
  for (size_t i = 0; i < rates.size(); ++i) {
    kind.efficiency.push_back({ProductFlops(kProductSizes[i]), rates[i] / peak});
  }
  kind.kernels = model_kernels.SlowdownsOn(kind);
  return kind;
}

absl::StatusOr<planner::NetworkLevel> MeasureHost(int num_attempts) {
  TransportBenchOptions options;
  options.sizes = {kShortMessageBytes};
  options.runs_perftest = false;
  options.max_rounds = kMaxMessages;
  planner::NetworkLevel level;
  level.name = "host";
  level.latency_s = planner::kMaxLatencyS;
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    ASSIGN_OR_RETURN(const std::vector<TransportBenchRow> rows, MeasureTransport(options));
    level.latency_s = std::min(level.latency_s, 1e-6 * rows.front().ours.one_way_us);
  }
  // An all_reduce between two members sends half of the data twice.
  CollectivesBenchOptions reduction;
  reduction.cases = {{.num_bytes = kReductionBytes}};
  reduction.max_rounds = kMaxReductions;
  double least_us = std::numeric_limits<double>::infinity();
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    ASSIGN_OR_RETURN(const std::vector<double> us, MeasureCollectives(reduction));
    least_us = std::min(least_us, us[0]);
  }
  const double seconds = std::max(1e-6 * least_us - 2 * level.latency_s, 1e-9);
  level.bytes_per_s = std::clamp(static_cast<double>(kReductionBytes) / seconds,
                                 planner::kMinBytesPerS, planner::kMaxBytesPerS);
  return level;
}

// Every kind between processes of this host.
absl::StatusOr<std::vector<planner::MeasuredCollective>> MeasureCollectiveTimes(int num_ranks,
                                                                                int num_attempts) {
  std::vector<planner::MeasuredCollective> all;
  CollectivesBenchOptions options;
  options.num_processes = num_ranks;
  options.max_rounds = kMaxCollectives;
  std::vector<double*> results;  // of the cases
  for (const CollectiveKind kind : {CollectiveKind::kAllReduce, CollectiveKind::kReduceScatter,
                                    CollectiveKind::kAllGather, CollectiveKind::kAllToAll}) {
    planner::MeasuredCollective& measured = all.emplace_back();
    measured.kind = kind;
    measured.num_ranks = num_ranks;
    for (const CollectiveAlgorithm algorithm :
         {CollectiveAlgorithm::kDirect, CollectiveAlgorithm::kRing}) {
      // What each has for each other has no ring.
      if (algorithm == CollectiveAlgorithm::kRing && kind == CollectiveKind::kAllToAll) continue;
      for (const int64_t chunk_bytes : kChunkBytes) {
        measured.algorithms.push_back({algorithm, chunk_bytes});
      }
    }
    for (const size_t num_bytes : kCollectiveBytes) {
      planner::CollectiveTimes& times = measured.times.emplace_back();
      times.num_bytes = static_cast<int64_t>(num_bytes);
      times.us.resize(measured.algorithms.size());
    }
  }
  for (planner::MeasuredCollective& measured : all) {
    for (planner::CollectiveTimes& times : measured.times) {
      for (size_t w = 0; w < measured.algorithms.size(); ++w) {
        const planner::CollectiveVariant& variant = measured.algorithms[w];
        // Longer chunks than the data are the same as shorter ones.
        if (times.num_bytes <= kChunkBytes[0] && variant.chunk_bytes > kChunkBytes[0]) continue;
        options.cases.push_back({.kind = measured.kind,
                                 .num_bytes = static_cast<size_t>(times.num_bytes),
                                 .algorithm = variant.algorithm,
                                 .chunk_bytes = variant.chunk_bytes});
        results.push_back(&times.us[w]);
      }
    }
  }
  for (int attempt = 0; attempt < num_attempts; ++attempt) {
    ASSIGN_OR_RETURN(const std::vector<double> us, MeasureCollectives(options));
    for (size_t i = 0; i < us.size(); ++i) {
      *results[i] = attempt == 0 ? us[i] : std::min(*results[i], us[i]);
    }
  }
  return all;
}

}  // namespace

absl::StatusOr<planner::Cluster> MeasureMachine(const ProfileOptions& options) {
  planner::ClusterSpec spec;
  spec.name = HostName();
  spec.devices_at_once = std::min(options.num_cores, options.num_devices);
  int num_groups = 0;
  for (const int num_ranks : kGroupSizes) num_groups += num_ranks <= options.num_devices ? 1 : 0;
  Parts parts(options, 1 + num_groups + options.num_attempts * (2 + NumModelRuns()));
  parts.Begin("messages between processes");
  ASSIGN_OR_RETURN(planner::NetworkLevel host, MeasureHost(options.num_attempts));
  host.fan_out = {options.num_devices};
  spec.levels.push_back(std::move(host));
  for (const int num_ranks : kGroupSizes) {
    if (num_ranks > options.num_devices) break;
    parts.Begin(StrCat("collectives of ", num_ranks, " processes"));
    ASSIGN_OR_RETURN(std::vector<planner::MeasuredCollective> measured,
                     MeasureCollectiveTimes(num_ranks, options.num_attempts));
    std::move(measured.begin(), measured.end(), std::back_inserter(spec.collectives));
  }
  // Behind what starts processes: this starts threads.
  ASSIGN_OR_RETURN(planner::DeviceKind core, MeasureCore(options, &parts));
  const auto memory =
      static_cast<int64_t>(std::min<uint64_t>(MachineMemoryBytes(), planner::kMaxMemoryBytes));
  core.memory_bytes = std::max<int64_t>(memory / options.num_devices, 1);
  spec.kinds.push_back(std::move(core));
  return planner::Cluster::Create(std::move(spec));
}

}  // namespace penstock::bench
