#include "planner/draw/layer_names.h"

#include <algorithm>

#include "base/strings.h"

namespace penstock::planner {
namespace {

constexpr std::string_view kDigits = "0123456789";

// Where the digits of the layer's number begin and end; equal without a layer.
struct Digits {
  size_t begin = 0;
  size_t end = 0;
};

Digits FindDigits(std::string_view name) {
  const size_t begin = name.find_first_of(kDigits);
  if (begin == std::string_view::npos) return {};
  const size_t end = std::min(name.find_first_not_of(kDigits, begin), name.size());
  if (end == name.size() || name[end] != '.') return {};
  return {begin, end};
}

}  // namespace

std::string WithoutLayer(std::string_view name) {
  const auto [begin, end] = FindDigits(name);
  if (begin == end) return std::string(name);
  return StrCat(name.substr(0, begin), "*", name.substr(end));
}

std::string_view LayerOf(std::string_view name) { return name.substr(0, FindDigits(name).end); }

}  // namespace penstock::planner
