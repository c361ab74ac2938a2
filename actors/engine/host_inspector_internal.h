// The inspector of a host's devices.
//
// Thread rule: thread-safe. Invariant: after Close no executor is touched.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "caf/all.hpp"

#include "actors/engine/executor.h"
#include "actors/engine/inspector.h"

namespace penstock::actors {

class HostInspector final : public LocalInspector,
                            public std::enable_shared_from_this<HostInspector> {
 public:
  // `first_device` is the plan's index of the first executor; actors[i] runs executors[i].
  // REQUIRES: there is one; all executors are loaded.
  HostInspector(uint32_t first_device, std::vector<caf::actor> actors,
                std::vector<const DeviceExecutor*> executors)
      : first_device_(first_device), actors_(std::move(actors)), executors_(std::move(executors)) {}

  absl::StatusOr<EngineSnapshot> Inspect(absl::Duration timeout) override;
  absl::StatusOr<std::shared_ptr<Inspection>> Begin() override;
  // What is seen of a device without asking it; nullopt after Close.
  std::optional<DeviceSnapshot> Look(size_t index);
  void Close();

 private:
  const uint32_t first_device_;
  absl::Mutex mutex_;
  std::vector<caf::actor> actors_ ABSL_GUARDED_BY(mutex_);
  std::vector<const DeviceExecutor*> executors_ ABSL_GUARDED_BY(mutex_);  // empty: closed
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_INSPECTOR_INTERNAL_H_
