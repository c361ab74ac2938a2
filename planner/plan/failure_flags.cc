#include "planner/plan/failure_flags.h"

#include <algorithm>
#include <cstdint>

namespace penstock::planner {
namespace {

// What is found for the actors of one device.
class DeviceFlags {
 public:
  DeviceFlags(const Plan& plan, uint32_t device)
      : plan_(plan),
        device_(plan.devices[device]),
        phase_of_(device_.actors.size(), kNone),
        first_reader_(device_.actors.size(), kNone),
        spreads_(device_.actors.size()) {
    for (uint32_t p = 0; p < device_.phases.size(); ++p) {
      const PhasePlan& phase = device_.phases[p];
      std::fill_n(phase_of_.begin() + phase.first_actor, phase.num_actors, p);
    }
    for (uint32_t a = 0; a < device_.actors.size(); ++a) {
      const ActorPlan& actor = device_.actors[a];
      const bool communicates = IsCommunication(actor.kind) && actor.kind != ActorKind::kCollective;
      spreads_[a] = communicates || actor.kind == ActorKind::kFetch ||
                    std::any_of(actor.outputs.begin(), actor.outputs.end(), [&](const auto& out) {
                      return out.reg != kNone &&
                             device_.registers[out.reg].register_class == RegisterClass::kState;
                    });
    }
    for (const ChannelPlan& channel : device_.channels) {
      if (phase_of_[channel.producer] != phase_of_[channel.consumer]) {
        // The tokens of collectives come at the end of the phase, behind all of them.
        if (device_.phases[phase_of_[channel.consumer]].lane != Lane::kCompute &&
            !IsCollective(channel.producer)) {
          spreads_[channel.producer] = true;
        }
      } else if (IsCollective(channel.producer) && !IsCollective(channel.consumer)) {
        uint32_t& first = first_reader_[channel.producer];
        first = std::min(first, channel.consumer);
      }
    }
  }

  void AddTo(std::vector<bool>* tells) const {
    for (const PhasePlan& phase : device_.phases) AddPhase(phase, tells);
  }

 private:
  bool IsCollective(uint32_t actor) const {
    return device_.actors[actor].kind == ActorKind::kCollective;
  }
  const std::vector<uint32_t>& GroupOf(uint32_t actor) const {
    return plan_.collectives[device_.actors[actor].target].devices;
  }

  // From the last collective back. The stream of the phase follows one at the first actor that
  // reads its result, or else at the end of the phase; until then, nothing may spread what it was
  // given.
  void AddPhase(const PhasePlan& phase, std::vector<bool>* tells) const {
    const uint32_t end = phase.first_actor + phase.num_actors;
    uint32_t telling = kNone;     // the next collective that tells
    uint32_t known_from = 0;      // the actor from which on what it tells is known
    uint32_t first_spread = end;  // the first actor behind this one that spreads values
    for (uint32_t a = end; a-- > phase.first_actor;) {
      if (IsCollective(a)) {
        const bool is_told = phase.lane == Lane::kCompute && telling != kNone && !spreads_[a] &&
                             GroupOf(telling) == GroupOf(a) && first_spread >= known_from;
        if (!is_told) {
          (*tells)[device_.actors[a].target] = true;
          telling = a;
          known_from = std::min(first_reader_[a], end);
          for (uint32_t other = a + 1; other < known_from; ++other) {
            if (!IsCollective(other) || GroupOf(other) == GroupOf(a)) continue;
            first_spread = std::min(first_spread, other);
            break;
          }
        }
      }
      if (spreads_[a]) first_spread = a;
    }
  }

  const Plan& plan_;
  const DevicePlan& device_;
  std::vector<uint32_t> phase_of_;
  std::vector<uint32_t> first_reader_;  // of a collective, in its phase
  std::vector<bool> spreads_;           // values to where a failure must be known
};

}  // namespace

std::vector<bool> CollectivesThatTellFailures(const Plan& plan) {
  std::vector<bool> tells(plan.collectives.size(), false);
  for (uint32_t d = 0; d < plan.devices.size(); ++d) DeviceFlags(plan, d).AddTo(&tells);
  return tells;
}

}  // namespace penstock::planner
