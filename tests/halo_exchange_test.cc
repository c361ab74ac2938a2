// Operators that read windows of their operands, over several devices: the numbers of one device,
// no byte more than what each device lacks, and programs that devices share.
//
// Slices, pads and concats are Penstock's own; `window_sum` and `window_dots` stand for
// convolutions, their gradients and poolings, which read several elements. Element i of window_sum
// is the sum of the operand's elements i * stride - low to i * stride - low + size - 1, as far as
// they exist.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "actors/session/session.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/ops/common.h"
#include "kernels/cpu/cpu_kernel.h"
#include "planner/plan/plan_io.h"
#include "tests/support/interpreter.h"
#include "tests/support/planner_fixture.h"

namespace penstock::testing {
namespace {

using graph::AttrSpec;
using graph::OpContext;
using ::testing::ElementsAre;

class WindowSumOp : public graph::Op {
 public:
  std::string_view name() const override { return "window_sum"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"low", AttrSpec::Kind::kInt, /*is_required=*/true},
            {"size", AttrSpec::Kind::kInt, /*is_required=*/true},
            {"stride", AttrSpec::Kind::kInt, /*is_required=*/true},
            {"extent", AttrSpec::Kind::kInt, /*is_required=*/true}};
  }
  absl::StatusOr<std::vector<TensorType>> InferTypes(const OpContext& context) const override {
    TensorType type = context.operands[0];
    type.shape[0] = context.attributes.GetInt("extent", 0);
    return std::vector<TensorType>{type};
  }
  // One statement about the dimension is all that the planner needs.
  graph::ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    const Shape& y = context.results[0].shape;
    graph::ShardingRule rule;
    const int moved = rule.AddFactor(std::max(x[0], y[0]), graph::FactorKind::kPermutation);
    rule.operands = {{{moved}}};
    for (size_t d = 1; d < x.size(); ++d) rule.operands[0].push_back({rule.AddFactor(x[d])});
    rule.results = rule.operands;
    rule.linear = {{0}};
    rule.windows = {{.operand = 0,
                     .factor = moved,
                     .window = {.extent = y[0],
                                .stride = context.attributes.GetInt("stride", 1),
                                .low = -context.attributes.GetInt("low", 0),
                                .size = context.attributes.GetInt("size", 1)}}};
    return rule;
  }
};

class WindowSum : public kernels::CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const kernels::KernelArgs& args) override {
    const kernels::TileDesc& x = spec_.inputs[0];
    const kernels::TileDesc& y = spec_.outputs[0];
    const int64_t stride = spec_.attributes.GetInt("stride", 1);
    const int64_t row = y.shape[0] == 0 ? 0 : y.num_elements() / y.shape[0];
    auto* result = kernels::Output<double>(args, 0);
    for (int64_t i = 0; i < y.shape[0]; ++i) {
      std::fill_n(result + i * row, row, 0.0);
      const int64_t begin = (y.offset[0] + i) * stride - spec_.attributes.GetInt("low", 0);
      const int64_t end = begin + spec_.attributes.GetInt("size", 1);
      for (int64_t e = std::max<int64_t>(begin, 0); e < std::min(end, x.global[0]); ++e) {
        if (e < x.offset[0] || e >= x.offset[0] + x.shape[0]) {
          return absl::InternalError(StrCat("element ", e, " is not in the tile"));
        }
        for (int64_t j = 0; j < row; ++j) {
          result[i * row + j] += kernels::Input<double>(args, 0)[(e - x.offset[0]) * row + j];
        }
      }
    }
    return absl::OkStatus();
  }
};

// window_dots(x[n], g[m]) {low, size} -> [size]: element k is the sum over i of x[i - low + k]
// g[i], as the gradient of a convolution's taps is. The sum may be split: a part of it reads a
// window of x.
class WindowDotsOp : public graph::Op {
 public:
  std::string_view name() const override { return "window_dots"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"low", AttrSpec::Kind::kInt, /*is_required=*/true},
            {"size", AttrSpec::Kind::kInt, /*is_required=*/true}};
  }
  absl::StatusOr<std::vector<TensorType>> InferTypes(const OpContext& context) const override {
    return std::vector<TensorType>{
        {context.operands[0].dtype, {context.attributes.GetInt("size", 1)}}};
  }
  graph::ShardingRule Rule(const OpContext& context) const override {
    graph::ShardingRule rule;
    const int64_t m = context.operands[1].shape[0];
    const int summed = rule.AddFactor(m, graph::FactorKind::kReduction);
    const int taps =
        rule.AddFactor(context.results[0].shape[0], graph::FactorKind::kNeedReplication);
    rule.operands = {{{summed}}, {{summed}}};
    rule.results = {{{taps}}};
    rule.windows = {{.operand = 0,
                     .factor = summed,
                     .window = {.extent = m,
                                .low = -context.attributes.GetInt("low", 0),
                                .size = context.attributes.GetInt("size", 1)}}};
    return rule;
  }
};

