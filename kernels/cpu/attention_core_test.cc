// Gradients of attention over more keys and queries than are added up in one type, against plain
// loops; attention in steps over parts of the keys.

#include "kernels/cpu/attention_core.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "gtest/gtest.h"

#include "base/random.h"
#include "base/thread_pool.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kWidth = 2;

// Heads [rows, kWidth], one after the other.
HeadStrides Strides(const AttentionShape& shape, int64_t rows) {
  return {.batch = shape.heads * rows * kWidth, .head = rows * kWidth, .row = kWidth};
}
HeadStrides KeyStrides(const AttentionShape& shape, int64_t rows) {
  return {.batch = shape.key_heads * rows * kWidth, .head = rows * kWidth, .row = kWidth};
}

template <typename T>
struct Operands {
  explicit Operands(const AttentionShape& shape) {
    const int64_t heads = shape.batch * shape.heads;
    const int64_t key_heads = shape.batch * shape.key_heads;
    uint32_t stream = 0;
    const auto draw = [&](int64_t count, double low, double high) {
      std::vector<T> values(count);
      ++stream;
      for (int64_t i = 0; i < count; ++i) {
        values[i] = static_cast<T>(low + (high - low) * RandomUniform({1, stream, 0}, i));
      }
      return values;
    };
    q = draw(heads * shape.queries * kWidth, -1, 1);
    k = draw(key_heads * shape.keys * kWidth, -1, 1);
    v = draw(key_heads * shape.keys * kWidth, -1, 1);
    o = draw(heads * shape.queries * kWidth, -1, 1);
    d_o = draw(heads * shape.queries * kWidth, -1, 1);
    lse = draw(heads * shape.queries, 0, 1);
    dq.resize(q.size());
    dk.resize(k.size());
    dv.resize(v.size());
  }

  AttentionGradOperands<T> Views(const AttentionShape& shape) {
    const HeadStrides queries = Strides(shape, shape.queries);
    const HeadStrides keys = KeyStrides(shape, shape.keys);
    return {.q = {q.data(), queries},
            .k = {k.data(), keys},
            .v = {v.data(), keys},
            .o = {o.data(), queries},
            .d_o = {d_o.data(), queries},
            .lse = lse.data(),
            .dq = {dq.data(), queries},
            .dk = {dk.data(), keys},
            .dv = {dv.data(), keys}};
  }

  std::vector<T> q, k, v, o, d_o, lse, dq, dk, dv;
};

// dv = p' do,  ds = scale p (do v' - rowsum(do o)),  dq = ds k,  dk = ds' q, term by term.
void AddTerms(const AttentionShape& shape, const AttentionGradOperands<double>& x) {
  const double scale = 1 / std::sqrt(static_cast<double>(kWidth));
  for (int64_t head = 0; head < shape.batch * shape.heads; ++head) {
    const int64_t b = head / shape.heads, h = head % shape.heads;
    const int64_t g = h / (shape.heads / shape.key_heads);
    for (int64_t i = 0; i < shape.queries; ++i) {
      for (int64_t j = 0; j < shape.keys; ++j) {
        if (shape.is_causal && j > i + shape.causal_offset) continue;
        double score = 0, d_score = 0;
        for (int64_t d = 0; d < kWidth; ++d) {
          score += x.q.At(b, h, i)[d] * x.k.At(b, g, j)[d];
          d_score += x.d_o.At(b, h, i)[d] * (x.v.At(b, g, j)[d] - x.o.At(b, h, i)[d]);
        }
        const double p = std::exp(scale * score - x.lse[head * shape.queries + i]);
        const double ds = scale * p * d_score;
        for (int64_t d = 0; d < kWidth; ++d) {
          x.dv.At(b, g, j)[d] += p * x.d_o.At(b, h, i)[d];
          x.dq.At(b, h, i)[d] += ds * x.k.At(b, g, j)[d];
          x.dk.At(b, g, j)[d] += ds * x.q.At(b, h, i)[d];
        }
      }
    }
  }
}

