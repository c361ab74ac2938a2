#define PCRE2_CODE_UNIT_WIDTH 8
#include "cli/text_pattern.h"

#include <pcre2.h>

#include <array>
#include <utility>

#include "base/strings.h"

namespace penstock::cli {
namespace {

// Steps of one match, and kilobytes for going back in it. A word of text takes a few steps a byte.
constexpr uint32_t kMaxSteps = 10'000'000;
constexpr uint32_t kMaxHeapKib = 64 * 1024;

// The characters with the property White_Space. PCRE2 counts U+180E among them, which Unicode has
// not done since version 6.3.
constexpr std::string_view kSpaces =
    R"(\x09-\x0d\x20\x85\xa0\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000})";

// The pattern with \s and, outside of classes, \S spelled out.
std::string WithUnicodeSpaces(std::string_view pattern) {
  std::string text;
  bool is_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c != '\\' || i + 1 == pattern.size()) {
      // "]" right behind the beginning of a class is a member of it.
      if (c == '[' && !is_class) {
        is_class = true;
        text += c;
        if (i + 1 < pattern.size() && pattern[i + 1] == '^') text += pattern[++i];
        if (i + 1 < pattern.size() && pattern[i + 1] == ']') text += pattern[++i];
        continue;
      }
      if (c == ']') is_class = false;
      text += c;
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      text += is_class ? std::string(kSpaces) : StrCat("[", kSpaces, "]");
    } else if (escaped == 'S' && !is_class) {
      text += StrCat("[^", kSpaces, "]");
    } else {
      text += c;
      text += escaped;
    }
  }
  return text;
}

std::string MessageOf(int error) {
  std::array<PCRE2_UCHAR, 256> buffer = {};
  pcre2_get_error_message(error, buffer.data(), buffer.size());
  return reinterpret_cast<const char*>(buffer.data());
}

template <auto Free>
struct Freer {
  template <typename T>
  void operator()(T* object) const {
    Free(object);
  }
};

}  // namespace

struct TextPattern::Code {
  std::unique_ptr<pcre2_code, Freer<pcre2_code_free>> code;
  std::unique_ptr<pcre2_match_context, Freer<pcre2_match_context_free>> limits;
};

TextPattern::TextPattern(std::unique_ptr<Code> code) : code_(std::move(code)) {}
TextPattern::TextPattern(TextPattern&&) noexcept = default;
TextPattern& TextPattern::operator=(TextPattern&&) noexcept = default;
TextPattern::~TextPattern() = default;

absl::StatusOr<TextPattern> TextPattern::Compile(const std::string& pattern) {
  const std::string text = WithUnicodeSpaces(pattern);
  int error = 0;
  PCRE2_SIZE at = 0;
  auto code = std::make_unique<Code>();
  code->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                 PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &at,
                                 nullptr));
  if (code->code == nullptr) {
    return absl::InvalidArgumentError(
        StrCat("the regular expression \"", pattern, "\" is wrong: ", MessageOf(error)));
  }
  // Without a just-in-time compiler, matches are slower.
  pcre2_jit_compile(code->code.get(), PCRE2_JIT_COMPLETE);
  code->limits.reset(pcre2_match_context_create(nullptr));
  if (code->limits == nullptr) return absl::ResourceExhaustedError("no memory for a pattern");
  pcre2_set_match_limit(code->limits.get(), kMaxSteps);
  pcre2_set_heap_limit(code->limits.get(), kMaxHeapKib);
  return TextPattern(std::move(code));
}

absl::Status TextPattern::ForEachMatch(
    std::string_view text, const std::function<void(size_t begin, size_t end)>& found) const {
  const std::unique_ptr<pcre2_match_data, Freer<pcre2_match_data_free>> match(
      pcre2_match_data_create_from_pattern(code_->code.get(), nullptr));
  if (match == nullptr) return absl::ResourceExhaustedError("no memory for a match");
  size_t at = 0;
  while (at < text.size()) {
    const int count =
        pcre2_match(code_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), at,
                    PCRE2_NO_UTF_CHECK | PCRE2_NOTEMPTY, match.get(), code_->limits.get());
    if (count == PCRE2_ERROR_NOMATCH) return absl::OkStatus();
    if (count < 0) {
      return absl::ResourceExhaustedError(
          StrCat("the text cannot be cut into words at byte ", at, ": ", MessageOf(count)));
    }
    const PCRE2_SIZE* const ends = pcre2_get_ovector_pointer(match.get());
    // A pattern with \K may claim to begin behind its end.
    if (ends[1] <= ends[0] || ends[0] < at) {
      return absl::InvalidArgumentError("the pattern has matches that overlap");
    }
    found(ends[0], ends[1]);
    at = ends[1];
  }
  return absl::OkStatus();
}

}  // namespace penstock::cli
