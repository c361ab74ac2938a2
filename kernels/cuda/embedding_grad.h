// The gradient of a table of embeddings.
//
// The ids are first sorted by parts of the table, which takes two passes over them; then each row
// of the table adds up its own. So a pass over the ids serves all columns, and rows that many ids
// name do not hold up others.
//
// Thread rule: none, the functions have no state.

#ifndef PENSTOCK_KERNELS_CUDA_EMBEDDING_GRAD_H_
#define PENSTOCK_KERNELS_CUDA_EMBEDDING_GRAD_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// y[row] = the sum of dy[i] over the i with ids[i] - first == row, in their order, plus y[row] with
// `adds`. Ids outside [0, limit) are reported.
struct EmbeddingGradParams {
  int64_t count = 0;  // of ids
  int64_t width = 0;
  int64_t rows = 0;
  int64_t first = 0;
  int64_t limit = 0;
  bool adds = false;
  Indices ids;
  FaultSite site;
};

// How the rows are divided: into `parts` of 2^shift rows each, the last of them perhaps fewer.
struct EmbeddingParts {
  int shift = 0;
  int64_t parts = 0;
};
constexpr EmbeddingParts EmbeddingPartsOf(int64_t rows) {
  constexpr int64_t kEnough = 512;  // blocks that keep the largest devices busy
  constexpr int kMostShift = 5;
  EmbeddingParts result;
  while (result.shift < kMostShift && CeilDiv(rows, int64_t{2} << result.shift) >= kEnough) {
    ++result.shift;
  }
  result.parts = CeilDiv(rows, int64_t{1} << result.shift);
  return result;
}

size_t EmbeddingGradWorkspaceBytes(int64_t rows, int64_t count);

// `workspace`: EmbeddingGradWorkspaceBytes, at a multiple of 8.
template <typename T, typename R>
LaunchResult LaunchEmbeddingGrad(StreamHandle stream, const EmbeddingGradParams& params,
                                 const T* dy, R* y, void* workspace);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_EMBEDDING_GRAD_H_
