#include "bench/gpu_profile.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "bench/kernel_timing.h"

namespace penstock::bench {
namespace {

constexpr int64_t kTimeoutNs = 60'000'000'000;
constexpr int kBatches = 3;  // the fastest counts
// Launches are timed while the device has room for more: those that wait for room take its time.
constexpr int kLaunches = 100;

// A stream, and what runs on it.
class Timer {
 public:
  explicit Timer(Device& device, int64_t least_ns)
      : least_ns_(least_ns), event_(device.CreateEvent()), stream_(device.CreateStream()) {}

  Stream& stream() { return *stream_; }

  absl::Status Finish() { return WaitUntilDone(*stream_, *event_, kTimeoutNs); }

  // Seconds that the device takes for one run of `launch`.
  absl::StatusOr<double> Seconds(const std::function<absl::Status()>& launch) {
    RETURN_IF_ERROR(launch());  // which may load or set up something
    RETURN_IF_ERROR(Finish());
    double best = std::numeric_limits<double>::infinity();
    int64_t runs = 1;
    for (int batch = 0; batch < kBatches;) {
      const int64_t begin_ns = clock_.NowNs();
      for (int64_t run = 0; run < runs; ++run) RETURN_IF_ERROR(launch());
      RETURN_IF_ERROR(Finish());
      const int64_t duration_ns = std::max<int64_t>(clock_.NowNs() - begin_ns, 1);
      if (duration_ns < least_ns_) {
        runs *= 2;
        continue;
      }
      ++batch;
      best = std::min(best, 1e-9 * static_cast<double>(duration_ns) / static_cast<double>(runs));
    }
    return best;
  }

  // Seconds that the host takes to call `launch` once.
  absl::StatusOr<double> LaunchSeconds(const std::function<absl::Status()>& launch) {
    double best = std::numeric_limits<double>::infinity();
    for (int batch = 0; batch < kBatches; ++batch) {
      const int64_t begin_ns = clock_.NowNs();
      for (int run = 0; run < kLaunches; ++run) RETURN_IF_ERROR(launch());
      const int64_t duration_ns = clock_.NowNs() - begin_ns;
      RETURN_IF_ERROR(Finish());
      best = std::min(best, 1e-9 * static_cast<double>(duration_ns) / kLaunches);
    }
    return best;
  }

 private:
  const int64_t least_ns_;
  const SteadyClock clock_;
  const std::unique_ptr<Event> event_;
  const std::unique_ptr<Stream> stream_;  // its work uses the event
};

// A kernel on zeros.
class DeviceKernel {
 public:
  static absl::StatusOr<std::unique_ptr<DeviceKernel>> Create(
      Device& device, Stream& stream, const kernels::KernelRegistry& registry,
      const kernels::KernelSpec& spec) {
    const kernels::KernelDef* def = registry.Find(spec.op);
    if (def == nullptr) {
      return absl::UnimplementedError(
          StrCat("a device of kind ", device.kind(), " has no kernel for ", spec.op));
    }
    std::unique_ptr<DeviceKernel> made(new DeviceKernel());
    made->stream_ = &stream;
    ASSIGN_OR_RETURN(made->kernel_, def->create(spec, device, stream));
    const auto allocate = [&](size_t num_bytes) -> absl::StatusOr<void*> {
      ASSIGN_OR_RETURN(std::unique_ptr<Memory> memory,
                       device.Allocate(num_bytes, MemoryKind::kDevice));
      made->memory_.push_back(std::move(memory));
      return static_cast<void*>(made->memory_.back()->data());
    };
    for (const kernels::TileDesc& tile : spec.inputs) {
      ASSIGN_OR_RETURN(made->inputs_.emplace_back(), allocate(tile.num_bytes()));
    }
    for (const kernels::TileDesc& tile : spec.outputs) {
      ASSIGN_OR_RETURN(made->outputs_.emplace_back(), allocate(tile.num_bytes()));
    }
    if (def->workspace_bytes != nullptr) {
      ASSIGN_OR_RETURN(made->workspace_, allocate(def->workspace_bytes(spec, 1)));
    }
    return made;
  }

  absl::Status Run() {
    kernels::KernelArgs args;
    args.inputs = inputs_;
    args.outputs = outputs_;
    args.workspace = workspace_;
    args.stream = stream_;
    return kernel_->Run(args);
  }

 private:
  DeviceKernel() = default;

  Stream* stream_ = nullptr;
  std::vector<std::unique_ptr<Memory>> memory_;
  std::vector<void*> inputs_;
  std::vector<void*> outputs_;
  void* workspace_ = nullptr;
  std::unique_ptr<kernels::Kernel> kernel_;
};

class Profiler {
 public:
  Profiler(Device& device, const kernels::KernelRegistry& kernels, const GpuProfileOptions& options)
      : device_(device), kernels_(kernels), options_(options) {}

  absl::StatusOr<planner::DeviceKind> Run() {
    planner::DeviceKind kind;
    ASSIGN_OR_RETURN(const double sum_s, SumSeconds(options_.sum_elements));
    kind.memory_bytes_per_s =
        3.0 * static_cast<double>(options_.sum_elements) * sizeof(float) / sum_s;
    for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16, DType::kF16}) {
      RETURN_IF_ERROR(AddProducts(dtype, &kind));
    }
    ASSIGN_OR_RETURN(kind.launch_s, LaunchSeconds());
    ASSIGN_OR_RETURN(kind.host_link_bytes_per_s, MeasureCopies());
    return kind;
  }

