#include "actors/cluster/clock_alignment.h"

#include <cmath>
#include <cstdlib>

namespace penstock::actors {
namespace {

constexpr int64_t kMaxNs = int64_t{1} << 61;

bool IsPlausible(int64_t ns) { return ns > -kMaxNs && ns < kMaxNs; }

}  // namespace

ClockAnchor ClockAnchor::Of(int64_t asked_ns, int64_t other_ns, int64_t answered_ns) {
  ClockAnchor anchor;
  anchor.error_ns = (answered_ns - asked_ns + 1) / 2;
  anchor.local_ns = asked_ns + (answered_ns - asked_ns) / 2;
  anchor.ahead_ns =
      IsPlausible(other_ns) && IsPlausible(anchor.local_ns) ? other_ns - anchor.local_ns : kMaxNs;
  return anchor;
}

void ClockAlignment::Add(const ClockAnchor& anchor) {
  if (!IsPlausible(anchor.ahead_ns)) return;
  if (!first_.has_value()) first_ = anchor;
  last_ = anchor;
  is_one_clock_ = is_one_clock_ && std::abs(anchor.ahead_ns) <= anchor.error_ns;
}

int64_t ClockAlignment::ToLocal(int64_t other_ns) const {
  if (is_one_clock_ || !IsPlausible(other_ns)) return other_ns;
  const int64_t first_other_ns = first_->local_ns + first_->ahead_ns;
  const int64_t last_other_ns = last_.local_ns + last_.ahead_ns;
  double ahead_ns = 0;  // beyond that of the first anchor
  if (last_other_ns > first_other_ns) {
    const double share = static_cast<double>(other_ns - first_other_ns) /
                         static_cast<double>(last_other_ns - first_other_ns);
    ahead_ns = share * static_cast<double>(last_.ahead_ns - first_->ahead_ns);
  }
  return other_ns - first_->ahead_ns - std::llround(ahead_ns);
}

}  // namespace penstock::actors
