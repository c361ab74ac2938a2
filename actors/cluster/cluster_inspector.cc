#include <algorithm>
#include <utility>
#include <vector>

#include "actors/cluster/cluster_inspector_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "base/status_macros.h"

namespace penstock::actors {
namespace {

// How much longer than its devices a node may take to answer.
constexpr absl::Duration kSlack = absl::Milliseconds(500);

}  // namespace

absl::StatusOr<EngineSnapshot> ClusterInspector::Inspect(absl::Duration timeout) {
  const auto snapshot = std::make_shared<EngineSnapshot>();
  RETURN_IF_ERROR(
      access_->With([&](control::ControlLoop& loop, NodeSupervisor& supervisor) -> absl::Status {
        // The look matters most where the failure detector does not answer.
        const MemberSilences silences = supervisor.Silences(kSlack).value_or(MemberSilences());
        return loop.Await(
            [&, this]() -> control::StatusPromise {
              if (session_->is_over()) {
                return absl::FailedPreconditionError("the session has ended");
              }
              snapshot->devices.resize(session_->plan().devices.size());
              snapshot->processes.resize(session_->num_processes());
              auto calls = kj::heapArrayBuilder<control::StatusPromise>(session_->num_processes());
              for (uint32_t rank = 0; rank < session_->num_processes(); ++rank) {
                calls.add(AskNode(loop, supervisor, rank, silences, timeout, snapshot));
              }
              return control::JoinStatuses(calls.finish());
            },
            timeout + 2 * kSlack, "the look at the devices");
      }));
  return std::move(*snapshot);
}

// Ends with OK: a node that fails to answer is one that does not answer.
control::StatusPromise ClusterInspector::AskNode(
    control::ControlLoop& loop, NodeSupervisor& supervisor, uint32_t rank,
    const MemberSilences& silences, absl::Duration timeout,
    const std::shared_ptr<EngineSnapshot>& snapshot) const {
  const NodeDescription& node = supervisor.DescriptionOf(rank);
  const DeviceRange devices = session_->DevicesOf(rank);
  const auto silence = silences.by_rank.find(rank);
  snapshot->processes[rank] = {
      .rank = rank,
      .pid = node.pid,
      .host = ShownHost(node),
      .answers = false,
      .silence_ns =
          silence == silences.by_rank.end() ? 0 : absl::ToInt64Nanoseconds(silence->second),
      .first_device = devices.first,
      .num_devices = devices.count,
  };
  for (uint32_t i = 0; i < devices.count; ++i) {
    snapshot->devices[devices.first + i].device = devices.first + i;
  }
  KJ_IF_MAYBE (client, supervisor.NodeOf(rank)) {
    auto call = client->inspectRequest();
    call.setGeneration(session_->generation());
    call.setTimeoutMs(
        static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(timeout), 0, 60'000)));
    return control::StatusOf(
               call.send(),
               [snapshot, rank, devices](auto&& response) -> absl::Status {
                 ASSIGN_OR_RETURN(std::vector<DeviceSnapshot> told,
                                  control::ReadDevices(response, devices.first, devices.count));
                 std::move(told.begin(), told.end(), snapshot->devices.begin() + devices.first);
                 snapshot->processes[rank].answers = true;
                 snapshot->processes[rank].silence_ns = 0;
                 snapshot->processes[rank].resident_bytes = response.getResidentBytes();
                 return absl::OkStatus();
               })
        .then([](absl::Status&&) { return absl::OkStatus(); })
        .exclusiveJoin(loop.timer().afterDelay(control::ToKj(timeout + kSlack)).then([] {
          return absl::OkStatus();
        }));
  }
  return absl::OkStatus();
}

}  // namespace penstock::actors
