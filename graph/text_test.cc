#include "graph/text.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/strings.h"
#include "graph/builder.h"
#include "graph/verify.h"

namespace penstock::graph {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kMlp = R"(# An example.
mesh m = [mb=4 temporal, dp=2, tp=2]

graph mlp {
  %x  = input                        : f32[8, 16]   @[mb.dp, _]
  %w1 = parameter {init="normal", std=0.02} : f32[16, 32]  @[_, tp p1]
  %h  = matmul(%x, %w1)              : f32[8, 32]   # open
  %a  = gelu(%h)                     : f32[8, 32]   stage 0
  %w2 = parameter                    : f32[32, 16]  @[tp:(1)2?, ?] replicated(dp)
  %y  = matmul(%a, %w2)              : f32[8, 16]   @[mb.dp, ?] partial(sum, tp) stage 1 phase backward
  %s  = reduce_sum(%y) {axes=[1]}    : f32[8]
  assign(%w2, %w2) phase update
  return %s @[mb?], %y
}
)";

class TextTest : public ::testing::Test {
 protected:
  Graph MustParse(std::string_view text) {
    absl::StatusOr<Graph> graph = ParseGraph(text, "test.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status().message() << "\n" << text;
    return graph.ok() ? *std::move(graph) : Graph();
  }

  std::string ErrorOf(std::string_view text) {
    const absl::StatusOr<Graph> graph = ParseGraph(text, "test.pst", ops_);
    return graph.ok() ? "" : std::string(graph.status().message());
  }

  // The message for one statement after `%x = input : f32[8, 16]`.
  std::string ErrorOfStatement(std::string_view statement) {
    return ErrorOf(
        StrCat("mesh m = [a=4, b=2]\ngraph g {\n  %x = input : f32[8, 16]\n", statement, "\n}\n"));
  }

  const OpRegistry ops_ = BuiltinOps();
};

TEST_F(TextTest, ReadsWhatIsWritten) {
  const Graph graph = MustParse(kMlp);
  EXPECT_EQ(graph.name(), "mlp");
  ASSERT_EQ(graph.meshes().size(), 1u);
  EXPECT_TRUE(graph.meshes()[0].axes[0].is_temporal);
  EXPECT_EQ(graph.num_nodes(), 8);

  const Node& y = graph.node(graph.value(graph.FindValue("y")).producer);
  EXPECT_EQ(y.stage, 1);
  EXPECT_EQ(y.phase, Phase::kBackward);
  EXPECT_EQ(y.location.line, 10);
  EXPECT_EQ(y.location.column, 3);
  EXPECT_EQ(ToString(graph.meshes()[0], *graph.value(y.results[0]).sharding),
            "@[mb.dp, ?] partial(sum, tp)");
  const Value& w2 = graph.value(graph.FindValue("w2"));
  // tp:(1)2 of an axis of two is the whole axis.
  EXPECT_EQ(ToString(graph.meshes()[0], *w2.sharding), "@[tp?, ?] replicated(dp)");
  EXPECT_FALSE(graph.value(graph.FindValue("h")).sharding.has_value());
  ASSERT_EQ(graph.returns().size(), 2u);
  EXPECT_TRUE(graph.returns()[0].sharding.has_value());
  EXPECT_FALSE(graph.returns()[1].sharding.has_value());
  EXPECT_TRUE(VerifyGraph(graph).ok()) << VerifyGraph(graph).message();
}

TEST_F(TextTest, PrintsStably) {
  const std::string text = PrintGraph(MustParse(kMlp));
  EXPECT_EQ(text, R"(mesh m = [mb=4 temporal, dp=2, tp=2]

graph mlp {
  %x = input : f32[8, 16] @[mb.dp, _]
  %w1 = parameter {init="normal", std=0.02} : f32[16, 32] @[_, tp p1]
  %h = matmul(%x, %w1) : f32[8, 32]
  %a = gelu(%h) : f32[8, 32] stage 0
  %w2 = parameter : f32[32, 16] @[tp?, ?] replicated(dp)
  %y = matmul(%a, %w2) : f32[8, 16] @[mb.dp, ?] partial(sum, tp) stage 1 phase backward
  %s = reduce_sum(%y) {axes=[1]} : f32[8]
  assign(%w2, %w2) phase update
  return %s @[mb?], %y
}
)");
  EXPECT_EQ(PrintGraph(MustParse(text)), text);
}

TEST_F(TextTest, SeveralResultsAndMeshes) {
  constexpr std::string_view kText = R"(mesh m = [dp=2]
mesh n = [tp=2]

graph g {
  %x = input : f32[4] on m
  %a, %b = split(%x) {axis=0, parts=2} : f32[2] @[tp], f32[2] on n stage 1
  return %a @[tp?], %b
}
)";
  const Graph graph = MustParse(kText);
  EXPECT_EQ(graph.node(1).mesh, 1);
  EXPECT_EQ(PrintGraph(graph), kText);
}

