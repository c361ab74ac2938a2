#include "planner/draw/draw_graph.h"

#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "tests/support/planner_fixture.h"
#include "tests/support/xml_error.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::XmlError;

class DrawGraphTest : public testing::PlannerFixture {
 protected:
  std::string Draw(const graph::Graph& graph, std::string_view title = "a title") const {
    const absl::StatusOr<std::string> svg = DrawGraph(graph, title);
    EXPECT_TRUE(svg.ok()) << svg.status();
    return svg.ok() ? *svg : "";
  }
  static std::vector<std::string> Matches(const std::string& text, const std::string& pattern) {
    std::vector<std::string> found;
    const std::regex regex(pattern);
    for (std::sregex_iterator it(text.begin(), text.end(), regex), end; it != end; ++it) {
      found.push_back((*it)[1]);
    }
    return found;
  }

  const graph::Graph graph_ = Lower(R"(mesh m = [tp=2]
graph g {
  %x = input : f32[8, 16] @[_, tp] stage 0
  %w = parameter : f32[16, 4] @[tp, _] stage 0
  %"a < b & c" = matmul(%x, %w) : f32[8, 4] @[_, _] stage 0
  %y = gelu(%"a < b & c") {approximate="none"} : f32[8, 4] stage 1
  return %y @[_, _]
})");
};

TEST_F(DrawGraphTest, IsWellFormed) {
  const std::string svg = Draw(graph_, "gpt \"x\" <&>");
  EXPECT_EQ(XmlError(svg), "") << svg;
  EXPECT_THAT(svg, HasSubstr("gpt &quot;x&quot; &lt;&amp;&gt;"));
  EXPECT_THAT(svg, HasSubstr("a &lt; b &amp; c"));
  // The test's own test.
  for (const char* broken :
       {"<a>", "<a></b>", "a & b", "<a b=c/>", "<a b=\"<\"/>", "</a>", "<a b=\"1\" b=\"2\"></a>"}) {
    EXPECT_NE(XmlError(broken), "") << broken;
  }
}

TEST_F(DrawGraphTest, EachStageHasItsColour) {
  const std::string svg = Draw(graph_);
  EXPECT_THAT(Matches(svg, "class=\"stage\"[^>]*fill=\"(#[0-9a-f]+)\""),
              ElementsAre(StageColour(0, 2), StageColour(1, 2)));
  // The input and the product, then the activation.
  EXPECT_THAT(Matches(svg, "</title><rect [^>]*fill=\"(#[0-9a-f]+)\""),
              ElementsAre(StageColour(0, 2), StageColour(0, 2), StageColour(1, 2)));
  for (const int num_stages : {2, 10, 11, 64}) {
    std::set<std::string> colours;
    for (int stage = 0; stage < num_stages; ++stage) {
      const std::string colour = StageColour(stage, num_stages);
      EXPECT_TRUE(std::regex_match(colour, std::regex("#[0-9a-f]{6}"))) << colour;
      colours.insert(colour);
    }
    EXPECT_EQ(colours.size(), static_cast<size_t>(num_stages));
  }
}

// An all_reduce of 32 elements over two devices, and the result on its way to the next stage.
TEST_F(DrawGraphTest, EdgesSayWhatIsCommunicated) {
  const std::string svg = Draw(graph_);
  EXPECT_THAT(Matches(svg, "<g class=\"bytes\"[^>]*><title>(\\d+) bytes"), ElementsAre("256"));
  EXPECT_THAT(svg, HasSubstr("all_reduce, send"));
  EXPECT_THAT(svg, HasSubstr("256 B"));
  EXPECT_THAT(svg, Not(HasSubstr("\u00d7")));
}

TEST_F(DrawGraphTest, MoreBytesAreWider) {
  const std::string svg = Draw(Lower(R"(mesh m = [d=2]
graph g {
  %x = input : f32[1024] @[d]
  %s = input : f32[8] @[d]
  %y = neg(%x) : f32[1024] @[_]
  %t = neg(%s) : f32[8] @[_]
  return %y @[_], %t @[_]
})"));
  const std::vector<std::string> widths =
      Matches(svg, "stroke=\"#b3261e\" stroke-width=\"([0-9.]+)\"[^>]*opacity");
  ASSERT_EQ(widths.size(), 2u);
  EXPECT_GT(std::stod(widths[0]), std::stod(widths[1]) + 1);
}

}  // namespace
}  // namespace penstock::planner
