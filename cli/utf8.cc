#include "cli/utf8.h"

#include <utility>

#include "fmt/format.h"

namespace penstock::cli {
namespace {

// No control character but tab and newline.
bool IsPrintable(const Utf8Char& c) {
  const bool is_control =
      c.code < 0x20 ? c.code != '\n' && c.code != '\t' : c.code >= 0x7f && c.code < 0xa0;
  return c.is_valid && !is_control;
}

}  // namespace

Utf8Char FirstChar(std::string_view text) {
  const auto byte = [text](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {.code = lead, .length = 1};
  const size_t length = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  const Utf8Char invalid = {.length = 1, .is_valid = false};
  if (length == 0) return invalid;
  uint32_t code = lead & (0x7fu >> length);
  for (size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {.length = 1, .is_valid = false, .is_cut = true};
    if ((byte(i) & 0xc0) != 0x80) return invalid;
    // Overlong forms, surrogates, and what lies beyond Unicode.
    if (i == 1 && ((lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xed && byte(1) >= 0xa0) ||
                   (lead == 0xf0 && byte(1) < 0x90) || (lead == 0xf4 && byte(1) >= 0x90))) {
      return invalid;
    }
    code = code << 6 | (byte(i) & 0x3fu);
  }
  return {.code = code, .length = length};
}

size_t FindInvalidUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = FirstChar(text.substr(at));
    if (!c.is_valid) return at;
    at += c.length;
  }
  return std::string_view::npos;
}

std::string ToUtf8(uint32_t code) {
  std::string text;
  const auto add = [&text](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) {
    add(code);
  } else if (code < 0x800) {
    add(0xc0 | code >> 6);
    add(0x80 | (code & 0x3f));
  } else if (code < 0x10000) {
    add(0xe0 | code >> 12);
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  } else {
    add(0xf0 | code >> 18);
    add(0x80 | (code >> 12 & 0x3f));
    add(0x80 | (code >> 6 & 0x3f));
    add(0x80 | (code & 0x3f));
  }
  return text;
}

std::string PrintableUtf8(std::string_view text) {
  std::string printable;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = FirstChar(text.substr(at));
    const std::string_view bytes = text.substr(at, c.length);
    if (IsPrintable(c)) {
      printable += bytes;
    } else {
      for (const char byte : bytes) {
        printable += fmt::format("\\x{:02x}", static_cast<unsigned char>(byte));
      }
    }
    at += c.length;
  }
  return printable;
}

std::string ReadableUtf8(std::string_view text) {
  ReadableStream stream;
  std::string readable = stream.Push(text);
  return readable + stream.Finish();
}

void ReadableStream::Add(const Utf8Char& c, std::string_view bytes, std::string* readable) {
  if (IsPrintable(c)) {
    *readable += bytes.substr(0, c.length);
    is_replaced_ = false;
  } else if (!std::exchange(is_replaced_, true)) {
    *readable += ToUtf8(0xfffd);
  }
}

std::string ReadableStream::Push(std::string_view bytes) {
  rest_ += bytes;
  std::string readable;
  size_t at = 0;
  while (at < rest_.size()) {
    const std::string_view left = std::string_view(rest_).substr(at);
    const Utf8Char c = FirstChar(left);
    if (c.is_cut) break;
    Add(c, left, &readable);
    at += c.length;
  }
  rest_.erase(0, at);
  return readable;
}

std::string ReadableStream::Finish() {
  std::string readable;
  if (!rest_.empty()) Add({.is_valid = false}, rest_, &readable);
  rest_.clear();
  is_replaced_ = false;
  return readable;
}

}  // namespace penstock::cli
