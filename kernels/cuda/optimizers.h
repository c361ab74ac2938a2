// Launches of optimisers: one a parameter, which reads its scalars on the device. T: float,
// BFloat16 or Float16.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_
#define PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// One step of AdamW on `count` weights; the scalars lie on the device. Each result may be the
// memory of the operand that it replaces.
struct AdamwParams {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0;
  const int64_t* step = nullptr;
  Scalar rate;
  Scalar scale;  // of the gradient
};
template <typename T>
LaunchResult LaunchAdamw(StreamHandle stream, const AdamwParams& params, int64_t count, const T* w,
                         const T* g, const T* m, const T* v, T* new_w, T* new_m, T* new_v);

struct SgdParams {
  float momentum = 0;
  float weight_decay = 0;
  bool is_nesterov = false;
  Scalar rate;
  Scalar scale;
};
// `buffer` and `new_buffer` are null without momentum.
template <typename T>
LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, int64_t count, const T* w,
                       const T* g, const T* buffer, T* new_w, T* new_buffer);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_OPTIMIZERS_H_
