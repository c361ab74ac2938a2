#include "actors/engine/stage_exchange.h"

#include <algorithm>
#include <memory>
#include <new>

#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;

uint32_t DecidingDevice(const planner::StagePlan& stage) {
  return *std::min_element(stage.devices.begin(), stage.devices.end());
}

std::vector<uint32_t> StagePeersOf(const planner::Plan& plan, uint32_t device) {
  const planner::StagePlan& stage = plan.stages[plan.devices[device].stage];
  if (!stage.order.empty() || stage.devices.size() < 2) return {};
  const uint32_t deciding = DecidingDevice(stage);
  if (device != deciding) return {deciding};
  std::vector<uint32_t> peers = stage.devices;
  std::sort(peers.begin(), peers.end());
  peers.erase(peers.begin());
  return peers;
}

StageExchange::StageExchange(const planner::Plan& plan, uint32_t device, StageLink* own,
                             std::vector<StagePeer> peers)
    : device_(device),
      num_channels_(plan.num_channels),
      num_microbatches_(plan.num_microbatches),
      num_types_(own == nullptr ? 0 : own->counts.size()),
      counts_(2 * StagePeersOf(plan, device).size()) {
  const std::vector<uint32_t> all = StagePeersOf(plan, device);
  for (const StagePeer& peer : peers) {
    const bool is_deciding = peer.link != nullptr;
    const auto place =
        static_cast<size_t>(std::find(all.begin(), all.end(), peer.device) - all.begin());
    for (const bool has_choices : {true, false}) {
      Line& line = lines_.emplace_back();
      line.peer = peer.device;
      line.has_choices = has_choices;
      line.is_send = has_choices == is_deciding;
      line.link = is_deciding ? peer.link : own;
      line.ordinal = 2 * place + (has_choices ? 0 : 1);
    }
  }
}

size_t StageExchange::MessageBytes(const Line& line) const {
  return line.has_choices ? sizeof(ChoicesMessage) : num_types_ * sizeof(CountsMessage);
}

void StageExchange::AddTo(std::vector<Comm>* comms) {
  first_comm_ = static_cast<uint32_t>(comms->size());
  for (Line& line : lines_) {
    Comm& comm = comms->emplace_back();
    comm.kind = line.is_send ? ActorKind::kSend : ActorKind::kRecv;
    comm.peer = line.peer;
    comm.channel = num_channels_ + (line.has_choices ? 0 : 1);
    comm.actor = planner::kNone;
    comm.phase = planner::kNone;
    comm.tensors[0].input_bytes = comm.tensors[0].output_bytes = MessageBytes(line);
    comm.message = std::make_unique<std::byte[]>(MessageBytes(line));
    line.message = comm.message.get();
    if (line.has_choices) {
      new (line.message) ChoicesMessage;
    } else {
      new (line.message) CountsMessage[num_types_];
    }
  }
}

bool StageExchange::Poll(DeviceCommunication* communication) {
  bool has_moved = false;
  for (uint32_t i = 0; i < lines_.size() && !has_failed_; ++i) {
    Line& line = lines_[i];
    if (line.is_started || !CanStart(line)) continue;
    line.is_started = true;
    if (!line.is_counted) Count(line);
    line.is_counted = true;
    CommStart start;
    start.comm = first_comm_ + i;
    start.sequence = line.sequence;
    start.inputs = start.outputs = &line.message;
    communication->Start(start);
    has_moved |= line.is_send;
  }
  communication->Flush();
  return has_moved;
}

