// A pass of a pooling in oneDNN, in f32. What differs between its versions 2 and 3 belongs into
// onednn_pooling.cc; no oneDNN type leaves that file.
//
// A maximum of oneDNN skips NaNs and starts from the least finite number, so that planes with
// elements that are not larger than it must not come here.
//
// Thread rule: an object is used by one thread at a time, on which alone it runs.

#ifndef PENSTOCK_KERNELS_CPU_ONEDNN_POOLING_H_
#define PENSTOCK_KERNELS_CPU_ONEDNN_POOLING_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {

// Whether this build has oneDNN. Otherwise nothing else here may be called.
bool HasOneDnnPooling();

class OneDnnPooling {
 public:
  // Compiles the code. REQUIRES: all extents are positive.
  static absl::StatusOr<std::unique_ptr<OneDnnPooling>> Create(const PoolingShape& shape,
                                                               PoolingPass pass);
  ~OneDnnPooling();

  // A multiple of 64.
  size_t workspace_bytes() const;

  // `a` and `b` are the operands of the pass; `b` is not read where it has one. REQUIRES: the
  // workspace is aligned to 64 bytes.
  absl::Status Run(const float* a, const float* b, float* result, void* workspace);

 private:
  struct Impl;
  explicit OneDnnPooling(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ONEDNN_POOLING_H_
