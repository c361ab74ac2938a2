#include "planner/plan/access_order.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/memory.h"
#include "planner/plan/plan.h"
#include "planner/plan/show_plan.h"

namespace penstock::planner {
namespace {

// Actors looked at for a path between two. Lowering finds one among few, or adds a channel.
constexpr size_t kMaxVisited = 4096;
constexpr size_t kMaxVisitedByLowering = 32;

// Bytes of the arena that an actor reads or writes. Of a register with several slots, a phase
// instance uses one, and others may share bytes with any of them: an access to a whole slot counts
// as one to all, any other as one to each.
struct Access {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint32_t reg = kNone;  // kNone: kernel scratch
  bool writes = false;
};

// A pair of actors whose order matters.
struct Conflict {
  uint32_t before = 0;
  uint32_t after = 0;
  uint32_t reg = kNone;  // what `after` touches
};

// The bytes of the arena as actors, one after another, use them.
class UsedBytes {
 public:
  using OnConflict = absl::FunctionRef<void(uint32_t before)>;

  void Read(uint32_t actor, const Access& access, OnConflict on_conflict) {
    ForEach(access, [&](Span& span) {
      if (span.writer != kNone && span.writer != actor) on_conflict(span.writer);
      if (span.readers.empty() || span.readers.back() != actor) span.readers.push_back(actor);
    });
  }

  void Write(uint32_t actor, const Access& access, OnConflict on_conflict) {
    const bool is_scratch = access.reg == kNone;
    ForEach(access, [&](const Span& span) {
      for (const uint32_t reader : span.readers) {
        if (reader != actor) on_conflict(reader);
      }
      // Readers come after the writer by themselves.
      const bool others_read = std::any_of(span.readers.begin(), span.readers.end(),
                                           [actor](uint32_t reader) { return reader != actor; });
      const bool is_free = span.writer == kNone || span.writer == actor || others_read;
      if (!is_free && !(is_scratch && span.is_scratch)) on_conflict(span.writer);
    });
    spans_.erase(spans_.lower_bound(access.begin), spans_.lower_bound(access.end));
    spans_[access.begin] = {access.end, actor, is_scratch, {}};
  }

 private:
  struct Span {
    uint64_t end = 0;
    uint32_t writer = kNone;        // the last one
    bool is_scratch = false;        // of the writer
    std::vector<uint32_t> readers;  // since then
  };

  // Calls f for spans that make up the access.
  template <typename F>
  void ForEach(const Access& access, F f) {
    Split(access.begin);
    Split(access.end);
    uint64_t at = access.begin;
    auto it = spans_.lower_bound(at);
    while (at < access.end) {
      if (it == spans_.end() || it->first > at) {
        const uint64_t end = it == spans_.end() ? access.end : std::min(it->first, access.end);
        it = spans_.insert(it, {at, {end, kNone, false, {}}});
      }
      f(it->second);
      at = it->second.end;
      ++it;
    }
  }

  // Makes a span begin at `at` if one covers it.
  void Split(uint64_t at) {
    auto it = spans_.upper_bound(at);
    if (it == spans_.begin()) return;
    --it;
    if (it->first == at || it->second.end <= at) return;
    Span rest = it->second;
    it->second.end = at;
    spans_.emplace(at, std::move(rest));
  }

  absl::btree_map<uint64_t, Span> spans_;  // disjoint, by their begin
};

// The order of one phase's actors that its channels make.
class PhaseOrder {
 public:
  PhaseOrder(uint32_t first_actor, uint32_t num_actors)
      : first_(first_actor), predecessors_(num_actors), visited_(num_actors, 0) {}

  void Add(uint32_t before, uint32_t after) {
    predecessors_[after - first_].push_back(before - first_);
  }

  // Whether a path leads from one to the other, as far as it is found among `max_visited` actors.
  bool IsBefore(uint32_t before, uint32_t after, size_t max_visited) {
    const uint32_t from = before - first_;
    ++mark_;
    queue_.assign(1, after - first_);
    for (size_t i = 0; i < queue_.size() && i < max_visited; ++i) {
      for (const uint32_t predecessor : predecessors_[queue_[i]]) {
        if (predecessor == from) return true;
        // Channels lead from lower to higher actors.
        if (predecessor < from || visited_[predecessor] == mark_) continue;
        visited_[predecessor] = mark_;
        queue_.push_back(predecessor);
      }
    }
    return false;
  }

