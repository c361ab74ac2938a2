// Runs the plain classes of a plan's engine as actors: one per device executor
// (executor_actor_internal.h), one for the communication of all devices
// (communication_actor_internal.h), one per stage (stage_actor_internal.h), and a supervisor. All
// of them have state, so the unexpected end of any fails the session (supervision.h).
//
// Thread rule: any thread may call Submit at any time before Stop. One thread at a time calls
// Describe, ReportActivity, TakeTrace and Stop.
// Invariants: no thread of the host outlives Stop; hosts share nothing.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/engine/device_communication.h"
#include "actors/engine/executor.h"
#include "actors/engine/inspector.h"
#include "actors/engine/stage.h"
#include "actors/engine/stall_detector.h"
#include "actors/engine/wait_description.h"
#include "actors/engine/waker.h"

namespace caf {
class actor_system;
}  // namespace caf

namespace penstock::actors {

// Creates an executor; called on the thread that will run it.
using ExecutorFactory = std::function<absl::StatusOr<std::unique_ptr<DeviceExecutor>>()>;

// What a host runs: the devices of a plan in this process, and the stages that they belong to.
struct HostParts {
  // One entry per device in each. All pointers must outlive the host.
  std::vector<ExecutorFactory> executors;
  std::vector<StageLink*> links;  // between each device and the controller of its stage
  std::vector<Waker*> wakers;     // what wakes the executor of each device
  std::vector<DeviceCommunication*> communications;  // what moves each device's messages
  // One entry per stage in each.
  std::vector<std::unique_ptr<StageController>> stages;
  std::vector<std::vector<uint32_t>> stage_devices;  // indices into `executors`
  // Links of devices in other processes, which the executor of the deciding device serves.
  struct RemoteLink {
    size_t stage = 0;     // index into `stages`
    uint32_t device = 0;  // that decides: index into `executors`
    // The device's, of which the deciding device's executor has the executor's side.
    StageLink* link = nullptr;
  };
  std::vector<RemoteLink> remote_links;       // empty if all devices of each stage are here
  transport::Transport* transport = nullptr;  // must live until Stop returns
  // Of the communication executor: the one that the communications were made with.
  Waker* communication_waker = nullptr;
  uint32_t first_device = 0;  // the plan's index of the first entry
  // The plan's detector if all its devices are here; a stall then fails the session. Must outlive
  // the host. Null otherwise.
  const StallDetector* stall_detector = nullptr;
  // Called, on any thread, if there is no stall detector, the executors here make no progress, and
  // the policy of a stage declines every phase that is ready. Called repeatedly while that lasts.
  std::function<void()> on_declined;
  // Called, on any thread, when the session cannot go on because of an illegal choice of a policy
  // or the unexpected end of an actor. May be called several times.
  std::function<void(const absl::Status&)> on_failure;
  // The devices that use the process's cores have more threads than there are cores.
  bool is_oversubscribed = false;
};

// The actors that run the devices of a plan in this process, and their threads.
class Host {
 public:
  // Starts the actors and loads all devices within `timeout`. Returns the error of the first device
  // that failed.
  static absl::StatusOr<std::unique_ptr<Host>> Start(HostParts parts, absl::Duration timeout);
  ~Host();  // stops
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  // Gives a step to all devices. Steps come in order from 0. REQUIRES: fewer than kMaxStepsInFlight
  // are under way.
  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers);

  // Describes what every device and stage waits for. A device or stage that does not reply within
  // `timeout` is listed as such.
  std::vector<WaitDescription> Describe(absl::Duration timeout);

  // Lets every stage decide once more and reports the activity so far. Returns kDeadlineExceeded if
  // a stage does not reply within `timeout`, for example because its policy is busy.
  absl::StatusOr<ActivityReport> ReportActivity(absl::Duration timeout);

  // Looks at the devices; also after Stop and when the host is gone.
  std::shared_ptr<LocalInspector> inspector() const;

  // Takes the trace events of executor `device`. REQUIRES: no step is in flight.
  std::vector<TraceEvent> TakeTrace(uint32_t device);

  // Ends all communication and joins all threads, after running kernels have returned. The
  // executors live until the host is destroyed, because the transport may write to their receive
  // buffers until it is destroyed.
  void Stop();

  // What the actors live in; also after Stop.
  caf::actor_system& actor_system();

 private:
  class Impl;
  explicit Host(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_H_