// Runs AttentionBackward in the workspace that it asks for and no more.
template <typename T>
void RunBackward(const AttentionShape& shape, int num_threads, Operands<T>* operands) {
  ThreadPool pool(num_threads);
  const size_t num_bytes = AttentionGradWorkspaceBytes<T>(shape, num_threads);
  constexpr size_t kGuard = 1 << 16;
  const auto mark = static_cast<std::byte>(0xa5);
  std::byte* workspace =
      static_cast<std::byte*>(::operator new (num_bytes + kGuard, std::align_val_t{64}));
  std::fill_n(workspace, num_bytes + kGuard, mark);
  AttentionBackward<T>(pool, shape, operands->Views(shape), workspace);
  EXPECT_TRUE(std::all_of(workspace + num_bytes, workspace + num_bytes + kGuard,
                          [&](std::byte b) { return b == mark; }))
      << "writes past the workspace of " << num_bytes << " bytes";
  ::operator delete (workspace, std::align_val_t{64});
}

template <typename T>
void ExpectClose(const std::vector<T>& actual, const std::vector<double>& expected,
                 double tolerance, const char* what) {
  double largest = 0, error = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    largest = std::max(largest, std::abs(expected[i]));
    error = std::max(error, std::abs(actual[i] - expected[i]));
  }
  EXPECT_LE(error, tolerance * largest) << what;
}

template <typename T>
void CheckBackward(const AttentionShape& shape, const Operands<double>& expected,
                   double tolerance) {
  Operands<T> actual(shape);
  for (int num_threads : {1, 4}) {
    SCOPED_TRACE(::testing::Message() << shape.queries << " queries, " << shape.keys
                                      << " keys, causal " << shape.is_causal << ", "
                                      << 8 * sizeof(T) << " bits, " << num_threads << " threads");
    RunBackward(shape, num_threads, &actual);
    ExpectClose(actual.dq, expected.dq, tolerance, "dq");
    ExpectClose(actual.dk, expected.dk, tolerance, "dk");
    ExpectClose(actual.dv, expected.dv, tolerance, "dv");
  }
}

TEST(AttentionBackwardTest, SumsOfAnyLengthAreWhole) {
  struct Sizes {
    int64_t queries;
    int64_t keys;
  };
  // On both sides of 1024 terms, of one and of several sums in double, and of ragged blocks.
  for (const auto& [queries, keys] : {Sizes{1024, 1024}, Sizes{1025, 1025}, Sizes{2048, 1000},
                                      Sizes{70, 3200}, Sizes{2200, 60}, Sizes{2300, 3210}}) {
    for (bool is_causal : {false, true}) {
      AttentionShape shape = {.batch = 1,
                              .heads = 2,
                              .key_heads = 2,
                              .queries = queries,
                              .keys = keys,
                              .width = kWidth};
      shape.is_causal = is_causal;
      shape.causal_offset = keys - queries;
      Operands<double> expected(shape);
      AddTerms(shape, expected.Views(shape));
      CheckBackward<double>(shape, expected, 1e-12);
      CheckBackward<float>(shape, expected, 1e-5);
    }
  }
}

// The sums of keys and values go on from one head of queries to the next.
TEST(AttentionBackwardTest, HeadsThatShareKeysAddUp) {
  for (const auto& [queries, keys] :
       {std::pair{40, 70}, std::pair{350, 140}, std::pair{1100, 1100}}) {
    for (bool is_causal : {false, true}) {
      AttentionShape shape = {.batch = 2,
                              .heads = 6,
                              .key_heads = 2,
                              .queries = queries,
                              .keys = keys,
                              .width = kWidth};
      shape.is_causal = is_causal;
      shape.causal_offset = std::max(keys - queries, 0);
      Operands<double> expected(shape);
      AddTerms(shape, expected.Views(shape));
      CheckBackward<double>(shape, expected, 1e-12);
      CheckBackward<float>(shape, expected, 1e-5);
    }
  }
}

