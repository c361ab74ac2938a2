// StrCat, StrAppend and StrJoin that take std::string_view. Distributions build Abseil with a
// string_view of its own, to which std::string_view does not convert; absl::StrCat then refuses it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_STRINGS_H_
#define PENSTOCK_BASE_STRINGS_H_

#include <string>
#include <string_view>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace penstock {

// Abseil's view of the same characters.
inline absl::string_view ToAbsl(std::string_view text) { return {text.data(), text.size()}; }

// The standard library's view of the same characters.
inline std::string_view ToStd(absl::string_view text) { return {text.data(), text.size()}; }

namespace internal {

// What absl::StrCat takes: the view of Abseil for the standard one, all else as it is.
template <typename T>
decltype(auto) ForAbsl(const T& value) {
  if constexpr (std::is_same_v<T, std::string_view>) {
    return ToAbsl(value);
  } else {
    return (value);
  }
}

}  // namespace internal

// The texts of all parts, one after the other. A part is what absl::StrCat takes, or a
// std::string_view.
template <typename... Parts>
std::string StrCat(const Parts&... parts) {
  return absl::StrCat(internal::ForAbsl(parts)...);
}

// Appends StrCat(parts...) to `text`, of which no part may be a view.
template <typename... Parts>
void StrAppend(std::string* text, const Parts&... parts) {
  absl::StrAppend(text, internal::ForAbsl(parts)...);
}

// The elements of `range`, each as StrCat writes it, with `separator` between them.
template <typename Range>
std::string StrJoin(const Range& range, std::string_view separator) {
  return absl::StrJoin(range, ToAbsl(separator),
                       [](std::string* text, const auto& element) { StrAppend(text, element); });
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_STRINGS_H_