absl::Status StageExchange::Finish(uint32_t index, DeviceCommunication* communication) {
  Line& line = lines_[index - first_comm_];
  const transport::Request& request = communication->comm(index).request;
  line.is_started = false;
  if (request.state == transport::Request::State::kFailed) {
    // Nothing was chosen or done for long: steps have time limits of their own.
    if (!line.is_send && absl::IsDeadlineExceeded(request.status)) return absl::OkStatus();
    has_failed_ = true;
    return absl::Status(
        request.status.code(),
        StrCat("device ", device_, " cannot exchange the choices of its stage with device ",
               line.peer, ": ", ToStd(request.status.message())));
  }
  ++line.sequence;
  line.is_counted = false;
  Count(line);
  if (line.is_send) return absl::OkStatus();
  const absl::Status status = line.has_choices ? TakeChoices(line) : TakeCounts(line);
  has_failed_ = !status.ok();
  return status;
}

bool StageExchange::CanStart(const Line& line) {
  if (line.is_send) return line.has_choices ? FillChoices(line) : FillCounts(line);
  if (!line.has_choices) return true;
  const SpscRing<PhaseDecision>& ring = line.link->decisions;
  return ring.capacity() - ring.size() >= kChoicesPerMessage;
}

bool StageExchange::FillChoices(const Line& line) {
  auto* message = static_cast<ChoicesMessage*>(line.message);
  SpscRing<PhaseDecision>& ring = line.link->decisions;
  message->num_choices = 0;
  while (message->num_choices < kChoicesPerMessage) {
    const PhaseDecision* choice = ring.Front();
    if (choice == nullptr) break;
    message->choices[message->num_choices++] = *choice;
    ring.Pop();
  }
  return message->num_choices > 0;
}

bool StageExchange::FillCounts(const Line& line) {
  auto* message = static_cast<CountsMessage*>(line.message);
  bool has_changed = false;
  for (size_t type = 0; type < num_types_; ++type) {
    const PhaseCounts& counts = line.link->counts[type];
    const CountsMessage now = {counts.completed.load(std::memory_order_relaxed),
                               counts.available.load(std::memory_order_relaxed),
                               counts.duration_ns.load(std::memory_order_relaxed)};
    if (message[type] == now) continue;
    message[type] = now;
    has_changed = true;
  }
  return has_changed;
}

absl::Status StageExchange::TakeChoices(const Line& line) {
  const auto* message = static_cast<const ChoicesMessage*>(line.message);
  if (message->num_choices > kChoicesPerMessage) return Malformed(line, "too many choices");
  for (size_t i = 0; i < message->num_choices; ++i) {
    const PhaseDecision& choice = message->choices[i];
    if (choice.type >= num_types_ || choice.microbatch >= num_microbatches_ || choice.step < 0) {
      return Malformed(line, "a choice of a phase that there is not");
    }
    line.link->decisions.TryPush(choice);
  }
  return absl::OkStatus();
}

absl::Status StageExchange::TakeCounts(const Line& line) {
  const auto* message = static_cast<const CountsMessage*>(line.message);
  for (size_t type = 0; type < num_types_; ++type) {
    PhaseCounts& counts = line.link->counts[type];
    if (message[type].completed < counts.completed.load(std::memory_order_relaxed) ||
        message[type].available < counts.available.load(std::memory_order_relaxed)) {
      return Malformed(line, "counts that have decreased");
    }
    counts.duration_ns.store(message[type].duration_ns, std::memory_order_relaxed);
    counts.available.store(message[type].available, std::memory_order_release);
    counts.completed.store(message[type].completed, std::memory_order_release);
  }
  if (line.link->is_waiting.exchange(false, std::memory_order_acq_rel) &&
      line.link->wake_controller) {
    line.link->wake_controller();
  }
  return absl::OkStatus();
}

absl::Status StageExchange::Malformed(const Line& line, const char* what) const {
  return absl::InternalError(
      StrCat("device ", device_, " got ", what, " from device ", line.peer, " of its stage"));
}

void StageExchange::Count(const Line& line) {
  std::atomic<uint64_t>& count = counts_[line.ordinal];
  count.store(count.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
}

void StageExchange::AppendCounts(std::vector<uint64_t>* counts) const {
  for (const std::atomic<uint64_t>& count : counts_) {
    counts->push_back(count.load(std::memory_order_relaxed));
  }
}

}  // namespace penstock::actors
