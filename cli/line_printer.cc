#include "cli/line_printer.h"

#include <thread>
#include <utility>

namespace penstock::cli {

LinePrinter::LinePrinter(std::ostream& out, std::chrono::milliseconds patience)
    : state_(std::make_shared<State>(out)), patience_(patience) {
  std::thread([state = state_] { state->Run(); }).detach();
}

LinePrinter::~LinePrinter() {
  std::unique_lock lock(state_->mutex);
  state_->is_ending = true;
  state_->changed.notify_all();
  state_->changed.wait_for(lock, patience_, [this] { return state_->has_ended; });
}

void LinePrinter::Print(std::string line) {
  const std::lock_guard lock(state_->mutex);
  if (state_->lines.size() == kMaxLines) state_->lines.pop_front();
  state_->lines.push_back(std::move(line));
  state_->changed.notify_all();
}

void LinePrinter::State::Run() {
  std::unique_lock lock(mutex);
  while (true) {
    changed.wait(lock, [this] { return is_ending || !lines.empty(); });
    if (lines.empty()) break;
    const std::string line = std::move(lines.front());
    lines.pop_front();
    lock.unlock();
    out << line << std::flush;
    lock.lock();
  }
  has_ended = true;
  changed.notify_all();
}

}  // namespace penstock::cli
