// Which group of devices holds which virtual stage of a pipeline.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_PLACEMENT_H_
#define PENSTOCK_PLANNER_POLICY_PLACEMENT_H_

#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock::planner {

// 4 groups with 2 chunks each, as lists of the stages of chunks 0 and 1:
enum class Placement : uint8_t {
  kLoop,  // 0 1 2 3 | 4 5 6 7: the last group passes on to the first
  kVee,   // 0 1 2 3 | 7 6 5 4: the last group passes on to itself, and the first has the loss
  // 0 1 2 3 | 7 6 5 4, but stages 4 to 7 are copies of stages 0 to 3 for the other half of the
  // micro-batches, which enters at the last group.
  kBidirectional,
};

std::string_view Name(Placement placement);
std::optional<Placement> FindPlacement(std::string_view name);

struct StagePlacement {
  int num_groups = 1;
  int num_chunks = 1;  // of each group
  Placement placement = Placement::kLoop;

  int num_stages() const { return num_groups * num_chunks; }
  int GroupOf(int stage) const { return Mirror(stage / num_groups, stage % num_groups); }
  int ChunkOf(int stage) const { return stage / num_groups; }
  int StageOf(int group, int chunk) const { return chunk * num_groups + Mirror(chunk, group); }

  friend bool operator==(const StagePlacement&, const StagePlacement&) = default;

 private:
  int Mirror(int chunk, int group) const {
    return placement != Placement::kLoop && chunk % 2 == 1 ? num_groups - 1 - group : group;
  }
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_PLACEMENT_H_
