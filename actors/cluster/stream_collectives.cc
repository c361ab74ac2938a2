#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/stream_collectives_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr size_t kMaxCollectiveNameBytes = 1024;
// Far more than any plan has.
constexpr unsigned kMaxGroups = 1 << 20;
constexpr unsigned kMaxRuns = 1 << 24;

std::string TextOf(capnp::Text::Reader text, size_t max_bytes) {
  return std::string(text.begin(), std::min(text.size(), max_bytes));
}

}  // namespace

NodeCommunicators DescribeCommunicators(const transport::CommunicatorSource* source,
                                        std::string_view why_not, uint32_t first_device,
                                        uint32_t num_devices) {
  NodeCommunicators communicators;
  if (source == nullptr) {
    communicators.why_not = why_not.empty() ? "its devices have no communicators" : why_not;
    return communicators;
  }
  communicators.name = source->name();
  for (uint32_t i = 0; i < num_devices; ++i) {
    communicators.hardware.push_back(source->HardwareOf(first_device + i));
  }
  return communicators;
}

absl::StatusOr<std::string> AgreeOnCommunicators(absl::Span<const NodeCommunicators> nodes,
                                                 absl::Span<const std::string> node_names) {
  std::map<std::string_view, size_t> users;  // of hardware: nodes
  for (size_t i = 0; i < nodes.size(); ++i) {
    const NodeCommunicators& node = nodes[i];
    if (node.name.empty()) {
      return absl::FailedPreconditionError(StrCat(node_names[i], ": ", node.why_not));
    }
    if (node.name != nodes[0].name) {
      return absl::FailedPreconditionError(StrCat(node_names[0], " has ", nodes[0].name, ", and ",
                                                  node_names[i], " has ", node.name));
    }
    for (const std::string& hardware : node.hardware) {
      const auto [user, is_new] = users.try_emplace(hardware, i);
      if (is_new) continue;
      const std::string names = user->second == i
                                    ? StrCat("devices of ", node_names[i])
                                    : StrCat(node_names[user->second], " and ", node_names[i]);
      return absl::FailedPreconditionError(
          StrCat(nodes[0].name, " wants a GPU for each device, and ", names, " share ", hardware));
    }
  }
  return nodes.empty() ? std::string() : nodes[0].name;
}

NodeCollectives PartOf(const NodeCollectives& all, DeviceRange devices) {
  NodeCollectives part;
  part.launches.tells_failures = all.launches.tells_failures;
  part.launches.launched = all.launches.launched;
  part.launches.order.resize(all.launches.order.size());
  std::copy_n(all.launches.order.begin() + devices.first, devices.count,
              part.launches.order.begin() + devices.first);
  for (const auto& [group, id] : all.ids) {
    if (std::any_of(group.devices.begin(), group.devices.end(),
                    [&](uint32_t d) { return devices.Has(d); })) {
      part.ids[group] = id;
    }
  }
  return part;
}

void WriteCommunicators(const NodeCommunicators& communicators,
                        control::Communicators::Builder builder) {
  builder.setName(communicators.name.c_str());
  builder.setWhyNot(communicators.why_not.c_str());
  auto hardware = builder.initHardware(static_cast<unsigned>(communicators.hardware.size()));
  for (unsigned i = 0; i < hardware.size(); ++i) hardware.set(i, communicators.hardware[i].c_str());
}

absl::StatusOr<NodeCommunicators> ReadCommunicators(control::Communicators::Reader reader,
                                                    uint32_t num_devices) {
  NodeCommunicators communicators;
  communicators.name = TextOf(reader.getName(), kMaxCollectiveNameBytes);
  communicators.why_not = TextOf(reader.getWhyNot(), kMaxCollectiveNameBytes);
  if (communicators.name.empty()) return communicators;
  // The size first: a list's elements may take no bytes in the message that names them.
  if (reader.getHardware().size() != num_devices) {
    return absl::InternalError("named the hardware of other devices than its own");
  }
  for (const auto hardware : reader.getHardware()) {
    communicators.hardware.push_back(TextOf(hardware, kMaxCollectiveNameBytes));
  }
  return communicators;
}

void WriteCollectives(const NodeCollectives& collectives, DeviceRange devices,
                      control::StreamCollectives::Builder builder) {
  auto launches = builder.initLaunches(devices.count);
  for (uint32_t i = 0; i < devices.count; ++i) {
    const std::vector<planner::LaunchRun>& runs = collectives.launches.order[devices.first + i];
    auto of_device = launches.init(i, static_cast<unsigned>(runs.size()));
    for (unsigned r = 0; r < of_device.size(); ++r) {
      of_device[r].setPhase(runs[r].phase);
      of_device[r].setCount(runs[r].count);
    }
  }
  const std::vector<bool>& tells_failures = collectives.launches.tells_failures;
  auto tells = builder.initTellsFailures(static_cast<unsigned>(tells_failures.size()));
  for (unsigned i = 0; i < tells.size(); ++i) tells.set(i, tells_failures[i]);
  builder.setHasMessages(collectives.launches.launched ==
                         planner::Launched::kCollectivesAndMessages);
  auto groups = builder.initGroups(static_cast<unsigned>(collectives.ids.size()));
  unsigned next = 0;
  for (const auto& [group, id] : collectives.ids) {
    groups[next].setDevices(
        kj::ArrayPtr<const uint32_t>(group.devices.data(), group.devices.size()));
    groups[next].setUse(static_cast<uint8_t>(group.use));
    groups[next].setId(control::AsData(id.data(), id.size()));
    ++next;
  }
}

absl::StatusOr<NodeCollectives> ReadCollectives(control::StreamCollectives::Reader reader,
                                                DeviceRange devices, uint32_t num_devices) {
  const auto too_many = [] {
    return absl::InvalidArgumentError("the collectives do not fit the devices");
  };
  NodeCollectives collectives;
  if (reader.getLaunches().size() != devices.count || devices.first > num_devices ||
      devices.count > num_devices - devices.first || reader.getGroups().size() > kMaxGroups ||
      reader.getTellsFailures().size() > kMaxRuns) {
    return too_many();
  }
  collectives.launches.order.resize(num_devices);
  for (uint32_t i = 0; i < devices.count; ++i) {
    const auto runs = reader.getLaunches()[i];
    if (runs.size() > kMaxRuns) return too_many();
    for (const auto run : runs) {
      collectives.launches.order[devices.first + i].push_back({run.getPhase(), run.getCount()});
    }
  }
  if (reader.getHasMessages()) {
    collectives.launches.launched = planner::Launched::kCollectivesAndMessages;
  }
  for (const bool tells : reader.getTellsFailures()) {
    collectives.launches.tells_failures.push_back(tells);
  }
  for (const auto group : reader.getGroups()) {
    if (group.getDevices().size() > num_devices ||
        group.getUse() > static_cast<uint8_t>(transport::GroupUse::kSmallMessages) ||
        (group.getUse() != 0 && group.getDevices().size() != 2) ||
        group.getId().size() > transport::kMaxGroupIdBytes) {
      return too_many();
    }
    std::vector<uint32_t> members;
    for (const uint32_t device : group.getDevices()) members.push_back(device);
    collectives.ids[transport::DeviceGroup(std::move(members),
                                           static_cast<transport::GroupUse>(group.getUse()))] =
        control::AsText(group.getId());
  }
  return collectives;
}

}  // namespace penstock::actors
