// Access to the CUDA stream behind a Stream, for folders that call CUDA's libraries, such as NCCL.
// It is declared here because those folders may include neither each other nor the folder that
// implements streams.
//
// Faults are flags in pinned memory that work on the device writes, so that other work there and
// the host see them without waiting for each other.
//
// Thread rule: that of the stream.

#ifndef PENSTOCK_BASE_GPU_STREAM_H_
#define PENSTOCK_BASE_GPU_STREAM_H_

#include <cstdint>

struct CUstream_st;

namespace penstock {

// Written by copies on a stream. Where a flag is not 0, another device has failed.
struct PeerFault {
  volatile int32_t flags[2] = {0, 0};
};

// A stream implements it beside Stream.
class GpuStream {
 public:
  virtual ~GpuStream() = default;

  // For calls by this thread: its device becomes current. Null where the stream could not be made.
  virtual CUstream_st* handle() = 0;

  // Not 0 from when work on any stream of the device finds an error until a stream of it is reset.
  virtual const volatile int32_t* device_fault() = 0;

  // While a flag is not 0, the stream's events carry the error kAborted. A reset clears them.
  virtual PeerFault* peer_fault() = 0;
  // How often the stream has been reset.
  virtual uint64_t num_resets() const = 0;
  // What the error names: the last launch that may set a flag.
  virtual void SetPeerLaunch(uint64_t launch) = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_BASE_GPU_STREAM_H_
