#include "base/await.h"

#include <algorithm>
#include <chrono>

namespace penstock {
namespace {

// The steady clock is looked at this often.
constexpr absl::Duration kInterval = absl::Seconds(1);

}  // namespace

bool AwaitFor(const absl::Condition& condition, absl::Duration timeout, absl::Mutex* mutex) {
  const auto begin = std::chrono::steady_clock::now();
  absl::Duration remaining = timeout;
  do {
    if (mutex->AwaitWithTimeout(condition, std::min(remaining, kInterval))) return true;
    remaining = timeout - absl::FromChrono(std::chrono::steady_clock::now() - begin);
  } while (remaining > absl::ZeroDuration());
  return condition.Eval();
}

}  // namespace penstock
