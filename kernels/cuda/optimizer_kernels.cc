// Optimisers: launches read their scalars on the device. Those of AdamW are held back, to make one
// of several.

#include "absl/container/inlined_vector.h"

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

// Launches that differ in their tensors and in the weight decay alone.
template <typename T>
class AdamwBatch : public LaunchBatch {
 public:
  AdamwBatch() : LaunchBatch(kMaxReads * Table::kMax, 3 * Table::kMax) {}

  void Add(const AdamwParams& params, const AdamwEntry<T>& entry, CudaStream& stream,
           uint64_t launch) {
    if (entry.count == 0) return;
    const size_t num_bytes = static_cast<size_t>(entry.count) * sizeof(T);
    const MemoryRange writes[] = {
        {entry.new_w, num_bytes}, {entry.new_m, num_bytes}, {entry.new_v, num_bytes}};
    absl::InlinedVector<MemoryRange, kMaxReads> reads = {{params.step, sizeof(*params.step)},
                                                         {params.rate.data, sizeof(float)},
                                                         {params.scale.data, sizeof(float)},
                                                         {entry.g, num_bytes}};
    // What is replaced in place is compared as what is written.
    if (entry.w != entry.new_w) reads.emplace_back(entry.w, num_bytes);
    if (entry.m != entry.new_m) reads.emplace_back(entry.m, num_bytes);
    if (entry.v != entry.new_v) reads.emplace_back(entry.v, num_bytes);
    stream.Hold(this, !table_.is_full() && params == params_, reads, writes, "adamw", launch);
    params_ = params;
    table_.Add(entry, CeilDiv(entry.count, kAdamwChunk));
  }

 private:
  static constexpr int kMaxReads = 7;
  using Table = AdamwTable<T>;

  LaunchResult LaunchEntries(StreamHandle stream) override {
    const LaunchResult result = LaunchAdamw(stream, params_, table_);
    table_.Clear();
    return result;
  }

  AdamwParams params_;
  Table table_;
};

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
      batch->Add(run, added, to, args.launch);
      return absl::OkStatus();
    });
  });
}

KernelOr CreateSgd(const KernelSpec& spec, Device&, Stream& stream) {
  SgdParams params;
  ASSIGN_OR_RETURN(params.rate.type, ScalarType(spec, 2));
  ASSIGN_OR_RETURN(params.scale.type, ScalarType(spec, 3));
  params.momentum = static_cast<float>(spec.attributes.GetDouble("momentum", 0.0));
  params.weight_decay = static_cast<float>(spec.attributes.GetDouble("weight_decay", 0.0));
  params.is_nesterov = spec.attributes.GetBool("nesterov", false);
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) {
    return MakeKernel(spec, stream, [spec, params](const KernelArgs& args, CudaStream& to) {
      SgdParams run = params;
      run.rate.data = args.inputs[2];
      run.scale.data = args.inputs[3];
      const bool has_buffer = args.inputs.size() > 4;
      return Launched(spec,
                      LaunchSgd(to.handle(), run, spec.outputs[0].num_elements(), Input<T>(args, 0),
                                Input<T>(args, 1), has_buffer ? Input<T>(args, 4) : nullptr,
                                Output<T>(args, 0), has_buffer ? Output<T>(args, 1) : nullptr));
    });
  });
}

}  // namespace

void AddOptimizerKernels(KernelRegistry* registry) {
  AddKernel(registry, "adamw", {.create = CreateAdamw, .can_alias = CanAliasFirst});
  AddKernel(registry, "sgd", {.create = CreateSgd, .can_alias = CanAliasFirst});
}

}  // namespace penstock::kernels::cuda
