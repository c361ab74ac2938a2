// Makes the ordering that CAF guarantees visible to ThreadSanitizer. Debian's libcaf_core is not
// instrumented: ThreadSanitizer does not see the atomics of a mailbox, of the scheduler's queues
// and of reference counts, and would report a race for all that they order.
//
// The functions below take the place of the library's (next_function.h). Each one tells
// ThreadSanitizer what it orders and calls the library's:
//   - what happens before a message is sent, or an actor is launched, happens before the actor
//   runs;
//   - what an actor does happens before what it does later on another thread;
//   - what happens before a reference is dropped happens before the object is destroyed.
//
// Linked into builds with ThreadSanitizer only.

#include <sanitizer/tsan_interface.h>

#include <utility>

#include "caf/all.hpp"

#include "tests/sanitizers/drop_reference.h"
#include "tests/sanitizers/next_function.h"

namespace caf {

using penstock::testing::DropReference;
using penstock::testing::NextFunction;

void scheduled_actor::enqueue(mailbox_element_ptr element, execution_unit* unit) {
  static const auto next = NextFunction<void (*)(scheduled_actor*, mailbox_element_ptr,
                                                 execution_unit*)>(
      "_ZN3caf15scheduled_actor7enqueueESt10unique_ptrINS_15mailbox_elementENS_6detail8disposerEE"
      "PNS_14execution_unitE");
  __tsan_release(this);
  next(this, std::move(element), unit);
}

void scheduled_actor::launch(execution_unit* unit, bool lazy, bool hide) {
  static const auto next = NextFunction<void (*)(scheduled_actor*, execution_unit*, bool, bool)>(
      "_ZN3caf15scheduled_actor6launchEPNS_14execution_unitEbb");
  __tsan_release(this);
  next(this, unit, lazy, hide);
}

// Before the first message: the actor's first behavior is made here.
bool scheduled_actor::activate(execution_unit* unit) {
  static const auto next = NextFunction<bool (*)(scheduled_actor*, execution_unit*)>(
      "_ZN3caf15scheduled_actor8activateEPNS_14execution_unitE");
  __tsan_acquire(this);
  const bool is_active = next(this, unit);
  __tsan_release(this);
  return is_active;
}

void blocking_actor::enqueue(mailbox_element_ptr element, execution_unit* unit) {
  static const auto next = NextFunction<void (*)(blocking_actor*, mailbox_element_ptr,
                                                 execution_unit*)>(
      "_ZN3caf14blocking_actor7enqueueESt10unique_ptrINS_15mailbox_elementENS_6detail8disposerEE"
      "PNS_14execution_unitE");
  __tsan_release(this);
  next(this, std::move(element), unit);
}

// Every message, of those too that arrive while the actor runs. The release is here and not at the
// end of a run: as soon as the mailbox is empty, another thread may run the actor.
intrusive::task_result scheduled_actor::mailbox_visitor::operator()(mailbox_element& element) {
  static const auto next =
      NextFunction<intrusive::task_result (*)(mailbox_visitor*, mailbox_element&)>(
          "_ZN3caf15scheduled_actor15mailbox_visitorclERNS_15mailbox_elementE");
  __tsan_acquire(self);
  const intrusive::task_result result = next(this, element);
  __tsan_release(self);
  return result;
}

intrusive::task_result blocking_actor::mailbox_visitor::operator()(mailbox_element& element) {
  static const auto next =
      NextFunction<intrusive::task_result (*)(mailbox_visitor*, mailbox_element&)>(
          "_ZN3caf14blocking_actor15mailbox_visitorclERNS_15mailbox_elementE");
  __tsan_acquire(self);
  return next(this, element);
}

mailbox_element_ptr blocking_actor::dequeue() {
  static const auto next =
      NextFunction<mailbox_element_ptr (*)(blocking_actor*)>("_ZN3caf14blocking_actor7dequeueEv");
  mailbox_element_ptr element = next(this);
  __tsan_acquire(this);
  return element;
}

// What an actor has not taken is destroyed when it ends.
bool scheduled_actor::cleanup(error&& fail_state, execution_unit* unit) {
  static const auto next = NextFunction<bool (*)(scheduled_actor*, error&&, execution_unit*)>(
      "_ZN3caf15scheduled_actor7cleanupEONS_5errorEPNS_14execution_unitE");
  __tsan_acquire(this);
  return next(this, std::move(fail_state), unit);
}

bool blocking_actor::cleanup(error&& fail_state, execution_unit* unit) {
  static const auto next = NextFunction<bool (*)(blocking_actor*, error&&, execution_unit*)>(
      "_ZN3caf14blocking_actor7cleanupEONS_5errorEPNS_14execution_unitE");
  __tsan_acquire(this);
  return next(this, std::move(fail_state), unit);
}

// Who waits for the end of an actor attaches something to it. If the actor has ended, that is
// called at once.
bool monitorable_actor::cleanup(error&& reason, execution_unit* unit) {
  static const auto next = NextFunction<bool (*)(monitorable_actor*, error&&, execution_unit*)>(
      "_ZN3caf17monitorable_actor7cleanupEONS_5errorEPNS_14execution_unitE");
  __tsan_release(this);
  return next(this, std::move(reason), unit);
}

void monitorable_actor::attach(attachable_ptr ptr) {
  static const auto next = NextFunction<void (*)(monitorable_actor*, attachable_ptr)>(
      "_ZN3caf17monitorable_actor6attachESt10unique_ptrINS_10attachableESt14default_deleteIS2_EE");
  next(this, std::move(ptr));
  __tsan_acquire(this);
}

void intrusive_ptr_release(actor_control_block* block) {
  static const auto next = NextFunction<void (*)(actor_control_block*)>(
      "_ZN3caf21intrusive_ptr_releaseEPNS_19actor_control_blockE");
  DropReference(block, block->strong_refs, [block] { next(block); });
}

void intrusive_ptr_release_weak(actor_control_block* block) {
  static const auto next = NextFunction<void (*)(actor_control_block*)>(
      "_ZN3caf26intrusive_ptr_release_weakEPNS_19actor_control_blockE");
  DropReference(&block->weak_refs, block->weak_refs, [block] { next(block); });
}

void ref_counted::deref() const noexcept {
  static const auto next =
      NextFunction<void (*)(const ref_counted*)>("_ZNK3caf11ref_counted5derefEv");
  DropReference(this, rc_, [this] { next(this); });
}

}  // namespace caf
