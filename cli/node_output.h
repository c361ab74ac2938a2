// What the nodes of a job print, as their user sees it: "[RANK HOST] LINE". A line that several
// nodes print, or one again and again, is shown once, and later how often else it came. The last
// lines of each node are kept for the report of a failure.
//
//   [0 node1] loading                     at once
//   [1-3] loading (3 more times)          kWindow later, with the next line, or at the end
//
// Thread rule: thread-safe; `print` is called by whoever calls, one at a time.
// Invariant: what is kept is bounded: kMaxLast lines a node, kMaxWatched lines to compare with.

#ifndef PENSTOCK_CLI_NODE_OUTPUT_H_
#define PENSTOCK_CLI_NODE_OUTPUT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

namespace penstock::cli {

class NodeOutput {
 public:
  using Print = std::function<void(std::string text)>;  // lines with their newlines

  static constexpr size_t kMaxLast = 20;
  static constexpr size_t kMaxWatched = 1000;
  static constexpr absl::Duration kWindow = absl::Seconds(5);

  explicit NodeOutput(Print print, std::function<absl::Time()> now = absl::Now);
  ~NodeOutput() { Flush(); }
  NodeOutput(const NodeOutput&) = delete;
  NodeOutput& operator=(const NodeOutput&) = delete;

  void Add(uint32_t rank, std::string_view host, std::string_view line);
  // Prints what no node has printed, between the lines of nodes.
  void Tell(std::string text);
  // Tells of the repetitions that were not told of.
  void Flush();
  // The last lines of a node, oldest first.
  std::vector<std::string> LastLines(uint32_t rank) const;

 private:
  struct Watched {
    absl::Time until;
    int64_t num_repeated = 0;
    std::set<uint32_t> ranks;  // that repeated it
  };

  void ForgetOldest() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Print print_;
  const std::function<absl::Time()> now_;
  mutable absl::Mutex mutex_;
  // The lines that are compared with, by age.
  std::deque<std::string> by_age_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Watched, std::less<>> watched_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, std::deque<std::string>> last_ ABSL_GUARDED_BY(mutex_);
};

// "0-2, 5".
std::string RankRanges(const std::set<uint32_t>& ranks);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_NODE_OUTPUT_H_
