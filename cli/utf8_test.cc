#include "cli/utf8.h"

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(Utf8Test, CharactersOfEachLengthAreRead) {
  for (const uint32_t code : {0x00u, 0x41u, 0x7fu, 0x80u, 0x7ffu, 0x800u, 0xd7ffu, 0xe000u, 0xffffu,
                              0x10000u, 0x1f600u, 0x10ffffu}) {
    const std::string text = ToUtf8(code) + "x";
    const Utf8Char c = FirstChar(text);
    EXPECT_TRUE(c.is_valid);
    EXPECT_EQ(c.code, code);
    EXPECT_EQ(c.length + 1, text.size());
    EXPECT_EQ(FindInvalidUtf8(text), std::string::npos);
    for (size_t length = 1; length < c.length; ++length) {
      EXPECT_TRUE(FirstChar(text.substr(0, length)).is_cut) << code << " " << length;
    }
  }
}

TEST(Utf8Test, WhatIsNoCharacterIsFound) {
  for (const char* text :
       {"\x80", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
        "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3(", "\xe2\x82(", "\xf0\x9f\x98("}) {
    EXPECT_FALSE(FirstChar(text).is_valid) << text;
    EXPECT_FALSE(FirstChar(text).is_cut) << text;
    EXPECT_EQ(FirstChar(text).length, 1);
  }
  EXPECT_EQ(FindInvalidUtf8("ab\xc3\xa9\xff"), 4);
  EXPECT_EQ(FindInvalidUtf8("ab\xc3"), 2);
  EXPECT_EQ(FindInvalidUtf8(""), std::string::npos);
}

TEST(Utf8Test, WhatCannotBePrintedIsSpelledOut) {
  EXPECT_EQ(PrintableUtf8("a\n\t\xc3\xa9 \xf0\x9f\x98\x80"), "a\n\t\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(PrintableUtf8("\x1b[0m\x7f"), "\\x1b[0m\\x7f");
  EXPECT_EQ(PrintableUtf8("\xc2\x9b"), "\\xc2\\x9b");  // a control character, too
  EXPECT_EQ(PrintableUtf8("\xff\xc3"), "\\xff\\xc3");
}

TEST(Utf8Test, WhatCannotBePrintedIsReplacedForReaders) {
  EXPECT_EQ(ReadableUtf8("a\n\t\xc3\xa9 \xf0\x9f\x98\x80"), "a\n\t\xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(ReadableUtf8("a\x9e\x13z\xff"), "a\xef\xbf\xbdz\xef\xbf\xbd");
  EXPECT_EQ(ReadableUtf8("\x1b[0m\xc2\x9b\xc3"), "\xef\xbf\xbd[0m\xef\xbf\xbd");
  EXPECT_EQ(ReadableUtf8(""), "");
}

TEST(ReadableStreamTest, CharactersWaitForTheirLastByte) {
  const std::string text = "a\xc3\xa9\xf0\x9f\x98\x80z";
  ReadableStream stream;
  std::string seen;
  for (const char byte : text) {
    const std::string complete = stream.Push(std::string(1, byte));
    EXPECT_EQ(FindInvalidUtf8(complete), std::string::npos);
    seen += complete;
  }
  EXPECT_EQ(seen, text);
  EXPECT_EQ(stream.Finish(), "");
  EXPECT_EQ(stream.Push("\xf0\x9f"), "");
  EXPECT_EQ(stream.Push("("), "\xef\xbf\xbd(");  // no character after all
  EXPECT_EQ(stream.Push("\xe2\x82"), "");
  EXPECT_EQ(stream.Finish(), "\xef\xbf\xbd");
}

TEST(ReadableStreamTest, PiecesGiveWhatTheWholeTextDoes) {
  for (const std::string text :
       {"a\x9e\x13z\xff", "\xb9\xb9\xe2\x82", "\x1b[0m\xc2\x9b\xc3", "\xff\xf0\x9f("}) {
    ReadableStream stream;
    std::string seen;
    for (const char byte : text) seen += stream.Push(std::string(1, byte));
    seen += stream.Finish();
    EXPECT_EQ(seen, ReadableUtf8(text));
  }
}

}  // namespace
}  // namespace penstock::cli
