// The communication executor of a process: one thread that advances the sends, receives and
// collectives of all its devices while they compute.
//
// There is one a process and not one a device: devices of a process share the descriptors that it
// sleeps on, and what it does between two sleeps takes microseconds.
//
// Thread rule: an actor; enqueue from any thread. Invariants: it sleeps unless something arrives or
// is handed over; its end is reported to whoever monitors it.

#ifndef PENSTOCK_ACTORS_ENGINE_COMMUNICATION_ACTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_COMMUNICATION_ACTOR_INTERNAL_H_

#include <memory>
#include <vector>

#include "caf/all.hpp"

#include "actors/engine/device_communication.h"
#include "actors/engine/waker.h"
#include "transport/transport.h"

namespace penstock::actors {

// Spawn it detached.
class CommunicationActor : public caf::blocking_actor {
 public:
  // The pointers outlive the actor; `transport` is that of the devices.
  CommunicationActor(caf::actor_config& config, std::vector<DeviceCommunication*> devices,
                     transport::Transport* transport, Waker* waker);

  const char* name() const override { return "communication"; }
  void enqueue(caf::mailbox_element_ptr element, caf::execution_unit* unit) override;
  void act() override;

 private:
  bool Work(caf::behavior& commands);

  const std::vector<DeviceCommunication*> devices_;
  transport::Transport* const transport_;
  Waker* const waker_;
  bool is_stopping_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_COMMUNICATION_ACTOR_INTERNAL_H_
