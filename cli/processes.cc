#include "cli/processes.h"

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Prints lines on a thread of its own, so that who hands them in never waits for a terminal. Where
// lines come faster than they are read, the oldest are left out.
class LinePrinter {
 public:
  explicit LinePrinter(std::ostream& out) : state_(std::make_shared<State>(out)) {
    std::thread([state = state_] { state->Run(); }).detach();
  }

  // Waits a moment for what is left to be printed; a reader that has stalled is left alone.
  ~LinePrinter() {
    std::unique_lock lock(state_->mutex);
    state_->is_ending = true;
    state_->changed.notify_all();
    state_->changed.wait_for(lock, std::chrono::seconds(1), [this] { return state_->has_ended; });
  }

  void Print(std::string line) {
    const std::lock_guard lock(state_->mutex);
    constexpr size_t kMaxLines = 10'000;
    if (state_->lines.size() == kMaxLines) state_->lines.pop_front();
    state_->lines.push_back(std::move(line));
    state_->changed.notify_all();
  }

 private:
  struct State {
    explicit State(std::ostream& stream) : out(stream) {}

    void Run() {
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

    std::ostream& out;
    std::mutex mutex;
    std::condition_variable changed;
    std::deque<std::string> lines;  // guarded by mutex, like the rest
    bool is_ending = false;
    bool has_ended = false;
  };

  const std::shared_ptr<State> state_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<actors::Cluster>> StartProcesses(const Environment& environment,
                                                                int64_t count,
                                                                const std::string& listen) {
  actors::ClusterOptions options;
  options.num_processes = static_cast<uint32_t>(count);
  const auto printer = std::make_shared<LinePrinter>(environment.err);
  options.on_output = [printer](uint32_t rank, std::string_view host, std::string_view line) {
    printer->Print(StrCat("[", rank, " ", host, "] ", line, "\n"));
  };
  if (listen.empty()) {
    options.node_command = {environment.program, "node"};
  } else {
    options.listen = listen;
    options.join_timeout = absl::Minutes(10);
    options.on_listening = [&err = environment.err, count](const std::string& address,
                                                           const std::string& key) {
      err << "Waiting for " << Counted(count, "node") << ". On each host:\n  PENSTOCK_KEY=" << key
          << " penstock node --join " << address << std::endl;
    };
  }
  return actors::Cluster::Start(options);
}

}  // namespace penstock::cli
