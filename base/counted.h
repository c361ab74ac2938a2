// Counted nouns, for messages.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_COUNTED_H_
#define PENSTOCK_BASE_COUNTED_H_

#include <string>
#include <string_view>

#include "base/strings.h"

namespace penstock {

// "1 device", "2 devices"; of other plurals the ending is given: "es".
template <typename Integer>
std::string Counted(Integer count, std::string_view noun, std::string_view ending = "s") {
  return StrCat(count, " ", noun, count == 1 ? std::string_view() : ending);
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_COUNTED_H_
