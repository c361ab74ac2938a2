#include "cli/line_printer.h"

#include <thread>
#include <utility>

#include "absl/time/time.h"

#include "base/await.h"

namespace penstock::cli {

LinePrinter::LinePrinter(std::ostream& out, std::chrono::milliseconds patience)
    : state_(std::make_shared<State>(out)), patience_(patience) {
  std::thread([state = state_] { state->Run(); }).detach();
}

LinePrinter::~LinePrinter() {
  const absl::MutexLock lock(&state_->mutex);
  state_->is_ending = true;
  AwaitFor(absl::Condition(&state_->has_ended), absl::FromChrono(patience_), &state_->mutex);
}

void LinePrinter::Print(std::string line) {
  const absl::MutexLock lock(&state_->mutex);
  if (state_->lines.size() == kMaxLines) state_->lines.pop_front();
  state_->lines.push_back(std::move(line));
}

void LinePrinter::State::Run() {
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
    return is_ending || !lines.empty();
  };
  mutex.Lock();
  while (true) {
    mutex.Await(absl::Condition(&has_work));
    if (lines.empty()) break;
    const std::string line = std::move(lines.front());
    lines.pop_front();
    mutex.Unlock();
    out << line << std::flush;
    mutex.Lock();
  }
  has_ended = true;
  mutex.Unlock();
}

}  // namespace penstock::cli
