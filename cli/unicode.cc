#include "cli/unicode.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/stringpiece.h>
#include <unicode/ustring.h>

#include <array>
#include <limits>

#include "absl/status/status.h"
#include "cli/utf8.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

absl::Status Failed(UErrorCode error) {
  return absl::InternalError(StrCat("ICU: ", u_errorName(error)));
}

const icu::Normalizer2* FindNormalizer(UnicodeForm form, UErrorCode* error) {
  switch (form) {
    case UnicodeForm::kNfc:
      return icu::Normalizer2::getNFCInstance(*error);
    case UnicodeForm::kNfd:
      return icu::Normalizer2::getNFDInstance(*error);
    case UnicodeForm::kNfkc:
      return icu::Normalizer2::getNFKCInstance(*error);
    case UnicodeForm::kNfkd:
      return icu::Normalizer2::getNFKDInstance(*error);
  }
  return nullptr;
}

}  // namespace

absl::StatusOr<std::string> NormalizeUnicode(UnicodeForm form, std::string_view text) {
  if (text.size() > static_cast<size_t>(std::numeric_limits<int32_t>::max())) {
    return absl::ResourceExhaustedError("a text of more than 2 GiB cannot be normalized at once");
  }
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* const normalizer = FindNormalizer(form, &error);
  if (U_FAILURE(error)) return Failed(error);
  std::string normalized;
  icu::StringByteSink<std::string> sink(&normalized, static_cast<int32_t>(text.size()));
  normalizer->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())),
                            sink, nullptr, error);
  if (U_FAILURE(error)) return Failed(error);
  return normalized;
}

absl::StatusOr<std::string> LowercaseUnicode(std::string_view text) {
  std::string lower;
  lower.reserve(text.size());
  while (!text.empty()) {
    const Utf8Char c = FirstChar(text);
    if (c.length == 1) {
      const char byte = text[0];
      lower += byte >= 'A' && byte <= 'Z' ? static_cast<char>(byte - 'A' + 'a') : byte;
      text.remove_prefix(1);
      continue;
    }
    std::array<UChar, 2> from;
    std::array<UChar, 8> to;  // three characters at most
    int32_t from_size = 0;
    UErrorCode error = U_ZERO_ERROR;
    u_strFromUTF8(from.data(), from.size(), &from_size, text.data(), static_cast<int32_t>(c.length),
                  &error);
    const int32_t to_size =
        u_strToLower(to.data(), to.size(), from.data(), from_size, /*locale=*/"", &error);
    std::array<char, 24> bytes;
    int32_t num_bytes = 0;
    u_strToUTF8(bytes.data(), bytes.size(), &num_bytes, to.data(), to_size, &error);
    if (U_FAILURE(error)) return Failed(error);
    lower.append(bytes.data(), static_cast<size_t>(num_bytes));
    text.remove_prefix(c.length);
  }
  return lower;
}

}  // namespace penstock::cli
