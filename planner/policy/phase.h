// The units that schedules order: phases of the chunks of a pipeline stage.
//
// A phase is the forward (F), input-gradient (B) or weight-gradient (W) part of one chunk of the
// model for one micro-batch. A *chunk* is what a stage group holds of the model: one pipeline
// stage, or one of several *virtual stages* (placement.h).
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_PHASE_H_
#define PENSTOCK_PLANNER_POLICY_PHASE_H_

#include <array>
#include <compare>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::planner {

// What a phase computes. Policies order phases of the first three kinds.
enum class PhaseKind : uint8_t {
  kForward,     // F
  kBackward,    // B (with W where they are not told apart)
  kWeight,      // W
  kBeforeStep,  // once a step, before its forwards
  kAfterStep,   // once a step, after its backwards: the update
  kTransfer,    // communication that floats
};
inline constexpr int kNumPolicyKinds = 3;  // F, B, W

// "F", "B", "W", "before", "after" or "transfer".
std::string_view Name(PhaseKind kind);

inline constexpr int kMaxChunks = 256;  // of a stage group

// Kinds of phases and chunks counted together: first the kinds of chunk 0.
inline uint32_t PhaseType(PhaseKind kind, uint32_t chunk) {
  return chunk * kNumPolicyKinds + static_cast<uint32_t>(kind);
}

// Which kinds of phases a chunk has.
using PhaseKinds = std::array<bool, kNumPolicyKinds>;

// One phase of a step, as policies choose it and orders list it; its group is known beside it.
struct PhaseChoice {
  PhaseKind kind = PhaseKind::kForward;  // F, B or W
  int microbatch = 0;                    // from 0, of those that pass through the chunk in a step
  int chunk = 0;                         // of the group, from 0
  friend bool operator==(const PhaseChoice&, const PhaseChoice&) = default;
};

// "F3"; of a later chunk "F3 of chunk 1".
std::string ToString(const PhaseChoice& choice);

// A kind of phase of one chunk.
struct ChunkPhase {
  int chunk = 0;                         // of the group, from 0
  PhaseKind kind = PhaseKind::kForward;  // F, B or W
  friend auto operator<=>(const ChunkPhase&, const ChunkPhase&) = default;
};

// The phases of a step, of each group in the order in which it runs them.
using PipelineOrders = std::vector<std::vector<PhaseChoice>>;

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_PHASE_H_
