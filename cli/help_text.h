// Layout of help texts.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_HELP_TEXT_H_
#define PENSTOCK_CLI_HELP_TEXT_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace penstock::cli {

// No line of a help text is longer.
inline constexpr size_t kHelpColumns = 100;

// `text` broken at spaces into lines of at most `width` columns. Lines after the first begin with
// `indent` spaces, which do not count towards the width. A longer word has a line of its own. Line
// breaks in `text` are kept.
//
// Example: WrapText("one two three", 8, 2) is "one two\n  three".
std::string WrapText(std::string_view text, size_t width, size_t indent);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_HELP_TEXT_H_
