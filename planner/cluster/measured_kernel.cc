#include "planner/cluster/measured_kernel.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include "base/strings.h"

namespace penstock::planner {
namespace {

template <typename... Parts>
absl::Status InvalidMeasurement(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

}  // namespace

std::string_view Name(RooflineBound bound) {
  return bound == RooflineBound::kCompute ? "compute" : "memory";
}

std::optional<RooflineBound> ParseRooflineBound(std::string_view name) {
  for (const RooflineBound bound : {RooflineBound::kCompute, RooflineBound::kMemory}) {
    if (name == Name(bound)) return bound;
  }
  return std::nullopt;
}

absl::Status CheckMeasuredKernel(const MeasuredKernel& measured) {
  if (measured.op.empty())
    return InvalidMeasurement("op is empty: expected the name of an operator");
  if (measured.slowdown.empty()) return InvalidMeasurement("slowdown is empty: expected a point");
  if (measured.slowdown.size() > static_cast<size_t>(kMaxSlowdownPoints)) {
    return InvalidMeasurement("slowdown has ", measured.slowdown.size(),
                              " points: expected at most ", kMaxSlowdownPoints);
  }
  double last = 0;
  for (const SlowdownPoint& point : measured.slowdown) {
    if (!(point.roofline_us >= kMinRooflineUs && point.roofline_us <= kMaxRooflineUs)) {
      return InvalidMeasurement("slowdown at ", point.roofline_us, " us: expected ", kMinRooflineUs,
                                " to ", kMaxRooflineUs);
    }
    if (!(point.factor >= kMinSlowdown && point.factor <= kMaxSlowdown)) {
      return InvalidMeasurement("slowdown by ", point.factor, ": expected ", kMinSlowdown, " to ",
                                kMaxSlowdown);
    }
    if (point.roofline_us <= last) {
      return InvalidMeasurement("slowdown is not in order: ", point.roofline_us, " us after ",
                                last);
    }
    last = point.roofline_us;
  }
  return absl::OkStatus();
}

double SlowdownAt(const MeasuredKernel& measured, double roofline_us) {
  const std::vector<SlowdownPoint>& curve = measured.slowdown;
  const auto above = std::find_if(
      curve.begin(), curve.end(),
      [roofline_us](const SlowdownPoint& point) { return point.roofline_us >= roofline_us; });
  if (above == curve.begin()) return curve.front().factor;
  if (above == curve.end()) return curve.back().factor;
  const SlowdownPoint& below = *(above - 1);
  const double part =
      std::log(roofline_us / below.roofline_us) / std::log(above->roofline_us / below.roofline_us);
  return below.factor + part * (above->factor - below.factor);
}

}  // namespace penstock::planner
