// How fast steps go now: means over the last ones, which together took about a second.
//
// With two steps under way, the times between completions alternate: two that end together are
// 0.1 ms and then 40 ms apart. One of these times says little of the next.
//
// Thread rule: not thread-safe.

#ifndef PENSTOCK_CLI_RECENT_STEPS_H_
#define PENSTOCK_CLI_RECENT_STEPS_H_

#include <cstddef>
#include <cstdint>
#include <deque>

namespace penstock::cli {

class RecentSteps {
 public:
  // Older steps count as long as the later ones took less time than this.
  static constexpr int64_t kWindowNs = 1'000'000'000;
  static constexpr size_t kMinSteps = 8;     // however long they took
  static constexpr size_t kMaxSteps = 1024;  // however short

  // `step_s`: since the completion of the step before.
  void Add(double step_s, int64_t tokens);

  double step_s() const;        // 0: no step yet
  double tokens_per_s() const;  // likewise

 private:
  struct Step {
    int64_t ns = 0;
    int64_t tokens = 0;
  };
  std::deque<Step> steps_;
  Step sum_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_RECENT_STEPS_H_
