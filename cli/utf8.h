// UTF-8 (RFC 3629): reading it byte by byte, and printing text that may hold anything.
//
// Thread rule: pure functions; a ReadableStream belongs to one thread.

#ifndef PENSTOCK_CLI_UTF8_H_
#define PENSTOCK_CLI_UTF8_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace penstock::cli {

// What a text begins with.
struct Utf8Char {
  uint32_t code = 0;     // the character; 0 unless is_valid
  size_t length = 0;     // bytes to go on behind: of the character, or 1
  bool is_valid = true;  // false: the byte is part of no character
  bool is_cut = false;   // the text ends within what may become a character; not valid then
};
// REQUIRES: `text` is not empty.
Utf8Char FirstChar(std::string_view text);

// The first byte that is part of no character; npos: all of the text is UTF-8.
size_t FindInvalidUtf8(std::string_view text);

std::string ToUtf8(uint32_t code);

// The text with "\x.." for control characters but tab and newline, and for bytes that are not
// UTF-8.
std::string PrintableUtf8(std::string_view text);

// The same for readers who do not need the bytes: "\uFFFD" (the replacement character) in the
// place of each run of them, as viewers of text do.
std::string ReadableUtf8(std::string_view text);

// ReadableUtf8 of a text that arrives in pieces, which may end within a character.
class ReadableStream {
 public:
  // What can be shown now.
  std::string Push(std::string_view bytes);
  // What is left at the end.
  std::string Finish();

 private:
  void Add(const Utf8Char& c, std::string_view bytes, std::string* readable);

  std::string rest_;          // the beginning of a character
  bool is_replaced_ = false;  // what came last
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_UTF8_H_
