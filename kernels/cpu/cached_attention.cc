#include <algorithm>
#include <cmath>

#include "kernels/cpu/attention_layout.h"
#include "kernels/cpu/copy.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// Whether operand 0 holds q, k and v, and not q alone with k and v as operands 3 and 4.
bool IsPacked(const KernelSpec& spec) { return spec.inputs.size() == 3; }

// Of one sequence, with all rows of the cache.
AttentionShape SequenceShape(const KernelSpec& spec) {
  const Shape& o = spec.outputs[1].shape;
  const Shape& cache = spec.inputs[1].shape;
  return {.batch = 1,
          .heads = o[2],
          .key_heads = cache[3],
          .queries = o[1],
          .keys = cache[1],
          .width = o[3],
          .is_causal = true};
}

// Rows of the new tokens, those of all sequences one after the other.
template <typename T>
struct TokenRows {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t query_stride = 0;  // from one row to the next
  int64_t key_stride = 0;
};

template <typename T>
T Dot(const T* a, const T* b, int64_t count) {
  Vec<T> sum{};
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) sum += Load(a + i) * Load(b + i);
  T total = SumLanes(sum);
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

// y += factor * x.
template <typename T>
void AddScaled(const T* x, T factor, int64_t count, T* y) {
  const Vec<T> f = Splat(factor);
  int64_t i = 0;
  for (; i + kLanes<T> <= count; i += kLanes<T>) Store<T>(y + i, Load(y + i) + f * Load(x + i));
  for (; i < count; ++i) y[i] += factor * x[i];
}

// out = softmax(q k' / sqrt(width)) v of one query; keys and values are `stride` apart. `scores`
// has room for `count`.
template <typename T>
void AttendOne(const T* q, const T* keys, const T* values, int64_t count, int64_t stride,
               int64_t width, T* scores, T* out) {
  const T scale = 1 / std::sqrt(static_cast<T>(width));
  T max = -std::numeric_limits<T>::infinity();
  for (int64_t j = 0; j < count; ++j) {
    scores[j] = scale * Dot(q, keys + j * stride, width);
    max = std::max(max, scores[j]);
  }
  double sum = 0;
  std::fill_n(out, width, T{});
  for (int64_t j = 0; j < count; ++j) {
    const T weight = std::exp(scores[j] - max);
    sum += weight;
    AddScaled(values + j * stride, weight, width, out);
  }
  const T factor = static_cast<T>(1 / sum);
  for (int64_t i = 0; i < width; ++i) out[i] *= factor;
}

template <typename T>
class CachedAttention : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    AttentionShape shape = SequenceShape(spec_);
    const int64_t batch = spec_.outputs[1].shape[0];
    const int64_t queries = shape.queries;
    const int64_t keys = shape.keys;
    const IndexReader start(args.inputs[2], spec_.inputs[2].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, start, batch, keys + 1));
    T* const cache = Output<T>(args, 0);
    T* const out = Output<T>(args, 1);
    CopyBytes(pool_, args.inputs[1], cache, spec_.inputs[1].num_bytes());
    const int64_t row = shape.heads * shape.width;  // of queries
    const int64_t key_row = shape.key_heads * shape.width;
    const TokenRows<T> tokens = Tokens(args);
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t count = std::min(queries, keys - start[b]);  // that have room
      for (int64_t i = 0; i < count; ++i) {
        T* const cached = cache + (b * keys + start[b] + i) * 2 * key_row;
        const int64_t from = (b * queries + i) * tokens.key_stride;
        std::copy_n(tokens.k + from, key_row, cached);
        std::copy_n(tokens.v + from, key_row, cached + key_row);
      }
      std::fill(out + (b * queries + count) * row, out + (b + 1) * queries * row, T{});
    }
    if (queries == 1) {
      AttendOneEach(args, batch, start);
      return absl::OkStatus();
    }
    for (int64_t b = 0; b < batch; ++b) {
      shape.queries = std::min(queries, keys - start[b]);
      if (shape.queries == 0) continue;
      shape.keys = start[b] + shape.queries;
      shape.causal_offset = start[b];
      const HeadStrides cached = RowStrides(keys, 2, shape.key_heads, shape.width);
      const T* const k = cache + b * keys * 2 * key_row;
      AttentionForward<T>(
          pool_, shape,
          {tokens.q + b * queries * tokens.query_stride, {0, shape.width, tokens.query_stride}},
          {k, cached}, {k + key_row, cached},
          {out + b * queries * row, RowStrides(queries, 1, shape.heads, shape.width)}, nullptr,
          args.workspace);
    }
    return absl::OkStatus();
  }

 private:
  TokenRows<T> Tokens(const KernelArgs& args) const {
    const AttentionShape shape = SequenceShape(spec_);
    const int64_t row = shape.heads * shape.width;
    const T* const q = Input<T>(args, 0);
    if (IsPacked(spec_)) return {q, q + row, q + 2 * row, 3 * row, 3 * row};
    return {q, Input<T>(args, 3), Input<T>(args, 4), row, shape.key_heads * shape.width};
  }

  // The only query of each sequence: no block of it would be full.
  void AttendOneEach(const KernelArgs& args, int64_t batch, const IndexReader& start) {
    const AttentionShape shape = SequenceShape(spec_);
    const int64_t row = shape.heads * shape.width;
    const int64_t key_row = shape.key_heads * shape.width;
    const TokenRows<T> tokens = Tokens(args);
    const T* const cache = Output<T>(args, 0);
    pool_.ParallelFor(batch * shape.heads, 1, [&](int64_t begin, int64_t end, int thread) {
      T* const scores = static_cast<T*>(args.workspace) + thread * shape.keys;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t b = i / shape.heads;
        const int64_t head = i % shape.heads;
        if (start[b] == shape.keys) continue;
        const T* const k = cache + b * shape.keys * 2 * key_row +
                           head / (shape.heads / shape.key_heads) * shape.width;
        AttendOne(tokens.q + b * tokens.query_stride + head * shape.width, k, k + key_row,
                  start[b] + 1, 2 * key_row, shape.width, scores,
                  Output<T>(args, 1) + b * row + head * shape.width);
      }
    });
  }
};

size_t CachedAttentionWorkspace(const KernelSpec& spec, int num_threads) {
  const AttentionShape shape = SequenceShape(spec);
  if (shape.queries == 1) {
    return static_cast<size_t>(num_threads) * static_cast<size_t>(shape.keys) *
           ByteSize(MainDType(spec));
  }
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionWorkspaceBytes<T>(shape, num_threads);
  });
}

KernelOr CreateCachedAttention(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[2].dtype));
  return CreateKernel<CachedAttention, Floats>(spec, device, stream);
}

}  // namespace

KernelDef CachedAttentionKernel() {
  return {.workspace_bytes = CachedAttentionWorkspace,
          .create = CreateCachedAttention,
          .prepare = PrepareAttention};
}

}  // namespace penstock::kernels
