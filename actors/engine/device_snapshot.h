// What a device does at a moment: for people who look at a job that runs or hangs.
//
// Thread rule: values.

#ifndef PENSTOCK_ACTORS_ENGINE_DEVICE_SNAPSHOT_H_
#define PENSTOCK_ACTORS_ENGINE_DEVICE_SNAPSHOT_H_

#include <cstdint>
#include <string>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// Something that an actor of a device waits for.
struct DeviceWait {
  std::string actor;  // that waits
  std::string what;   // it waits for: "tokens from 'h1.y', 0 of 1"
  // A pending communication: its number among the communicating actors of the device, as in
  // DeviceSnapshot::communications. planner::kNone: the wait is for something on the device.
  uint32_t communication = planner::kNone;
  std::string line = {};  // of a report; empty: the one before it says this, too
};

// What is in use of the channels that carry values between the phases of a device. A device that
// launches ahead counts what it has launched.
struct ChannelUse {
  uint64_t credits = 0;         // in all: the tokens that the channels have room for
  uint64_t credits_in_use = 0;  // of those, not returned yet
  uint64_t tokens_waiting = 0;  // that have arrived for phases which have not started
  uint64_t bytes_in_use = 0;    // of channel registers, from the start of the phase that fills them
  friend bool operator==(const ChannelUse&, const ChannelUse&) = default;
};

// One device at the moment of the look.
struct DeviceSnapshot {
  // What the device does.
  enum class State : uint8_t {
    kSilent,   // nothing is known: its process does not answer
    kIdle,     // all submitted steps are done
    kRunning,  // it runs actors
    kWaiting,  // it has nothing to run until something arrives
  };

  uint32_t device = 0;           // its index in the plan
  State state = State::kSilent;  // all that is known if it is kSilent
  std::string running;           // the actor that runs; empty: none, or it is between two
  int64_t step = 0;              // the first that is not done, as SessionOptions::first_step counts
  int64_t age_ns = 0;            // since the device was loaded
  int64_t idle_ns = 0;           // of that, with nothing to run
  // Of that, while a collective of the device was under way.
  int64_t collective_ns = 0;
  int64_t transfer_ns = 0;   // likewise, while other communication was
  int64_t microbatches = 0;  // that have passed through all phases of its compute lane
  ChannelUse channels;       // empty of a silent device
  // How many phases an asynchronous device launches as graphs, and why others are not; empty of
  // other devices.
  std::string graphs;
  int64_t still_ns = 0;  // since when it has had nothing to run; 0: it runs
  // Starts and completions of each communicating actor: odd while it is under way. Empty: silent.
  std::vector<uint64_t> communications;
  std::vector<DeviceWait> waits;  // of a device that waits
};

// A process that has devices.
struct ProcessSnapshot {
  uint32_t rank = 0;            // of the process in its job, from 0
  int64_t pid = 0;              // on its host; 0: not known
  std::string host;             // for messages: its name, or an address
  bool answers = true;          // false: its devices are kSilent
  int64_t silence_ns = 0;       // since its last sign of life
  uint64_t resident_bytes = 0;  // 0: not known
  uint32_t first_device = 0;    // index in the plan; its devices follow each other
  uint32_t num_devices = 0;     // 0: it has none
};

// One look at a job: its processes and the devices of its plan.
struct EngineSnapshot {
  std::vector<ProcessSnapshot> processes;  // by rank
  std::vector<DeviceSnapshot> devices;     // by index
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_DEVICE_SNAPSHOT_H_
