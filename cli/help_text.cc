#include "cli/help_text.h"

#include <algorithm>

namespace penstock::cli {

std::string WrapText(std::string_view text, size_t width, size_t indent) {
  std::string wrapped;
  size_t column = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find_first_of(" \n", begin), text.size());
    const size_t length = end - begin;
    if (column > 0 && column + 1 + length > width) {
      wrapped += '\n';
      wrapped.append(indent, ' ');
      column = 0;
    } else if (column > 0 && length > 0) {
      wrapped += ' ';
      ++column;
    }
    wrapped += text.substr(begin, length);
    column += length;
    if (end < text.size() && text[end] == '\n') {
      wrapped += '\n';
      wrapped.append(indent, ' ');
      column = 0;
    }
    begin = end + 1;
  }
  return wrapped;
}

}  // namespace penstock::cli
