// How kernels of this folder are launched, as plain numbers: what host code plans and tests without
// a device, and what the *.cu files hand to CUDA. Includes nothing of CUDA, so that nvcc has little
// to parse and tests can compile the same kernels for the host (simulated_simt.h).
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_KERNELS_CUDA_LAUNCH_H_
#define PENSTOCK_KERNELS_CUDA_LAUNCH_H_

#include <cstddef>
#include <cstdint>

struct CUstream_st;

namespace penstock::kernels::cuda {

using StreamHandle = CUstream_st*;  // cudaStream_t

// A cudaError_t; 0 is success.
using LaunchResult = int;

inline constexpr int kWarp = 32;
inline constexpr int kMaxThreads = 1024;               // of a block
inline constexpr size_t kPlainSharedBytes = 48 << 10;  // of a block, without asking for more
inline constexpr size_t kMaxSharedBytes = 99 << 10;    // on every architecture since sm_80
// Blocks of the kernels that loop over their work: some waves on the largest devices of today.
inline constexpr int64_t kMaxBlocks = 4096;
// For kernels whose blocks have something to do before they loop: as many blocks as run at a time
// on an H100 or H200, with 132 processors. Kernels that are launched so have
// __launch_bounds__(kLoopThreads, kWaveBlocksPerProcessor).
inline constexpr int kWaveBlocksPerProcessor = 4;
inline constexpr int64_t kWaveBlocks = 132 * kWaveBlocksPerProcessor;
inline constexpr int64_t kLoopThreads = 256;  // of a block
inline constexpr int64_t kMaxGridY = 65535;

struct LaunchShape {
  unsigned grid_x = 1;
  unsigned grid_y = 1;
  unsigned threads_x = 1;
  unsigned threads_y = 1;
  size_t shared_bytes = 0;  // dynamic
};

// Whether any device since sm_80 takes it.
constexpr bool IsLaunchable(const LaunchShape& shape) {
  return shape.grid_x >= 1 && shape.grid_x <= 0x7fffffffu && shape.grid_y >= 1 &&
         shape.grid_y <= kMaxGridY && shape.threads_x >= 1 && shape.threads_y >= 1 &&
         uint64_t{shape.threads_x} * shape.threads_y <= kMaxThreads &&
         shape.shared_bytes <= kMaxSharedBytes;
}

constexpr int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Threads that loop over `count` pieces of work.
constexpr LaunchShape ShapeForLoop(int64_t count, int64_t max_blocks = kMaxBlocks) {
  int64_t blocks = CeilDiv(count, kLoopThreads);
  if (blocks > max_blocks) blocks = max_blocks;
  if (blocks < 1) blocks = 1;
  return {.grid_x = static_cast<unsigned>(blocks), .threads_x = kLoopThreads};
}

// A block for each of `count` rows, which loops over rows beyond kMaxBlocks: as many threads as the
// row has elements for `a_thread` each, in whole warps. Kernels that are launched so, with up to
// kMaxThreads, have __launch_bounds__(kMaxThreads): otherwise the compiler may give their threads
// more registers than a processor has for that many.
constexpr LaunchShape ShapeForRows(int64_t count, int64_t row_size, int64_t a_thread = 4) {
  int64_t threads = kWarp;
  while (threads < kMaxThreads && threads * a_thread < row_size) threads *= 2;
  int64_t blocks = count > kMaxBlocks ? kMaxBlocks : count;
  if (blocks < 1) blocks = 1;
  return {.grid_x = static_cast<unsigned>(blocks), .threads_x = static_cast<unsigned>(threads)};
}

// Kernels that add up, for each row of a table, the rows of an operand whose index is that: a block
// has some rows of the table, keeps their sums in shared memory, a column a thread, and goes once
// through all indices. More rows a block are fewer passes; fewer are more blocks.
inline constexpr int kScatterThreads = 256;  // most, of a block
inline constexpr int kMaxScatterRows = 32;   // of a block: their sums take 32 KiB

struct ScatterLaunch {
  int rows = 1;  // of a block
  LaunchShape shape;
};

// For a table in `groups` of `rows` rows with indices of their own. grid_x blocks loop over the
// groups' CeilDiv(rows, launch.rows) parts.
constexpr ScatterLaunch ScatterLaunchOf(int64_t groups, int64_t rows, int64_t width) {
  constexpr int64_t kEnough = 2048;  // blocks that keep the largest devices busy
  ScatterLaunch launch;
  while (launch.shape.threads_x < kWarp ||
         (launch.shape.threads_x < kScatterThreads && launch.shape.threads_x < width)) {
    launch.shape.threads_x *= 2;
  }
  const int64_t column_blocks = CeilDiv(width, launch.shape.threads_x);
  while (launch.rows < kMaxScatterRows &&
         groups * CeilDiv(rows, 2 * launch.rows) * column_blocks >= kEnough) {
    launch.rows *= 2;
  }
  const int64_t blocks = groups * CeilDiv(rows, launch.rows);
  launch.shape.grid_x = static_cast<unsigned>(blocks > kMaxBlocks ? kMaxBlocks : blocks);
  launch.shape.grid_y = static_cast<unsigned>(column_blocks > 0xffffffff ? 0 : column_blocks);
  return launch;
}

// Where kernels report what is wrong with their operands: host memory that the device writes. The
// first report of a stream stays until the stream is reset.
struct Fault {
  enum Kind : int32_t { kNone = 0, kIndexOutside = 1 };
  volatile int32_t kind = kNone;
  volatile int64_t value = 0;  // the index
  volatile int64_t limit = 0;  // it lies outside [0, limit)
  volatile uint64_t launch = 0;
  // Set to 1 as well, if it is not null: for all streams of the device.
  volatile int32_t* of_device = nullptr;
};

// In device memory, for kernels that were captured into a graph: what is to be added, modulo 2^64,
// to the step and the launch that they were captured with (base/stream_graph.h).
struct LaunchOffsets {
  uint64_t step = 0;
  uint64_t launch = 0;
};

// What a launch that may fail on its operands is given.
struct FaultSite {
  Fault* fault = nullptr;
  uint64_t launch = 0;
  const LaunchOffsets* offsets = nullptr;  // null: the launch is not captured
};

// A scalar operand such as a learning rate.
struct Scalar {
  enum Type : int32_t { kF32, kBF16, kF16 };
  const void* data = nullptr;
  Type type = kF32;

  bool operator==(const Scalar&) const = default;
};

// Integer operands such as ids, of any width.
struct Indices {
  enum Type : int32_t { kI8, kU8, kI32, kI64 };
  const void* data = nullptr;
  Type type = kI64;
};

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_LAUNCH_H_