TEST_F(TextTest, OptionalResultsMayBeBound) {
  constexpr std::string_view kText = R"(graph g {
  %x = input : f32[4, 8]
  %s = parameter : f32[8]
  %y = layer_norm(%x, %s, %s) : f32[4, 8]
  %z, %mean, %rstd = layer_norm(%x, %s, %s) : f32[4, 8], f32[4], f32[4]
  %q, %mean2 = layer_norm(%x, %s, %s) : f32[4, 8], f32[4]
  return %y, %z, %q
}
)";
  EXPECT_EQ(PrintGraph(MustParse(kText)), kText);
}

TEST_F(TextTest, NamesThatNeedQuotes) {
  Graph graph("a graph");
  GraphBuilder builder(ops_, graph);
  const ValueId x = builder.Declare("input", "h0.attn \"q\"\\\n%", {DType::kF32, {2}});
  builder.Add("neg", {x}, {}, "h0.neg_1");
  ASSERT_TRUE(builder.status().ok());
  const Graph again = MustParse(PrintGraph(graph));
  std::string difference;
  EXPECT_TRUE(GraphsEqual(graph, again, &difference)) << difference;
}

TEST_F(TextTest, ScalarsEmptyShapesAndNoReturn) {
  const Graph graph = MustParse("graph g { %x = input : i64[] %y = input : bool[0, 3] @[?, _] }");
  EXPECT_EQ(PrintGraph(graph),
            "graph g {\n  %x = input : i64[]\n  %y = input : bool[0, 3] @[?, _]\n}\n");
}

TEST(AttributeTextTest, FloatsAreShortestAndNotIntegers) {
  const auto print = [](double value) { return PrintAttributes({{"v", AttrValue(value)}}); };
  EXPECT_EQ(print(0.0), "{v=0.0}");
  EXPECT_EQ(print(-0.0), "{v=-0.0}");
  EXPECT_EQ(print(1.0), "{v=1.0}");
  EXPECT_EQ(print(0.1), "{v=0.1}");
  EXPECT_EQ(print(1e-5), "{v=1e-5}");
  EXPECT_EQ(print(1e20), "{v=1e20}");
  EXPECT_EQ(print(1e100), "{v=1e100}");
  EXPECT_EQ(print(-2.5e-10), "{v=-2.5e-10}");
  EXPECT_EQ(print(std::numeric_limits<double>::infinity()), "{v=inf}");
  EXPECT_EQ(print(-std::numeric_limits<double>::infinity()), "{v=-inf}");
  EXPECT_EQ(print(std::numeric_limits<double>::quiet_NaN()), "{v=nan}");
}

