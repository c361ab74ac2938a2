// The messages that a host sends to its executor actors and stage actors. They hold handles and
// never leave the process.
//
// Thread rule: plain data.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_MESSAGES_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_MESSAGES_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "caf/all.hpp"

#include "actors/engine/device_snapshot.h"
#include "actors/engine/executor.h"
#include "actors/engine/reply_collector_internal.h"
#include "actors/engine/wait_description.h"

namespace penstock::actors {

// Submits a step. `buffers` is null for a stage actor.
struct SubmitMessage {
  int64_t step = 0;
  std::shared_ptr<StepBuffers> buffers;
};

// Asks an executor or a stage what it waits for.
struct DescribeMessage {
  std::shared_ptr<ReplyCollector<std::vector<WaitDescription>>> replies;
};

// Asks an executor what its device does.
struct InspectMessage {
  std::shared_ptr<ReplyCollector<DeviceSnapshot>> replies;
};

// Asks a stage to decide again. The reply describes the stage if it declines every phase that is
// ready, and is empty otherwise.
struct DeclinedMessage {
  std::shared_ptr<ReplyCollector<std::string>> replies;
};

// Tells a stage that an executor has changed what the stage decides on.
using WakeAtom = caf::atom_constant<caf::atom("wake")>;

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::SubmitMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::DescribeMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::InspectMessage)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::DeclinedMessage)

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_MESSAGES_INTERNAL_H_
