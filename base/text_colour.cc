#include "base/text_colour.h"

#include <charconv>
#include <cmath>

namespace penstock {
namespace {

constexpr std::string_view kBlack = "#202124";
constexpr std::string_view kWhite = "#ffffff";

// Of sRGB, from 0 to 1; -1: no colour.
double LuminanceOf(std::string_view colour) {
  if (colour.size() != 7 || colour[0] != '#') return -1;
  constexpr double kWeights[] = {0.2126, 0.7152, 0.0722};
  double luminance = 0;
  for (size_t i = 0; i < 3; ++i) {
    const char* const begin = colour.data() + 1 + 2 * i;
    int value = 0;
    if (std::from_chars(begin, begin + 2, value, 16).ptr != begin + 2) return -1;
    const double share = value / 255.0;
    const double linear = share <= 0.04045 ? share / 12.92 : std::pow((share + 0.055) / 1.055, 2.4);
    luminance += kWeights[i] * linear;
  }
  return luminance;
}

}  // namespace

std::string_view TextColourOn(std::string_view colour) {
  const double on = LuminanceOf(colour);
  if (on < 0) return kWhite;
  const double to_white = (1 + 0.05) / (on + 0.05);
  const double to_black = (on + 0.05) / (LuminanceOf(kBlack) + 0.05);
  return to_black > to_white ? kBlack : kWhite;
}

}  // namespace penstock