 private:
  static double Flops(int64_t size) {
    const auto n = static_cast<double>(size);
    return 2 * n * n * n;
  }

  // Runs `measure` with a kernel that is gone when it returns, and so is its memory.
  template <typename Measure>
  absl::StatusOr<double> WithKernel(const kernels::KernelSpec& spec, const Measure& measure) {
    std::unique_ptr<DeviceKernel> kernel;
    Timer timer(device_, options_.least_ns);  // goes first: its work uses the kernel
    ASSIGN_OR_RETURN(kernel, DeviceKernel::Create(device_, timer.stream(), kernels_, spec));
    return measure(timer, [&kernel] { return kernel->Run(); });
  }

  static absl::StatusOr<double> OnDevice(Timer& timer, const std::function<absl::Status()>& run) {
    return timer.Seconds(run);
  }

  // The rate stays 0 for a type in which the device has no matrix product.
  absl::Status AddProducts(DType dtype, planner::DeviceKind* kind) {
    std::vector<std::pair<double, double>> rates;  // by flops
    for (const int64_t size : options_.product_sizes) {
      const kernels::TileDesc tile = WholeTile({size, size}, dtype);
      const absl::StatusOr<double> seconds =
          WithKernel(MakeKernelSpec("matmul", {}, {tile, tile}, {tile}), &OnDevice);
      if (absl::IsUnimplemented(seconds.status())) return absl::OkStatus();
      RETURN_IF_ERROR(seconds.status());
      rates.emplace_back(Flops(size), Flops(size) / *seconds);
    }
    double peak = 0;
    for (const auto& [flops, rate] : rates) peak = std::max(peak, rate);
    kind->peak_flops_per_s[static_cast<size_t>(dtype)] = peak;
    if (dtype != DType::kF32) {
      AddSlowdowns(dtype, rates, kind);
      return absl::OkStatus();
    }
    for (const auto& [flops, rate] : rates) kind->efficiency.push_back({flops, rate / peak});
    return absl::OkStatus();
  }

  // The curve of a kind is that of f32. Of other types, what products take beside what the rates
  // allow, for all operators whose product goes through the same library. Small ones are bound by
  // the memory, as the rates have it, but wait for their launch: one curve holds them all.
  void AddSlowdowns(DType dtype, const std::vector<std::pair<double, double>>& rates,
                    planner::DeviceKind* kind) const {
    planner::MeasuredKernel measured;
    measured.dtype = dtype;
    measured.bound = planner::RooflineBound::kCompute;
    for (size_t i = 0; i < rates.size(); ++i) {
      const auto& [flops, rate] = rates[i];
      const int64_t size = options_.product_sizes[i];
      const double bytes = 3.0 * static_cast<double>(WholeTile({size, size}, dtype).num_bytes());
      const double roofline_s = planner::RooflineOf(*kind, dtype, flops, bytes).seconds;
      measured.slowdown.push_back({1e6 * roofline_s, flops / rate / roofline_s});
    }
    for (const char* op :
         {"matmul", "einsum", "einsum_bias", "einsum_bias_gelu", "einsum_gelu_grad"}) {
      measured.op = op;
      kind->kernels.push_back(measured);
    }
  }

  kernels::KernelSpec SumOf(int64_t elements) const {
    const kernels::TileDesc tile = WholeTile({elements});
    return MakeKernelSpec("add", {}, {tile, tile}, {tile});
  }
  absl::StatusOr<double> SumSeconds(int64_t elements) {
    return WithKernel(SumOf(elements), &OnDevice);
  }
  absl::StatusOr<double> LaunchSeconds() {
    // Streams hold back sums of single elements.
    return WithKernel(SumOf(2), [](Timer& timer, const std::function<absl::Status()>& run) {
      return timer.LaunchSeconds(run);
    });
  }

  absl::StatusOr<double> MeasureCopies() {
    const auto num_bytes = static_cast<size_t>(options_.copy_bytes);
    ASSIGN_OR_RETURN(const std::unique_ptr<Memory> own,
                     device_.Allocate(num_bytes, MemoryKind::kDevice));
    ASSIGN_OR_RETURN(const std::unique_ptr<Memory> host,
                     device_.Allocate(num_bytes, MemoryKind::kPinned));
    Timer timer(device_, options_.least_ns);
    const auto seconds = [&](void* to, const void* from, CopyKind kind) {
      return timer.Seconds([&timer, to, from, num_bytes, kind] {
        timer.stream().Copy(to, from, num_bytes, kind);
        return absl::OkStatus();
      });
    };
    ASSIGN_OR_RETURN(const double in_s,
                     seconds(own->data(), host->data(), CopyKind::kHostToDevice));
    ASSIGN_OR_RETURN(const double out_s,
                     seconds(host->data(), own->data(), CopyKind::kDeviceToHost));
    return static_cast<double>(num_bytes) / std::max(in_s, out_s);
  }

  Device& device_;
  const kernels::KernelRegistry& kernels_;
  const GpuProfileOptions& options_;
};

}  // namespace

absl::StatusOr<planner::DeviceKind> MeasureDeviceKind(Device& device,
                                                      const kernels::KernelRegistry& kernels,
                                                      const GpuProfileOptions& options) {
  return Profiler(device, kernels, options).Run();
}

}  // namespace penstock::bench
