// Looks at the devices of an engine without disturbing them.
//
// Of a device that runs, the actor that it runs is read from a variable: nothing waits for the end
// of a kernel. One that has nothing to run answers what it waits for, at once.
//
// Thread rule: thread-safe, at any time, also when the engine has stopped.

#ifndef PENSTOCK_ACTORS_ENGINE_INSPECTOR_H_
#define PENSTOCK_ACTORS_ENGINE_INSPECTOR_H_

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/engine/device_snapshot.h"

namespace penstock::actors {

// Looks at the devices of an engine.
class Inspector {
 public:
  virtual ~Inspector() = default;

  // Returns within about `timeout`. The devices are looked at one after another: of a job that
  // runs, what one does and what another one waits for need not fit together.
  // kFailedPrecondition: the engine has stopped.
  virtual absl::StatusOr<EngineSnapshot> Inspect(absl::Duration timeout) = 0;
};

// Devices of this process that have been asked. Used by one thread at a time.
class Inspection {
 public:
  virtual ~Inspection() = default;
  // Whether all that were asked have answered, or are seen to run meanwhile, or the session has
  // ended.
  virtual bool IsComplete() = 0;
  // Waits for that. A device that does not answer in time is given as it was seen last.
  virtual std::vector<DeviceSnapshot> Take(absl::Duration timeout) = 0;
};

// An inspector of devices of this process.
class LocalInspector : public Inspector {
 public:
  // Asks the devices and returns at once, for those who may not wait.
  virtual absl::StatusOr<std::shared_ptr<Inspection>> Begin() = 0;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_INSPECTOR_H_