// An operator that takes attributes of any kind, for round trips.
class AnyOp : public Op {
 public:
  std::string_view name() const override { return "any"; }
  int min_operands() const override { return 0; }
  std::vector<AttrSpec> attributes() const override { return {{"v", AttrSpec::Kind::kAny}}; }
  absl::StatusOr<std::vector<TensorType>> InferTypes(const OpContext&) const override {
    return std::vector<TensorType>{{DType::kF32, {}}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
};

TEST(AttributeTextTest, EveryKindRoundTrips) {
  OpRegistry ops;
  ASSERT_TRUE(ops.Add(std::make_unique<AnyOp>()).ok());
  std::vector<AttrValue> values = {
      AttrValue(int64_t{0}),
      AttrValue(std::numeric_limits<int64_t>::min()),
      AttrValue(std::numeric_limits<int64_t>::max()),
      AttrValue(true),
      AttrValue(false),
      AttrValue(DType::kBF16),
      AttrValue(DType::kBool),
      AttrValue(""),
      AttrValue("a \"b\" \\ \n # {} %x"),
      AttrValue(AttrValue::List{}),
      AttrValue(AttrValue::List{AttrValue(1), AttrValue(2.0), AttrValue(AttrValue::List{"x"}),
                                AttrValue(AttrValue::List{})}),
      AttrValue(std::numeric_limits<double>::quiet_NaN()),
      AttrValue(-std::numeric_limits<double>::infinity()),
      AttrValue(std::numeric_limits<double>::denorm_min()),
      AttrValue(std::numeric_limits<double>::max()),
  };
  std::mt19937_64 random(1);
  for (int i = 0; i < 200; ++i) {
    const uint64_t bits = random();
    double value = 0;
    std::memcpy(&value, &bits, sizeof(value));
    values.emplace_back(value);
  }
  for (const AttrValue& value : values) {
    Graph graph("g");
    ASSERT_TRUE(graph.Add(ops.Find("any"), {}, {{"v", value}}).ok());
    const std::string text = PrintGraph(graph);
    const absl::StatusOr<Graph> again = ParseGraph(text, "test.pst", ops);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_TRUE(again->node(0).attributes == graph.node(0).attributes) << text;
  }
}

TEST_F(TextTest, ErrorShowsLineCaretAndNearestOperator) {
  EXPECT_EQ(ErrorOfStatement("  %h = mulmat(%x, %x) : f32[8, 8]"),
            "test.pst:4:8: unknown operator 'mulmat'\n"
            "  %h = mulmat(%x, %x) : f32[8, 8]\n"
            "       ^");
  EXPECT_THAT(ErrorOfStatement("%h = matmull(%x, %x) : f32[8, 8]"),
              HasSubstr("test.pst:4:6: unknown operator 'matmull'; did you mean 'matmul'?"));
}

TEST_F(TextTest, ErrorsSayWhatWasExpected) {
  const struct {
    std::string_view statement;
    std::string_view message;
  } kCases[] = {
      {"%h = neg(%y) : f32[8, 16]", "4:10: unknown value '%y'"},
      {"%x = neg(%x) : f32[8, 16]", "4:1: there is a value '%x' already"},
      {"%h = neg(%x) : f32[8, 17]", "4:1: %h is declared f32[8, 17], but neg gives f32[8, 16]"},
      {"%h = neg(%x)", "5:1: expected ':' and a type for each result, found '}'"},
      {"%h = neg(%x) : f99[8]", "4:16: expected a type such as 'f32[8, 16]', found 'f99'"},
      {"%h = neg(%x) : f32[8 16]", "expected ',' or ']' after a dimension"},
      {"%h = neg(%x) : f32[8, -1]", "expected the size of a dimension from 0"},
      {"%h = neg(%x) : f32[8, 16], f32[8]", "more types than results"},
      {"%h = neg(%x) {a=}", "expected a value: a number"},
      {"%h = neg(%x) {a=1, a=2} : f32[8, 16]", "'a' is given twice"},
      {"%h = neg(%x) {a=99999999999999999999} : f32[8, 16]", "64-bit integer"},
      {"%h = neg(%x) {a=\"b} : f32[8, 16]", "does not end on its line"},
      {"%h = neg(%x) : f32[8, 16] @[c, ?]", "mesh m has no axis 'c'; expected one of: a, b"},
      {"%h = neg(%x) : f32[8, 16] @[a]", "the sharding has 1 dimension, "},
      {"%h = neg(%x) : f32[8, 16] @[a, a]", "4:27: dimension 1: axis a is already used"},
      {"%h = neg(%x) : f32[8, 16] @[a:(3)2, ?]", "does not divide axis a of size 4"},
      {"%h = neg(%x) : f32[8, 16] @[a q1, ?]", "expected ',', ']' or a priority such as 'p1'"},
      {"%h = neg(%x) : f32[8, 16] @[a window, ?]", "expected '(' after 'window'"},
      {"%h = neg(%x) : f32[8, 16] @[a window(low=1), ?]", "expected 'of', the number of elements"},
      {"%h = neg(%x) : f32[8, 16] @[a window(of=7, low=1, stride=2), ?]",
       "expected ')' after stride, divisor, low and size, in this order"},
      {"%h = neg(%x) : f32[8, 16] @[a window(of=7, stride=0), ?]",
       "dimension 0: window(of=7, stride=0) is no window"},
      {"%h = neg(%x) : f32[8, 16] @[_ window(of=7), ?]", "dimension 0: windows need axes"},
      {"%h = neg(%x) : f32[8, 16] @[a? window(of=7), ?]", "dimension 0: windows need axes"},
      {"%h = neg(%x) : f32[8, 16] @[a subbatch(2), ?]", "expected 'of', the number of sub-batches"},
      {"%h = neg(%x) : f32[8, 16] @[a subbatch(of=2), ?]", "expected ','"},
      {"%h = neg(%x) : f32[8, 16] @[a subbatch(of=2, index=2), ?]", "from 0 to 1"},
      {"%h = neg(%x) : f32[8, 16] @[a subbatch(of=3, index=0), ?]",
       "dimension 0: sub-batch 0 of 3 of each of 4 parts does not divide 8"},
      {"%h = neg(%x) : f32[8, 16] @[?, ?] partial(mean, a)", "sum, max, min or prod"},
      {"%h = neg(%x) : f32[8, 16] on k", "there is no mesh 'k'"},
      {"%h = neg(%x) : f32[8, 16] stage -1", "expected the number of the stage from 0"},
      {"%h = neg(%x) : f32[8, 16] phase later", "expected 'forward', 'backward'"},
      {"%h = neg(%x, %x) : f32[8, 16]", "4:1: neg:"},
      {"%h, %g = neg(%x) : f32[8, 16], f32[8, 16]", "neg: has 1 result, not 2"},
      {"neg(%x)", "neg: has 1 result, not 0"},
      {"%h = input(%x) : f32[8, 16]", "input: takes no operands"},
      {"return %x,", "expected a returned value, found '}'"},
      {"return %x %y = neg(%x) : f32[8, 16]", "'}', found '%y'"},
      {"&", "4:1: unexpected character"},
  };
  for (const auto& [statement, message] : kCases) {
    EXPECT_THAT(ErrorOfStatement(statement), HasSubstr(std::string(message))) << statement;
  }
  EXPECT_THAT(ErrorOf(""), HasSubstr("test.pst:1:1: expected 'mesh' or 'graph'"));
  EXPECT_THAT(ErrorOf("graph g {"), HasSubstr("found the end of the file"));
  EXPECT_THAT(ErrorOf("graph g { } x"), HasSubstr("expected the end of the file"));
  EXPECT_THAT(ErrorOf("mesh m = [a=2, a=2]"), HasSubstr("axis a is declared twice"));
  EXPECT_THAT(ErrorOf("graph g { %x = input : f32[8] @[a] }"),
              HasSubstr("axis 'a' needs a mesh; expected one such as 'mesh m = [a=2]' before"));
}

TEST_F(TextTest, WindowsArePrintedAsParsed) {
  constexpr std::string_view kText = R"(mesh m = [a=4, b=2]

graph g {
  %x = input : f32[8, 16] @[a window(of=7, low=1), b]
  %y = input : f32[8, 16] @[a window(of=8, stride=2, divisor=3, low=-1, size=5), _]
}
)";
  const absl::StatusOr<Graph> graph = ParseGraph(kText, "test.pst", ops_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(PrintGraph(*graph), kText);
  const Sharding& x = *graph->value(0).sharding;
  EXPECT_EQ(x.dims[0].window, (Window{.extent = 7, .low = 1}));
  EXPECT_TRUE(x.has_windows());
  EXPECT_EQ(LocalRange(graph->meshes()[0], x.dims[0], 8, 2, 0), (Range{3, 5}));
}

TEST_F(TextTest, SubBatchesArePrintedAsParsed) {
  constexpr std::string_view kText = R"(mesh m = [a=4, b=2]

graph g {
  %x = input : f32[8, 16] @[a subbatch(of=2, index=1), b]
  %y = input : f32[8, 16] @[_ subbatch(of=4, index=0), _]
}
)";
  const absl::StatusOr<Graph> graph = ParseGraph(kText, "test.pst", ops_);
  ASSERT_TRUE(graph.ok()) << graph.status();
  EXPECT_EQ(PrintGraph(*graph), kText);
  EXPECT_EQ(graph->value(0).sharding->dims[0].sub_batch, (SubBatch{2, 1}));
}

TEST_F(TextTest, LimitsAreErrors) {
  EXPECT_THAT(ErrorOfStatement(StrCat("%h = neg(%x) {a=", std::string(100000, '['))),
              HasSubstr("nested deeper than"));
  std::string wide = "%h = input : f32[1";
  for (int i = 0; i < 100; ++i) wide += ", 1";
  EXPECT_THAT(ErrorOfStatement(wide + "]"), HasSubstr("rank"));
  EXPECT_THAT(ErrorOfStatement("%h = input : f32[1000000000, 1000000000]"),
              HasSubstr("more than 2^48 elements"));
  EXPECT_THAT(ErrorOf("mesh m = [a=1000000, b=1000000] graph g {}"), HasSubstr("limit"));
}

TEST_F(TextTest, LongLinesAreShownInPart) {
  const std::string message =
      ErrorOfStatement(StrCat(std::string(100000, ' '), "%h = nag(%x) : f32[8, 16]"));
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, HasSubstr("%h = nag(%x)"));
}

