// The sum over indices of a product of two tensors: what matmul and einsum are.
//
// Every index has a size and a stride in a, b and c, 0 where the tensor lacks it. It is of one of
// four kinds: batch (in all three), m (in a and c), n (in b and c) and k (not in c: summed).
// Neighbours that continue each other in all three tensors are joined; one index of each of m, n
// and k becomes a matrix product, the others loops around it. Nothing is transposed or copied: the
// matrix product takes strides.
//
// Example: "bsd,dchk->bschk" with all of it contiguous joins b, s to m and c, h, k to n, and is one
// product [b*s, d] x [d, c*h*k]. "bhsk,bhtk->bhst" is b*h products [s, k] x [k, t].
//
// Thread rule: immutable after construction; Run uses the given pool.

#ifndef PENSTOCK_KERNELS_CPU_CONTRACTION_H_
#define PENSTOCK_KERNELS_CPU_CONTRACTION_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "base/thread_pool.h"
#include "kernels/contraction_indices.h"

namespace penstock::kernels {

class Contraction {
 public:
  explicit Contraction(absl::Span<const ContractionIndex> indices);

  // Sums of more than kMaxDepth terms of f32 go in blocks of kBlockDepth, whose sums are added up
  // in double. Products with few results do so from kBlockDepth on.
  static constexpr int64_t kBlockDepth = 512;
  static constexpr int64_t kMaxDepth = 4096;

  // T: the operands' type. C: the result's, which is float or T where T has 16 bits, else T.
  template <typename T, typename C = T>
  size_t WorkspaceBytes(int num_threads) const;

  // c = the contraction, plus c when `accumulate`. REQUIRES: c is no operand's memory; num_sums()
  // is 1 if C has 16 bits, so that no sum is rounded before its end.
  template <typename T, typename C = T>
  void Run(ThreadPool& pool, const T* a, const T* b, C* c, bool accumulate, void* workspace) const;

  // The matrix product inside the loops, and how often it runs.
  const ContractionIndex& m() const { return m_; }
  const ContractionIndex& n() const { return n_; }
  const ContractionIndex& k() const { return k_; }
  int64_t num_products() const { return num_outputs_ * num_sums_; }
  // Of those, how many are added up in each result.
  int64_t num_sums() const { return num_sums_; }

 private:
  using Indices = std::vector<ContractionIndex>;

  // Whether sums of T are so long that they go by SumInBlocks.
  template <typename T>
  bool IsDeep() const;

  // A part of the product's rows and columns.
  struct Stripe {
    int64_t first_row;
    int64_t rows;
    int64_t first_column;
    int64_t columns;
  };

  // The stripe's part of one product and its loops over k, written (or added) to c tile by tile:
  // blocks of kBlockDepth terms in float, the sums of blocks in double (sum.h).
  void SumInBlocks(const Stripe& stripe, const float* a, const float* b, float* c, bool accumulate,
                   void* tiles, void* scratch) const;

  // Moves the index of each kind that makes the best matrix product out of the lists.
  void ChooseProduct(Indices* m, Indices* n, Indices* k);

  ContractionIndex m_;
  ContractionIndex n_;
  ContractionIndex k_;
  Indices outputs_;  // loops over batch, m and n
  Indices sums_;     // loops over k
  int64_t num_outputs_ = 1;
  int64_t num_sums_ = 1;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CONTRACTION_H_
