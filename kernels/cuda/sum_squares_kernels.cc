// Sums of squares. Launches are held back: those of all gradients follow each other.

#include <memory>

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/launch_batch.h"
#include "kernels/cuda/sum_squares.h"

namespace penstock::kernels::cuda {
namespace {

template <typename T>
class SumSquaresBatch : public LaunchBatch {
 public:
  SumSquaresBatch() : LaunchBatch(SumSquaresTable::kMax, SumSquaresTable::kMax) {}

  // Before the first launch.
  absl::Status Prepare(Device& device) {
    if (sums_ != nullptr) return absl::OkStatus();
    ASSIGN_OR_RETURN(sums_, device.Allocate(kMaxTableParts * sizeof(float), MemoryKind::kDevice));
    return absl::OkStatus();
  }

  void Add(const SumSquaresEntry& entry, CudaStream& stream, uint64_t launch) {
    const MemoryRange reads[] = {{entry.x, static_cast<size_t>(entry.count) * sizeof(T)}};
    const MemoryRange writes[] = {{entry.y, sizeof(T)}};
    const int64_t parts = NumSumParts(entry.count);
    const bool has_room = !table_.is_full() && table_.num_chunks() + parts <= kMaxTableParts;
    stream.Hold(this, has_room, reads, writes, "sum_squares", launch);
    table_.Add(entry, parts);
  }

 private:
  LaunchResult LaunchEntries(StreamHandle stream) override {
    const LaunchResult result =
        LaunchSumSquares<T>(stream, table_, reinterpret_cast<float*>(sums_->data()));
    table_.Clear();
    return result;
  }

  SumSquaresTable table_;
  std::unique_ptr<Memory> sums_;  // of parts
};

KernelOr CreateSumSquares(const KernelSpec& spec, Device& device, Stream& stream) {
  return WithFloat(spec, [&]<typename T>(std::type_identity<T>) -> KernelOr {
    auto* const batch = BatchOf<SumSquaresBatch<T>>(stream);
    if (batch != nullptr) RETURN_IF_ERROR(batch->Prepare(device));
    return MakeKernel(spec, stream, [spec, batch](const KernelArgs& args, CudaStream& to) {
      const int64_t count = spec.inputs[0].num_elements();
      batch->Add({.count = count,
                  .part_size = SumPartSize(count),
                  .adds = AddsToResults(spec, args),
                  .x = args.inputs[0],
                  .y = args.outputs[0]},
                 to, args.launch);
      return absl::OkStatus();
    });
  });
}

}  // namespace

void AddSumSquaresKernels(KernelRegistry* registry) {
  AddKernel(registry, "sum_squares", {.create = CreateSumSquares, .supports_accumulate = true});
}

}  // namespace penstock::kernels::cuda
