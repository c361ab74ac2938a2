#include "planner/lower/device_program.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "planner/lower/phase_order.h"
#include "planner/plan/access_order.h"
#include "planner/plan/lifetimes.h"
#include "planner/plan/memory.h"
#include "planner/plan/plan.h"

namespace penstock::planner {
namespace {

// One touch of a buffer by an actor. Actors are numbered over the whole device.
struct Access {
  uint32_t actor = 0;
  int phase = 0;
  bool is_async = false;
  uint64_t begin = 0;  // of its bytes in the buffer
  uint64_t end = 0;
};

// Whether a value may pass from the one to the other.
bool ShareBytes(const Access& a, const Access& b) { return a.begin < b.end && b.begin < a.end; }

struct Accesses {
  std::vector<Access> writers;  // in the planned order
  std::vector<Access> readers;
  bool IsWithin(int phase) const {
    auto here = [&](const Access& access) { return access.phase == phase; };
    return std::all_of(writers.begin(), writers.end(), here) &&
           std::all_of(readers.begin(), readers.end(), here);
  }
};

class ProgramAssembler {
 public:
  ProgramAssembler(const std::vector<Buffer>& buffers, const std::vector<DraftPhase>& phases,
                   const DeviceProgram::Credits& credits)
      : buffers_(buffers), phases_(phases), credits_(credits), accesses_(buffers.size()) {}

  DevicePlan Run(std::vector<uint32_t>* state_registers, std::vector<ViewOperand>* views) {
    NumberActors();
    AddOrders();
    for (size_t s = 0; s < buffers_.size(); ++s) {
      if (buffers_[s].whole < 0) AddChannels(static_cast<int>(s));
    }
    std::stable_sort(device_.channels.begin(), device_.channels.end(),
                     [](const ChannelPlan& a, const ChannelPlan& b) {
                       return std::pair(a.consumer, a.producer) < std::pair(b.consumer, b.producer);
                     });
    AddTokenOrders(&device_);
    LayOut();
    for (size_t s = 0; s < buffers_.size(); ++s) {
      if (buffers_[s].state >= 0) (*state_registers)[buffers_[s].state] = static_cast<uint32_t>(s);
    }
    *views = std::move(views_);
    return std::move(device_);
  }

 private:
  int WholeOf(int s) const { return buffers_[s].whole >= 0 ? buffers_[s].whole : s; }

  const PhasePlan& PhaseOf(const Access& access) const { return phases_[access.phase].plan; }

  void NumberActors() {
    for (size_t p = 0; p < phases_.size(); ++p) {
      PhasePlan phase = phases_[p].plan;
      phase.first_actor = static_cast<uint32_t>(device_.actors.size());
      phase.num_actors = static_cast<uint32_t>(phases_[p].actors.size());
      for (const DraftActor& draft : phases_[p].actors) {
        const auto actor = static_cast<uint32_t>(device_.actors.size());
        const auto access_to = [&](int s) {
          Access access = {actor, static_cast<int>(p), draft.is_async()};
          // On other devices of the class, a view may lie elsewhere in the buffer.
          const Buffer& bytes = buffers_[buffers_[s].view == kNone ? s : WholeOf(s)];
          access.begin = bytes.offset;
          access.end = bytes.offset + std::max<uint64_t>(bytes.bytes, 1);
          return access;
        };
        for (int input : draft.inputs) {
          if (input >= 0) accesses_[WholeOf(input)].readers.push_back(access_to(input));
        }
        for (int output : draft.outputs) {
          if (output >= 0) accesses_[WholeOf(output)].writers.push_back(access_to(output));
        }
        ActorPlan plan = draft.plan;
        const auto add = [&](int buffer, bool is_output, std::vector<OperandPlan>* operands) {
          const auto index = static_cast<uint32_t>(operands->size());
          OperandPlan& operand = operands->emplace_back();
          if (buffer < 0) return;
          operand = {static_cast<uint32_t>(WholeOf(buffer)), buffers_[buffer].offset};
          const uint32_t view = buffers_[buffer].view;
          if (view != kNone) views_.push_back({actor, is_output, index, view});
        };
        for (int input : draft.inputs) add(input, false, &plan.inputs);
        for (int output : draft.outputs) add(output, true, &plan.outputs);
        phase.predicted_s += draft.predicted_s;
        device_.actors.push_back(std::move(plan));
      }
      device_.phases.push_back(std::move(phase));
    }
  }

