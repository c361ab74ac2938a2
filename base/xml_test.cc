#include "base/xml.h"

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(XmlTest, EscapesWhatXmlReserves) {
  EXPECT_EQ(EscapeXml(R"(a < b && "c" > d)"), "a &lt; b &amp;&amp; &quot;c&quot; &gt; d");
  EXPECT_EQ(EscapeXml("\u00b5s\n\tend"), "\u00b5s\n\tend");
  EXPECT_EQ(EscapeXml(""), "");
}

TEST(XmlTest, LeavesOutWhatXmlDoesNotHave) {
  EXPECT_EQ(EscapeXml(std::string_view("a\0b\x01"
                                       "c\x1b",
                                       6)),
            "abc");
}

}  // namespace
}  // namespace penstock
