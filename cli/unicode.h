// Forms of Unicode text (Unicode Standard Annex 15) and its lower case, by the library ICU: what
// tokenizers make of a text before they cut it into words.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_UNICODE_H_
#define PENSTOCK_CLI_UNICODE_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace penstock::cli {

// kNfc composes characters and kNfd decomposes them; the K forms also replace characters by those
// that they are compatible with, such as a ligature by its letters.
enum class UnicodeForm : uint8_t { kNfc, kNfd, kNfkc, kNfkd };

// The text in a form. REQUIRES: it is UTF-8. kInternal: the library lacks its data.
absl::StatusOr<std::string> NormalizeUnicode(UnicodeForm form, std::string_view text);

// Each character in lower case by itself, whatever stands beside it or the locale is: a sigma at
// the end of a word is no final sigma. REQUIRES: the text is UTF-8.
absl::StatusOr<std::string> LowercaseUnicode(std::string_view text);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_UNICODE_H_
