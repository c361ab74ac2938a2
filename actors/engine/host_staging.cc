#include "actors/engine/host_staging.h"

#include <algorithm>
#include <map>
#include <utility>

#include "base/status_macros.h"

namespace penstock::actors {
namespace {

struct Range {
  uint64_t offset = 0;
  uint64_t stride = 0;  // of feeds and fetches: from slot to slot
};

// Where everything lies, in ranges that begin where a cache line does.
struct Layout {
  std::vector<Range> copies;
  // Offsets of input and output, by tensor.
  std::vector<std::vector<std::pair<uint64_t, uint64_t>>> comms;
  uint64_t num_bytes = 0;

  uint64_t Add(uint64_t size) {
    constexpr uint64_t kLine = 64;
    const uint64_t offset = num_bytes;
    num_bytes += (size + kLine - 1) / kLine * kLine;
    return offset;
  }
};

Layout MakeLayout(absl::Span<const Comm> comms, absl::Span<const HostCopy> copies) {
  Layout layout;
  for (const HostCopy& copy : copies) {
    Range range;
    range.offset = layout.Add(copy.num_bytes);
    for (uint32_t slot = 1; slot < HostStaging::kCopySlots; ++slot) layout.Add(copy.num_bytes);
    range.stride = (layout.num_bytes - range.offset) / HostStaging::kCopySlots;
    layout.copies.push_back(range);
  }
  for (const Comm& comm : comms) {
    layout.comms.emplace_back();
    for (const CommTensor& tensor : comm.tensors) {
      // In place, one may be a part of the other.
      const uint64_t input =
          layout.Add(tensor.is_in_place ? std::max(tensor.input_bytes, tensor.output_bytes)
                                        : tensor.input_bytes);
      layout.comms.back().emplace_back(
          input, tensor.is_in_place ? input : layout.Add(tensor.output_bytes));
    }
  }
  return layout;
}

}  // namespace

uint64_t HostStaging::BytesFor(absl::Span<const Comm> comms, absl::Span<const HostCopy> copies) {
  return MakeLayout(comms, copies).num_bytes;
}

absl::StatusOr<std::unique_ptr<HostStaging>> HostStaging::Create(
    Device& device, absl::Span<const Comm> comms, absl::Span<const uint32_t> streams,
    absl::Span<const HostCopy> copies) {
  std::unique_ptr<HostStaging> staging(new HostStaging());
  const Layout layout = MakeLayout(comms, copies);
  for (const Range& range : layout.copies) {
    staging->tiles_.push_back({range.offset, range.stride});
  }
  ASSIGN_OR_RETURN(staging->memory_, device.Allocate(layout.num_bytes, MemoryKind::kPinned));
  std::byte* const data = staging->memory_->data();
  std::map<uint32_t, size_t> places;  // in streams_
  for (size_t i = 0; i < comms.size(); ++i) {
    Transfer& transfer = staging->transfers_.emplace_back();
    transfer.tensors = comms[i].tensors;
    for (const auto& [input, output] : layout.comms[i]) {
      transfer.inputs.push_back(data + input);
      transfer.outputs.push_back(data + output);
    }
    transfer.results.resize(transfer.tensors.size());
    transfer.is_receive = comms[i].kind == planner::ActorKind::kRecv;
    transfer.has_results =
        std::any_of(transfer.tensors.begin(), transfer.tensors.end(),
                    [](const CommTensor& tensor) { return tensor.output_bytes > 0; });
    const auto [place, is_new] = places.try_emplace(streams[i], places.size());
    transfer.streams = place->second;
    if (is_new) {
      staging->streams_.push_back(
          {std::make_unique<LaneStream>(device), std::make_unique<LaneStream>(device)});
    }
    transfer.begin = device.CreateEvent();
    transfer.event = device.CreateEvent();
  }
  for (Queue& queue : staging->queues_) queue.comms.resize(comms.size());
  return staging;
}

LaneStream* HostStaging::BeginsOn(uint32_t comm, LaneStream* stream) {
  const Transfer& transfer = transfers_[comm];
  return transfer.is_receive ? stream : streams_[transfer.streams].out.get();
}

void HostStaging::Begin(const CommStart& start, planner::Lane lane, LaneStream* stream) {
  Transfer& transfer = transfers_[start.comm];
  transfer.start = start;
  LaneStream* const out = BeginsOn(start.comm, stream);
  if (out != stream) out->Follow(*stream);
  Stream& copies = out->stream();
  copies.Record(transfer.begin.get());
  for (size_t t = 0; t < transfer.tensors.size(); ++t) {
    // A send has none.
    if (transfer.tensors[t].output_bytes > 0) transfer.results[t] = start.outputs[t];
    if (transfer.is_receive || transfer.tensors[t].input_bytes == 0) continue;
    copies.Copy(transfer.inputs[t], start.inputs[t], transfer.tensors[t].input_bytes,
                CopyKind::kDeviceToHost);
  }
  if (!transfer.is_receive) copies.Record(transfer.event.get());
  Queue& queue = queues_[2 * static_cast<size_t>(lane) + (transfer.is_receive ? 1 : 0)];
  queue.comms[(queue.first + queue.count++) % queue.comms.size()] = start.comm;
  ++num_pending_;
}

bool HostStaging::NextReady(CommStart* start, const StreamError** error) {
  if (num_pending_ == 0) return false;
  for (Queue& queue : queues_) {
    const auto at = [&queue](uint32_t i) -> uint32_t& {
      return queue.comms[(queue.first + i) % queue.comms.size()];
    };
    uint32_t ready = 0;
    while (ready < queue.count && !transfers_[at(ready)].event->IsDone()) ++ready;
    if (ready == queue.count) continue;
    const Transfer& transfer = transfers_[at(ready)];
    for (; ready > 0; --ready) at(ready) = at(ready - 1);
    queue.first = (queue.first + 1) % queue.comms.size();
    --queue.count;
    --num_pending_;
    *start = transfer.start;
    start->inputs = transfer.inputs.data();
    start->outputs = transfer.outputs.data();
    // The event of a receive belongs to an earlier run, whose error is known.
    *error = transfer.is_receive ? nullptr : transfer.event->error();
    return true;
  }
  return false;
}

void HostStaging::End(uint32_t comm, LaneStream* stream) {
  Transfer& transfer = transfers_[comm];
  if (!transfer.has_results) return;
  LaneStream& in = *streams_[transfer.streams].in;
  in.stream().Wait(transfer.begin.get());
  for (size_t t = 0; t < transfer.tensors.size(); ++t) {
    if (transfer.tensors[t].output_bytes == 0) continue;
    in.stream().Copy(transfer.results[t], transfer.outputs[t], transfer.tensors[t].output_bytes,
                     CopyKind::kHostToDevice);
  }
  if (transfer.is_receive) in.stream().Record(transfer.event.get());
  stream->Follow(in);
}

bool HostStaging::Poll() {
  bool has_moved = false;
  for (Streams& streams : streams_) {
    has_moved |= streams.out->stream().Poll();
    has_moved |= streams.in->stream().Poll();
  }
  return has_moved;
}

absl::Status HostStaging::Reset() {
  absl::Status status;
  for (Streams& streams : streams_) {
    status.Update(streams.out->stream().Reset());
    status.Update(streams.in->stream().Reset());
  }
  return status;
}

void HostStaging::Close() {
  for (Streams& streams : streams_) {
    streams.out->Close();
    streams.in->Close();
  }
}

}  // namespace penstock::actors