  // The order that actors have been given, apart from that of their data.
  void AddOrders() {
    for (size_t p = 0; p < phases_.size(); ++p) {
      const uint32_t first = device_.phases[p].first_actor;
      const auto add = [&](int before, int after) {
        device_.channels.push_back({first + static_cast<uint32_t>(before),
                                    first + static_cast<uint32_t>(after), kNone, 1, 1, 1, 0});
      };
      for (const auto& [before, after] : phases_[p].order) add(before, after);
      const std::vector<DraftActor>& actors = phases_[p].actors;
      for (size_t i = 0; i < actors.size(); ++i) {
        if (actors[i].after < 0) continue;
        const auto before =
            std::find_if(actors.begin(), actors.end(),
                         [&](const DraftActor& actor) { return actor.id == actors[i].after; });
        add(static_cast<int>(before - actors.begin()), static_cast<int>(i));
      }
    }
  }

  // Slots of a buffer that is written and read once a micro-batch: as many as the orders of the
  // stages need (schedule_times.h). One that is received or only sent has at least two, so that the
  // next micro-batch arrives, or the last one leaves, while the lane computes.
  int SlotsOf(int s) const {
    const Buffer& buffer = buffers_[s];
    if (!buffer.per_microbatch || buffer.state >= 0) return 1;
    std::set<ChunkPhase> phases;  // that touch it, of the compute lane
    std::set<int> touching;
    bool is_touched_per_step = false;
    for (const std::vector<Access>* accesses : {&accesses_[s].writers, &accesses_[s].readers}) {
      for (const Access& access : *accesses) {
        const PhasePlan& phase = PhaseOf(access);
        touching.insert(access.phase);
        is_touched_per_step |= phase.lane == Lane::kPerStep;
        if (phase.lane == Lane::kCompute) {
          phases.insert({static_cast<int>(phase.chunk), phase.kind});
        }
      }
    }
    if (touching.size() < 2) return 1;
    if (is_touched_per_step) return credits_.microbatches;
    int slots = 2;
    if (buffer.received || phases.size() > 1) {
      const int held = credits_.times == nullptr ? credits_.activations
                       : buffer.received && !buffer.source.has_value()
                           ? credits_.microbatches
                           : credits_.times->MostHeld(credits_.stage, phases, buffer.source);
      slots = buffer.received ? std::max(held, 2) : held;
    }
    return std::min(credits_.microbatches, slots);
  }

  // Of each phase, the last access on the stream and all beside it.
  static std::map<int, std::vector<Access>> LastOfPhases(const std::vector<Access>& accesses) {
    std::map<int, std::vector<Access>> last;
    for (const Access& access : accesses) {
      std::vector<Access>& list = last[access.phase];
      if (!list.empty() && list.back().actor == access.actor) continue;
      if (!access.is_async)
        std::erase_if(list, [](const Access& other) { return !other.is_async; });
      list.push_back(access);
    }
    return last;
  }

  void AddChannels(int s) {
    const Accesses& accesses = accesses_[s];
    const auto reg = static_cast<uint32_t>(s);
    for (const Access& writer : accesses.writers) {
      for (const Access& reader : accesses.readers) {
        if (reader.phase == writer.phase && writer.actor < reader.actor &&
            ShareBytes(writer, reader)) {
          device_.channels.push_back({writer.actor, reader.actor, reg, 1, 1, 1, 0});
        }
      }
    }
    // Between phases: from the last writer on the stream of one phase to the last reader on the
    // stream of another; each that runs beside the stream counts by itself.
    const std::map<int, std::vector<Access>> last_writers = LastOfPhases(accesses.writers);
    const std::map<int, std::vector<Access>> last_readers = LastOfPhases(accesses.readers);
    const auto slots = static_cast<uint32_t>(SlotsOf(s));
    const auto m = static_cast<uint32_t>(credits_.microbatches);
    for (const auto& [writer_phase, writers] : last_writers) {
      for (const auto& [reader_phase, readers] : last_readers) {
        if (writer_phase == reader_phase) continue;
        const bool writes_often = phases_[writer_phase].plan.per_microbatch;
        const bool reads_often = phases_[reader_phase].plan.per_microbatch;
        for (const Access& writer : writers) {
          for (const Access& reader : readers) {
            ChannelPlan channel;
            channel.producer = writer.actor;
            channel.consumer = reader.actor;
            channel.reg = reg;
            channel.produce = !writes_often && reads_often ? m : 1;
            channel.consume = writes_often && !reads_often ? m : 1;
            channel.capacity = writes_often != reads_often ? m : slots;
            if (buffers_[s].state >= 0) channel.initial = channel.capacity;
            device_.channels.push_back(channel);
          }
        }
      }
    }
  }

