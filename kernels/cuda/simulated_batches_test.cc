// Launches that a stream holds back (launch_batch.h), with device code compiled for the host
// (simulated_simt.h): how many there are, what they have to follow, and that results have the bits
// of single launches.

#define PENSTOCK_SIMULATED_SIMT

#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/optimizers.cu"
#include "kernels/cuda/simulated_device.h"
#include "kernels/cuda/sum_squares.cu"
#include "kernels/gpu.h"
#include "tests/support/kernel_checks.h"

namespace penstock::kernels::cuda {
namespace {

// A kernel of the simulated device with tensors of its own.
struct HeldRun {
  std::shared_ptr<Kernel> kernel;
  std::vector<void*> inputs;
  std::vector<void*> outputs;
  std::shared_ptr<std::byte[]> workspace;

  absl::Status Run(Stream& stream, uint64_t launch = 0) const {
    KernelArgs args;
    args.inputs = inputs;
    args.outputs = outputs;
    args.workspace = workspace.get();
    args.stream = &stream;
    args.launch = launch;
    return kernel->Run(args);
  }
};

class SimulatedBatchTest : public ::testing::Test {
 protected:
  HeldRun Make(const KernelSpec& spec, std::vector<void*> inputs, std::vector<void*> outputs) {
    const KernelDef* def = registry_.Find(spec.op);
    KernelOr kernel = def->create(spec, device_, *stream_);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    const size_t num_bytes = def->workspace_bytes != nullptr ? def->workspace_bytes(spec, 1) : 0;
    return {.kernel = *std::move(kernel),
            .inputs = std::move(inputs),
            .outputs = std::move(outputs),
            .workspace = std::make_shared<std::byte[]>(num_bytes)};
  }

  // The launches of kernels since the last call, after those that are held back.
  uint64_t NumLaunches() {
    EXPECT_EQ(WaitUntilDone(*stream_, *event_, 1), absl::OkStatus());
    return simulated::num_launches - std::exchange(launches_before_, simulated::num_launches);
  }

  // Runs all at once, or one after the other; returns the launches.
  uint64_t RunAll(const std::vector<HeldRun>& runs, bool at_once) {
    NumLaunches();
    uint64_t launches = 0;
    for (const HeldRun& run : runs) {
      EXPECT_EQ(run.Run(*stream_), absl::OkStatus());
      if (!at_once) launches += NumLaunches();
    }
    return launches + NumLaunches();
  }

  const KernelRegistry registry_ = CudaKernels();
  SimulatedDevice device_;
  const std::unique_ptr<Stream> stream_ = device_.CreateStream();
  const std::unique_ptr<Event> event_ = device_.CreateEvent();

 private:
  uint64_t launches_before_ = 0;
};

// Sizes of tensors: none, single elements, around packs and chunks, several chunks; `count` in all.
std::vector<int64_t> MixedSizes(int count) {
  const int64_t some[] = {1, 0, 3, 4, 5, 8, 9, 255, 4095, 4096, 4097, 9001, 16384, 40000};
  std::vector<int64_t> sizes;
  for (int i = 0; i < count; ++i) {
    sizes.push_back(i < 14 ? some[i] : 1 + 37 * i % 61);
  }
  return sizes;
}

// Numbers of which neighbours differ.
template <typename T>
std::vector<T> SomeNumbers(int64_t count, int64_t seed) {
  std::vector<T> numbers;
  for (int64_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>((i * 7919 + seed * 104729) % 2003 - 1001) / 1024.0f;
    numbers.push_back(Narrow<T>(x));
  }
  return numbers;
}

// Bits of all tensors of the test.
template <typename T>
using Tensors = std::vector<std::vector<T>>;
template <typename T>
bool HaveTheSameBits(const Tensors<T>& a, const Tensors<T>& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return false;
    if (!a[i].empty() && std::memcmp(a[i].data(), b[i].data(), a[i].size() * sizeof(T)) != 0) {
      return false;
    }
  }
  return true;
}

// The scalars and the spec of AdamW on `count` weights.
struct AdamwScalars {
  int64_t step = 1000;
  float rate = 0.01f;
  float scale = 0.5f;
};
template <typename T>
KernelSpec AdamwSpec(int64_t count, double weight_decay) {
  const TileDesc tile = testing::WholeTile({DTypeOf<T>(), {count}});
  const TileDesc scalar = testing::WholeTile({DType::kF32, {}});
  KernelSpec spec = {
      .op = "adamw",
      .attributes = {{"weight_decay", weight_decay}},
      .inputs = {tile, tile, tile, tile, testing::WholeTile({DType::kI64, {}}), scalar, scalar},
      .outputs = {tile, tile, tile}};
  return spec;
}

// w, g, m and v of all sizes, each tensor with `offset` elements before it.
template <typename T>
class AdamwTensors {
 public:
  AdamwTensors(const std::vector<int64_t>& sizes, int64_t offset) : offset_(offset) {
    for (size_t i = 0; i < 4 * sizes.size(); ++i) {
      tensors.push_back(SomeNumbers<T>(sizes[i / 4] + offset, static_cast<int64_t>(i)));
      if (i % 4 != 3) continue;
      for (T& x : tensors.back()) x = Narrow<T>(std::abs(Widen(x)));  // squares
    }
  }
  void* At(size_t entry, size_t operand) { return tensors[4 * entry + operand].data() + offset_; }

