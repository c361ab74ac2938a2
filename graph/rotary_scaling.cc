#include "graph/rotary_scaling.h"

#include <cmath>
#include <numbers>

#include "base/strings.h"

namespace penstock::graph {
namespace {

constexpr std::string_view kLinear = "linear";
constexpr std::string_view kDynamic = "dynamic";
constexpr std::string_view kLlama3 = "llama3";

double Scaled(double frequency, const RotaryScaling& scaling) {
  if (scaling.type == kLinear) return frequency / scaling.factor;
  if (scaling.type != kLlama3) return frequency;
  const double turns = static_cast<double>(scaling.context) * frequency / (2 * std::numbers::pi);
  if (turns < scaling.low_factor) return frequency / scaling.factor;
  if (turns > scaling.high_factor) return frequency;
  const double kept = (turns - scaling.low_factor) / (scaling.high_factor - scaling.low_factor);
  return (1 - kept) * frequency / scaling.factor + kept * frequency;
}

}  // namespace

absl::Status CheckRotaryScaling(const RotaryScaling& scaling, int64_t context,
                                std::string_view prefix) {
  const auto refuse = [prefix](const auto&... parts) {
    return absl::InvalidArgumentError(StrCat(prefix, parts...));
  };
  if (scaling.type == "none") return absl::OkStatus();
  if (scaling.type != kLinear && scaling.type != kDynamic && scaling.type != kLlama3) {
    return refuse("scaling = \"", scaling.type,
                  "\": expected \"none\", \"linear\", \"dynamic\" or \"llama3\"");
  }
  if (!(scaling.factor >= 1 && std::isfinite(scaling.factor))) {
    return refuse("factor = ", scaling.factor, ": must be at least 1");
  }
  if (scaling.type == kLinear) return absl::OkStatus();
  if (scaling.context < 1) return refuse("context = ", scaling.context, ": must be positive");
  if (scaling.type == kDynamic) {
    if (context <= scaling.context) return absl::OkStatus();
    return refuse("scaling = \"dynamic\": sequences of ", context, " tokens are longer than ",
                  prefix, "context = ", scaling.context,
                  "; angles that depend on the length of a sequence are not supported");
  }
  if (!(scaling.low_factor > 0 && std::isfinite(scaling.low_factor))) {
    return refuse("low_factor = ", scaling.low_factor, ": must be positive");
  }
  if (!(scaling.high_factor > scaling.low_factor && std::isfinite(scaling.high_factor))) {
    return refuse("high_factor = ", scaling.high_factor, ": must be more than ", prefix,
                  "low_factor = ", scaling.low_factor);
  }
  return absl::OkStatus();
}

Attributes RotaryAttributes(double base, const RotaryScaling& scaling) {
  Attributes attributes;
  attributes.Set("base", base);
  if (scaling.type != kLinear && scaling.type != kLlama3) return attributes;
  attributes.Set("scaling", scaling.type);
  attributes.Set("factor", scaling.factor);
  if (scaling.type == kLinear) return attributes;
  attributes.Set("low_factor", scaling.low_factor);
  attributes.Set("high_factor", scaling.high_factor);
  attributes.Set("context", scaling.context);
  return attributes;
}

RotaryScaling RotaryScalingOf(const Attributes& attributes) {
  RotaryScaling scaling;
  scaling.type = attributes.GetString("scaling", scaling.type);
  scaling.factor = attributes.GetDouble("factor", scaling.factor);
  scaling.low_factor = attributes.GetDouble("low_factor", scaling.low_factor);
  scaling.high_factor = attributes.GetDouble("high_factor", scaling.high_factor);
  scaling.context = attributes.GetInt("context", scaling.context);
  return scaling;
}

std::vector<double> RotaryFrequencies(const Attributes& attributes, int64_t width) {
  const double base = attributes.GetDouble("base", 1e4);
  const RotaryScaling scaling = RotaryScalingOf(attributes);
  std::vector<double> frequencies;
  for (int64_t i = 0; 2 * i < width; ++i) {
    frequencies.push_back(Scaled(
        std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(width)), scaling));
  }
  return frequencies;
}

}  // namespace penstock::graph
