#include <optional>
#include <utility>

#include "actors/cluster/local_process_internal.h"

namespace penstock::actors {
namespace {

// How long the output of a process that has ended may hold up the report of its end: a child of its
// own can keep the output open, such as the ssh of an mpirun to a host that does not answer.
constexpr kj::Duration kOutputGrace = 200 * kj::MILLISECONDS;
// The same of one that was killed: what it has printed before waits to be read.
constexpr kj::Duration kKilledOutputGrace = 50 * kj::MILLISECONDS;

}  // namespace

LocalProcess::LocalProcess(kj::AsyncIoContext& io, ChildProcess child,
                           std::function<void(std::string_view line)> on_line,
                           std::function<void(int wait_status)> on_exit)
    : child_(std::move(child)),
      on_exit_(std::move(on_exit)),
      lines_(std::move(on_line)),
      buffer_(kj::heapArray<char>(4096)),
      output_(io.lowLevelProvider->wrapInputFd(child_.TakeOutputFd(),
                                               kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP)),
      exit_observer_(kj::heap<kj::UnixEventPort::FdObserver>(
          io.unixEventPort, child_.exit_fd(), kj::UnixEventPort::FdObserver::OBSERVE_READ)) {
  reading_ = ReadOutput().catch_([this](kj::Exception&&) { has_output_ended_ = true; }).fork();
  waiting_ = exit_observer_->whenBecomesReadable()
                 .then([this, &timer = io.provider->getTimer()] {
                   if (is_terminated_) Kill();
                   return reading_.addBranch().exclusiveJoin(
                       timer.afterDelay(is_killed_ ? kKilledOutputGrace : kOutputGrace));
                 })
                 .then([this] {
                   if (is_killed_ && !has_output_ended_) {
                     reading_ = nullptr;
                     lines_.End();
                     has_output_ended_ = true;
                   }
                   const std::optional<int> status = child_.Reap();
                   if (status.has_value()) on_exit_(*status);
                 })
                 .eagerlyEvaluate([](const kj::Exception&) {});
}

kj::Promise<void> LocalProcess::ReadOutput() {
  return output_->tryRead(buffer_.begin(), 1, buffer_.size())
      .then([this](size_t num_bytes) -> kj::Promise<void> {
        lines_.Add({buffer_.begin(), num_bytes});
        if (num_bytes > 0) return ReadOutput();
        lines_.End();
        has_output_ended_ = true;
        return kj::READY_NOW;
      });
}

}  // namespace penstock::actors