  Tensors<T> tensors;

 private:
  const int64_t offset_;
};

// The scalars and the spec of SGD on `count` weights, with a buffer if there is momentum.
struct SgdScalars {
  float rate = 0.01f;
  float scale = 0.5f;
};
template <typename T>
KernelSpec SgdSpec(int64_t count, double momentum, double weight_decay, bool is_nesterov) {
  const TileDesc tile = testing::WholeTile({DTypeOf<T>(), {count}});
  const TileDesc scalar = testing::WholeTile({DType::kF32, {}});
  KernelSpec spec = {.op = "sgd",
                     .attributes = {{"momentum", momentum},
                                    {"weight_decay", weight_decay},
                                    {"nesterov", is_nesterov}},
                     .inputs = {tile, tile, scalar, scalar},
                     .outputs = {tile}};
  if (momentum != 0) {
    spec.inputs.push_back(tile);
    spec.outputs.push_back(tile);
  }
  return spec;
}

template <typename T>
class SimulatedBatchTypesTest : public SimulatedBatchTest {};
using BatchTypes = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(SimulatedBatchTypesTest, BatchTypes);

TYPED_TEST(SimulatedBatchTypesTest, AdamwOfManyParametersIsAFewLaunches) {
  using T = TypeParam;
  const std::vector<int64_t> sizes = MixedSizes(120);
  AdamwScalars scalars;
  for (const int64_t offset : {0, 1}) {  // packs, and single elements
    SCOPED_TRACE(StrCat("offset ", offset));
    std::vector<Tensors<T>> results;
    for (const bool at_once : {false, true}) {
      AdamwTensors<T> data(sizes, offset);
      std::vector<HeldRun> runs;
      for (size_t i = 0; i < sizes.size(); ++i) {
        runs.push_back(this->Make(AdamwSpec<T>(sizes[i], i % 2 == 0 ? 0.1 : 0),
                                  {data.At(i, 0), data.At(i, 1), data.At(i, 2), data.At(i, 3),
                                   &scalars.step, &scalars.rate, &scalars.scale},
                                  {data.At(i, 0), data.At(i, 2), data.At(i, 3)}));
      }
      const uint64_t launches = this->RunAll(runs, at_once);
      EXPECT_EQ(launches, at_once ? 3u : 119u);  // of 52 entries at most; one is empty
      results.push_back(data.tensors);
    }
    EXPECT_FALSE(HaveTheSameBits(results[0], AdamwTensors<T>(sizes, offset).tensors));
    EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
  }
}

// Plain, with momentum and with Nesterov's; w, g and the buffer, in place.
TYPED_TEST(SimulatedBatchTypesTest, SgdOfManyParametersIsAFewLaunches) {
  using T = TypeParam;
  const std::vector<int64_t> sizes = MixedSizes(120);
  SgdScalars scalars;
  for (const auto& [momentum, is_nesterov] :
       {std::pair(0.0, false), std::pair(0.9, false), std::pair(0.9, true)}) {
    Tensors<T> unaligned;
    for (const int64_t offset : {1, 0}) {  // single elements, and packs
      SCOPED_TRACE(
          StrCat(is_nesterov ? "Nesterov's " : "", "momentum ", momentum, ", offset ", offset));
      std::vector<Tensors<T>> results;
      for (const bool at_once : {false, true}) {
        Tensors<T> data;
        for (size_t i = 0; i < 3 * sizes.size(); ++i) {
          data.push_back(SomeNumbers<T>(sizes[i / 3], static_cast<int64_t>(i)));
          data.back().insert(data.back().begin(), static_cast<size_t>(offset), T());
        }
        const Tensors<T> before = data;
        std::vector<HeldRun> runs;
        for (size_t i = 0; i < sizes.size(); ++i) {
          T* const w = data[3 * i].data() + offset;
          T* const g = data[3 * i + 1].data() + offset;
          T* const buffer = data[3 * i + 2].data() + offset;
          std::vector<void*> inputs = {w, g, &scalars.rate, &scalars.scale};
          std::vector<void*> outputs = {w};
          if (momentum != 0) {
            inputs.push_back(buffer);
            outputs.push_back(buffer);
          }
          runs.push_back(
              this->Make(SgdSpec<T>(sizes[i], momentum, i % 2 == 0 ? 0.1 : 0, is_nesterov),
                         std::move(inputs), std::move(outputs)));
        }
        EXPECT_EQ(this->RunAll(runs, at_once), at_once ? 2u : 119u);  // of 64 entries at most
        EXPECT_FALSE(HaveTheSameBits(data, before));
        for (std::vector<T>& tensor : data) tensor.erase(tensor.begin(), tensor.begin() + offset);
        results.push_back(std::move(data));
      }
      EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
      if (offset == 1) {
        unaligned = results[0];
      } else {
        EXPECT_TRUE(HaveTheSameBits(results[0], unaligned));
      }
    }
  }
}

// From floats to floats, each of another batch.
TYPED_TEST(SimulatedBatchTypesTest, CastsOfManyParametersAreAFewLaunches) {
  using T = TypeParam;
  const std::vector<int64_t> sizes = MixedSizes(240);
  for (const int64_t offset : {0, 1}) {
    SCOPED_TRACE(StrCat("offset ", offset));
    std::vector<Tensors<BFloat16>> results;
    for (const bool at_once : {false, true}) {
      Tensors<T> from;
      Tensors<BFloat16> to;
      std::vector<HeldRun> runs;
      for (size_t i = 0; i < sizes.size(); ++i) {
        from.push_back(SomeNumbers<T>(sizes[i] + offset, static_cast<int64_t>(i)));
        to.push_back(SomeNumbers<BFloat16>(sizes[i] + offset + 1, 0));
        const KernelSpec spec = {.op = "cast",
                                 .attributes = {{"dtype", DType::kBF16}},
                                 .inputs = {testing::WholeTile({DTypeOf<T>(), {sizes[i]}})},
                                 .outputs = {testing::WholeTile({DType::kBF16, {sizes[i]}})}};
        runs.push_back(
            this->Make(spec, {from.back().data() + offset}, {to.back().data() + offset}));
      }
      EXPECT_EQ(this->RunAll(runs, at_once), at_once ? 3u : 239u);  // of 112 entries at most
      for (size_t i = 0; i < sizes.size(); ++i) {
        for (int64_t j = 0; j < sizes[i]; ++j) {
          ASSERT_EQ(to[i][j + offset].bits, BFloat16Bits(Widen(from[i][j + offset])));
        }
        EXPECT_EQ(to[i].back().bits, SomeNumbers<BFloat16>(sizes[i] + offset + 1, 0).back().bits);
      }
      results.push_back(to);
    }
    EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
  }
}

TYPED_TEST(SimulatedBatchTypesTest, SumsOfManyGradientsAreAFewLaunches) {
  using T = TypeParam;
  std::vector<int64_t> sizes = MixedSizes(130);
  sizes[7] = 70000;  // five parts
  std::vector<Tensors<T>> results;
  for (const int64_t offset : {0, 1}) {  // the order of additions does not depend on addresses
    for (const bool at_once : {false, true}) {
      Tensors<T> from;
      Tensors<T> to(1, std::vector<T>(sizes.size()));
      std::vector<HeldRun> runs;
      for (size_t i = 0; i < sizes.size(); ++i) {
        const TileDesc tile = testing::WholeTile({DTypeOf<T>(), {sizes[i]}});
        from.push_back(std::vector<T>(static_cast<size_t>(offset)));
        const std::vector<T> numbers = SomeNumbers<T>(sizes[i], static_cast<int64_t>(i));
        from.back().insert(from.back().end(), numbers.begin(), numbers.end());
        runs.push_back(this->Make({.op = "sum_squares",
                                   .attributes = {},
                                   .inputs = {tile},
                                   .outputs = {testing::WholeTile({DTypeOf<T>(), {}})}},
                                  {from.back().data() + offset}, {&to[0][i]}));
      }
      // Two kernels for up to 112 tensors.
      EXPECT_EQ(this->RunAll(runs, at_once), at_once ? 4u : 260u);
      for (size_t i = 0; i < sizes.size(); ++i) {
        double sum = 0;
        for (const T x : from[i]) sum += static_cast<double>(Widen(x)) * Widen(x);
        EXPECT_NEAR(Widen(to[0][i]), sum, (kIsHalf<T> ? 5e-3 : 1e-6) * sum) << sizes[i];
      }
      results.push_back(to);
    }
  }
  for (size_t i = 1; i < results.size(); ++i) {
    EXPECT_TRUE(HaveTheSameBits(results[0], results[i])) << i;
  }
}

// Tables are launched when the sums of their parts fill the memory that there is for them.
TEST(SumSquaresTest, PartsAreBounded) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{16384}, int64_t{16385},
                              int64_t{67108864}, int64_t{67108865}, int64_t{1} << 33}) {
    const int64_t parts = NumSumParts(count);
    EXPECT_GE(parts, 1) << count;
    EXPECT_LE(parts, kMaxSumParts) << count;
    EXPECT_GE(parts * SumPartSize(count), count);
    EXPECT_EQ(SumPartSize(count) % 8, 0);
  }
}

