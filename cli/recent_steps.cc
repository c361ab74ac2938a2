#include "cli/recent_steps.h"

namespace penstock::cli {

void RecentSteps::Add(double step_s, int64_t tokens) {
  steps_.push_back({static_cast<int64_t>(1e9 * step_s), tokens});
  sum_.ns += steps_.back().ns;
  sum_.tokens += tokens;
  while (steps_.size() > kMaxSteps ||
         (steps_.size() > kMinSteps && sum_.ns - steps_.front().ns >= kWindowNs)) {
    sum_.ns -= steps_.front().ns;
    sum_.tokens -= steps_.front().tokens;
    steps_.pop_front();
  }
}

double RecentSteps::step_s() const {
  return steps_.empty() ? 0
                        : 1e-9 * static_cast<double>(sum_.ns) / static_cast<double>(steps_.size());
}

double RecentSteps::tokens_per_s() const {
  return sum_.ns > 0 ? 1e9 * static_cast<double>(sum_.tokens) / static_cast<double>(sum_.ns) : 0;
}

}  // namespace penstock::cli
