#include <protozero/basic_pbf_builder.hpp>
#include <protozero/buffer_fixed.hpp>
#include <protozero/pbf_builder.hpp>

#include <array>
#include <utility>

#include "nlohmann/json.hpp"

#include "actors/trace/perfetto_writer_internal.h"

namespace penstock::actors {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr uint32_t kSequence = 1;  // all packets are of one writer

// Fields of the schema's messages.
enum class TraceField : protozero::pbf_tag_type { kPacket = 1 };
enum class PacketField : protozero::pbf_tag_type {
  kTimestamp = 8,
  kSequenceId = 10,
  kTrackEvent = 11,
  kInternedData = 12,
  kSequenceFlags = 13,
  kTrackDescriptor = 60,
};
enum class DescriptorField : protozero::pbf_tag_type {
  kUuid = 1,
  kName = 2,
  kProcess = 3,
  kParentUuid = 5,
  kCounter = 8,
  kChildOrdering = 11,
  kSiblingOrderRank = 12,
  kDescription = 14,
  kSiblingMergeBehavior = 15,
};
enum class ProcessField : protozero::pbf_tag_type { kPid = 1, kName = 6 };
enum class CounterField : protozero::pbf_tag_type { kUnit = 3 };
enum class EventField : protozero::pbf_tag_type {
  kDebugAnnotations = 4,
  kType = 9,
  kNameIid = 10,
  kTrackUuid = 11,
  kCounterValue = 30,
  kFlowIds = 47,
  kTerminatingFlowIds = 48,
};
enum class AnnotationField : protozero::pbf_tag_type {
  kNameIid = 1,
  kIntValue = 4,
  kDoubleValue = 5,
};
enum class InternedField : protozero::pbf_tag_type { kEventNames = 2, kAnnotationNames = 3 };
enum class NameField : protozero::pbf_tag_type { kIid = 1, kName = 2 };

enum EventType : int32_t { kSliceBegin = 1, kSliceEnd = 2, kCounter = 4 };
enum SequenceFlag : uint32_t { kStateCleared = 1, kNeedsState = 2 };
constexpr int32_t kExplicitOrder = 3;
constexpr int32_t kNeverMerge = 2;  // with siblings of the same name

// Names of arguments, each interned at its own number.
enum AnnotationName : uint64_t { kStep = 1, kMicrobatch = 2, kWaitMs = 3 };

using Packet = protozero::pbf_builder<PacketField>;

// Packets of numbers alone, of which there are many, are built without allocation.
template <typename Field>
using ShortBuilder = protozero::basic_pbf_builder<protozero::fixed_size_buffer_adaptor, Field>;

struct ShortPacket {
  std::array<char, 256> memory;  // about three times what the longest one takes
  protozero::fixed_size_buffer_adaptor buffer{memory};

  std::string_view bytes() const { return {buffer.data(), buffer.size()}; }
};

// Names come from users' graphs; strings of the schema are UTF-8.
std::string ReplaceInvalidUtf8(std::string_view text) {
  const std::string quoted =
      nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return nlohmann::json::parse(quoted).get<std::string>();
}

protozero::data_view View(std::string_view text) { return {text.data(), text.size()}; }

void AddInterned(protozero::pbf_builder<InternedField>* interned, InternedField field,
                 uint64_t number, std::string_view name) {
  protozero::pbf_builder<NameField> entry(*interned, field);
  entry.add_uint64(NameField::kIid, number);
  entry.add_string(NameField::kName, View(name));
}

}  // namespace

PerfettoWriter::Track PerfettoWriter::AddTrack(std::string_view name, const TrackOptions& options) {
  const Track track = ++num_tracks_;
  const std::string text = ReplaceInvalidUtf8(name);
  std::string bytes;
  {
    Packet packet(bytes);
    protozero::pbf_builder<DescriptorField> descriptor(packet, PacketField::kTrackDescriptor);
    descriptor.add_uint64(DescriptorField::kUuid, track);
    if (options.parent != 0) descriptor.add_uint64(DescriptorField::kParentUuid, options.parent);
    if (options.process_id.has_value()) {
      protozero::pbf_builder<ProcessField> process(descriptor, DescriptorField::kProcess);
      process.add_int32(ProcessField::kPid, *options.process_id);
      process.add_string(ProcessField::kName, text);
    } else {
      descriptor.add_string(DescriptorField::kName, text);
    }
    if (!options.description.empty()) {
      descriptor.add_string(DescriptorField::kDescription, ReplaceInvalidUtf8(options.description));
    }
    descriptor.add_enum(DescriptorField::kChildOrdering, kExplicitOrder);
    descriptor.add_int32(DescriptorField::kSiblingOrderRank, options.rank);
    descriptor.add_enum(DescriptorField::kSiblingMergeBehavior, kNeverMerge);
  }
  Write(bytes);
  return track;
}

