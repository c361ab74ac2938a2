// The kernels' device code itself, compiled for the host (simulated_simt.h), against the kernels of
// the CPU. The launches of the *.cu files that this file includes take the place of the library's.

#define PENSTOCK_SIMULATED_SIMT

#include <climits>
#include <cstdint>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/training.h"
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/contraction.cu"
#include "kernels/cuda/copies.cu"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/images.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/routing.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/gpu.h"
#include "penstock/penstock.h"
#include "tests/support/kernel_checks.h"

namespace penstock::kernels::cuda {
namespace {

using testing::AllKernelChecks;
using ::testing::HasSubstr;
using testing::KernelCheck;
using testing::KernelCheckRun;

// A library of column-major matrix products, by its definition.
class HostProduct : public BlasProduct {
 public:
  HostProduct(const BlasLayout& layout, int alignment) : x_(layout), alignment_(alignment) {}

  absl::Status Run(StreamHandle, const float* a, const float* b, float* c, bool adds,
                   void* workspace) override {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(workspace) % kBlasWorkspaceAlignment, 0u);
    for (const float* matrix : {a, b, const_cast<const float*>(c)}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(matrix) % static_cast<uintptr_t>(alignment_), 0u);
    }
    auto* scratch = static_cast<unsigned char*>(workspace);
    scratch[0] = scratch[kBlasWorkspaceBytes - 1] = 0x11;
    if (x_.is_swapped) std::swap(a, b);
    for (int64_t batch = 0; batch < x_.batch; ++batch) {
      for (int64_t i = 0; i < x_.rows; ++i) {
        for (int64_t j = 0; j < x_.columns; ++j) {
          double sum = 0;
          for (int64_t k = 0; k < x_.k; ++k) {
            const float left = x_.transpose_a ? a[k + i * x_.lda] : a[i + k * x_.lda];
            const float right = x_.transpose_b ? b[j + k * x_.ldb] : b[k + j * x_.ldb];
            sum += static_cast<double>(left) * right;
          }
          float& to = c[i + j * x_.ldc];
          to = static_cast<float>(adds ? to + sum : sum);
        }
      }
      a += x_.a_batch;
      b += x_.b_batch;
      c += x_.c_batch;
    }
    return absl::OkStatus();
  }

 private:
  const BlasLayout x_;
  const int alignment_;
};

class HostBlas : public Blas {
 public:
  absl::StatusOr<std::unique_ptr<BlasProduct>> Create(const BlasLayout& layout,
                                                      int alignment) override {
    ++num_products;
    return std::make_unique<HostProduct>(layout, alignment);
  }
  int num_products = 0;
};

class SimulatedEvent : public Event {
 public:
  bool IsDone() const override { return true; }
  const StreamError* error() const override { return has_error ? &failure : nullptr; }

  bool has_error = false;
  StreamError failure;
};

// Runs its work as it is given.
class SimulatedStream : public CudaStream {
 public:
  void Copy(void* to, const void* from, size_t num_bytes, CopyKind) override {
    std::memmove(to, from, num_bytes);
  }
  void Record(Event* event) override {
    auto* recorded = static_cast<SimulatedEvent*>(event);
    recorded->has_error = fault_.kind != Fault::kNone;
    if (recorded->has_error) recorded->failure = {FaultStatus(fault_), fault_.launch};
  }
  void Wait(const Event*) override {}
  absl::Status Reset() override {
    fault_.kind = Fault::kNone;
    return absl::OkStatus();
  }
  StreamHandle handle() override { return nullptr; }
  Fault* fault() override { return &fault_; }
  absl::Status status() const override { return absl::OkStatus(); }
  void Zero(void* to, size_t num_bytes) override { std::memset(to, 0, num_bytes); }

 private:
  Fault fault_;
};

class SimulatedDevice : public CudaDevice {
 public:
  std::string kind() const override { return "cuda"; }
  bool is_synchronous() const override { return false; }
  absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) override {
    return memory_->Allocate(num_bytes, kind);
  }
  std::unique_ptr<Stream> CreateStream() override { return std::make_unique<SimulatedStream>(); }
  std::unique_ptr<Event> CreateEvent() override { return std::make_unique<SimulatedEvent>(); }
  Blas& blas() override { return blas_; }
  const HostBlas& host_blas() const { return blas_; }

 private:
  const std::unique_ptr<Device> memory_ = CreateCpuDevice(1);
  HostBlas blas_;
};

class SimulatedKernelsTest : public ::testing::TestWithParam<KernelCheck> {};

TEST_P(SimulatedKernelsTest, AgreesWithTheCpu) {
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  KernelCheckRun(GetParam(), registry, device).Run();
}

// With few blocks, so that each has several rounds of its loop.
TEST_P(SimulatedKernelsTest, AgreesWithTheCpuOnThreeBlocks) {
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  simulated::max_grid_x = 3;
  KernelCheckRun(GetParam(), registry, device).Run();
  simulated::max_grid_x = UINT_MAX;
}

std::string CheckName(const ::testing::TestParamInfo<KernelCheck>& info) {
  return info.param.spec.op + "_" + std::to_string(info.index);
}

INSTANTIATE_TEST_SUITE_P(Kernels, SimulatedKernelsTest,
                         ::testing::ValuesIn(AllKernelChecks(CudaKernels())), CheckName);