class WindowDots : public kernels::CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const kernels::KernelArgs& args) override {
    const kernels::TileDesc& x = spec_.inputs[0];
    const kernels::TileDesc& g = spec_.inputs[1];
    auto* result = kernels::Output<double>(args, 0);
    for (int64_t k = 0; k < spec_.outputs[0].shape[0]; ++k) {
      result[k] = 0;
      for (int64_t i = 0; i < g.shape[0]; ++i) {
        const int64_t e = g.offset[0] + i - spec_.attributes.GetInt("low", 0) + k;
        if (e < 0 || e >= x.global[0]) continue;
        if (e < x.offset[0] || e >= x.offset[0] + x.shape[0]) {
          return absl::InternalError(StrCat("element ", e, " is not in the tile"));
        }
        result[k] +=
            kernels::Input<double>(args, 0)[e - x.offset[0]] * kernels::Input<double>(args, 1)[i];
      }
    }
    return absl::OkStatus();
  }
};

absl::StatusOr<std::unique_ptr<kernels::Kernel>> CreateWindowDots(const kernels::KernelSpec& spec,
                                                                  Device& device, Stream&) {
  return std::make_unique<WindowDots>(spec, device);
}

absl::StatusOr<std::unique_ptr<kernels::Kernel>> CreateWindowSum(const kernels::KernelSpec& spec,
                                                                 Device& device, Stream&) {
  return std::make_unique<WindowSum>(spec, device);
}

class HaloExchangeTest : public PlannerFixture {
 protected:
  void SetUp() override {
    ASSERT_TRUE(all_ops_.Add(std::make_unique<WindowSumOp>()).ok());
    ASSERT_TRUE(all_kernels_.Add("window_sum", {.create = CreateWindowSum}).ok());
    ASSERT_TRUE(all_ops_.Add(std::make_unique<WindowDotsOp>()).ok());
    ASSERT_TRUE(all_kernels_.Add("window_dots", {.create = CreateWindowDots}).ok());
  }

  absl::StatusOr<planner::FoldedPlan> CompileFolded(const std::string& text) const {
    ASSIGN_OR_RETURN(graph::Graph graph, graph::ParseGraph(text, "test.pst", all_ops_));
    planner::CompileOptions options = OptionsFor("1f1b");
    options.kernels = kernels::TraitsOf(all_kernels_, 1);
    return planner::CompileFolded(all_ops_, std::move(graph), options);
  }

  // Runs the program, whose input is %x, on its mesh and on one device.
  absl::Status Check(const std::string& text) const {
    ASSIGN_OR_RETURN(const planner::FoldedPlan folded, CompileFolded(text));
    // As `run` does: from the file.
    ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(folded));
    ASSIGN_OR_RETURN(planner::Plan plan, planner::PlanFromBytes(bytes));
    ASSIGN_OR_RETURN(const graph::Graph graph, graph::ParseGraph(text, "test.pst", all_ops_));
    Tensor x(graph.value(graph.FindValue("x")).type);
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      x.As<double>()[i] = static_cast<double>(i * i % 97 + 1);
    }
    ASSIGN_OR_RETURN(const std::vector<Tensor> expected,
                     Interpret(graph, all_kernels_, {{"x", x}}));
    actors::SessionOptions options;
    options.kernels = &all_kernels_;
    options.policies = &policies_;
    ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                     actors::Session::Start(std::move(plan), options));
    ASSIGN_OR_RETURN(const actors::StepResult got, session->Run({{"x", x}}));
    for (size_t r = 0; r < expected.size(); ++r) {
      const Tensor& result = got.fetches[r].second;
      if (result.type() != expected[r].type()) return absl::InternalError("another type");
      for (int64_t i = 0; i < result.num_elements(); ++i) {
        if (result.As<double>()[i] == expected[r].As<double>()[i]) continue;
        return absl::InternalError(StrCat("element ", i, " of result ", r, " is ",
                                          result.As<double>()[i], ", expected ",
                                          expected[r].As<double>()[i]));
      }
    }
    return absl::OkStatus();
  }

  // Elements that each device is sent by others in all collectives.
  static std::vector<int64_t> Received(const planner::Plan& plan) {
    std::vector<int64_t> received(plan.devices.size(), 0);
    for (const CollectiveSpec& spec : plan.collectives) {
      EXPECT_EQ(spec.kind, CollectiveKind::kAllToAll);
      const size_t n = spec.devices.size();
      for (size_t from = 0; from < n; ++from) {
        for (size_t to = 0; to < n; ++to) {
          if (from != to) received[spec.devices[to]] += spec.counts[from * n + to];
        }
      }
    }
    return received;
  }

  graph::OpRegistry all_ops_ = graph::BuiltinOps();
  kernels::KernelRegistry all_kernels_ = kernels::CpuKernels();
};

