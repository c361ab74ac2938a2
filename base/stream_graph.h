// Work of a stream that is recorded once and launched many times, as one call: a CUDA graph. It is
// for work that is the same from time to time, as the phases of a training step are.
//
// Example: for an instance of a phase in step 1, and another one in step 5 with the same operands
//   BeginCapture(); launches of kernels, copies; graph = EndCapture()    nothing has run yet
//   Launch(*graph, {})                                                   runs them, as in step 1
//   Launch(*graph, {.step = 4, .launch = ...})                           runs them, as in step 5
//
// Thread rule: that of the stream.
// Invariants: a graph is launched on the stream that recorded it, and outlives that stream.

#ifndef PENSTOCK_BASE_STREAM_GRAPH_H_
#define PENSTOCK_BASE_STREAM_GRAPH_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock {

// What a launch of a graph adds, modulo 2^64, to the arguments of its kernels that change from step
// to step: KernelArgs::step and KernelArgs::launch. All other arguments stay as they were recorded.
struct GraphOffsets {
  uint64_t step = 0;    // added to KernelArgs::step
  uint64_t launch = 0;  // added to KernelArgs::launch
};

// What a capture has recorded. Freed with the object.
class StreamGraph {
 public:
  virtual ~StreamGraph() = default;
};

// A stream that can do so implements it beside Stream.
class CapturingStream {
 public:
  virtual ~CapturingStream() = default;

  // Until EndCapture, kernels and copies that the stream is given are recorded and do not run.
  // REQUIRES: until then it gets nothing else, such as an event to record.
  virtual absl::Status BeginCapture() = 0;

  // After an error of this or of what was recorded, nothing has run, and the stream goes on as if
  // nothing had been recorded. REQUIRES: BeginCapture has succeeded.
  virtual absl::StatusOr<std::unique_ptr<StreamGraph>> EndCapture() = 0;

  // Enqueues the graph's work. An error is one of the stream. Allocates nothing.
  virtual void Launch(StreamGraph& graph, const GraphOffsets& offsets) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_BASE_STREAM_GRAPH_H_