 private:
  const uint32_t first_;
  std::vector<std::vector<uint32_t>> predecessors_;  // of each actor of the phase
  std::vector<uint32_t> visited_;                    // the search that has come by
  std::vector<uint32_t> queue_;
  uint32_t mark_ = 0;
};

uint64_t TileBytes(const KernelPlan& kernel, bool is_output, size_t index) {
  return (is_output ? kernel.outputs : kernel.inputs)[index].num_bytes();
}

// What an actor touches: reads first.
void AppendAccesses(const std::vector<KernelPlan>& kernels, const DevicePlan& device,
                    const ActorPlan& actor, std::vector<Access>* accesses) {
  const auto append = [&](const std::vector<OperandPlan>& operands, bool is_output) {
    for (size_t i = 0; i < operands.size(); ++i) {
      const OperandPlan& operand = operands[i];
      if (operand.reg == kNone) continue;
      const RegisterPlan& reg = device.registers[operand.reg];
      const uint64_t begin = reg.offset + operand.offset;
      const uint64_t num_bytes = IsCommunication(actor.kind)
                                     ? reg.slot_bytes - operand.offset
                                     : TileBytes(kernels[actor.kernel], is_output, i);
      if (num_bytes == 0) continue;
      const bool is_whole = operand.offset == 0 && AlignUp(num_bytes) == reg.slot_bytes;
      if (is_whole) {
        const uint64_t end = begin + (reg.slots - 1) * reg.slot_bytes + num_bytes;
        accesses->push_back({begin, end, operand.reg, is_output});
        continue;
      }
      for (uint32_t slot = 0; slot < reg.slots; ++slot) {
        const uint64_t first = begin + slot * reg.slot_bytes;
        accesses->push_back({first, first + num_bytes, operand.reg, is_output});
      }
    }
  };
  append(actor.inputs, false);
  append(actor.outputs, true);
  if (actor.workspace_bytes > 0) {
    accesses->push_back(
        {actor.workspace_offset, actor.workspace_offset + actor.workspace_bytes, kNone, true});
  }
}

// Calls f for the conflicts of a phase, in the planned order of their later actors. Those that
// follow from others by transitivity may be left out.
void ForEachConflict(const std::vector<KernelPlan>& kernels, const DevicePlan& device,
                     const PhasePlan& phase, absl::FunctionRef<void(const Conflict&)> f) {
  if (phase.num_actors < 2) return;
  UsedBytes used;
  std::vector<Access> accesses;
  for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
    accesses.clear();
    AppendAccesses(kernels, device, device.actors[a], &accesses);
    for (const Access& access : accesses) {
      const auto on_conflict = [&](uint32_t before) { f({before, a, access.reg}); };
      if (access.writes) {
        used.Write(a, access, on_conflict);
      } else {
        used.Read(a, access, on_conflict);
      }
    }
  }
}

// How the actors of a phase use one register.
struct RegisterUse {
  std::vector<uint32_t> readers;
  std::vector<uint32_t> writers;
};
using RegisterUses = absl::flat_hash_map<std::pair<uint32_t, uint32_t>, RegisterUse>;

// Of each phase and register.
RegisterUses FindUses(const DevicePlan& device) {
  RegisterUses uses;
  for (uint32_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      for (const OperandPlan& operand : device.actors[a].inputs) {
        if (operand.reg != kNone) uses[{p, operand.reg}].readers.push_back(a);
      }
      for (const OperandPlan& operand : device.actors[a].outputs) {
        if (operand.reg != kNone) uses[{p, operand.reg}].writers.push_back(a);
      }
    }
  }
  return uses;
}

// The ends, in one phase, of the channels of a register from or to another phase.
struct ChannelEnds {
  uint32_t phase = 0;
  uint32_t reg = 0;
  std::vector<uint32_t> actors;  // in increasing order
  std::vector<uint32_t> users;   // that the channels stand for
};