std::string ExchangeProgram(const std::string& mesh, int64_t n, int64_t extent,
                            const std::string& x, const std::string& y,
                            const std::string& statement) {
  return StrCat("mesh m = ", mesh, "\ngraph g {\n  %x = input : f64[", n, ", 6] ", x,
                "\n  %y = ", statement, " : f64[", extent, ", 6]\n  return %y ", y, "\n}\n");
}

// One row a neighbour, and nothing else.
TEST_F(HaloExchangeTest, ASliceBySomeRowsMovesOneRowANeighbour) {
  const absl::StatusOr<planner::FoldedPlan> folded = CompileFolded(ExchangeProgram(
      "[d=4]", 16, 15, "@[d, _]", "@[d, _]", "slice(%x) {start=[1, 0], limit=[16, 6]}"));
  ASSERT_TRUE(folded.ok()) << folded.status();
  const absl::StatusOr<planner::Plan> plan = planner::ExpandPlan(*folded);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->collectives.size(), 1u);
  EXPECT_THAT(plan->collectives[0].counts, ElementsAre(0, 0, 0, 0,  //
                                                       6, 0, 0, 0,  //
                                                       0, 6, 0, 0,  //
                                                       0, 0, 6, 0));
  EXPECT_THAT(Received(*plan), ElementsAre(6, 6, 6, 0));
}

// The first and the last of 32 parts differ from the 30 between, which share a program.
TEST_F(HaloExchangeTest, PartsInTheMiddleShareAProgram) {
  const absl::StatusOr<planner::FoldedPlan> folded =
      CompileFolded(ExchangeProgram("[d=32]", 64, 64, "@[d, _]", "@[d, _]",
                                    "window_sum(%x) {low=1, size=3, stride=1, extent=64}"));
  ASSERT_TRUE(folded.ok()) << folded.status();
  EXPECT_EQ(folded->num_classes(), 3u);
  const absl::StatusOr<planner::Plan> plan = planner::ExpandPlan(*folded);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const std::vector<int64_t> received = Received(*plan);
  EXPECT_EQ(received.front(), 6);
  EXPECT_EQ(received.back(), 6);
  for (size_t d = 1; d + 1 < received.size(); ++d) EXPECT_EQ(received[d], 12) << d;
}

TEST_F(HaloExchangeTest, SlicesAndPadsGiveTheNumbersOfOneDevice) {
  for (const int64_t devices : {2, 3, 4, 5}) {
    const std::string mesh = StrCat("[d=", devices, "]");
    for (const int64_t n : {1, 2, 3, 7, 8, 13}) {
      for (int64_t start = 0; start < n; start += 2) {
        for (const int64_t stride : {1, 2, 3}) {
          const int64_t extent = (n - start - 1) / stride + 1;
          const std::string slice = StrCat("slice(%x) {start=[", start, ", 0], limit=[", n,
                                           ", 6], stride=[", stride, ", 1]}");
          for (const char* x : {"@[d, _]", "@[_, _]", "@[_, d]"}) {
            const std::string text = ExchangeProgram(mesh, n, extent, x, "@[d, _]", slice);
            EXPECT_EQ(Check(text), absl::OkStatus()) << text;
          }
        }
      }
      for (const int64_t low : {0, 1, 4}) {
        for (const int64_t high : {1, 5}) {
          const std::string text =
              ExchangeProgram(mesh, n, n + low + high, "@[d, _]", "@[d, _]",
                              StrCat("pad(%x) {low=[", low, ", 0], high=[", high, ", 0]}"));
          EXPECT_EQ(Check(text), absl::OkStatus()) << text;
        }
      }
    }
  }
}

TEST_F(HaloExchangeTest, WindowsGiveTheNumbersOfOneDevice) {
  for (const char* mesh : {"[d=2, e=2]", "[d=4, e=1]", "[d=3, e=2]"}) {
    for (const int64_t n : {1, 3, 7, 8, 12}) {
      for (const int64_t stride : {1, 2}) {
        for (const int64_t size : {1, 3, 5, 9}) {
          const int64_t low = size / 2;
          const int64_t extent = (n + 2 * low - size) / stride + 1;
          const std::string sum = StrCat("window_sum(%x) {low=", low, ", size=", size,
                                         ", stride=", stride, ", extent=", extent, "}");
          for (const auto& [x, y] : {std::pair{"@[d, e]", "@[d, e]"},
                                     {"@[d, _]", "@[d.e, _]"},
                                     {"@[d.e, _]", "@[d, _]"},
                                     {"@[e, d]", "@[d.e, _]"}}) {
            const std::string text = ExchangeProgram(mesh, n, extent, x, y, sum);
            EXPECT_EQ(Check(text), absl::OkStatus()) << text;
          }
        }
      }
    }
  }
}

