// A GPU as the engine's Device, through the CUDA runtime.
//
// Errors. What CUDA itself reports (a failed call, an illegal address) stays with the stream, and
// its events carry it. Kernels report bad operands, such as an id outside of its table, in the
// stream's Fault, and events carry that error. What the stream was given after a bad operand still
// runs, on meaningless values, and overwrites what it would have overwritten: parameters and other
// states, too. Events of streams that have waited for an event of the stream, then or before, carry
// the error as well: they may carry one that is later than what they waited for, never miss one.
// After an error that CUDA keeps ("sticky") Reset fails.
//
// Kernels may have a stream hold back their launches, to make one of several (launch_batch.h). What
// a stream holds back it launches before it does anything else; if that fails, the error of the
// stream names the first of the launches.
//
// Streams capture graphs (base/stream_graph.h). Capturing and instantiating one allocates and may
// block; launching it does not. A call that fails while its stream is capturing is an error of the
// capture, not of the stream.
//
// Thread rule: that of base/device.h. Every call makes the device current on the calling thread.
// Invariants: streams do not wait for the legacy default stream. These calls block: Allocate, a
// copy whose host side is not pinned, Reset, the destruction of a stream, for at most
// kMaxDestroyWaitNs, and the destruction of memory and of a stream's last event, in which CUDA
// waits for the device, without a limit.

#ifndef PENSTOCK_KERNELS_CUDA_CUDA_DEVICE_H_
#define PENSTOCK_KERNELS_CUDA_CUDA_DEVICE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/device.h"
#include "base/gpu_stream.h"
#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/blas.h"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_batch.h"

namespace penstock::kernels::cuda {

inline constexpr int64_t kMaxDestroyWaitNs = 5'000'000'000;

// What the kernels of this folder need of a stream.
class CudaStream : public Stream, public GpuStream {
 public:
  // The stream's batch of the type, which the first call makes.
  template <typename Batch>
  Batch* BatchOf() {
    for (const auto& batch : batches_) {
      if (auto* found = dynamic_cast<Batch*>(batch.get())) return found;
    }
    auto made = std::make_unique<Batch>();
    Batch* const batch = made.get();
    batches_.push_back(std::move(made));
    return batch;
  }

  // Holds back a launch of `op`, which the caller adds to `batch` next. The stream first launches
  // what it holds back so far if that is of another batch, if the batch has no room, or if the
  // launch must follow it.
  void Hold(LaunchBatch* batch, bool has_room, LaunchBatch::Ranges reads,
            LaunchBatch::Ranges writes, std::string_view op, uint64_t launch);

  // Where kernels report bad operands; null where the stream could not be made.
  virtual Fault* fault() = 0;
  // The first call on the stream that failed, since the last Reset: why it could not be made, if it
  // could not.
  virtual absl::Status status() const = 0;
  // Sets device memory to zero bytes.
  virtual void Zero(void* to, size_t num_bytes) = 0;
  // For kernels whose arguments change from step to step: null, unless the stream is capturing a
  // graph.
  virtual const LaunchOffsets* offsets() { return nullptr; }

 protected:
  // Launches what is held back. Every call that gives the stream work, or an event, begins with it.
  // It calls handle().
  void LaunchHeld();

 private:
  // Launching `op` has failed.
  virtual void FailHeld(LaunchResult result, std::string_view op, uint64_t launch) = 0;

  std::vector<std::unique_ptr<LaunchBatch>> batches_;
  LaunchBatch* held_ = nullptr;  // one of them, or null: nothing is held back
  std::string_view held_op_;     // of its first launch
  uint64_t held_launch_ = kNoLaunch;
};

// What they need of a device. Its streams are CudaStreams.
class CudaDevice : public Device {
 public:
  virtual Blas& blas() = 0;
  // Null where there is none. It is loaded at the first call.
  virtual ConvolutionLibrary* convolutions() { return nullptr; }
  // Likewise. An error: there is none, and PENSTOCK_ATTENTION asks for it.
  virtual absl::StatusOr<AttentionLibrary*> attention() { return nullptr; }
};

// OK for 0; otherwise kResourceExhausted for a lack of memory and kInternal for anything else, with
// `what` and CUDA's name and text of the error.
absl::Status ToStatus(LaunchResult result, std::string_view what);

// The message of a report.
absl::Status FaultStatus(const Fault& fault);

// For the device that is current on this thread.
using CreateBlas = absl::StatusOr<std::unique_ptr<Blas>>();

// Device `index` of CUDA; kFailedPrecondition says why there is none. `create_blas`: null for
// cuBLASLt. Reads the environment variable PENSTOCK_ATTENTION (attention_library.h).
absl::StatusOr<std::unique_ptr<CudaDevice>> OpenCudaDevice(int index,
                                                           CreateBlas* create_blas = nullptr);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CUDA_DEVICE_H_
