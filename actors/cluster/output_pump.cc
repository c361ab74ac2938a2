#include <exception>
#include <utility>

#include "absl/synchronization/mutex.h"

#include "actors/cluster/output_pump_internal.h"
#include "actors/engine/caf_thread_internal.h"
#include "base/strings.h"

namespace penstock::actors {

OutputPump::OutputPump(caf::actor_system& system, OnOutput on_output)
    : system_(system), shared_(std::make_shared<Shared>()) {
  shared_->on_output = std::move(on_output);
}

OutputPumpActor::behavior_type OutputPump::Pump(OutputPumpActor::pointer self,
                                                const std::shared_ptr<Shared>& shared,
                                                const std::shared_ptr<Counter>& num_queued) {
  self->set_exception_handler([](std::exception_ptr& thrown) -> caf::error {
    try {
      std::rethrow_exception(thrown);
    } catch (const std::exception& error) {
      return caf::make_error(caf::sec::runtime_error, error.what());
    } catch (...) {
      return caf::sec::runtime_error;
    }
  });
  return {
      [shared, num_queued](const OutputLine& line) {
        --*num_queued;
        if (shared->on_output) shared->on_output(line.rank, line.host, line.text);
      },
      [shared](FlushAtom) { return shared->num_dropped.load(); },
  };
}

caf::actor OutputPump::Start() {
  const absl::MutexLock lock(&mutex_);
  // The lines that the previous actor had queued are lost.
  if (num_queued_) shared_->num_dropped += *num_queued_;
  num_queued_ = std::make_shared<Counter>(0);
  actor_ = system_.spawn(Pump, shared_, num_queued_);
  return caf::actor_cast<caf::actor>(actor_);
}

void OutputPump::Print(OutputLine line) {
  const absl::MutexLock lock(&mutex_);
  if (!actor_ || *num_queued_ >= kMaxQueued) {
    ++shared_->num_dropped;
    return;
  }
  ++*num_queued_;
  caf::anon_send(actor_, std::move(line));
}

void OutputPump::Print(uint32_t rank, std::string_view text) {
  std::string host;
  {
    const absl::MutexLock lock(&mutex_);
    host = hosts_[rank];
  }
  Print({rank, std::move(host), std::string(text)});
}

void OutputPump::SetHost(uint32_t rank, std::string host) {
  const absl::MutexLock lock(&mutex_);
  hosts_[rank] = std::move(host);
}

OutputPumpActor OutputPump::actor() {
  const absl::MutexLock lock(&mutex_);
  return actor_;
}

absl::Status OutputPump::Flush(absl::Duration timeout) {
  const OutputPumpActor pump = actor();
  if (!pump) return absl::OkStatus();
  const CafThread thread;
  absl::Status status;
  caf::scoped_actor self(system_);
  self->request(pump, absl::ToChronoMilliseconds(timeout), FlushAtom::value)
      .receive([](uint64_t) {},
               [&status, timeout](const caf::error& error) {
                 status = absl::DeadlineExceededError(
                     StrCat("the output of the nodes was not taken in ",
                            absl::FormatDuration(timeout), ": ", caf::to_string(error)));
               });
  return status;
}

absl::Status OutputPump::Stop(absl::Duration timeout) {
  OutputPumpActor pump;
  {
    const absl::MutexLock lock(&mutex_);
    pump = std::exchange(actor_, nullptr);
  }
  if (!pump) return absl::OkStatus();
  const CafThread thread;
  caf::scoped_actor self(system_);
  self->monitor(pump);
  self->send_exit(pump, caf::exit_reason::user_shutdown);
  absl::Status status;
  self->receive([](const caf::down_msg&) {},
                caf::after(absl::ToChronoMilliseconds(timeout)) >>
                    [&status, timeout] {
                      status = absl::DeadlineExceededError(
                          StrCat("the reader of the nodes' output did not return in ",
                                 absl::FormatDuration(timeout)));
                    });
  return status;
}

}  // namespace penstock::actors
