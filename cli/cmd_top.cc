// penstock top: what the devices of a running job do, again and again.

#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "absl/time/time.h"
#include "cli/environment.h"
#include "cli/help_text.h"
#include "cli/job_status_text.h"
#include "cli/status_sockets.h"
#include "fmt/format.h"

#include "actors/cluster/status_client.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Between two looks; that of --once depends on the job.
constexpr double kIntervalSeconds = 1;
// Rates need two looks at the same session. Where a validation begins or ends between them, --once
// looks again, up to so many times in all.
constexpr int kMaxLooks = 4;
// Lines above and below the devices.
constexpr int kOtherLines = 10;

// Of a terminal: another screen without a cursor and back, and from the top left to the end.
constexpr char kEnter[] = "\x1b[?1049h\x1b[?25l";
constexpr char kLeave[] = "\x1b[?25h\x1b[?1049l";
constexpr char kHome[] = "\x1b[H";
constexpr char kEndOfLine[] = "\x1b[K\n";
constexpr char kEndOfScreen[] = "\x1b[J";

struct TopOptions {
  std::string address;
  std::string key_file;
  bool is_once = false;
  bool is_json = false;
};

// Blocks the signals that end the command, so that it ends in order. Threads that are made while
// it lives block them, too.
class StopSignals {
 public:
  StopSignals() {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~StopSignals() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // Whether a signal came within `interval`.
  bool Wait(double seconds) const {
    const timespec interval = absl::ToTimespec(absl::Seconds(seconds));
    return sigtimedwait(&signals_, nullptr, &interval) > 0;
  }

 private:
  sigset_t signals_;
  sigset_t before_;
};

// Each line is erased to its end, so that nothing flickers.
std::string OnScreen(const std::string& text) {
  std::string screen = kHome;
  for (const char c : text) {
    if (c == '\n') {
      screen += kEndOfLine;
    } else {
      screen += c;
    }
  }
  return screen + kEndOfScreen;
}

// What the figures of --once are of.
std::string IntervalLine(const actors::JobStatus& before, const actors::JobStatus& now) {
  if (before.session != now.session) {
    return "\nBUSY and rates: n/a, the job went from one session to another (validation, a "
           "sample)\n";
  }
  const double seconds = SecondsBetween(before, now);
  if (seconds <= 0) return "\nBUSY and rates: n/a, no device has answered twice\n";
  return fmt::format("\nBUSY and rates: over the last {:.1f} s; -: n/a\n", seconds);
}

absl::Status ShowStates(const Environment& environment, const TopOptions& options) {
  const StopSignals signals;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::StatusClient> client,
                   actors::StatusClient::Create());
  ASSIGN_OR_RETURN(const actors::StatusAddress address,
                   FindJob(options.address, options.key_file, *client));
  const auto ask = [&] { return AskJob(address, *client); };
  ASSIGN_OR_RETURN(actors::JobStatus before, ask());
  const bool is_terminal = environment.out_is_terminal && !options.is_json && !options.is_once;
  if (is_terminal) environment.out << kEnter << std::flush;
  auto leave = absl::MakeCleanup([&] {
    if (is_terminal) environment.out << kLeave << std::flush;
  });
  // The first table shows no busy times; --once waits for them.
  bool has_before = false;
  actors::JobStatus now = before;
  if (options.is_once) {
    for (int looks = 1; looks < kMaxLooks && !(has_before && now.session == before.session);
         ++looks) {
      before = std::move(now);
      if (signals.Wait(SecondsForRates(before))) return absl::OkStatus();
      ASSIGN_OR_RETURN(now, ask());
      has_before = true;
    }
  }
  std::string error;
  while (true) {
    const actors::JobStatus* const earlier = has_before ? &before : nullptr;
    if (options.is_json) {
      environment.out << JobStatusJson(now, earlier) << std::endl;
    } else {
      winsize size = {};
      if (is_terminal) (void)ioctl(STDOUT_FILENO, TIOCGWINSZ, &size);
      const int rows = size.ws_row > 0 ? std::max(size.ws_row - kOtherLines, 1) : 0;
      std::string text = TopText(now, earlier, rows, size.ws_col);
      if (options.is_once && !now.devices.empty()) StrAppend(&text, IntervalLine(before, now));
      if (is_terminal) text = OnScreen(StrCat(text, error, "\nCtrl-C ends this; the job goes on"));
      environment.out << text << std::flush;
    }
    if (options.is_once || !environment.out) return absl::OkStatus();
    if (signals.Wait(kIntervalSeconds)) return absl::OkStatus();
    absl::StatusOr<actors::JobStatus> next = ask();
    if (absl::IsUnavailable(next.status())) break;
    if (next.ok()) {
      before = std::exchange(now, *std::move(next));
      has_before = true;
      error.clear();
    } else if (is_terminal &&
               (absl::IsDeadlineExceeded(next.status()) || absl::IsAborted(next.status()))) {
      error = StrCat("\nno answer; the table is old: ", ToStd(next.status().message()), "\n");
    } else {
      return next.status();
    }
  }
  std::move(leave).Invoke();
  environment.err << "the job has ended" << std::endl;
  return absl::OkStatus();
}

}  // namespace

void AddTopCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command =
      app.add_subcommand("top", "Show what the devices of a running job do, once a second.");
  command->footer(WrapText(
      std::string(kJobAddressHelp) +
          "\n\nThe time of a step, its rate and tokens/s are means over the steps of the last "
          "second, and at least eight. BUSY is the share of the time since the table before in "
          "which the device was not idle. A micro-batch counts for a stage once it has passed "
          "through all phases of its devices; TOKENS/S assumes as many tokens in it as in those of "
          "the job's last step. "
          "PLANNED is the memory that the plan gives a device, RESIDENT what the process of the "
          "device has; it is on the line of the first device of a process.",
      kHelpColumns, 0));
  command->add_option("ADDRESS", options->address, "Job (the only one on this host)");
  command
      ->add_option("--key-file", options->key_file,
                   "Read the job's key from this file (the environment variable PENSTOCK_KEY)")
      ->option_text("FILE");
  command->add_flag("--once", options->is_once,
                    "Look twice, 0.3 to 5 seconds apart so that micro-batches end meanwhile, print "
                    "one table with the rates of that time, and exit");
  command->add_flag("--json", options->is_json, "Print one JSON object a second");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return ShowStates(environment, *options); };
  });
}

}  // namespace penstock::cli