// As the norm of all gradients is formed: a tree of sums in place.
TEST_F(SimulatedBatchTest, ATreeOfSumsIsALaunchALevel) {
  const TileDesc scalar = testing::WholeTile({DType::kF32, {}});
  const KernelSpec spec = {
      .op = "add", .attributes = {}, .inputs = {scalar, scalar}, .outputs = {scalar}};
  std::vector<Tensors<float>> results;
  for (const bool at_once : {false, true}) {
    Tensors<float> terms;
    std::vector<size_t> level;
    for (size_t i = 0; i < 148; ++i) {
      terms.push_back(SomeNumbers<float>(1, static_cast<int64_t>(i)));
      level.push_back(i);
    }
    std::vector<HeldRun> runs;
    while (level.size() > 1) {
      std::vector<size_t> next;
      for (size_t i = 0; i + 1 < level.size(); i += 2) {
        float* const x = terms[level[i]].data();
        runs.push_back(Make(spec, {x, terms[level[i + 1]].data()}, {x}));
        next.push_back(level[i]);
      }
      if (level.size() % 2 == 1) next.push_back(level.back());
      level = std::move(next);
    }
    EXPECT_EQ(RunAll(runs, at_once), at_once ? 8u : 147u);
    results.push_back(terms);
  }
  EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
}

