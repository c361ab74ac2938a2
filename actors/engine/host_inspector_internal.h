// The inspector of a host's devices.
//
// Thread rule: thread-safe. Invariant: after Close no executor is touched.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "caf/all.hpp"

#include "actors/engine/host_activity_internal.h"
#include "actors/engine/inspector.h"

namespace penstock::actors {

class HostInspector final : public LocalInspector {
 public:
  // `first_device` is the plan's index of the first executor. `activity` is not used after Close.
  // REQUIRES: all executors are loaded.
  HostInspector(uint32_t first_device, std::vector<caf::actor> executors,
                const HostActivity& activity)
      : first_device_(first_device), executors_(std::move(executors)), activity_(&activity) {}

  absl::StatusOr<EngineSnapshot> Inspect(absl::Duration timeout) override;
  absl::StatusOr<std::shared_ptr<Inspection>> Begin() override;
  void Close();

 private:
  const uint32_t first_device_;
  absl::Mutex mutex_;
  std::vector<caf::actor> executors_ ABSL_GUARDED_BY(mutex_);
  const HostActivity* activity_ ABSL_GUARDED_BY(mutex_);  // null: closed
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_