std::vector<ChannelEnds> FindChannelEnds(const DevicePlan& device) {
  // (phase of the producer, of the consumer, register) -> producers and consumers
  absl::btree_map<std::tuple<uint32_t, uint32_t, uint32_t>,
                  std::pair<std::vector<uint32_t>, std::vector<uint32_t>>>
      joined;
  for (const ChannelPlan& channel : device.channels) {
    const uint32_t from = PhaseOfActor(device, channel.producer);
    const uint32_t to = PhaseOfActor(device, channel.consumer);
    if (from == to || channel.reg == kNone) continue;
    auto& [producers, consumers] = joined[{from, to, channel.reg}];
    producers.push_back(channel.producer);
    consumers.push_back(channel.consumer);
  }
  std::vector<ChannelEnds> ends;
  if (joined.empty()) return ends;
  const RegisterUses uses = FindUses(device);
  const auto uses_of = [&](uint32_t phase, uint32_t reg) {
    const auto it = uses.find({phase, reg});
    return it == uses.end() ? RegisterUse() : it->second;
  };
  const auto add = [&](uint32_t phase, uint32_t reg, std::vector<uint32_t>* actors,
                       std::vector<uint32_t> users) {
    for (std::vector<uint32_t>* list : {actors, &users}) {
      std::sort(list->begin(), list->end());
      list->erase(std::unique(list->begin(), list->end()), list->end());
    }
    if (actors->size() == 1 && users == *actors) return;
    ends.push_back({phase, reg, std::move(*actors), std::move(users)});
  };
  for (auto& [key, actors] : joined) {
    const auto& [from, to, reg] = key;
    RegisterUse consuming = uses_of(to, reg);
    RegisterUse producing = uses_of(from, reg);
    // Who only reads is in the way of those that write next.
    std::vector<uint32_t> producers = std::move(producing.writers);
    if (!consuming.writers.empty()) {
      producers.insert(producers.end(), producing.readers.begin(), producing.readers.end());
    }
    std::vector<uint32_t> consumers = std::move(consuming.readers);
    consumers.insert(consumers.end(), consuming.writers.begin(), consuming.writers.end());
    add(from, reg, &actors.first, std::move(producers));
    add(to, reg, &actors.second, std::move(consumers));
  }
  std::stable_sort(ends.begin(), ends.end(),
                   [](const ChannelEnds& a, const ChannelEnds& b) { return a.phase < b.phase; });
  return ends;
}

// The orders of all phases that have an order to keep.
std::vector<PhaseOrder> FindOrders(const DevicePlan& device) {
  std::vector<PhaseOrder> orders;
  orders.reserve(device.phases.size());
  for (const PhasePlan& phase : device.phases) {
    orders.emplace_back(phase.first_actor, phase.num_actors);
  }
  for (const ChannelPlan& channel : device.channels) {
    const uint32_t phase = PhaseOfActor(device, channel.producer);
    if (phase == PhaseOfActor(device, channel.consumer)) {
      orders[phase].Add(channel.producer, channel.consumer);
    }
  }
  return orders;
}

// Adds an ordering channel, unless there is a path.
void Join(uint32_t before, uint32_t after, PhaseOrder* order, DevicePlan* device) {
  if (order->IsBefore(before, after, kMaxVisitedByLowering)) return;
  order->Add(before, after);
  device->channels.push_back({before, after, kNone, 1, 1, 1, 0});
}

}  // namespace

void AddTokenOrders(DevicePlan* device) {
  std::vector<PhaseOrder> orders = FindOrders(*device);
  for (const ChannelEnds& ends : FindChannelEnds(*device)) {
    for (const uint32_t user : ends.users) {
      const auto end = std::lower_bound(ends.actors.begin(), ends.actors.end(), user);
      if (end != ends.actors.end() && *end != user) {
        Join(user, *end, &orders[ends.phase], device);
      }
    }
  }
}

void AddOrderChannels(const std::vector<KernelPlan>& kernels, DevicePlan* device) {
  std::vector<PhaseOrder> orders = FindOrders(*device);
  for (uint32_t p = 0; p < device->phases.size(); ++p) {
    ForEachConflict(kernels, *device, device->phases[p], [&](const Conflict& conflict) {
      Join(conflict.before, conflict.after, &orders[p], device);
    });
  }
  AddTokenOrders(device);
}

absl::Status CheckAccessOrder(const Plan& plan) {
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    const DevicePlan& device = plan.devices[d];
    std::vector<PhaseOrder> orders = FindOrders(device);
    absl::Status status;
    for (uint32_t p = 0; p < device.phases.size(); ++p) {
      ForEachConflict(plan.kernels, device, device.phases[p], [&](const Conflict& conflict) {
        const auto& [before, after, reg] = conflict;
        if (!status.ok() || orders[p].IsBefore(before, after, kMaxVisited)) return;
        status = absl::InvalidArgumentError(
            StrCat(DescribeActor(plan, d, after), " uses bytes of ",
                   reg == kNone ? std::string("its scratch") : StrCat("register ", reg), " that ",
                   DescribeActor(plan, d, before),
                   " uses, and no path of channels within the phase orders the two"));
      });
      RETURN_IF_ERROR(status);
    }
    for (const ChannelEnds& ends : FindChannelEnds(device)) {
      for (const uint32_t user : ends.users) {
        const bool is_covered =
            std::any_of(ends.actors.begin(), ends.actors.end(), [&](uint32_t actor) {
              return actor == user ||
                     (actor > user && orders[ends.phase].IsBefore(user, actor, kMaxVisited));
            });
        if (is_covered) continue;
        return absl::InvalidArgumentError(
            StrCat(DescribeActor(plan, d, user), " uses register ", ends.reg,
                   ", which crosses phases, and no path of channels leads from it to ",
                   DescribeActor(plan, d, ends.actors.back()),
                   ", whose channel to another phase says that it is done"));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
