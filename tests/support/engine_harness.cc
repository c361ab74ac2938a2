#include "tests/support/engine_harness.h"

#include <cstring>
#include <stdexcept>
#include <utility>

#include "actors/engine/check_plan.h"
#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "kernels/emulated/emulated_kernels.h"
#include "planner/plan/failure_flags.h"
#include "transport/emulated/emulated_communicator.h"

namespace penstock::testing {

using actors::DeviceExecutor;
using actors::StageController;
using actors::StageLink;

EngineHarness::EngineHarness(planner::Plan plan, uint64_t seed)
    : plan_(std::move(plan)), random_(seed) {}

EngineHarness::~EngineHarness() {
  for (const auto& executor : executors_) executor->Cancel();
}

absl::StatusOr<std::unique_ptr<EngineHarness>> EngineHarness::Create(
    planner::Plan plan, const HarnessOptions& options, const kernels::KernelRegistry& kernels,
    const planner::PolicyRegistry& policies) {
  RETURN_IF_ERROR(actors::CheckPlan(plan));
  std::unique_ptr<EngineHarness> harness(new EngineHarness(std::move(plan), options.seed));
  if (options.is_emulated) {
    harness->emulated_kernels_ = kernels::EmulatedKernels(kernels);
    if (options.adapt_kernels) {
      harness->emulated_kernels_ = options.adapt_kernels(std::move(harness->emulated_kernels_));
    }
  }
  const planner::Plan& checked = harness->plan_;
  const auto num_devices = static_cast<uint32_t>(checked.devices.size());
  transport::TransportOptions transport_options;
  transport_options.num_devices = num_devices;
  transport_options.num_channels = actors::NumTransportChannels(checked);
  harness->transport_ = transport::CreateInprocTransport(transport_options);
  harness->on_step_done_ = options.on_step_done;
  for (uint32_t i = 0; i < num_devices; ++i) {
    if (options.is_emulated) {
      harness->devices_.push_back(
          EmulatedDevice::Create({.has_thread = false, .seed = options.seed * 31 + i}));
    } else {
      harness->devices_.push_back(CreateCpuDevice(1));
    }
    ASSIGN_OR_RETURN(
        std::unique_ptr<Memory> arena,
        harness->devices_[i]->Allocate(checked.devices[i].arena_bytes, MemoryKind::kDevice));
    harness->arenas_.push_back(std::move(arena));
    ASSIGN_OR_RETURN(
        harness->host_arenas_.emplace_back(),
        harness->devices_[i]->Allocate(checked.devices[i].host_bytes, MemoryKind::kPinned));
    harness->links_.push_back(std::make_unique<StageLink>());
  }
  std::vector<std::vector<actors::StagePeer>> stage_peers(num_devices);
  for (uint32_t stage = 0; stage < checked.stages.size(); ++stage) {
    std::vector<StageLink*> links;
    if (options.is_split) {
      const uint32_t deciding = actors::DecidingDevice(checked.stages[stage]);
      std::vector<std::unique_ptr<StageController>> others;
      for (const uint32_t device : checked.stages[stage].devices) {
        ASSIGN_OR_RETURN(
            std::unique_ptr<StageController> controller,
            StageController::Create(checked, stage, policies, {harness->links_[device].get()}));
        (device == deciding ? harness->stages_ : others).push_back(std::move(controller));
      }
      for (const uint32_t device : checked.stages[stage].devices) {
        if (device == deciding) continue;
        StageLink* link = harness->remote_links_.emplace_back(std::make_unique<StageLink>()).get();
        harness->stages_.back()->AddLink(link);
        stage_peers[deciding].push_back({device, link});
        stage_peers[device].push_back({deciding, nullptr});
      }
      continue;
    }
    for (const uint32_t device : checked.stages[stage].devices) {
      links.push_back(harness->links_[device].get());
    }
    ASSIGN_OR_RETURN(std::unique_ptr<StageController> controller,
                     StageController::Create(checked, stage, policies, std::move(links)));
    harness->stages_.push_back(std::move(controller));
  }
  if (options.has_stream_collectives) {
    if (options.has_stream_messages) {
      harness->launched_ = planner::Launched::kCollectivesAndMessages;
      auto order = planner::OrderLaunches(checked, policies, harness->launched_);
      if (order.ok()) harness->launch_order_ = *std::move(order);
    }
    if (!harness->launch_order_.has_value()) {
      harness->launched_ = planner::Launched::kCollectives;
      auto order = planner::OrderLaunches(checked, policies, harness->launched_);
      if (order.ok()) harness->launch_order_ = *std::move(order);
    }
    harness->tells_failures_ = planner::CollectivesThatTellFailures(checked);
  }
  const transport::CommunicatorFactory create_communicator =
      transport::CreateEmulatedCommunicators();
  for (uint32_t i = 0; i < num_devices; ++i) {
    transport::Endpoint* endpoint = nullptr;  // where devices run all communication themselves
    if (!harness->launches_messages() || options.is_split) {
      ASSIGN_OR_RETURN(endpoint, harness->transport_->OpenEndpoint(i));
    }
    actors::ExecutorParts parts;
    parts.plan = &checked;
    parts.device_index = i;
    parts.target = {harness->devices_[i].get(),
                    options.is_emulated ? &harness->emulated_kernels_ : &kernels,
                    harness->arenas_[i]->data(),
                    harness->host_arenas_[i]->data(),
                    endpoint,
                    nullptr,
                    nullptr,
                    nullptr,
                    {},
                    harness->launched_};
    if (harness->launch_order_.has_value()) {
      ASSIGN_OR_RETURN(harness->communicators_.emplace_back(),
                       create_communicator(i, *harness->devices_[i], {}));
      parts.target.communicator = harness->communicators_[i].get();
      parts.target.launch_order = &*harness->launch_order_;
      parts.target.tells_failures = &harness->tells_failures_;
    }
    harness->communications_.push_back(
        std::make_unique<actors::DeviceCommunication>(endpoint, nullptr, nullptr));
    parts.communication = harness->communications_[i].get();
    parts.stage = harness->links_[i].get();
    parts.stage_peers = stage_peers[i];
    parts.observer = harness.get();
    parts.clock = &harness->clock_;
    actors::ExecutorOptions executor_options;
    executor_options.acts_per_poll = options.acts_per_poll;
    executor_options.firing_seed = options.firing_seed;
    executor_options.trace_capacity = options.trace_capacity;
    executor_options.trace_every = options.trace_every;
    executor_options.captures_graphs = options.captures_graphs;
    ASSIGN_OR_RETURN(std::unique_ptr<DeviceExecutor> executor,
                     DeviceExecutor::Create(parts, executor_options));
    harness->executors_.push_back(std::move(executor));
  }
  return harness;
}

int64_t EngineHarness::Submit(std::vector<Tensor> feeds) {
  auto buffers = std::make_shared<actors::StepBuffers>();
  buffers->feeds = std::move(feeds);
  for (const planner::FetchPlan& fetch : plan_.fetches) buffers->fetches.emplace_back(fetch.type);
  const int64_t step = submitted_++;
  buffers_[step] = buffers;
  for (const auto& executor : executors_) executor->SubmitStep(step, buffers);
  for (const auto& stage : stages_) stage->SetSubmittedSteps(submitted_);
  return step;
}

bool EngineHarness::IsDone() const {
  for (int64_t step = 0; step < submitted_; ++step) {
    const auto it = done_.find(step);
    if (it == done_.end() || it->second < executors_.size()) return false;
  }
  return true;
}

bool EngineHarness::PollOne() {
  const size_t pick = random_() % (executors_.size() + stages_.size());
  if (pick < executors_.size()) return executors_[pick]->Poll();
  return stages_[pick - executors_.size()]->Poll();
}

bool EngineHarness::RunUntilDone() {
  // Late streams hold work back for a few polls, and one of many pollers may be picked rarely.
  const int kMaxIdlePolls = 2000;
  for (int idle = 0; idle < kMaxIdlePolls; ++idle) {
    if (IsDone()) return true;
    if (PollOne()) idle = 0;
  }
  return IsDone();
}

absl::Status EngineHarness::StepStatus(int64_t step) const {
  for (const auto& [failed, message] : errors_) {
    if (failed == step) return absl::UnknownError(message);
  }
  const auto it = poisoned_.find(step);
  if (it != poisoned_.end() && it->second) return absl::UnknownError("poisoned");
  return absl::OkStatus();
}

std::vector<double> EngineHarness::Read(uint32_t device, uint32_t reg, uint32_t slot) {
  const planner::RegisterPlan& plan = plan_.devices[device].registers[reg];
  std::vector<double> values(plan.slot_bytes / sizeof(double));
  if (planner::IsOnHost(plan_.devices[device], plan)) {
    const uint64_t offset = plan.offset - plan_.devices[device].arena_bytes;
    std::memcpy(values.data(), host_arenas_[device]->data() + offset + slot * plan.slot_bytes,
                plan.slot_bytes);
    return values;
  }
  const std::unique_ptr<Event> event = devices_[device]->CreateEvent();
  const std::unique_ptr<Stream> stream = devices_[device]->CreateStream();
  stream->Copy(values.data(), arenas_[device]->data() + plan.offset + slot * plan.slot_bytes,
               values.size() * sizeof(double), CopyKind::kDeviceToHost);
  constexpr int64_t kTimeoutNs = 10'000'000'000;
  const absl::Status status = WaitUntilDone(*stream, *event, kTimeoutNs);
  if (!status.ok()) throw std::runtime_error(std::string(status.message()));
  return values;
}

std::vector<std::string> EngineHarness::Describe() const {
  std::vector<std::string> lines;
  for (const auto& executor : executors_) {
    for (std::string& line : executor->Describe()) lines.push_back(std::move(line));
  }
  return lines;
}

void EngineHarness::OnStepDone(const actors::DeviceStepReport& report) {
  ++done_[report.step];
  if (report.is_poisoned) poisoned_[report.step] = true;
  if (on_step_done_) on_step_done_(report);
}

void EngineHarness::OnFailure(const absl::Status& status) {
  errors_.emplace_back(submitted_, std::string(status.message()));
}

void EngineHarness::OnError(uint32_t, int64_t step, const absl::Status& status) {
  errors_.emplace_back(step, std::string(status.message()));
}

}  // namespace penstock::testing