// Flips, drops, repeats and inserts pieces of a valid text: the parser answers each with a graph or
// an error, and a graph that it accepts round-trips.
TEST_F(TextTest, MutationsNeverCrash) {
  std::mt19937 random(7);
  const auto below = [&](size_t bound) {
    return std::uniform_int_distribution<size_t>(0, bound - 1)(random);
  };
  constexpr std::string_view kPieces[] = {"%",
                                          "@[",
                                          "]",
                                          "(",
                                          ")",
                                          "{",
                                          "}",
                                          ",",
                                          ":",
                                          "?",
                                          ".",
                                          "_",
                                          "graph",
                                          "mesh",
                                          "=",
                                          "-",
                                          "1e999",
                                          "\"",
                                          "\\",
                                          "nan",
                                          "p1",
                                          "dp",
                                          "(1)2",
                                          "f32[",
                                          "i64[]",
                                          "stage",
                                          "on m",
                                          "phase",
                                          "#",
                                          "\n",
                                          "0",
                                          "-1",
                                          "999999999999",
                                          "return %x",
                                          "partial(sum, tp)",
                                          "replicated(mb)",
                                          "axes=[0]",
                                          "axes=[-9]",
                                          "shape=[-1, 0]",
                                          "split(%x) {axis=0, parts=0}",
                                          "reshape(%x) {shape=[128]}",
                                          "transpose_a=true"};
  int num_accepted = 0;
  for (int round = 0; round < 4000; ++round) {
    std::string text(kMlp);
    const size_t num_edits = 1 + below(3);
    for (size_t i = 0; i < num_edits; ++i) {
      const size_t at = below(text.size());
      const size_t length = std::min(text.size() - at, below(8));
      switch (below(4)) {
        case 0:
          text[at] = static_cast<char>(below(256));
          break;
        case 1:
          text.erase(at, length);
          break;
        case 2:
          text.insert(at, text.substr(below(text.size()), 1 + below(12)));
          break;
        default:
          text.insert(at, kPieces[below(std::size(kPieces))]);
          break;
      }
    }
    const absl::StatusOr<Graph> graph = ParseGraph(text, "test.pst", ops_);
    if (!graph.ok()) {
      EXPECT_THAT(graph.status().message(), HasSubstr("test.pst:")) << text;
      continue;
    }
    ++num_accepted;
    const Graph again = MustParse(PrintGraph(*graph));
    std::string difference;
    EXPECT_TRUE(GraphsEqual(*graph, again, &difference)) << difference << "\n" << text;
  }
  EXPECT_GT(num_accepted, 100);  // comments, spaces and names leave room for valid changes
}

