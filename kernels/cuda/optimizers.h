// Launches of optimisers, which read their scalars on the device. T: float, BFloat16 or Float16.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_
#define PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_table.h"

namespace penstock::kernels::cuda {

// One step of AdamW on all weights of a table; the scalars lie on the device.
struct AdamwParams {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  const int64_t* step = nullptr;
  Scalar rate;
  Scalar scale;  // of the gradient

  bool operator==(const AdamwParams&) const = default;
};
// `count` weights, which are not 0. Each result may be the memory of the operand that it replaces.
template <typename T>
struct AdamwEntry {
  int64_t count = 0;
  double weight_decay = 0;
  const T* w = nullptr;
  const T* g = nullptr;
  const T* m = nullptr;
  const T* v = nullptr;
  T* new_w = nullptr;
  T* new_m = nullptr;
  T* new_v = nullptr;
};
template <typename T>
using AdamwTable = LaunchTable<AdamwEntry<T>, 52>;

// One step of SGD on all weights of a table, likewise.
struct SgdParams {
  float momentum = 0;
  bool is_nesterov = false;
  Scalar rate;
  Scalar scale;  // of the gradient

  bool operator==(const SgdParams&) const = default;
};
// As AdamwEntry; `buffer` and `new_buffer` are null without momentum.
template <typename T>
struct SgdEntry {
  int64_t count = 0;
  float weight_decay = 0;
  const T* w = nullptr;
  const T* g = nullptr;
  const T* buffer = nullptr;
  T* new_w = nullptr;
  T* new_buffer = nullptr;
};
template <typename T>
using SgdTable = LaunchTable<SgdEntry<T>, 64>;

inline constexpr int64_t kUpdateChunk = 4096;  // weights of a chunk of a table

template <typename T>
LaunchResult LaunchAdamw(StreamHandle stream, const AdamwParams& params,
                         const AdamwTable<T>& table);
template <typename T>
LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, const SgdTable<T>& table);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_