  void LayOut() {
    device_.registers.resize(buffers_.size());
    for (size_t s = 0; s < buffers_.size(); ++s) {
      RegisterPlan& reg = device_.registers[s];
      reg.per_microbatch = buffers_[s].per_microbatch;
      if (buffers_[s].state < 0 && buffers_[s].whole >= 0) continue;  // in another register
      const std::vector<Access>& writers = accesses_[s].writers;
      // A sum over micro-batches stays where it is between them, even if nobody reads it.
      const bool is_sum = !writers.empty() && !buffers_[s].per_microbatch &&
                          credits_.microbatches > 1 &&
                          phases_[writers[0].phase].plan.per_microbatch;
      const bool is_local = !writers.empty() && !is_sum &&
                            accesses_[s].IsWithin(writers[0].phase) &&
                            phases_[writers[0].phase].plan.lane != Lane::kFloating;
      reg.register_class = buffers_[s].state >= 0 ? RegisterClass::kState
                           : is_local             ? RegisterClass::kWorkspace
                                                  : RegisterClass::kChannel;
      reg.slots = static_cast<uint32_t>(SlotsOf(static_cast<int>(s)));
      reg.slot_bytes = AlignUp(buffers_[s].bytes);
    }
    const DeviceUses uses =
        FindUses(device_, credits_.order, static_cast<uint32_t>(credits_.microbatches));
    uint64_t end = 0;
    const auto place = [&](RegisterClass register_class, bool on_host) {
      for (size_t s = 0; s < device_.registers.size(); ++s) {
        RegisterPlan& reg = device_.registers[s];
        if (reg.register_class != register_class || !uses.registers[s][0].always) continue;
        if (buffers_[s].on_host != on_host || reg.slot_bytes == 0) continue;
        reg.offset = end;
        end += reg.slots * reg.slot_bytes;
      }
    };
    place(RegisterClass::kState, false);
    device_.state_bytes = end;
    place(RegisterClass::kChannel, false);
    end += PackRegisters(uses, end, false);
    for (const Lane lane : {Lane::kCompute, Lane::kPerStep}) end += PlaceScratch(lane, end);
    device_.arena_bytes = end;
    place(RegisterClass::kState, true);
    place(RegisterClass::kChannel, true);
    end += PackRegisters(uses, end, true);
    device_.host_bytes = end - device_.arena_bytes;
    device_.channel_bytes = ChannelBytes(device_);
    device_.workspace_bytes = device_.arena_bytes - device_.state_bytes - device_.channel_bytes;
  }

  // Lays out what of one memory may share bytes, from `base` on; returns how many it takes.
  uint64_t PackRegisters(const DeviceUses& uses, uint64_t base, bool on_host) {
    std::vector<Lifetime> lifetimes;
    std::vector<size_t> registers;
    for (size_t s = 0; s < device_.registers.size(); ++s) {
      const RegisterPlan& reg = device_.registers[s];
      const std::vector<Uses>& slots = uses.registers[s];
      if (slots[0].always || reg.slot_bytes == 0) continue;
      if (buffers_[s].on_host != on_host) continue;
      for (size_t slot = 0; slot < slots.size(); ++slot) {
        lifetimes.push_back(LifetimeOf(slots[slot]));
        lifetimes.back().bytes = reg.slots / slots.size() * reg.slot_bytes;
        lifetimes.back().follows_previous = slot > 0;
        registers.push_back(s);
      }
    }
    const uint64_t bytes = PackLifetimes(&lifetimes);
    for (size_t i = 0; i < registers.size(); ++i) {
      if (lifetimes[i].follows_previous) continue;
      device_.registers[registers[i]].offset = base + lifetimes[i].offset;
    }
    return bytes;
  }

