// Training steps whose loss is scaled (graph/training.h), under several plans.

#include <cmath>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/session/session.h"
#include "graph/text.h"
#include "graph/training.h"
#include "penstock/compile_model.h"
#include "penstock/registries.h"

namespace penstock {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// loss = mean(x w), so that the gradient of w is the mean of the rows of x.
constexpr std::string_view kForward = R"(graph g {
  %x = input : f32[4, 8]
  %w = parameter : f32[8, 8]
  %h = matmul(%x, %w) : f32[4, 8]
  %v = parameter : f32[8, 8]
  %y = matmul(%h, %v) : f32[4, 8]
  %loss = reduce_mean(%y) {axes=[0, 1]} : f32[]
  return %loss
})";

class LossScaleTest : public ::testing::TestWithParam<std::string> {
 protected:
  std::unique_ptr<actors::Session> Start(const graph::TrainingOptions& options) {
    auto forward = graph::ParseGraph(kForward, "forward.pst", registries_.ops);
    EXPECT_TRUE(forward.ok()) << forward.status();
    auto step = graph::BuildTrainingGraph(registries_.ops, *std::move(forward), options);
    EXPECT_TRUE(step.ok()) << step.status();
    auto plan =
        CompileModel(registries_, *std::move(step), {.strategy = GetParam(), .microbatches = 2});
    EXPECT_TRUE(plan.ok()) << plan.status();
    auto session = StartSession(registries_, *std::move(plan));
    EXPECT_TRUE(session.ok()) << session.status();
    return *std::move(session);
  }

  // The gradient norm that a step returns.
  static float Step(actors::Session& session, float x) {
    Tensor batch({DType::kF32, {4, 8}});
    for (int64_t i = 0; i < batch.num_elements(); ++i) {
      batch.As<float>()[i] = x * static_cast<float>(i % 5 + 1);
    }
    const auto result = session.Run({{"x", batch}});
    EXPECT_TRUE(result.ok()) << result.status();
    return result->fetches[1].second.As<float>()[0];
  }

  template <typename T>
  static std::vector<T> State(const actors::Session& session, std::string_view name) {
    const auto tensor = session.Fetch(name);
    EXPECT_TRUE(tensor.ok()) << tensor.status();
    const T* begin = tensor->As<T>();
    return {begin, begin + tensor->num_elements()};
  }

  static graph::TrainingOptions Scaled(graph::Optimizer optimizer) {
    graph::TrainingOptions options;
    options.optimizer = optimizer;
    options.learning_rate = 0.01;
    options.loss_scale = 1024;
    options.loss_scale_growth_steps = 2;
    options.return_gradient_norm = true;
    return options;
  }

  const Registries registries_ = BuiltinRegistries();
};

TEST_P(LossScaleTest, AStepWithGradientsThatOverflowUpdatesNothing) {
  for (const graph::Optimizer optimizer : {graph::Optimizer::kAdamW, graph::Optimizer::kSgd}) {
    const auto session = Start(Scaled(optimizer));
    const char* moment = optimizer == graph::Optimizer::kAdamW ? "w.v" : "w.momentum";
    EXPECT_TRUE(std::isfinite(Step(*session, 0.5F)));
    const std::vector<float> w = State<float>(*session, "w");
    const std::vector<float> state = State<float>(*session, moment);
    ASSERT_THAT(state, ::testing::Contains(::testing::Ne(0.0F)));
    EXPECT_FALSE(std::isfinite(Step(*session, kInfinity)));
    EXPECT_EQ(State<float>(*session, "w"), w);
    EXPECT_EQ(State<float>(*session, moment), state);
    EXPECT_THAT(State<int64_t>(*session, "step"), ::testing::ElementsAre(1));
    EXPECT_THAT(State<float>(*session, "loss_scale"), ::testing::ElementsAre(0.5F));
    EXPECT_TRUE(std::isfinite(Step(*session, 0.5F)));
    EXPECT_NE(State<float>(*session, "w"), w);
    EXPECT_THAT(State<int64_t>(*session, "step"), ::testing::ElementsAre(2));
  }
}

TEST_P(LossScaleTest, DoublesAfterFiniteStepsInARow) {
  const auto session = Start(Scaled(graph::Optimizer::kAdamW));
  std::vector<float> scales;
  for (const float x : {1.0F, 1.0F, 1.0F, kInfinity, 1.0F, 1.0F, 1.0F}) {
    Step(*session, x);
    scales.push_back(State<float>(*session, "loss_scale")[0]);
  }
  EXPECT_THAT(scales, ::testing::ElementsAre(1, 2, 2, 1, 1, 2, 2));
}

// It never falls below 1.
TEST_P(LossScaleTest, EndsAtOne) {
  graph::TrainingOptions options = Scaled(graph::Optimizer::kSgd);
  options.loss_scale = 2;
  const auto session = Start(options);
  for (const float scale : {0.5F, 0.5F}) {
    Step(*session, kInfinity);
    EXPECT_THAT(State<float>(*session, "loss_scale"), ::testing::ElementsAre(scale));
  }
}

// In f32, a scale that is a power of two changes no bit of a gradient.
TEST_P(LossScaleTest, ScalesTheGradientsBack) {
  graph::TrainingOptions options = Scaled(graph::Optimizer::kAdamW);
  const auto scaled = Start(options);
  options.loss_scale = 0;
  const auto plain = Start(options);
  for (const float x : {0.5F, 2.0F, 0.25F}) {
    EXPECT_FLOAT_EQ(Step(*scaled, x), Step(*plain, x));
    const std::vector<float> expected = State<float>(*plain, "w");
    const std::vector<float> actual = State<float>(*scaled, "w");
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_FLOAT_EQ(actual[i], expected[i]);
  }
}

INSTANTIATE_TEST_SUITE_P(Plans, LossScaleTest,
                         ::testing::Values("dp=1", "dp=2", "dp=2,zero=2", "pp=2", "dp=2,pp=2"),
                         [](const auto& strategy) {
                           std::string name = strategy.param;
                           std::erase(name, '=');
                           std::replace(name.begin(), name.end(), ',', '_');
                           return name;
                         });

}  // namespace
}  // namespace penstock