PerfettoWriter::Track PerfettoWriter::AddCounter(std::string_view name, Track parent, Unit unit) {
  const Track track = ++num_tracks_;
  std::string bytes;
  {
    Packet packet(bytes);
    protozero::pbf_builder<DescriptorField> descriptor(packet, PacketField::kTrackDescriptor);
    descriptor.add_uint64(DescriptorField::kUuid, track);
    descriptor.add_uint64(DescriptorField::kParentUuid, parent);
    descriptor.add_string(DescriptorField::kName, ReplaceInvalidUtf8(name));
    protozero::pbf_builder<CounterField> counter(descriptor, DescriptorField::kCounter);
    counter.add_enum(CounterField::kUnit, static_cast<int32_t>(unit));
  }
  Write(bytes);
  return track;
}

PerfettoWriter::Name PerfettoWriter::AddName(std::string_view name) {
  const bool is_first = names_.empty();
  const auto [it, is_new] = names_.try_emplace(std::string(name), names_.size() + 1);
  if (!is_new) return it->second;
  std::string bytes;
  {
    Packet packet(bytes);
    protozero::pbf_builder<InternedField> interned(packet, PacketField::kInternedData);
    AddInterned(&interned, InternedField::kEventNames, it->second, ReplaceInvalidUtf8(name));
    if (is_first) {
      AddInterned(&interned, InternedField::kAnnotationNames, kStep, "step");
      AddInterned(&interned, InternedField::kAnnotationNames, kMicrobatch, "microbatch");
      AddInterned(&interned, InternedField::kAnnotationNames, kWaitMs, "wait_ms");
    }
  }
  Write(bytes);
  return it->second;
}

void PerfettoWriter::AddSlice(Track track, Name name, int64_t begin_ns, int64_t end_ns,
                              const SliceOptions& options) {
  ShortPacket begin;
  {
    ShortBuilder<PacketField> packet(begin.buffer);
    packet.add_uint64(PacketField::kTimestamp, static_cast<uint64_t>(begin_ns));
    ShortBuilder<EventField> event(packet, PacketField::kTrackEvent);
    event.add_enum(EventField::kType, kSliceBegin);
    event.add_uint64(EventField::kTrackUuid, track);
    event.add_uint64(EventField::kNameIid, name);
    if (options.flow != 0) {
      event.add_fixed64(options.ends_flow ? EventField::kTerminatingFlowIds : EventField::kFlowIds,
                        options.flow);
    }
    for (const auto& [number, value] :
         {std::pair(kStep, options.step), std::pair(kMicrobatch, options.microbatch)}) {
      if (!value.has_value()) continue;
      ShortBuilder<AnnotationField> annotation(event, EventField::kDebugAnnotations);
      annotation.add_uint64(AnnotationField::kNameIid, number);
      annotation.add_int64(AnnotationField::kIntValue, *value);
    }
    if (options.wait_ms.has_value()) {
      ShortBuilder<AnnotationField> annotation(event, EventField::kDebugAnnotations);
      annotation.add_uint64(AnnotationField::kNameIid, kWaitMs);
      annotation.add_double(AnnotationField::kDoubleValue, *options.wait_ms);
    }
  }
  Write(begin.bytes());
  ShortPacket end;
  {
    ShortBuilder<PacketField> packet(end.buffer);
    packet.add_uint64(PacketField::kTimestamp, static_cast<uint64_t>(end_ns));
    ShortBuilder<EventField> event(packet, PacketField::kTrackEvent);
    event.add_enum(EventField::kType, kSliceEnd);
    event.add_uint64(EventField::kTrackUuid, track);
  }
  Write(end.bytes());
}

void PerfettoWriter::AddCount(Track counter, int64_t at_ns, int64_t value) {
  ShortPacket count;
  {
    ShortBuilder<PacketField> packet(count.buffer);
    packet.add_uint64(PacketField::kTimestamp, static_cast<uint64_t>(at_ns));
    ShortBuilder<EventField> event(packet, PacketField::kTrackEvent);
    event.add_enum(EventField::kType, kCounter);
    event.add_uint64(EventField::kTrackUuid, counter);
    event.add_int64(EventField::kCounterValue, value);
  }
  Write(count.bytes());
}

void PerfettoWriter::Write(std::string_view packet) {
  // Fields of a message may come in any order, so what all packets have comes last.
  ShortPacket sequence;
  {
    ShortBuilder<PacketField> fields(sequence.buffer);
    fields.add_uint32(PacketField::kSequenceId, kSequence);
    fields.add_uint32(PacketField::kSequenceFlags,
                      std::exchange(is_first_, false) ? kStateCleared : kNeedsState);
  }
  {
    const std::string_view fields = sequence.bytes();
    protozero::pbf_builder<TraceField> trace(buffer_);
    trace.add_bytes_vectored(TraceField::kPacket, View(packet), View(fields));
  }
  if (buffer_.size() >= kBufferBytes) Flush();
}

void PerfettoWriter::Flush() {
  out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  buffer_.clear();
}

}  // namespace penstock::actors
