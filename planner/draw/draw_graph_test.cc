#include "planner/draw/draw_graph.h"

#include <regex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "base/strings.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

// An error, or nothing: elements nest, attributes are quoted and entities are known.
std::string XmlError(std::string_view text) {
  std::vector<std::string> open;
  for (size_t at = 0; at < text.size();) {
    if (text[at] == '&') {
      const size_t end = text.find(';', at);
      const std::set<std::string_view> known = {"&amp;", "&lt;", "&gt;", "&quot;"};
      if (end == std::string_view::npos || !known.contains(text.substr(at, end - at + 1))) {
        return StrCat("entity at ", at);
      }
      at = end + 1;
    } else if (text[at] == '<') {
      size_t end = at + 1;
      bool is_quoted = false;
      for (; end < text.size() && (is_quoted || text[end] != '>'); ++end) {
        if (text[end] == '"') is_quoted = !is_quoted;
        if (text[end] == '<') return StrCat("'<' inside the tag at ", at);
      }
      if (end == text.size()) return StrCat("a tag at ", at, " that does not end");
      const std::string tag(text.substr(at + 1, end - at - 1));
      static const std::regex kTag(R"(/\w+|\w+(\s+[\w-]+="[^"&<]*(&amp;[^"&<]*)*")*\s*/?)");
      if (!std::regex_match(tag, kTag)) return StrCat("the tag <", tag, ">");
      static const std::regex kAttribute(R"re(([\w-]+)=")re");
      std::set<std::string> attributes;
      for (std::sregex_iterator it(tag.begin(), tag.end(), kAttribute), last; it != last; ++it) {
        if (!attributes.insert((*it)[1]).second) return StrCat("<", tag, "> says ", (*it)[1].str());
      }
      const std::string name =
          tag.substr(tag[0] == '/' ? 1 : 0, tag.find_first_of(" /", 1) - (tag[0] == '/' ? 1 : 0));
      if (tag[0] == '/') {
        if (open.empty() || open.back() != name) return StrCat("</", name, ">");
        open.pop_back();
      } else if (tag.back() != '/') {
        open.push_back(name);
      }
      at = end + 1;
    } else {
      if (static_cast<unsigned char>(text[at]) < 0x20 && text[at] != '\n') return "a control code";
      ++at;
    }
  }
  return open.empty() ? "" : StrCat("<", open.back(), "> is open");
}

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
