#include "kernels/cpu/converting.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

bool HasHalves(const KernelSpec& spec) {
  const auto is_half = [](const TileDesc& tile) { return IsHalf(tile.dtype); };
  return std::any_of(spec.inputs.begin(), spec.inputs.end(), is_half) ||
         std::any_of(spec.outputs.begin(), spec.outputs.end(), is_half);
}

// The spec with f32 for every float of 16 bits.
KernelSpec InF32(KernelSpec spec) {
  for (std::vector<TileDesc>* tiles : {&spec.inputs, &spec.outputs}) {
    for (TileDesc& tile : *tiles) {
      if (IsHalf(tile.dtype)) tile.dtype = DType::kF32;
    }
  }
  const graph::AttrValue* dtype = spec.attributes.Find("dtype");
  if (dtype != nullptr && IsHalf(spec.attributes.GetDType("dtype", DType::kF32))) {
    spec.attributes.Set("dtype", DType::kF32);
  }
  return spec;
}

size_t ConvertedBytes(const TileDesc& tile) {
  if (!IsHalf(tile.dtype)) return 0;
  return (tile.num_elements() * sizeof(float) + 63) / 64 * 64;
}

size_t ConvertedBytes(const KernelSpec& spec) {
  size_t num_bytes = 0;
  for (const TileDesc& tile : spec.inputs) num_bytes += ConvertedBytes(tile);
  for (const TileDesc& tile : spec.outputs) num_bytes += ConvertedBytes(tile);
  return num_bytes;
}

template <typename To, typename From>
void Convert(ThreadPool& pool, int64_t count, const void* from, void* to) {
  pool.ParallelFor(count, kGrain, [&](int64_t begin, int64_t end, int) {
    Map(
        end - begin, [](auto v) { return v; }, static_cast<To*>(to) + begin,
        static_cast<const From*>(from) + begin);
  });
}

class ConvertingKernel : public CpuKernel {
 public:
  ConvertingKernel(const KernelSpec& spec, Device& device, std::unique_ptr<Kernel> kernel)
      : CpuKernel(spec, device), kernel_(std::move(kernel)) {}

  absl::Status Run(const KernelArgs& args) override {
    char* at = static_cast<char*>(args.workspace);
    absl::InlinedVector<void*, 8> inputs(args.inputs.begin(), args.inputs.end());
    absl::InlinedVector<void*, 4> outputs(args.outputs.begin(), args.outputs.end());
    for (size_t i = 0; i < inputs.size(); ++i) {
      const TileDesc& tile = spec_.inputs[i];
      if (!IsHalf(tile.dtype)) continue;
      ToF32(tile, inputs[i], at);
      inputs[i] = at;
      at += ConvertedBytes(tile);
    }
    for (size_t i = 0; i < outputs.size(); ++i) {
      const TileDesc& tile = spec_.outputs[i];
      if (!IsHalf(tile.dtype) || outputs[i] == nullptr) continue;
      if (AddsToOutputs(args)) ToF32(tile, outputs[i], at);
      outputs[i] = at;
      at += ConvertedBytes(tile);
    }
    KernelArgs converted = args;
    converted.inputs = inputs;
    converted.outputs = outputs;
    converted.workspace = at;
    RETURN_IF_ERROR(kernel_->Run(converted));
    for (size_t i = 0; i < outputs.size(); ++i) {
      const TileDesc& tile = spec_.outputs[i];
      const int64_t count = tile.num_elements();
      if (outputs[i] == args.outputs[i]) continue;
      if (tile.dtype == DType::kBF16) {
        Convert<BFloat16, float>(pool_, count, outputs[i], args.outputs[i]);
      } else {
        Convert<Float16, float>(pool_, count, outputs[i], args.outputs[i]);
      }
    }
    return absl::OkStatus();
  }

 private:
  void ToF32(const TileDesc& tile, const void* from, void* to) {
    if (tile.dtype == DType::kBF16) {
      Convert<float, BFloat16>(pool_, tile.num_elements(), from, to);
    } else {
      Convert<float, Float16>(pool_, tile.num_elements(), from, to);
    }
  }

  const std::unique_ptr<Kernel> kernel_;  // of the spec in f32
};

}  // namespace

TrialDevice MakeTrialDevice() {
  const std::shared_ptr<Device> device = CreateCpuDevice(1);
  return {device, device->CreateStream()};
}

KernelDef WithConversions(KernelDef def, const TrialDevice& trial) {
  if (def.create == nullptr) return def;
  KernelDef with = def;
  // Whether the kernel takes floats of 16 bits as they are, or there are none.
  const auto is_native = [create = def.create, trial](const KernelSpec& spec) {
    return !HasHalves(spec) || create(spec, *trial.device, *trial.stream).ok();
  };
  with.create = [def, is_native](const KernelSpec& spec, Device& device,
                                 Stream& stream) -> KernelOr {
    if (is_native(spec)) return def.create(spec, device, stream);
    absl::StatusOr<std::unique_ptr<Kernel>> kernel = def.create(InF32(spec), device, stream);
    // What is wrong with the spec itself.
    if (!kernel.ok()) return def.create(spec, device, stream);
    return std::make_unique<ConvertingKernel>(spec, device, *std::move(kernel));
  };
  with.workspace_bytes = [def, is_native](const KernelSpec& spec, int num_threads) -> size_t {
    const bool converts = !is_native(spec);
    const size_t of_kernel = def.workspace_bytes == nullptr
                                 ? 0
                                 : def.workspace_bytes(converts ? InF32(spec) : spec, num_threads);
    return of_kernel + (converts ? ConvertedBytes(spec) : 0);
  };
  if (def.prepare != nullptr) {
    with.prepare = [def](const KernelSpec& spec) { def.prepare(InF32(spec)); };
  }
  return with;
}

}  // namespace penstock::kernels
