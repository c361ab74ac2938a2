// Gives the plain classes of a plan's engine their threads: a polling actor a device executor, one
// actor for the communication of all devices, an actor a stage, and a supervisor of them all. They
// have state: the end of any fails the session (supervision.h).
//
// An executor's thread polls; when there has been nothing to do for about as long as a wake-up
// costs it sleeps, and is woken by choices of its stage, by its transport and by commands.
//
// Thread rule: Submit is thread-safe with the others; Describe, ReportActivity, TakeTrace and Stop
// are called by one thread at a time. Nothing is submitted after Stop. Invariants: no thread of the
// host outlives Stop; nothing is shared between hosts.

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
#include "actors/engine/stage.h"
#include "actors/engine/stall_detector.h"
#include "actors/engine/wait_description.h"
#include "actors/engine/waker.h"

namespace penstock::actors {

// Makes an executor on the thread that it will run on.
using ExecutorFactory = std::function<absl::StatusOr<std::unique_ptr<DeviceExecutor>>()>;

struct HostParts {
  // An entry a device in each; what is pointed at outlives the host.
  std::vector<ExecutorFactory> executors;
  std::vector<StageLink*> links;
  std::vector<Waker*> wakers;
  std::vector<DeviceCommunication*> communications;
  // An entry a stage in each.
  std::vector<std::unique_ptr<StageController>> stages;
  std::vector<std::vector<uint32_t>> stage_devices;  // by their entries above
  transport::Transport* transport = nullptr;         // outlives the host's Stop
  Waker* communication_waker = nullptr;
  uint32_t first_device = 0;  // the plan's index of the first entry
  // The plan's, where all its devices are here: a stall is a failure then. Outlives the host.
  const StallDetector* stall_detector = nullptr;
  // Called without one, from any thread: the executors here stand still, and the policy of a stage
  // declines what could run. Called again while that lasts.
  std::function<void()> on_declined;
  // Called once or more, from any thread, when the session cannot go on: a policy's illegal choice,
  // an actor that died.
  std::function<void(const absl::Status&)> on_failure;
  int threads_per_device = 1;
};

class Host {
 public:
  // `timeout` bounds the loading of all devices. The first error of any.
  static absl::StatusOr<std::unique_ptr<Host>> Start(HostParts parts, absl::Duration timeout);
  ~Host();  // stops
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers);

  // What every device and stage waits for, an entry each; those that do not answer in time are
  // named.
  std::vector<WaitDescription> Describe(absl::Duration timeout);

  // What has been done so far, after every stage has looked at what is known. An error if a stage
  // does not answer in time, as its policy is busy.
  absl::StatusOr<ActivityReport> ReportActivity(absl::Duration timeout);

  // What executor `device` has recorded. REQUIRES: no step is under way.
  std::vector<TraceEvent> TakeTrace(uint32_t device);

  // Ends all communication and joins all threads. A kernel that runs is waited for. The executors
  // stay until the host goes: the transport may still write where they receive, and goes first.
  void Stop();

 private:
  class Impl;
  explicit Host(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_H_