// Two updates, of which the second one reads or writes what the first one does. Both orders of
// launches give the same results only if they run one after the other.
TEST_F(SimulatedBatchTest, WhatTouchesResultsOfTheBatchIsLaunchedBehindIt) {
  constexpr int64_t kCount = 9000;
  AdamwScalars scalars;
  AdamwScalars others = {.step = 7};
  struct Case {
    std::string name;
    std::vector<int> first, second;  // w, g, m, v, then the results: of ten tensors
    bool has_other_scalars = false;
    uint64_t launches = 2;
  };
  const Case cases[] = {
      {"apart", {0, 1, 2, 3, 0, 2, 3}, {4, 5, 6, 7, 4, 6, 7}, false, 1},
      {"one gradient", {0, 1, 2, 3, 0, 2, 3}, {4, 1, 6, 7, 4, 6, 7}, false, 1},
      {"not in place", {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 7, 8, 9}, false, 1},
      {"other scalars", {0, 1, 2, 3, 0, 2, 3}, {4, 5, 6, 7, 4, 6, 7}, true},
      {"the same weights", {0, 1, 2, 3, 0, 2, 3}, {0, 1, 2, 3, 0, 2, 3}},
      {"reads a result", {0, 1, 2, 3, 0, 2, 3}, {4, 0, 6, 7, 4, 6, 7}},
      {"reads a result that is not in place", {0, 1, 2, 3, 4, 5, 6}, {7, 8, 9, 5, 7, 9, 5}},
      {"writes an operand", {0, 1, 2, 3, 0, 2, 3}, {4, 5, 6, 7, 1, 6, 7}},
      {"writes an operand that is not in place", {0, 1, 2, 3, 4, 5, 6}, {7, 8, 9, 3, 7, 9, 3}},
      {"writes a result", {0, 1, 2, 3, 4, 5, 6}, {0, 1, 2, 3, 7, 8, 6}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    std::vector<Tensors<float>> results;
    for (const bool at_once : {false, true}) {
      Tensors<float> tensors;
      for (int i = 0; i < 10; ++i) {
        tensors.push_back(SomeNumbers<float>(kCount, i));
        for (float& x : tensors.back()) x = std::abs(x);
      }
      std::vector<HeldRun> runs;
      for (const std::vector<int>& use : {test.first, test.second}) {
        std::vector<void*> at;
        for (const int i : use) at.push_back(tensors[i].data());
        AdamwScalars& own = test.has_other_scalars && !runs.empty() ? others : scalars;
        runs.push_back(Make(AdamwSpec<float>(kCount, 0.1),
                            {at[0], at[1], at[2], at[3], &own.step, &own.rate, &own.scale},
                            {at[4], at[5], at[6]}));
      }
      EXPECT_EQ(RunAll(runs, at_once), at_once ? test.launches : 2);
      results.push_back(tensors);
    }
    EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
  }
}

// The same of SGD with momentum: w, g and the buffer, then the results, of six tensors.
TEST_F(SimulatedBatchTest, SgdThatTouchesResultsOfTheBatchIsLaunchedBehindIt) {
  constexpr int64_t kCount = 9000;
  SgdScalars scalars;
  SgdScalars others = {.rate = 0.5f};
  struct Case {
    std::string name;
    std::vector<int> second;
    double momentum = 0.9;
    bool has_other_scalars = false;
    uint64_t launches = 2;
  };
  const Case cases[] = {
      {"apart", {3, 4, 5, 3, 5}, 0.9, false, 1}, {"one gradient", {3, 1, 5, 3, 5}, 0.9, false, 1},
      {"other momentum", {3, 4, 5, 3, 5}, 0.8},  {"other scalars", {3, 4, 5, 3, 5}, 0.9, true},
      {"the same weights", {0, 4, 5, 0, 5}},     {"reads the weights", {3, 0, 5, 3, 5}},
      {"reads the buffer", {3, 2, 5, 3, 5}},     {"writes the gradient", {3, 4, 5, 3, 1}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.name);
    std::vector<Tensors<float>> results;
    for (const bool at_once : {false, true}) {
      Tensors<float> tensors;
      for (int i = 0; i < 6; ++i) tensors.push_back(SomeNumbers<float>(kCount, i));
      const auto make = [&](const std::vector<int>& use, double momentum, SgdScalars& own) {
        std::vector<void*> at;
        for (const int i : use) at.push_back(tensors[i].data());
        return Make(SgdSpec<float>(kCount, momentum, 0.1, false),
                    {at[0], at[1], &own.rate, &own.scale, at[2]}, {at[3], at[4]});
      };
      const std::vector<HeldRun> runs = {
          make({0, 1, 2, 0, 2}, 0.9, scalars),
          make(test.second, test.momentum, test.has_other_scalars ? others : scalars)};
      EXPECT_EQ(RunAll(runs, at_once), at_once ? test.launches : 2);
      results.push_back(tensors);
    }
    EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
  }
}

// Parts of one tensor, as optimisers that update their share of each parameter have them.
TEST_F(SimulatedBatchTest, NeighboursInOneTensorAreABatch) {
  AdamwScalars scalars;
  AdamwTensors<float> data({300}, 0);
  std::vector<HeldRun> runs;
  for (const int64_t begin : {0, 100, 200}) {
    std::vector<void*> at;
    for (size_t i = 0; i < 4; ++i) at.push_back(static_cast<float*>(data.At(0, i)) + begin);
    runs.push_back(Make(AdamwSpec<float>(100, 0),
                        {at[0], at[1], at[2], at[3], &scalars.step, &scalars.rate, &scalars.scale},
                        {at[0], at[2], at[3]}));
  }
  EXPECT_EQ(RunAll(runs, true), 1u);
}

TEST_F(SimulatedBatchTest, OtherWorkComesBehindWhatIsHeldBack) {
  AdamwScalars scalars;
  const auto make = [&](AdamwTensors<float>& data) {
    return Make(AdamwSpec<float>(100, 0.1),
                {data.At(0, 0), data.At(0, 1), data.At(0, 2), data.At(0, 3), &scalars.step,
                 &scalars.rate, &scalars.scale},
                {data.At(0, 0), data.At(0, 2), data.At(0, 3)});
  };
  AdamwTensors<float> expected({100}, 0);
  RunAll({make(expected)}, true);
  std::vector<float> copy(100);
  {
    AdamwTensors<float> data({100}, 0);
    const HeldRun run = make(data);
    ASSERT_EQ(run.Run(*stream_), absl::OkStatus());
    stream_->Copy(copy.data(), data.At(0, 0), 400, CopyKind::kDeviceToDevice);
    EXPECT_EQ(copy, expected.tensors[0]);
  }
  {
    AdamwTensors<float> data({100}, 0);
    const HeldRun run = make(data);
    ASSERT_EQ(run.Run(*stream_), absl::OkStatus());
    dynamic_cast<CudaStream&>(*stream_).Zero(data.At(0, 1), 400);  // the gradient
    EXPECT_EQ(data.tensors[0], expected.tensors[0]);
  }
  {
    AdamwTensors<float> data({100}, 0);
    const HeldRun run = make(data);
    ASSERT_EQ(run.Run(*stream_), absl::OkStatus());
    const TileDesc tile = testing::WholeTile({DType::kF32, {100}});
    const HeldRun neg = Make({.op = "neg", .attributes = {}, .inputs = {tile}, .outputs = {tile}},
                             {data.At(0, 0)}, {copy.data()});
    ASSERT_EQ(neg.Run(*stream_), absl::OkStatus());
    for (float& x : copy) x = -x;
    EXPECT_EQ(copy, expected.tensors[0]);
  }
}

TEST_F(SimulatedBatchTest, BatchesAreCapturedAndLaunchedAgain) {
  constexpr int kTensors = 60;
  constexpr int kSteps = 3;
  AdamwScalars scalars;
  auto& capturing = dynamic_cast<CapturingStream&>(*stream_);
  std::vector<Tensors<float>> results;
  for (const bool captures : {false, true}) {
    scalars = {};
    AdamwTensors<float> data(MixedSizes(kTensors), 0);
    AdamwTensors<float> before({100}, 0);
    const auto make = [&](AdamwTensors<float>& of, size_t i) {
      return Make(AdamwSpec<float>(static_cast<int64_t>(of.tensors[4 * i].size()), 0.1),
                  {of.At(i, 0), of.At(i, 1), of.At(i, 2), of.At(i, 3), &scalars.step, &scalars.rate,
                   &scalars.scale},
                  {of.At(i, 0), of.At(i, 2), of.At(i, 3)});
    };
    const HeldRun early = make(before, 0);
    std::vector<HeldRun> runs;
    for (size_t i = 0; i < kTensors; ++i) runs.push_back(make(data, i));
    std::unique_ptr<StreamGraph> graph;
    if (captures) {
      // What is held back from before is no part of the graph.
      ASSERT_EQ(early.Run(*stream_), absl::OkStatus());
      const Tensors<float> unchanged = data.tensors;
      ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
      for (const HeldRun& run : runs) ASSERT_EQ(run.Run(*stream_), absl::OkStatus());
      auto captured = capturing.EndCapture();
      ASSERT_TRUE(captured.ok()) << captured.status();
      graph = *std::move(captured);
      EXPECT_TRUE(HaveTheSameBits(data.tensors, unchanged));
    } else {
      RunAll({early}, true);
    }
    for (int step = 0; step < kSteps; ++step) {
      scalars.step = 1 + step;
      if (captures) {
        NumLaunches();
        capturing.Launch(*graph, {});
        EXPECT_EQ(NumLaunches(), 2u);
      } else {
        RunAll(runs, false);
      }
    }
    results.push_back(data.tensors);
    results.back().insert(results.back().end(), before.tensors.begin(), before.tensors.end());
  }
  EXPECT_TRUE(HaveTheSameBits(results[0], results[1]));
}

}  // namespace
}  // namespace penstock::kernels::cuda