TEST(SimulatedKernelCoverageTest, EveryKernelHasACase) {
  const KernelRegistry registry = CudaKernels();
  std::set<std::string_view> covered;
  const std::vector<KernelCheck> checks = AllKernelChecks(registry);
  for (const KernelCheck& check : checks) covered.insert(check.spec.op);
  for (const std::string_view name : registry.Names()) {
    EXPECT_TRUE(covered.contains(name)) << name;
  }
}

TEST(SimulatedFaultTest, AnIdOutsideOfItsTableIsAnErrorOfTheStream) {
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const std::unique_ptr<Event> event = device.CreateEvent();
  float table[6] = {1, 2, 3, 4, 5, 6};
  int64_t ids[3] = {2, 3, 0};
  float rows[6] = {9, 9, 9, 9, 9, 9};
  const KernelSpec spec = {
      .op = "embedding",
      .attributes = {},
      .inputs = {testing::WholeTile({DType::kF32, {3, 2}}), testing::WholeTile({DType::kI64, {3}})},
      .outputs = {testing::WholeTile({DType::kF32, {3, 2}})}};
  auto kernel = registry.Find("embedding")->create(spec, device, *stream);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  void* inputs[] = {table, ids};
  void* outputs[] = {rows};
  KernelArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  args.stream = stream.get();
  args.launch = 42;
  ASSERT_EQ((*kernel)->Run(args), absl::OkStatus());
  EXPECT_THAT(rows, ::testing::ElementsAre(5, 6, 0, 0, 1, 2));
  EXPECT_EQ(WaitUntilDone(*stream, *event, 1),
            absl::InvalidArgumentError("index 3 lies outside [0, 3)"));
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, 42u);
  EXPECT_EQ(stream->Reset(), absl::OkStatus());
  EXPECT_EQ(WaitUntilDone(*stream, *event, 1), absl::OkStatus());
}

TEST(SimulatedProductsTest, MatmulGoesToTheLibrary) {
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const TileDesc square = testing::WholeTile({DType::kF32, {4, 4}});
  const KernelSpec spec = {
      .op = "matmul", .attributes = {}, .inputs = {square, square}, .outputs = {square}};
  ASSERT_TRUE(registry.Find("matmul")->create(spec, device, *stream).ok());
  EXPECT_EQ(device.host_blas().num_products, 2);  // for any addresses, and for aligned ones
}

TEST(SimulatedKernelTest, KernelsMadeOnTrialDoNotRun) {
  const KernelRegistry registry = CudaKernels();
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
  const std::unique_ptr<Stream> stream = cpu->CreateStream();
  const TileDesc tile = testing::WholeTile({DType::kF32, {4}});
  auto kernel = registry.Find("exp")->create(
      {.op = "exp", .attributes = {}, .inputs = {tile}, .outputs = {tile}}, *cpu, *stream);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  EXPECT_THAT(std::string((*kernel)->Run({}).message()),
              HasSubstr("the cuda kernel for exp needs a stream of a cuda device"));
}

// ---- Training.

constexpr int64_t kBatch = 4;

// A model small enough for a simulation.
graph::ModelConfig SmallConfig(const std::string& model) {
  graph::ModelConfig config;
  config.layers = 2;
  config.width = 16;
  config.heads = 2;
  config.context = 8;
  config.dropout = model == "gpt" ? 0.2 : 0;
  return config;
}

// The losses of four training steps on devices that `create_device` makes.
std::vector<float> Losses(const Registries& registries, const std::string& name,
                          const actors::DeviceFactory& create_device) {
  const graph::Model& model = *registries.models.FindModel(name);
  const graph::ModelConfig config = SmallConfig(name);
  auto forward =
      graph::BuildModelGraph(registries.ops, model, config, graph::ModelUse::kTrain, kBatch);
  EXPECT_TRUE(forward.ok()) << forward.status();
  auto graph = graph::BuildTrainingGraph(registries.ops, *std::move(forward), {});
  EXPECT_TRUE(graph.ok()) << graph.status();
  auto plan = CompileModel(registries, *std::move(graph));
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  actors::SessionOptions options;
  options.seed = 1;
  options.create_device = create_device;
  auto session = StartSession(registries, *std::move(plan), options);
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return {};
  std::vector<float> losses;
  for (int64_t step = 0; step < 4; ++step) {
    Tensor tokens({DType::kI32, {kBatch, config.context}});
    for (int64_t i = 0; i < tokens.num_elements(); ++i) {
      tokens.As<int32_t>()[i] = static_cast<int32_t>((7 * i + 3 * step) % 50);
    }
    const auto result = (*session)->Run({{"tokens", tokens}, {"labels", tokens}});
    EXPECT_TRUE(result.ok()) << result.status();
    if (!result.ok()) break;
    losses.push_back(*result->Find("loss")->As<float>());
  }
  return losses;
}

class SimulatedTrainingTest : public ::testing::TestWithParam<std::string> {};

TEST_P(SimulatedTrainingTest, HasTheLossesOfTheCpu) {
  Registries registries = BuiltinRegistries();
  const std::vector<float> expected = Losses(registries, GetParam(), nullptr);
  registries.kernels = CudaKernels();
  const std::vector<float> actual =
      Losses(registries, GetParam(), [](uint32_t) { return std::make_unique<SimulatedDevice>(); });
  ASSERT_EQ(actual.size(), expected.size());
  ASSERT_EQ(expected.size(), 4u);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i], expected[i], 1e-4 * expected[i]) << "step " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SimulatedTrainingTest, ::testing::Values("gpt", "llama"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace penstock::kernels::cuda
