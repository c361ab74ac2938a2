// What collectives of one kind were measured to take, by algorithm and length of chunks: from what
// the planner chooses both (planner/cost/collective_choice.h).
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_H_
#define PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/collective.h"

namespace penstock::planner {

// How a group lies on its hosts. Only where several ranks share each of several hosts can a
// collective be hierarchical.
enum class GroupSpread : uint8_t { kOneHost, kOneRankEach, kSeveralEach };

std::string_view Name(GroupSpread spread);  // "one host", "a rank each", "several each"

// One way to run a collective.
struct CollectiveVariant {
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;  // of the exchange
  int64_t chunk_bytes = 256 << 10;  // length of the chunks, as CollectiveSpec has it

  friend bool operator==(const CollectiveVariant&, const CollectiveVariant&) = default;
};

// Microseconds by each variant. 0: not measured, or the same as in shorter chunks.
struct CollectiveTimes {
  int64_t num_bytes = 0;   // what a rank brings
  std::vector<double> us;  // an entry for each of MeasuredCollective::algorithms

  friend bool operator==(const CollectiveTimes&, const CollectiveTimes&) = default;
};

// A table of times: sizes by variants.
struct MeasuredCollective {
  CollectiveKind kind = CollectiveKind::kAllReduce;  // that was measured
  GroupSpread spread = GroupSpread::kOneHost;        // of the measured group
  int64_t num_ranks = 2;                             // in the group, at least 2
  std::vector<CollectiveVariant> algorithms;  // of those that are equally good the first is taken
  std::vector<CollectiveTimes> times;         // by increasing num_bytes

  friend bool operator==(const MeasuredCollective&, const MeasuredCollective&) = default;
};

// The most tables of a description.
inline constexpr int64_t kMaxMeasuredCollectives = 256;
inline constexpr int64_t kMaxMeasuredTimes = 64;             // rows of one
inline constexpr int64_t kMaxCollectiveVariants = 16;        // columns of one
inline constexpr int64_t kMinChunkBytes = 4 << 10;           // of a variant
inline constexpr int64_t kMaxChunkBytes = int64_t{1} << 30;  // likewise

// Sizes grow, every size has a time, a hierarchical variant is one between several ranks each, and
// all is within the limits. Errors are worded to follow the name of what they are about.
absl::Status CheckMeasuredCollective(const MeasuredCollective& measured);

// The sections [[collective]] of a text, which has no others (cluster_file.h). `file` names the
// text in errors.
absl::StatusOr<std::vector<MeasuredCollective>> ParseMeasuredCollectives(std::string_view text,
                                                                         std::string_view file);

// A section that is read back as an equal value.
std::string FormatMeasuredCollective(const MeasuredCollective& measured);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_CLUSTER_MEASURED_COLLECTIVE_H_