TEST_F(TextTest, EqualityIgnoresOrderAndSpelling) {
  const Graph a = MustParse(R"(mesh m = [a=4]
    graph g { %x = input : f32[8] %y = input : f32[8] @[?]
              %u = neg(%x) : f32[8] @[a p0] %v = neg(%y) : f32[8] return %u, %v })");
  const Graph b = MustParse(R"(mesh m = [a=4]
    graph g { %y = input : f32[8] %v = neg(%y) : f32[8] @[?]
              %x = input : f32[8] %u = neg(%x) : f32[8] @[a:(1)2.a:(2)2] return %u, %v })");
  std::string difference = "none";
  EXPECT_TRUE(GraphsEqual(a, b, &difference)) << difference;
  EXPECT_EQ(difference, "");
}

TEST_F(TextTest, EqualityNamesTheDifference) {
  constexpr std::string_view kText =
      "mesh m = [a=4]\ngraph g {\n  %x = parameter : f32[8] @[a]\n  %u = neg(%x) : f32[8]\n"
      "  assign(%x, %u) phase update\n  return %u @[?]\n}\n";
  const Graph graph = MustParse(kText);
  const struct {
    std::string_view from;
    std::string_view to;
    std::string_view difference;
  } kCases[] = {
      {"[a]", "[a?]", "%x: "},
      {"neg", "exp", "%u: "},
      {" phase update", "", "assign"},
      {"assign(%x, %u) phase update", "", "assign"},
      {"graph g", "graph h", "named g and h"},
      {"a=4", "a=8", "meshes"},
      {"return %u @[?]", "return %u @[_]", "return 0"},
      {"return %u @[?]", "", "1 and 0 returns"},
      {"return", "%k = neg(%x) : f32[8] return", "%k is only in the second"},
      {": f32[8]\n  assign", ": f32[8] stage 2\n  assign", "stage 2"},
  };
  for (const auto& [from, to, expected] : kCases) {
    std::string text(kText);
    text.replace(text.find(from), from.size(), to);
    std::string difference;
    EXPECT_FALSE(GraphsEqual(graph, MustParse(text), &difference)) << text;
    EXPECT_THAT(difference, HasSubstr(std::string(expected)));
  }
}

}  // namespace
}  // namespace penstock::graph
