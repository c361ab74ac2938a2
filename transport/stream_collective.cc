#include "transport/stream_collective.h"

#include "base/strings.h"

namespace penstock::transport {

CollectiveSpec MessageOf(uint32_t channel, uint32_t source, uint32_t destination,
                         uint64_t num_bytes) {
  CollectiveSpec spec;
  spec.kind = CollectiveKind::kPermute;
  spec.dtype = DType::kU8;
  spec.channel = channel;
  spec.devices = {source, destination};
  spec.counts = {static_cast<int64_t>(num_bytes), 0};
  spec.peers = {1, 0};
  return spec;
}

bool IsMessage(const CollectiveSpec& spec) {
  return spec.kind == CollectiveKind::kPermute && spec.devices.size() == 2 && spec.peers[0] == 1 &&
         spec.counts[1] == 0;
}

DeviceGroup GroupOf(const CollectiveSpec& spec) {
  if (!IsMessage(spec)) return DeviceGroup(spec.devices);
  const uint64_t num_bytes = static_cast<uint64_t>(spec.counts[0]) * ByteSize(spec.dtype);
  return DeviceGroup(spec.devices, num_bytes <= kSmallMessageBytes ? GroupUse::kSmallMessages
                                                                   : GroupUse::kMessages);
}

std::string ToString(const DeviceGroup& group) {
  if (group.use == GroupUse::kCollectives) {
    return StrCat("devices ", StrJoin(group.devices, ", "));
  }
  return StrCat(group.use == GroupUse::kSmallMessages ? "small messages" : "messages",
                " from device ", group.devices[0], " to device ", group.devices[1]);
}

}  // namespace penstock::transport
