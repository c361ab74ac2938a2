// The kernels' device code itself, compiled for the host (simulated_simt.h), against the kernels of
// the CPU. The launches of the *.cu files that this file includes take the place of the library's.

#define PENSTOCK_SIMULATED_SIMT

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/training.h"
#include "kernels/cuda/attention.cu"
#include "kernels/cuda/contraction.cu"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cuda/copies.cu"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/draws.cu"
#include "kernels/cuda/elementwise.cu"
#include "kernels/cuda/embedding_grad.cu"
#include "kernels/cuda/images.cu"
#include "kernels/cuda/optimizers.cu"
#include "kernels/cuda/reduce.cu"
#include "kernels/cuda/routing.cu"
#include "kernels/cuda/rows.cu"
#include "kernels/cuda/simulated_device.h"
#include "kernels/cuda/sum_squares.cu"
#include "kernels/cuda/tensor_attention.cu"
#include "kernels/cuda/tensor_attention_grad.cu"
#include "kernels/gpu.h"
#include "penstock/penstock.h"
#include "planner/compile.h"
#include "tests/support/kernel_checks.h"
#include "tests/support/random_graph.h"

namespace penstock::kernels::cuda {
namespace {

using testing::AllKernelChecks;
using ::testing::HasSubstr;
using testing::KernelCheck;
using testing::KernelCheckRun;

class SimulatedKernelsTest : public ::testing::TestWithParam<KernelCheck> {
 protected:
  // Where CI is in the environment, a case runs in one of two ways. They take 4 minutes each.
  static bool IsLeftOut(int way) {
    static int num_cases[2] = {0, 0};
    return std::getenv("CI") != nullptr && num_cases[way]++ % 2 != way;
  }
};

TEST_P(SimulatedKernelsTest, AgreesWithTheCpu) {
  if (IsLeftOut(0)) GTEST_SKIP() << "runs on three blocks";
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  KernelCheckRun(GetParam(), registry, device).Run();
}

// With few blocks, so that each has several rounds of its loop.
TEST_P(SimulatedKernelsTest, AgreesWithTheCpuOnThreeBlocks) {
  if (IsLeftOut(1)) GTEST_SKIP() << "runs on any number of blocks";
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

// What changes from step to step comes from the offsets of the launch.
TEST(SimulatedGraphsTest, KernelsOfALaunchHaveItsStepAndItsName) {
  const KernelRegistry registry = CudaKernels();
  SimulatedDevice device;
  const std::unique_ptr<Stream> stream = device.CreateStream();
  const std::unique_ptr<Event> event = device.CreateEvent();
  auto& capturing = dynamic_cast<CapturingStream&>(*stream);
  const TileDesc tile = testing::WholeTile({DType::kF32, {64}});
  const TileDesc one = testing::WholeTile({DType::kI32, {1}});
  const TileDesc table = testing::WholeTile({DType::kF32, {3, 64}});
  const TileDesc row = testing::WholeTile({DType::kF32, {1, 64}});
  for (const char* op : {"dropout", "random_uniform", "random_normal"}) {
    SCOPED_TRACE(op);
    KernelSpec spec = {.op = op, .attributes = {}, .inputs = {}, .outputs = {tile}};
    if (spec.op == "dropout") {
      spec.inputs = {tile};
      spec.attributes = {{"rate", 0.5}};
    }
    const auto kernel = registry.Find(op)->create(spec, device, *stream);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    std::vector<float> x(64, 1.0f);
    std::vector<float> y(64);
    void* inputs[] = {x.data()};
    void* outputs[] = {y.data()};
    KernelArgs args;
    args.inputs = {inputs, spec.inputs.size()};
    args.outputs = outputs;
    args.seed = 3;
    args.stream = stream.get();
    std::vector<std::vector<float>> plain;  // by step
    for (args.step = 0; args.step < 4; ++args.step) {
      ASSERT_EQ((*kernel)->Run(args), absl::OkStatus());
      plain.push_back(y);
    }
    ASSERT_NE(plain[1], plain[3]);
    ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
    args.step = 2;
    ASSERT_EQ((*kernel)->Run(args), absl::OkStatus());
    const auto graph = capturing.EndCapture();
    ASSERT_TRUE(graph.ok()) << graph.status();
    for (int64_t step = 0; step < 4; ++step) {
      capturing.Launch(**graph, {.step = static_cast<uint64_t>(step - 2)});
      EXPECT_EQ(y, plain[static_cast<size_t>(step)]) << "step " << step;
    }
  }
  const auto kernel =
      registry.Find("embedding")
          ->create({.op = "embedding", .attributes = {}, .inputs = {table, one}, .outputs = {row}},
                   device, *stream);
  ASSERT_TRUE(kernel.ok()) << kernel.status();
  std::vector<float> data(3 * 64);
  std::vector<float> found(64);
  int32_t id = 1;
  void* inputs[] = {data.data(), &id};
  void* outputs[] = {found.data()};
  KernelArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  args.stream = stream.get();
  args.launch = 42;
  ASSERT_EQ(capturing.BeginCapture(), absl::OkStatus());
  ASSERT_EQ((*kernel)->Run(args), absl::OkStatus());
  const auto graph = capturing.EndCapture();
  ASSERT_TRUE(graph.ok()) << graph.status();
  capturing.Launch(**graph, {});
  EXPECT_EQ(WaitUntilDone(*stream, *event, 1), absl::OkStatus());
  id = 3;
  capturing.Launch(**graph, {.launch = 100});
  EXPECT_FALSE(WaitUntilDone(*stream, *event, 1).ok());
  ASSERT_NE(event->error(), nullptr);
  EXPECT_EQ(event->error()->launch, 142u);
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

TEST(SimulatedProductsTest, WithoutAnAlgorithmProductsOfDoublesAreOfTheGeneralKernel) {
  const KernelRegistry registry = CudaKernels();
  int num_products = 0;
  for (const KernelCheck& check : AllKernelChecks(registry)) {
    if (check.spec.op != "matmul" && check.spec.op != "einsum") continue;
    if (check.spec.inputs[0].dtype != DType::kF64) continue;
    SCOPED_TRACE(::testing::PrintToString(check));
    SimulatedDevice device;
    device.host_blas().has_products = false;
    KernelCheckRun(check, registry, device).Run();
    ++num_products;
  }
  EXPECT_GT(num_products, 8);
}

// A case of AddLargeCases, whose addresses are multiples of 16 bytes.
KernelCheck EpilogueCheck(const std::string& op) {
  for (const KernelCheck& check : AllKernelChecks(CudaKernels())) {
    if (check.spec.op == op && check.spec.inputs[0].shape == Shape({2, 9, 24}) &&
        check.spec.inputs[0].dtype == DType::kF32) {
      return check;
    }
  }
  ADD_FAILURE() << "no case for " << op;
  return {};
}

TEST(SimulatedProductsTest, EpiloguesGoToTheLibraryWithTheProduct) {
  const KernelRegistry registry = CudaKernels();
  const std::string op = "einsum_bias_gelu";
  SimulatedDevice device;
  const std::unique_ptr<Stream> stream = device.CreateStream();
  ASSERT_TRUE(registry.Find(op)->create(EpilogueCheck(op).spec, device, *stream).ok());
  EXPECT_EQ(device.host_blas().num_epilogues, 1);
}

TEST(SimulatedProductsTest, WithoutAnAlgorithmEpiloguesAreKernelsOfTheirOwn) {
  const KernelRegistry registry = CudaKernels();
  for (const KernelCheck& check : AllKernelChecks(registry)) {
    const std::string& op = check.spec.op;
    if (op.find("einsum_") == std::string::npos) continue;
    SCOPED_TRACE(::testing::PrintToString(check));
    SimulatedDevice device;
    device.host_blas().has_epilogues = false;
    KernelCheckRun(check, registry, device).Run();
  }
}

TEST(SimulatedProductsTest, WithoutAnAlgorithmForASumItFollowsTheBias) {
  const KernelRegistry registry = CudaKernels();
  int num_biases = 0;
  for (const KernelCheck& check : AllKernelChecks(registry)) {
    if (check.spec.op != "einsum_bias" || check.spec.inputs.size() < 4) continue;
    SCOPED_TRACE(::testing::PrintToString(check));
    SimulatedDevice device;
    device.host_blas().adds_matrices = false;
    KernelCheckRun(check, registry, device).Run();
    if (device.host_blas().num_epilogues > 0) ++num_biases;
  }
  EXPECT_GT(num_biases, 3);
}

// A library with only gradients of weights, which kernels of this folder compute.
class HostConvolutions : public ConvolutionLibrary {
 public:
  template <typename T>
  class WeightGrad : public LibraryConvolution {
   public:
    WeightGrad(StreamHandle stream, const ConvolutionShape& shape)
        : stream_(stream), shape_(shape) {}
    absl::Status Run(const void* a, const void* b, void* result, bool adds,
                     void* workspace) override {
      auto* const scratch = static_cast<unsigned char*>(workspace);
      scratch[0] = scratch[kConvolutionWorkspaceBytes - 1] = 0x11;
      LaunchConvolutionWeightGrad(stream_, shape_, static_cast<const T*>(a),
                                  static_cast<const T*>(b), adds, static_cast<T*>(result));
      return absl::OkStatus();
    }

   private:
    const StreamHandle stream_;
    const ConvolutionShape shape_;
  };

  absl::StatusOr<std::unique_ptr<LibraryConvolution>> Create(StreamHandle stream,
                                                             ConvolutionPass pass,
                                                             const ConvolutionShape& shape,
                                                             DType dtype) override {
    if (pass != ConvolutionPass::kWeightGrad) return nullptr;
    ++num_created;
    if (dtype == DType::kBF16) return std::make_unique<WeightGrad<BFloat16>>(stream, shape);
    if (dtype == DType::kF16) return std::make_unique<WeightGrad<Float16>>(stream, shape);
    return std::make_unique<WeightGrad<float>>(stream, shape);
  }

  int num_created = 0;
};

class DeviceWithConvolutions : public SimulatedDevice {
 public:
  ConvolutionLibrary* convolutions() override { return &library; }
  HostConvolutions library;
};

TEST(SimulatedConvolutionsTest, TheLibrarysGradientOfWeightsIsWidened) {
  const KernelRegistry registry = CudaKernels();
  int num_widened_sums = 0;
  for (KernelCheck check : AllKernelChecks(registry)) {
    if (check.spec.op != "conv2d_weight_grad") continue;
    SCOPED_TRACE(::testing::PrintToString(check));
    DeviceWithConvolutions device;
    if (IsHalf(check.spec.inputs[0].dtype) && check.spec.outputs[0].dtype == DType::kF32) {
      check.tolerance = 1e-2;  // it is rounded once
      num_widened_sums += check.spec.accumulate ? 1 : 0;
    }
    KernelCheckRun(check, registry, device).Run();
    EXPECT_GT(device.library.num_created, 0);
  }
  EXPECT_GT(num_widened_sums, 1) << "also of those that add to what is there";
}

// A label with the largest logit: the loss is not rounded to what is left of 1.
TEST(SimulatedCrossEntropyTest, LossesFarBelowOneKeepTheirDigits) {
  constexpr int64_t kSize = 512;
  constexpr int64_t kLabel = 77;
  alignas(16) float logits[kSize];
  const int64_t label = kLabel;
  for (const float largest : {10.0f, 30.0f, 70.0f}) {
    for (float& logit : logits) logit = 1000.0f;
    logits[kLabel] = 1000.0f + largest;
    Fault fault;
    CrossEntropyParams params;
    params.rows = 1;
    params.size = params.limit = kSize;
    params.labels.data = &label;
    params.site.fault = &fault;
    float loss = 0;
    float max = 0;
    float log_sum = 0;
    ASSERT_EQ(LaunchCrossEntropy<float>(nullptr, params, logits, &loss, &max, &log_sum), 0);
    const double expected = std::log1p((kSize - 1) * std::exp(-static_cast<double>(largest)));
    EXPECT_NEAR(loss, expected, 1e-5 * expected);
    EXPECT_EQ(max, 1000.0f + largest);
    EXPECT_EQ(log_sum, loss);
  }
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

struct TrainedModel {
  std::string name;
  DType precision = DType::kF32;
  double tolerance = 1e-4;
  bool drops_out = true;  // if the model can: residuals are then no part of a product
};

// The losses of `num_steps` training steps on devices that `create_device` makes.
std::vector<float> Losses(const Registries& registries, const TrainedModel& trained,
                          const actors::DeviceFactory& create_device, bool fuses_epilogues,
                          int64_t num_steps = 4, bool captures_graphs = true) {
  const graph::Model& model = *registries.models.FindModel(trained.name);
  graph::ModelConfig config = SmallConfig(trained.name);
  if (!trained.drops_out) config.dropout = 0;
  auto forward =
      graph::BuildModelGraph(registries.ops, model, config, graph::ModelUse::kTrain, kBatch);
  EXPECT_TRUE(forward.ok()) << forward.status();
  auto graph = graph::BuildTrainingGraph(registries.ops, *std::move(forward), {});
  EXPECT_TRUE(graph.ok()) << graph.status();
  planner::CompileOptions compile_options;
  compile_options.policies = &registries.policies;
  compile_options.kernels = TraitsOf(registries.kernels, 1);
  compile_options.precision = trained.precision;
  if (fuses_epilogues) compile_options.fuses_epilogues = [](uint32_t, uint32_t) { return true; };
  auto plan = planner::Compile(registries.ops, *std::move(graph), compile_options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  actors::SessionOptions options;
  options.seed = 1;
  options.create_device = create_device;
  options.captures_graphs = captures_graphs;
  auto session = StartSession(registries, *std::move(plan), options);
  EXPECT_TRUE(session.ok()) << session.status();
  if (!session.ok()) return {};
  std::vector<float> losses;
  for (int64_t step = 0; step < num_steps; ++step) {
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

class SimulatedTrainingTest : public ::testing::TestWithParam<TrainedModel> {};

TEST_P(SimulatedTrainingTest, HasTheLossesOfTheCpu) {
  Registries registries = BuiltinRegistries();
  const std::vector<float> expected = Losses(registries, GetParam(), nullptr, false);
  registries.kernels = CudaKernels();
  for (const bool fuses_epilogues : {false, true}) {
    SCOPED_TRACE(fuses_epilogues ? "with epilogues" : "without epilogues");
    const std::vector<float> actual = Losses(
        registries, GetParam(), [](uint32_t) { return std::make_unique<SimulatedDevice>(); },
        fuses_epilogues);
    ASSERT_EQ(actual.size(), expected.size());
    ASSERT_EQ(expected.size(), 4u);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], GetParam().tolerance * expected[i]) << "step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, SimulatedTrainingTest,
                         ::testing::Values(TrainedModel{"gpt"}, TrainedModel{"llama"},
                                           TrainedModel{"gpt", DType::kBF16, 2e-2},
                                           TrainedModel{"gpt", DType::kF16, 2e-2},
                                           TrainedModel{"gpt", DType::kF32, 1e-4, false},
                                           TrainedModel{"gpt", DType::kBF16, 2e-2, false},
                                           TrainedModel{"llama", DType::kBF16, 2e-2}),
                         [](const auto& info) {
                           return StrCat(info.param.name, "_", Name(info.param.precision),
                                         info.param.drops_out ? "" : "_without_dropout");
                         });

// The model has dropout, so a graph that drew the bits of the step of its capture would show. Feeds
// and fetches have two slots: from the fifth step on, graphs are launched again.
TEST(SimulatedGraphsTest, TrainingHasTheBitsOfPlainLaunches) {
  constexpr int64_t kSteps = 6;
  Registries registries = BuiltinRegistries();
  registries.kernels = CudaKernels();
  const actors::DeviceFactory create = [](uint32_t) { return std::make_unique<SimulatedDevice>(); };
  for (const TrainedModel& model : {TrainedModel{"gpt"}, TrainedModel{"gpt", DType::kBF16, 0}}) {
    for (const bool fuses_epilogues : {false, true}) {
      SCOPED_TRACE(StrCat(Name(model.precision),
                          fuses_epilogues ? " with epilogues" : " without epilogues"));
      SimulatedStream::num_graph_launches = 0;
      const std::vector<float> plain =
          Losses(registries, model, create, fuses_epilogues, kSteps, false);
      EXPECT_EQ(SimulatedStream::num_graph_launches, 0u);
      EXPECT_EQ(plain.size(), static_cast<size_t>(kSteps));
      EXPECT_EQ(Losses(registries, model, create, fuses_epilogues, kSteps, true), plain);
      EXPECT_GE(SimulatedStream::num_graph_launches, 4u);
    }
  }
}

// ---- Random programs.

// Kernels of the CPU which, whenever they run, have the simulated device run its own on copies of
// the same operands, and compare. So devices of any plan use tiles, micro-batches and sums as plans
// have them, and differences do not add up.
class Comparer {
 public:
  explicit Comparer(const KernelRegistry& cpu) : cpu_(cpu), cuda_(CudaKernels()) {}

  KernelRegistry Kernels() {
    KernelRegistry registry;
    for (const std::string_view name : cpu_.Names()) {
      KernelDef def = *cpu_.Find(name);
      const KernelDef* own = cuda_.Find(name);
      if (own != nullptr) {
        def.create = [this, own, create = def.create](const KernelSpec& spec, Device& device,
                                                      Stream& stream) {
          return Create(*own, create(spec, device, stream), spec);
        };
      }
      EXPECT_EQ(registry.Add(std::string(name), std::move(def)), absl::OkStatus());
    }
    return registry;
  }

  // Runs that were compared on operands or results of 16 bits.
  int64_t num_halves() const {
    const absl::MutexLock lock(&mutex_);
    return num_halves_;
  }
  // And of kernels that compute on f64.
  int64_t num_doubles() const {
    const absl::MutexLock lock(&mutex_);
    return num_doubles_;
  }

 private:
  class ComparingKernel : public Kernel {
   public:
    ComparingKernel(Comparer& comparer, const KernelSpec& spec, std::unique_ptr<Kernel> cpu,
                    std::unique_ptr<Kernel> own, size_t workspace_bytes)
        : comparer_(comparer),
          spec_(spec),
          cpu_(std::move(cpu)),
          own_(std::move(own)),
          workspace_(std::make_unique_for_overwrite<std::byte[]>(workspace_bytes)) {}

    absl::Status Run(const KernelArgs& args) override {
      const absl::MutexLock lock(&comparer_.mutex_);
      KernelArgs copied = args;
      std::vector<Tensor> tensors;  // inputs, then outputs with what they hold so far
      std::vector<void*> inputs;
      std::vector<void*> outputs;
      for (size_t i = 0; i < args.inputs.size(); ++i) {
        inputs.push_back(Copy(spec_.inputs[i], args.inputs[i], &tensors));
      }
      for (size_t i = 0; i < args.outputs.size(); ++i) {
        outputs.push_back(args.outputs[i] == nullptr
                              ? nullptr
                              : Copy(spec_.outputs[i], args.outputs[i], &tensors));
      }
      copied.inputs = inputs;
      copied.outputs = outputs;
      copied.workspace = workspace_.get();
      copied.stream = comparer_.stream_.get();
      EXPECT_EQ(own_->Run(copied), absl::OkStatus());
      const absl::Status status = cpu_->Run(args);
      EXPECT_EQ(WaitUntilDone(*comparer_.stream_, *comparer_.event_, 1).ok(), status.ok());
      if (!comparer_.stream_->Reset().ok() || !status.ok()) return status;
      for (size_t i = 0; i < outputs.size(); ++i) {
        if (outputs[i] == nullptr) continue;
        Compare(spec_.outputs[i], args.outputs[i], outputs[i], i);
      }
      const auto has = [&tensors](auto is_wanted) {
        return std::any_of(tensors.begin(), tensors.end(),
                           [&](const Tensor& tensor) { return is_wanted(tensor.dtype()); });
      };
      if (has(&IsHalf)) ++comparer_.num_halves_;
      if (has([](DType dtype) { return dtype == DType::kF64; }) && testing::HasDoubles(spec_.op)) {
        ++comparer_.num_doubles_;
      }
      return status;
    }

   private:
    static void* Copy(const TileDesc& tile, const void* from, std::vector<Tensor>* tensors) {
      Tensor& tensor = tensors->emplace_back(TensorType{tile.dtype, tile.shape});
      if (tensor.num_bytes() > 0) std::memcpy(tensor.data(), from, tensor.num_bytes());
      return tensor.data();
    }

    void Compare(const TileDesc& tile, const void* expected, const void* actual, size_t i) const {
      std::vector<Tensor> both;
      Copy(tile, expected, &both);
      Copy(tile, actual, &both);
      double scale = 0;
      for (int64_t at = 0; at < both[0].num_elements(); ++at) {
        const double value = std::abs(testing::GetElement(both[0], at));
        if (std::isfinite(value)) scale = std::max(scale, value);
      }
      const double allowed = testing::AllowedDifference(tile.dtype, 5e-5, scale);
      for (int64_t at = 0; at < both[0].num_elements(); ++at) {
        const double e = testing::GetElement(both[0], at);
        const double a = testing::GetElement(both[1], at);
        if (std::isnan(e) ? std::isnan(a) : e == a) continue;
        ASSERT_LE(std::abs(a - e), allowed)
            << ::testing::PrintToString(KernelCheck{.spec = spec_, .ranges = {}}) << ", result "
            << i << ", element " << at << ": " << a << " instead of " << e;
      }
    }

    Comparer& comparer_;
    const KernelSpec spec_;
    const std::unique_ptr<Kernel> cpu_;
    const std::unique_ptr<Kernel> own_;
    const std::unique_ptr<std::byte[]> workspace_;
  };

  KernelOr Create(const KernelDef& own_def, KernelOr cpu, const KernelSpec& spec) {
    if (!cpu.ok()) return cpu;
    const absl::MutexLock lock(&mutex_);
    KernelOr own = own_def.create(spec, device_, *stream_);
    if (absl::IsUnimplemented(own.status())) return cpu;  // docs/GPU.md lists those
    if (!own.ok()) return own;
    const size_t workspace_bytes =
        own_def.workspace_bytes != nullptr ? own_def.workspace_bytes(spec, 1) : 0;
    return std::make_unique<ComparingKernel>(*this, spec, *std::move(cpu), *std::move(own),
                                             workspace_bytes);
  }

  const KernelRegistry& cpu_;
  const KernelRegistry cuda_;
  SimulatedDevice device_;
  const std::unique_ptr<Stream> stream_ = device_.CreateStream();
  const std::unique_ptr<Event> event_ = device_.CreateEvent();
  mutable absl::Mutex mutex_;  // around the simulation
  int64_t num_halves_ = 0;
  int64_t num_doubles_ = 0;
};

bool HasType(const graph::Graph& graph, DType dtype) {
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    if (graph.value(value).type.dtype == dtype) return true;
  }
  return false;
}

// The random programs of f32 in mixed precision, and as many of f64, split over devices as they
// say.
TEST(SimulatedRandomProgramsTest, EveryKernelAgreesWithTheCpu) {
  constexpr int kPrograms = 10;
  Registries registries = BuiltinRegistries();
  const KernelRegistry cpu = registries.kernels;
  Comparer comparer(cpu);
  registries.kernels = comparer.Kernels();
  int num_run = 0;
  int num_run_f64 = 0;
  for (uint64_t seed = 0; (num_run < kPrograms || num_run_f64 < kPrograms) && !HasFailure();
       ++seed) {
    SCOPED_TRACE(StrCat("seed ", seed));
    const absl::StatusOr<testing::RandomCase> test = testing::MakeRandomCase(registries.ops, seed);
    ASSERT_TRUE(test.ok()) << test.status();
    const bool is_f64 = HasType(test->graph, DType::kF64);
    if (!is_f64 && !HasType(test->graph, DType::kF32)) continue;
    int& num_of_type = is_f64 ? num_run_f64 : num_run;
    if (num_of_type == kPrograms) continue;
    ++num_of_type;
    planner::CompileOptions options;
    options.policy = test->policy;
    options.policies = &registries.policies;
    options.kernels = TraitsOf(registries.kernels, 1);
    options.split_weight_gradients = test->split_weight_gradients;
    options.chunks_per_group = test->chunks_per_group;
    options.precision = is_f64 || num_run % 3 == 0 ? DType::kF32
                        : num_run % 3 == 1         ? DType::kBF16
                                                   : DType::kF16;
    auto plan = planner::Compile(registries.ops, test->graph, options);
    ASSERT_TRUE(plan.ok()) << plan.status();
    actors::SessionOptions session_options;
    session_options.seed = seed;
    auto session = StartSession(registries, *std::move(plan), session_options);
    ASSERT_TRUE(session.ok()) << session.status();
    for (int step = 0; step < test->num_steps; ++step) {
      actors::Feeds feeds;
      for (const graph::Node& node : test->graph.nodes()) {
        if (node.op->name() != "input") continue;
        const graph::Value& value = test->graph.value(node.results[0]);
        const auto range = test->inputs.find(value.name);
        feeds[value.name] = testing::MakeInput(
            value.type, range == test->inputs.end() ? testing::InputRange{} : range->second, seed,
            value.name, step);
      }
      const auto result = (*session)->Run(feeds);
      ASSERT_TRUE(result.ok()) << result.status();
    }
  }
  EXPECT_GT(comparer.num_halves(), 5 * kPrograms);
  EXPECT_GT(comparer.num_doubles(), 5 * kPrograms);
}

}  // namespace
}  // namespace penstock::kernels::cuda