  // In positions of actors, and behind them those of the first instances of phases.
  Lifetime LifetimeOf(const Uses& uses) const {
    const size_t num_phases = device_.phases.size();
    const auto begin_of = [&](uint32_t instances) {
      const uint64_t actors_before = instances / num_phases * device_.actors.size();
      return static_cast<int64_t>(actors_before +
                                  device_.phases[instances % num_phases].first_actor);
    };
    Lifetime lifetime;
    for (const PhaseSpan& span : uses.spans) {
      if (device_.phases[span.phase % num_phases].num_actors == 0) continue;
      const int64_t begin = begin_of(span.phase);
      lifetime.spans.push_back({begin + span.first, begin + span.last});
      if (span.is_touched) lifetime.touched.push_back(lifetime.spans.back());
    }
    for (const uint32_t instances : uses.held) {
      const int64_t num_actors = device_.phases[instances % num_phases].num_actors;
      if (num_actors == 0) continue;
      const int64_t begin = begin_of(instances);
      lifetime.held.push_back({begin, begin + num_actors - 1});
    }
    return lifetime;
  }

  // The kernels of a lane run one after another, so one place serves all, apart from the registers:
  // sharing bytes with those would order kernels that have nothing else in common.
  uint64_t PlaceScratch(Lane lane, uint64_t offset) {
    uint64_t most = 0;
    for (size_t p = 0; p < phases_.size(); ++p) {
      if (phases_[p].plan.lane != lane) continue;
      for (size_t i = 0; i < phases_[p].actors.size(); ++i) {
        const uint64_t bytes = phases_[p].actors[i].scratch_bytes;
        if (bytes == 0) continue;
        ActorPlan& actor = device_.actors[device_.phases[p].first_actor + i];
        actor.workspace_offset = offset;
        actor.workspace_bytes = bytes;
        most = std::max(most, AlignUp(bytes));
      }
    }
    return most;
  }

  const std::vector<Buffer>& buffers_;
  const std::vector<DraftPhase>& phases_;
  const DeviceProgram::Credits& credits_;
  std::vector<Accesses> accesses_;
  DevicePlan device_;
  std::vector<ViewOperand> views_;
};

}  // namespace

int DeviceProgram::AddBuffer(Buffer buffer) {
  buffers_.push_back(buffer);
  return static_cast<int>(buffers_.size()) - 1;
}

int DeviceProgram::AddPart(int whole, uint64_t bytes) {
  Buffer part;
  part.bytes = bytes;
  part.per_microbatch = buffers_[whole].per_microbatch;
  part.whole = whole;
  part.offset = buffers_[whole].bytes;
  buffers_[whole].bytes += AlignUp(bytes);
  return AddBuffer(part);
}

int DeviceProgram::AddView(int buffer, uint32_t view, uint64_t offset, uint64_t bytes) {
  Buffer part;
  part.bytes = bytes;
  part.per_microbatch = buffers_[buffer].per_microbatch;
  part.whole = buffers_[buffer].whole >= 0 ? buffers_[buffer].whole : buffer;
  part.offset = buffers_[buffer].offset + offset;
  part.view = view;
  return AddBuffer(part);
}

void DeviceProgram::AddActor(int phase, DraftActor actor) {
  std::vector<DraftActor>& actors = phases_[phase].actors;
  actor.id = static_cast<int>(actors.size());
  actors.push_back(std::move(actor));
}

int DeviceProgram::AddPhase(PhasePlan plan) {
  phases_.push_back({std::move(plan), {}, {}});
  return static_cast<int>(phases_.size()) - 1;
}

void DeviceProgram::OrderCommunication(int64_t waiting_bytes) {
  // Of each buffer: the only phase that touches it, or none.
  constexpr int kUntouched = -1;
  constexpr int kSeveral = -2;
  std::vector<int> home(buffers_.size(), kUntouched);
  for (size_t p = 0; p < phases_.size(); ++p) {
    for (const DraftActor& actor : phases_[p].actors) {
      for (const std::vector<int>* operands : {&actor.inputs, &actor.outputs}) {
        for (const int s : *operands) {
          if (s < 0) continue;
          int& phase = home[buffers_[s].whole < 0 ? s : buffers_[s].whole];
          phase =
              phase == kUntouched || phase == static_cast<int>(p) ? static_cast<int>(p) : kSeveral;
        }
      }
    }
  }
  for (size_t p = 0; p < phases_.size(); ++p) {
    DraftPhase& phase = phases_[p];
    if (phase.plan.lane == Lane::kFloating) continue;
    StartCommunicationEarly(buffers_, &phase.actors);
    LimitWaitingBytes(buffers_, home, static_cast<int>(p), waiting_bytes, &phase);
  }
}

DevicePlan DeviceProgram::Finish(const Credits& credits, std::vector<uint32_t>* state_registers,
                                 std::vector<ViewOperand>* views) const {
  return ProgramAssembler(buffers_, phases_, credits).Run(state_registers, views);
}

}  // namespace penstock::planner
