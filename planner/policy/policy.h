// Scheduling policies: which phase a stage group runs next. One decision a group, followed by all
// its devices in the same order. The same object serves planning and runs.
//
// A phase is the forward (F), input-gradient (B) or weight-gradient (W) part of one chunk of the
// model for one micro-batch. A *chunk* is what a stage group holds of the model: one pipeline
// stage, or several *virtual stages*; chunk c of group s of S groups is virtual stage c * S + s.
// Phases of one chunk and kind run in increasing order of micro-batch. Phases that run once a step
// (before the first F, or after the last B) and communication are not the policy's business. A
// policy may know its order beforehand (PlannedOrder) or look at the state (Next); a wrong one
// makes a run slow, never wrong: a phase starts only when its tokens and credits are there.
//
// Thread rule: Policy objects are immutable and shared; a StageScheduler belongs to its stage.

#ifndef PENSTOCK_PLANNER_POLICY_POLICY_H_
#define PENSTOCK_PLANNER_POLICY_POLICY_H_

#include <array>
#include <compare>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"

namespace penstock::planner {

enum class PhaseKind : uint8_t {
  kForward,     // F
  kBackward,    // B (with W where they are not told apart)
  kWeight,      // W
  kBeforeStep,  // once a step, before its forwards
  kAfterStep,   // once a step, after its backwards: the update
  kTransfer,    // communication that floats
};
inline constexpr int kNumPolicyKinds = 3;  // F, B, W

std::string_view Name(PhaseKind kind);

inline constexpr int kMaxChunks = 256;  // of a stage group

// Kinds of phases and chunks counted together: first the kinds of chunk 0.
inline uint32_t PhaseType(PhaseKind kind, uint32_t chunk) {
  return chunk * kNumPolicyKinds + static_cast<uint32_t>(kind);
}

// Which kinds of phases a chunk has.
using PhaseKinds = std::array<bool, kNumPolicyKinds>;

struct StageContext {
  int stage = 0;  // the group
  int num_stages = 1;
  int num_microbatches = 1;
  std::vector<PhaseKinds> chunks = {{true, false, false}};  // at least one

  int num_chunks() const { return static_cast<int>(chunks.size()); }
  bool has(PhaseKind kind, int chunk = 0) const {
    return static_cast<int>(kind) < kNumPolicyKinds && chunk >= 0 && chunk < num_chunks() &&
           chunks[chunk][static_cast<int>(kind)];
  }
  // Whether the stage has phases to order.
  bool has_choices() const;
};

struct PhaseChoice {
  PhaseKind kind = PhaseKind::kForward;
  int microbatch = 0;
  int chunk = 0;
  friend bool operator==(const PhaseChoice&, const PhaseChoice&) = default;
};

// "F3"; of a later chunk "F3 of chunk 1".
std::string ToString(const PhaseChoice& choice);

// What a scheduler sees of one chunk. Counts are of this step.
struct ChunkView {
  std::array<int, kNumPolicyKinds> issued = {};     // chosen so far
  std::array<int, kNumPolicyKinds> completed = {};  // finished on every device of the group
  std::array<int, kNumPolicyKinds> ready = {};  // whose tokens and credits are there, beyond issued
  std::array<int64_t, kNumPolicyKinds> mean_ns = {};  // measured duration; 0: not yet known
};

struct StageView {
  std::vector<ChunkView> chunks;
};

class StageScheduler {
 public:
  virtual ~StageScheduler() = default;
  // The next phase, or nothing: ask again when the view has changed. Every phase of the step must
  // be chosen exactly once, those of one chunk and kind in micro-batch order.
  virtual std::optional<PhaseChoice> Next(const StageView& view) = 0;
  // A new step begins.
  virtual void Reset() = 0;
};

class Policy {
 public:
  virtual ~Policy() = default;
  virtual std::string_view name() const = 0;

  // All phases of a step, those of one chunk and kind in micro-batch order; empty if not fixed
  // beforehand.
  virtual std::vector<PhaseChoice> PlannedOrder(const StageContext& context) const = 0;

  // Of a policy that decides as it goes: micro-batches whose activations a stage may hold at once,
  // the credits of channels from F to B and W. Default: all of them. Those of a planned order are
  // derived from it, and this is not asked.
  virtual int ActivationCredits(const StageContext& context) const;

  // Default: follows the planned order; null where there is none. A policy that decides as it goes
  // overrides this.
  virtual std::unique_ptr<StageScheduler> CreateScheduler(const StageContext& context) const;
};

// A kind of phase of one chunk.
struct ChunkPhase {
  int chunk = 0;
  PhaseKind kind = PhaseKind::kForward;
  friend auto operator<=>(const ChunkPhase&, const ChunkPhase&) = default;
};

// Gives the phases of `order` one after another.
std::unique_ptr<StageScheduler> FollowOrder(std::vector<PhaseChoice> order);

// Asks the policy. Errors: it throws, or it gives less than one credit.
absl::StatusOr<int> ActivationCreditsOf(const Policy& policy, const StageContext& context);

// What a policy has for one stage.
struct StageSchedule {
  std::vector<PhaseChoice> order;             // empty where it decides as it goes
  std::unique_ptr<StageScheduler> scheduler;  // null where the stage has no phases to order
};

// Asks the policy. Errors: it has neither an order nor a scheduler for a stage that has phases to
// order, or it throws.
absl::StatusOr<StageSchedule> MakeSchedule(const Policy& policy, const StageContext& context);

// Policies by name; built by main() or the embedding application.
class PolicyRegistry {
 public:
  absl::Status Add(std::unique_ptr<const Policy> policy);
  const Policy* Find(std::string_view name) const;  // null when unknown
  std::vector<std::string_view> Names() const;      // sorted

 private:
  absl::flat_hash_map<std::string_view, std::unique_ptr<const Policy>> policies_;
};

// gpipe: all forwards, then all backwards (Huang et al. 2019).
// 1f1b: at most (stages - stage) micro-batches in flight (PipeDream-Flush, Narayanan et al. 2021);
// with several chunks a stage its interleaved form, which shortens the bubble (Narayanan et al.,
// "Efficient Large-Scale Language Model Training on GPU Clusters", 2021).
PolicyRegistry BuiltinPolicies();

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_POLICY_H_