// {o, lse} of the queries over the keys [begin, end), going on from `so_far` if that is given.
template <typename T>
void RunForward(AttentionShape shape, const Operands<T>& operands, int64_t begin, int64_t end,
                const AttentionSoFar<T>* so_far, std::vector<T>* o, std::vector<T>* lse) {
  const HeadStrides queries = Strides(shape, shape.queries);
  const HeadStrides keys = KeyStrides(shape, shape.keys);
  shape.keys = end - begin;
  shape.causal_offset -= begin;
  ThreadPool pool(2);
  std::vector<std::byte> workspace(AttentionWorkspaceBytes<T>(shape, 2) + 64);
  void* aligned = workspace.data();
  size_t space = workspace.size();
  std::align(64, workspace.size() - 64, aligned, space);
  AttentionForward<T>(pool, shape, {operands.q.data(), queries},
                      {operands.k.data() + begin * kWidth, keys},
                      {operands.v.data() + begin * kWidth, keys}, {o->data(), queries}, lse->data(),
                      aligned, so_far);
}

template <typename T>
void CheckInSteps(const AttentionShape& shape, const std::vector<int64_t>& cuts, bool in_place,
                  double tolerance) {
  SCOPED_TRACE(::testing::Message()
               << shape.queries << " queries, " << shape.keys << " keys, causal " << shape.is_causal
               << ", in place " << in_place);
  const Operands<T> operands(shape);
  std::vector<T> o(operands.o.size()), lse(operands.lse.size());
  RunForward<T>(shape, operands, 0, shape.keys, nullptr, &o, &lse);
  std::vector<T> last_o(o.size()), last_lse(lse.size());
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    // The keys of a later step need not come later.
    const size_t part = (i + 1) % (cuts.size() - 1);
    std::vector<T> from_o = last_o, from_lse = last_lse;
    const AttentionSoFar<T> so_far = {
        {in_place ? last_o.data() : from_o.data(), Strides(shape, shape.queries)},
        in_place ? last_lse.data() : from_lse.data()};
    RunForward<T>(shape, operands, cuts[part], cuts[part + 1], i == 0 ? nullptr : &so_far, &last_o,
                  &last_lse);
  }
  ExpectClose(last_o, {o.begin(), o.end()}, tolerance, "o");
  ExpectClose(last_lse, {lse.begin(), lse.end()}, tolerance, "lse");
}

TEST(AttentionForwardTest, StepsOverPartsOfTheKeysGiveTheWhole) {
  for (const bool is_causal : {false, true}) {
    for (const bool in_place : {false, true}) {
      AttentionShape shape = {
          .batch = 1, .heads = 2, .key_heads = 1, .queries = 300, .keys = 300, .width = kWidth};
      shape.is_causal = is_causal;
      CheckInSteps<double>(shape, {0, 100, 200, 300}, in_place, 1e-12);
      CheckInSteps<float>(shape, {0, 7, 135, 300}, in_place, 1e-5);
      // Steps that add up in double.
      shape.queries = shape.keys = 2600;
      CheckInSteps<double>(shape, {0, 1300, 2600}, in_place, 1e-12);
    }
  }
}

// A step over keys that the mask hides reads none of them.
TEST(AttentionForwardTest, HiddenKeysAreNotRead) {
  AttentionShape shape = {
      .batch = 1, .heads = 1, .key_heads = 1, .queries = 130, .keys = 390, .width = kWidth};
  shape.is_causal = true;
  Operands<double> operands(shape);
  std::vector<double> o(operands.o.size()), lse(operands.lse.size());
  RunForward<double>(shape, operands, 0, 130, nullptr, &o, &lse);
  std::fill(operands.k.begin() + 130 * kWidth, operands.k.end(), std::nan(""));
  std::fill(operands.v.begin() + 130 * kWidth, operands.v.end(), std::nan(""));
  const std::vector<double> seen_o = o, seen_lse = lse;
  const AttentionSoFar<double> so_far = {{o.data(), Strides(shape, shape.queries)}, lse.data()};
  RunForward<double>(shape, operands, 130, 390, &so_far, &o, &lse);
  EXPECT_EQ(o, seen_o);
  EXPECT_EQ(lse, seen_lse);
  // Nor do they get a gradient.
  shape.causal_offset = -130;
  shape.keys = 260;
  Operands<double> grads(shape);
  std::fill(grads.k.begin(), grads.k.end(), std::nan(""));
  RunBackward(shape, 1, &grads);
  for (const std::vector<double>* grad : {&grads.dq, &grads.dk, &grads.dv}) {
    EXPECT_EQ(*grad, std::vector<double>(grad->size()));
  }
}

}  // namespace
}  // namespace penstock::kernels
