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

// "loop", "vee", ...: as jobs spell it.
std::string_view Name(Placement placement);
// The placement of that name; nullopt: there is none.
std::optional<Placement> FindPlacement(std::string_view name);

// The group and chunk of each virtual stage of a pipeline, and the way back. REQUIRES of all:
// stages, groups and chunks are in range.
struct StagePlacement {
  int num_groups = 1;                      // of devices
  int num_chunks = 1;                      // of each group
  Placement placement = Placement::kLoop;  // see the example above

  // Virtual stages, those of all groups.
  int num_stages() const { return num_groups * num_chunks; }
  // The group that holds the stage.
  int GroupOf(int stage) const { return Mirror(stage / num_groups, stage % num_groups); }
  // Which chunk of its group the stage is.
  int ChunkOf(int stage) const { return stage / num_groups; }
  // The stage that a group holds as its chunk of that number.
  int StageOf(int group, int chunk) const { return chunk * num_groups + Mirror(chunk, group); }

  friend bool operator==(const StagePlacement&, const StagePlacement&) = default;

 private:
  int Mirror(int chunk, int group) const {
    return placement != Placement::kLoop && chunk % 2 == 1 ? num_groups - 1 - group : group;
  }
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_PLACEMENT_H_