TEST_F(HaloExchangeTest, ConcatsGiveTheNumbersOfOneDevice) {
  for (const int64_t n : {1, 2, 3, 7, 8}) {
    for (const int64_t cut : {0, 1, 4}) {
      if (cut >= n) continue;
      const std::string text =
          StrCat(R"(mesh m = [d=4]
graph g {
  %x = input : f64[)",
                 n, R"(, 6] @[d, _]
  %last = slice(%x) {start=[)",
                 cut, R"(, 0], limit=[)", n, R"(, 6]} : f64[)", n - cut, R"(, 6] @[d, _]
  %y = concat(%last, %x, %last) {axis=0} : f64[)",
                 3 * n - 2 * cut, R"(, 6]
  return %y @[d, _]
})");
      EXPECT_EQ(Check(text), absl::OkStatus()) << text;
    }
  }
}

// Halves that change places, in parts of 8 rows: cutting them out and putting them together again
// brings a device 16 rows at most, where gathering would bring 24 of %x alone.
TEST_F(HaloExchangeTest, ConcatsMoveWhatTheirPartsLack) {
  const absl::StatusOr<planner::FoldedPlan> folded = CompileFolded(R"(mesh m = [d=4]
graph g {
  %x = input : f64[32, 6] @[d, _]
  %a = slice(%x) {start=[0, 0], limit=[16, 6]} : f64[16, 6] @[d, _]
  %b = slice(%x) {start=[16, 0], limit=[32, 6]} : f64[16, 6] @[d, _]
  %y = concat(%b, %a) {axis=0} : f64[32, 6]
  return %y @[d, _]
})");
  ASSERT_TRUE(folded.ok()) << folded.status();
  const absl::StatusOr<planner::Plan> plan = planner::ExpandPlan(*folded);
  ASSERT_TRUE(plan.ok()) << plan.status();
  ASSERT_EQ(plan->collectives.size(), 4u);  // two slices, two operands of the concat
  const std::vector<int64_t> received = Received(*plan);
  EXPECT_LE(*std::max_element(received.begin(), received.end()), 2 * 8 * 6);
}

// A sum over windows stays split: its halo is exchanged, and its terms are reduced.
TEST_F(HaloExchangeTest, SumsOverWindowsStaySplit) {
  for (const int64_t devices : {2, 3, 4}) {
    for (const int64_t n : {4, 7, 16}) {
      const std::string text = StrCat("mesh m = [d=", devices, R"(]
graph g {
  %x = input : f64[)",
                                      n, R"(] @[d]
  %g = square(%x) : f64[)",
                                      n, R"(] @[d]
  %y = window_dots(%x, %g) {low=1, size=3} : f64[3]
  return %y @[_]
})");
      EXPECT_EQ(Check(text), absl::OkStatus()) << text;
      const absl::StatusOr<planner::FoldedPlan> folded = CompileFolded(text);
      ASSERT_TRUE(folded.ok()) << folded.status();
      std::vector<CollectiveKind> kinds;
      for (const planner::FoldedCollective& collective : folded->collectives) {
        kinds.push_back(collective.specs[0].kind);
      }
      if (n == 4) continue;  // gathering so few costs less
      EXPECT_THAT(kinds, ElementsAre(CollectiveKind::kAllToAll, CollectiveKind::kAllReduce));
    }
  }
}

// Both dimensions, the corners too.
TEST_F(HaloExchangeTest, TwoSplitDimensions) {
  EXPECT_EQ(Check(R"(mesh m = [d=2, e=3]
graph g {
  %x = input : f64[9, 7] @[d, e]
  %y = slice(%x) {start=[2, 1], limit=[9, 6]} : f64[7, 5]
  %z = pad(%y) {low=[1, 2], high=[3, 1]} : f64[11, 8]
  return %y @[d, e], %z @[d, e]
})"),
            absl::OkStatus());
}

// A sum that is still open over e is cut before it is reduced, or after: the numbers are the same.
TEST_F(HaloExchangeTest, PartialSumsBesideMicrobatches) {
  EXPECT_EQ(Check(R"(mesh m = [mb=2 temporal, d=2, e=2]
graph g {
  %x = input : f64[8, 4, 6] @[mb, e, d]
  %s = reduce_sum(%x) {axes=[1]} : f64[8, 6]
  %y = slice(%s) {start=[0, 1], limit=[8, 6]} : f64[8, 5]
  return %y @[mb, d]
})"),
            absl::OkStatus());
}

}  // namespace
}  // namespace penstock::testing
