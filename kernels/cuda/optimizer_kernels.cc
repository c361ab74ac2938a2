// Optimisers: launches read their scalars on the device. They are held back, to make one of
// several.

#include <array>
#include <string_view>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/launch_batch.h"
#include "kernels/cuda/optimizers.h"

namespace penstock::kernels::cuda {
namespace {

absl::StatusOr<Scalar::Type> ScalarType(const KernelSpec& spec, int input) {
  switch (spec.inputs[input].dtype) {
    case DType::kF32:
      return Scalar::kF32;
    case DType::kBF16:
      return Scalar::kBF16;
    case DType::kF16:
      return Scalar::kF16;
    default:
      return Unsupported(spec, spec.inputs[input].dtype);
  }
}

// A tensor that an update replaces, maybe in place. Null: there is none.
template <typename T>
struct Replaced {
  const T* from;
  T* to;
};

// Launches of one optimiser that differ in their entries alone, which `kLaunch` launches for a
// table.
template <typename T, typename Params, typename Table,
          LaunchResult (*kLaunch)(StreamHandle, const Params&, const Table&)>
class OptimizerBatch : public LaunchBatch {
 public:
  OptimizerBatch() : LaunchBatch(kMaxReads * Table::kMax, kMaxReplaced * Table::kMax) {}

  // `entry`: one of the table's. `replaced`: its tensors but the gradient.
  template <typename Entry, size_t kNumReplaced>
  void Add(std::string_view op, const Params& params, const Entry& entry,
           const Replaced<T> (&replaced)[kNumReplaced], CudaStream& stream, uint64_t launch) {
    static_assert(kNumReplaced <= kMaxReplaced);
    if (entry.count == 0) return;
    const size_t num_bytes = static_cast<size_t>(entry.count) * sizeof(T);
    // Of inlined vectors, GCC 12 warns that they overrun where it compiles for any processor.
    std::array<MemoryRange, kMaxReads> reads;
    std::array<MemoryRange, kMaxReplaced> writes;
    size_t num_reads = 0;
    size_t num_writes = 0;
    reads[num_reads++] = {params.rate.data, sizeof(float)};
    reads[num_reads++] = {params.scale.data, sizeof(float)};
    if constexpr (requires { params.step; }) {
      reads[num_reads++] = {params.step, sizeof(*params.step)};
    }
    reads[num_reads++] = {entry.g, num_bytes};
    for (const Replaced<T>& tensor : replaced) {
      if (tensor.to == nullptr) continue;
      writes[num_writes++] = {tensor.to, num_bytes};
      // What is replaced in place is compared as what is written.
      if (tensor.from != tensor.to) reads[num_reads++] = {tensor.from, num_bytes};
    }
    stream.Hold(this, !table_.is_full() && params == params_, {reads.data(), num_reads},
                {writes.data(), num_writes}, op, launch);
    params_ = params;
    table_.Add(entry, CeilDiv(entry.count, kUpdateChunk));
  }

 private:
  static constexpr size_t kMaxReplaced = 3;
  static constexpr size_t kMaxReads = 4 + kMaxReplaced;

  LaunchResult LaunchEntries(StreamHandle stream) override {
    const LaunchResult result = kLaunch(stream, params_, table_);
    table_.Clear();
    return result;
  }

  Params params_;
  Table table_;
};

template <typename T>
using AdamwBatch = OptimizerBatch<T, AdamwParams, AdamwTable<T>, &LaunchAdamw<T>>;
template <typename T>
using SgdBatch = OptimizerBatch<T, SgdParams, SgdTable<T>, &LaunchSgd<T>>;

KernelOr CreateAdamw(const KernelSpec& spec, Device&, Stream& stream) {
  AdamwParams params;
  ASSIGN_OR_RETURN(params.rate.type, ScalarType(spec, 5));
  ASSIGN_OR_RETURN(params.scale.type, ScalarType(spec, 6));
  params.beta1 = spec.attributes.GetDouble("beta1", 0.9);
  params.beta2 = spec.attributes.GetDouble("beta2", 0.999);
  params.epsilon = spec.attributes.GetDouble("epsilon", 1e-8);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    AdamwEntry<T> entry;
    entry.count = spec.outputs[0].num_elements();
    entry.weight_decay = spec.attributes.GetDouble("weight_decay", 0.0);
    auto* const batch = BatchOf<AdamwBatch<T>>(stream);
    return MakeKernel(spec, stream, [params, entry, batch](const KernelArgs& args, CudaStream& to) {
      AdamwParams run = params;
      run.step = Input<int64_t>(args, 4);
      run.rate.data = args.inputs[5];
      run.scale.data = args.inputs[6];
      AdamwEntry<T> added = entry;
      added.w = Input<T>(args, 0);
      added.g = Input<T>(args, 1);
      added.m = Input<T>(args, 2);
      added.v = Input<T>(args, 3);
      added.new_w = Output<T>(args, 0);
      added.new_m = Output<T>(args, 1);
      added.new_v = Output<T>(args, 2);
      batch->Add("adamw", run, added,
                 {{added.w, added.new_w}, {added.m, added.new_m}, {added.v, added.new_v}}, to,
                 args.launch);
      return absl::OkStatus();
    });
  });
}

KernelOr CreateSgd(const KernelSpec& spec, Device&, Stream& stream) {
  SgdParams params;
  ASSIGN_OR_RETURN(params.rate.type, ScalarType(spec, 2));
  ASSIGN_OR_RETURN(params.scale.type, ScalarType(spec, 3));
  params.momentum = static_cast<float>(spec.attributes.GetDouble("momentum", 0.0));
  params.is_nesterov = spec.attributes.GetBool("nesterov", false);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    SgdEntry<T> entry;
    entry.count = spec.outputs[0].num_elements();
    entry.weight_decay = static_cast<float>(spec.attributes.GetDouble("weight_decay", 0.0));
    auto* const batch = BatchOf<SgdBatch<T>>(stream);
    return MakeKernel(spec, stream, [params, entry, batch](const KernelArgs& args, CudaStream& to) {
      SgdParams run = params;
      run.rate.data = args.inputs[2];
      run.scale.data = args.inputs[3];
      SgdEntry<T> added = entry;
      added.w = Input<T>(args, 0);
      added.g = Input<T>(args, 1);
      added.new_w = Output<T>(args, 0);
      if (args.inputs.size() > 4) {
        added.buffer = Input<T>(args, 4);
        added.new_buffer = Output<T>(args, 1);
      }
      batch->Add("sgd", run, added, {{added.w, added.new_w}, {added.buffer, added.new_buffer}}, to,
                 args.launch);
      return absl::OkStatus();
    });
  });
}

}  // namespace

void AddOptimizerKernels(KernelRegistry* registry) {
  AddKernel(registry, "adamw", {.create = CreateAdamw, .can_alias = CanAliasFirst});
  AddKernel(registry, "sgd", {.create = CreateSgd, .can_alias = CanAliasFirst});
}

}  // namespace penstock::kernels::cuda
