#include <algorithm>
#include <string>
#include <utility>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "actors/cluster/wire_status_internal.h"
#include "base/strings.h"

namespace penstock::actors::control {
namespace {

// Limits of a job, far above those of any.
constexpr unsigned kMaxProcesses = 65536;
constexpr unsigned kMaxDevices = 1 << 17;
// Waits that are sent of a device, and of a job; the rest is left out.
constexpr unsigned kMaxDeviceWaits = 128;
constexpr unsigned kMaxWaits = 1 << 16;
constexpr unsigned kMaxCommunications = 1 << 24;
// Devices that one waits for, in a message: the rest is left out.
constexpr unsigned kMaxNamedDevices = 256;
constexpr size_t kMaxShortText = 4096;

std::string ReadText(capnp::Text::Reader text) {
  return {text.begin(), std::min(text.size(), kMaxShortText)};
}

std::string Cut(const std::string& text) { return text.substr(0, kMaxShortText); }

unsigned Bounded(size_t size, unsigned limit) {
  return static_cast<unsigned>(std::min<size_t>(size, limit));
}

template <typename List>
std::vector<uint32_t> ReadDeviceList(const List& list, uint32_t num_devices) {
  std::vector<uint32_t> devices;
  for (unsigned i = 0; i < Bounded(list.size(), kMaxDevices); ++i) {
    if (list[i] < num_devices) devices.push_back(list[i]);
  }
  return devices;
}

void WriteDevice(const DeviceSnapshot& device, DeviceState::Builder out) {
  out.setDevice(device.device);
  out.setState(static_cast<uint8_t>(device.state));
  out.setRunning(Cut(device.running).c_str());
  out.setGraphs(Cut(device.graphs).c_str());
  out.setStep(device.step);
  out.setAgeNs(device.age_ns);
  out.setIdleNs(device.idle_ns);
  out.setStillNs(device.still_ns);
  out.setCollectiveNs(device.collective_ns);
  out.setTransferNs(device.transfer_ns);
  out.setMicrobatches(device.microbatches);
  auto channels = out.initChannels();
  channels.setCredits(device.channels.credits);
  channels.setCreditsInUse(device.channels.credits_in_use);
  channels.setTokensWaiting(device.channels.tokens_waiting);
  channels.setBytesInUse(device.channels.bytes_in_use);
  out.setCommunications(
      kj::ArrayPtr<const uint64_t>(device.communications.data(), device.communications.size()));
  auto waits = out.initWaits(Bounded(device.waits.size(), kMaxDeviceWaits));
  for (unsigned i = 0; i < waits.size(); ++i) {
    waits[i].setActor(Cut(device.waits[i].actor).c_str());
    waits[i].setWhat(Cut(device.waits[i].what).c_str());
    waits[i].setCommunication(device.waits[i].communication);
  }
}

DeviceSnapshot ReadDevice(DeviceState::Reader reader) {
  using State = DeviceSnapshot::State;
  DeviceSnapshot device;
  device.device = reader.getDevice();
  const uint8_t state = reader.getState();
  device.state =
      state <= static_cast<uint8_t>(State::kWaiting) ? static_cast<State>(state) : State::kSilent;
  device.running = ReadText(reader.getRunning());
  device.graphs = ReadText(reader.getGraphs());
  device.step = reader.getStep();
  device.age_ns = std::max<int64_t>(reader.getAgeNs(), 0);
  device.idle_ns = std::clamp<int64_t>(reader.getIdleNs(), 0, device.age_ns);
  device.still_ns = std::max<int64_t>(reader.getStillNs(), 0);
  device.collective_ns = std::clamp<int64_t>(reader.getCollectiveNs(), 0, device.idle_ns);
  device.transfer_ns =
      std::clamp<int64_t>(reader.getTransferNs(), 0, device.idle_ns - device.collective_ns);
  device.microbatches = std::max<int64_t>(reader.getMicrobatches(), 0);
  const auto channels = reader.getChannels();
  device.channels = {channels.getCredits(), channels.getCreditsInUse(), channels.getTokensWaiting(),
                     channels.getBytesInUse()};
  const auto communications = reader.getCommunications();
  for (unsigned i = 0; i < Bounded(communications.size(), kMaxCommunications); ++i) {
    device.communications.push_back(communications[i]);
  }
  const auto waits = reader.getWaits();
  for (unsigned i = 0; i < Bounded(waits.size(), kMaxDeviceWaits); ++i) {
    device.waits.push_back(
        {ReadText(waits[i].getActor()), ReadText(waits[i].getWhat()), waits[i].getCommunication()});
  }
  return device;
}

kj::ArrayPtr<const uint32_t> Named(const std::vector<uint32_t>& devices) {
  return {devices.data(), Bounded(devices.size(), kMaxNamedDevices)};
}

}  // namespace

void WriteDevices(const std::vector<DeviceSnapshot>& devices,
                  Node::InspectResults::Builder results) {
  auto out = results.initDevices(static_cast<unsigned>(devices.size()));
  for (unsigned i = 0; i < out.size(); ++i) WriteDevice(devices[i], out[i]);
}

absl::StatusOr<std::vector<DeviceSnapshot>> ReadDevices(Node::InspectResults::Reader results,
                                                        uint32_t first_device,
                                                        uint32_t num_devices) {
  const auto list = results.getDevices();
  if (list.size() != num_devices) {
    return absl::InternalError(
        StrCat("told of ", list.size(), " devices where it has ", num_devices));
  }
  std::vector<DeviceSnapshot> devices;
  for (const auto reader : list) {
    devices.push_back(ReadDevice(reader));
    const uint32_t expected = first_device + static_cast<uint32_t>(devices.size()) - 1;
    if (devices.back().device != expected) {
      return absl::InternalError(
          StrCat("told of device ", devices.back().device, " in the place of ", expected));
    }
  }
  return devices;
}

void WriteJobStatus(const actors::JobStatus& status, JobStatus::Builder builder) {
  builder.setId(Cut(status.id).c_str());
  builder.setName(Cut(status.name).c_str());
  builder.setStrategy(Cut(status.strategy).c_str());
  builder.setHost(Cut(status.host).c_str());
  builder.setPid(status.pid);
  builder.setActivity(Cut(status.activity).c_str());
  builder.setNote(Cut(status.note).c_str());
  builder.setSession(status.session);
  builder.setStepsDone(status.steps_done);
  builder.setSteps(status.steps);
  builder.setMicrobatches(status.microbatches);
  builder.setLoss(status.loss);
  builder.setStepTimeS(status.step_time_s);
  builder.setTokensPerS(status.tokens_per_s);
  builder.setAgeS(status.age_s);
  auto processes = builder.initProcesses(Bounded(status.processes.size(), kMaxProcesses));
  for (unsigned i = 0; i < processes.size(); ++i) {
    const ProcessSnapshot& process = status.processes[i];
    processes[i].setRank(process.rank);
    processes[i].setPid(process.pid);
    processes[i].setHost(Cut(process.host).c_str());
    processes[i].setAnswers(process.answers);
    processes[i].setSilenceNs(process.silence_ns);
    processes[i].setResidentBytes(process.resident_bytes);
    processes[i].setFirstDevice(process.first_device);
    processes[i].setNumDevices(process.num_devices);
  }
  auto devices = builder.initDevices(Bounded(status.devices.size(), kMaxDevices));
  for (unsigned i = 0; i < devices.size(); ++i) {
    WriteDevice(status.devices[i].state, devices[i].initState());
    devices[i].setStage(status.devices[i].stage);
    devices[i].setMemoryBytes(status.devices[i].memory_bytes);
    devices[i].setNumPending(status.devices[i].num_pending);
    devices[i].setWaitsFor(Named(status.devices[i].waits_for));
  }
  auto waits = builder.initWaits(Bounded(status.waits.size(), kMaxWaits));
  for (unsigned i = 0; i < waits.size(); ++i) {
    waits[i].setActor(Cut(status.waits[i].actor).c_str());
    waits[i].setDevice(status.waits[i].device);
    waits[i].setWhat(Cut(status.waits[i].what).c_str());
    waits[i].setDevices(Named(status.waits[i].devices));
  }
  builder.setRoots({status.roots.data(), status.roots.size()});
  auto cycles = builder.initCycles(static_cast<unsigned>(status.cycles.size()));
  for (unsigned i = 0; i < cycles.size(); ++i) {
    auto cycle = cycles.init(i, static_cast<unsigned>(status.cycles[i].size()));
    for (unsigned k = 0; k < cycle.size(); ++k) cycle.set(k, status.cycles[i][k]);
  }
}

absl::StatusOr<actors::JobStatus> ReadJobStatus(JobStatus::Reader reader) {
  // The sizes first: a list's elements may take no bytes in the message that names them.
  if (reader.getProcesses().size() > kMaxProcesses || reader.getDevices().size() > kMaxDevices ||
      reader.getWaits().size() > kMaxWaits || reader.getRoots().size() > kMaxDevices ||
      reader.getCycles().size() > kMaxDevices) {
    return absl::InternalError("the status of the job has lists that are too long");
  }
  actors::JobStatus status;
  status.id = ReadText(reader.getId());
  status.name = ReadText(reader.getName());
  status.strategy = ReadText(reader.getStrategy());
  status.host = ReadText(reader.getHost());
  status.pid = reader.getPid();
  status.activity = ReadText(reader.getActivity());
  status.note = ReadText(reader.getNote());
  status.session = reader.getSession();
  status.steps_done = reader.getStepsDone();
  status.steps = reader.getSteps();
  status.microbatches = std::max<int64_t>(reader.getMicrobatches(), 1);
  status.loss = reader.getLoss();
  status.step_time_s = reader.getStepTimeS();
  status.tokens_per_s = reader.getTokensPerS();
  status.age_s = reader.getAgeS();
  const auto num_devices = static_cast<uint32_t>(reader.getDevices().size());
  for (const auto process : reader.getProcesses()) {
    ProcessSnapshot& out = status.processes.emplace_back();
    out.rank = process.getRank();
    out.pid = process.getPid();
    out.host = ReadText(process.getHost());
    out.answers = process.getAnswers();
    out.silence_ns = process.getSilenceNs();
    out.resident_bytes = process.getResidentBytes();
    out.first_device = std::min(process.getFirstDevice(), num_devices);
    out.num_devices = std::min(process.getNumDevices(), num_devices - out.first_device);
  }
  for (const auto device : reader.getDevices()) {
    actors::JobStatus::Device& out = status.devices.emplace_back();
    out.state = ReadDevice(device.getState());
    out.state.device = static_cast<uint32_t>(status.devices.size()) - 1;
    out.stage = device.getStage();
    out.memory_bytes = device.getMemoryBytes();
    out.num_pending = device.getNumPending();
    out.waits_for = ReadDeviceList(device.getWaitsFor(), num_devices);
  }
  for (const auto wait : reader.getWaits()) {
    if (wait.getDevice() >= num_devices) continue;
    status.waits.push_back({ReadText(wait.getActor()), wait.getDevice(), ReadText(wait.getWhat()),
                            ReadDeviceList(wait.getDevices(), num_devices)});
  }
  status.roots = ReadDeviceList(reader.getRoots(), num_devices);
  for (const auto cycle : reader.getCycles()) {
    status.cycles.push_back(ReadDeviceList(cycle, num_devices));
  }
  return status;
}

kj::Promise<void> AnswerStatus(kj::Promise<Questions<actors::JobStatus>::Answer> answer,
                               StatusContext context) {
  return answer.then([context](Questions<actors::JobStatus>::Answer&& status) mutable {
    auto results = context.getResults();
    WriteStatus(status->status(), results.initStatus());
    if (status->ok()) WriteJobStatus(**status, results.initJob());
  });
}

}  // namespace penstock::actors::control
