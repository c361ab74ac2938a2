#include "actors/cluster/host_agent.h"

#include <unistd.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/numbers.h"

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/line_splitter.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/process_notes_internal.h"
#include "actors/cluster/report_writer_internal.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Begins a report; programs do not print it.
constexpr char kMark = '\x1f';
constexpr char kKinds[] = {'L', 'X', 'F'};  // by AgentReport::Kind
constexpr kj::Duration kAgentPollInterval = 10 * kj::MILLISECONDS;
constexpr absl::Duration kAgentStartTimeout = absl::Seconds(30);
// How long nodes have to end by themselves, and to say why, once the end of the job is certain: the
// nodes of this host have ended, or nobody reads what is told. Nodes below that are left then are
// out of reach.
constexpr kj::Duration kEndGrace = 5 * kj::SECONDS;

// The text up to the next space, which is taken away with it.
std::string_view TakeWord(std::string_view* text) {
  const size_t end = text->find(' ');
  const std::string_view word = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return word;
}

// On the loop's thread.
class Agent {
 public:
  Agent(control::ControlLoop& loop, const HostAgentOptions& options)
      : loop_(loop),
        options_(options),
        num_left_(options.num_ranks + NumRanks(options.below)),
        num_own_left_(options.num_ranks),
        end_began_(kj::origin<kj::TimePoint>()) {}

  absl::Status Start() {
    launcher_ = std::make_unique<LocalLauncher>(loop_.io(), HostName());
    launcher_->SetEvents({[this](uint32_t rank, std::string_view line) {
                            notes_.OnLine(rank, line);
                            for (const AgentReport& report : ReportsOfLine(rank, line))
                              Tell(report);
                          },
                          [this](uint32_t rank, int wait_status, std::string_view note) {
                            Tell({AgentReport::Kind::kExit, rank, wait_status,
                                  notes_.NoteOf(rank, wait_status, note)});
                            exited_.push_back(rank);
                          }});
    // First, so that the tree grows while the nodes of this host start.
    uint32_t rank_below = options_.first_rank + options_.num_ranks;
    for (const absl::Span<const TreeHost> part : SplitHosts(options_.below, options_.tree.fanout)) {
      const LaunchCommand command = CommandOfPart(options_.tree, part, rank_below);
      RETURN_IF_ERROR(launcher_->Launch(command).status());
      notes_.OnLaunched(command);
      rank_below += NumRanks(part);
    }
    std::vector<std::vector<int>> cores(options_.num_ranks);
    if (options_.pinning.has_value()) {
      cores =
          CpuTopology::Load().Distribute(static_cast<int>(options_.num_ranks), *options_.pinning);
    }
    for (uint32_t i = 0; i < options_.num_ranks; ++i) {
      LaunchCommand command;
      command.rank = options_.first_rank + i;
      command.arguments = options_.node_command;
      command.arguments.insert(command.arguments.end(),
                               {"--rank", StrCat(command.rank), "--key-file", "-"});
      command.input = StrCat(options_.key, "\n");
      command.cores = cores[i];
      RETURN_IF_ERROR(launcher_->Launch(command).status());
    }
    return absl::OkStatus();
  }

  kj::Promise<void> AwaitEnd() {
    writer_.Flush();
    is_alone_ = is_alone_ || writer_.IsClosed();
    std::erase_if(exited_, [this](uint32_t rank) {
      if (!launcher_->IsFinished(rank)) return false;
      Tell({AgentReport::Kind::kFinished, rank, 0, ""});
      --num_left_;
      if (rank < options_.first_rank + options_.num_ranks) --num_own_left_;
      return true;
    });
    const bool is_done = is_alone_ ? num_own_left_ == 0 : num_left_ == 0 && writer_.is_empty();
    if (is_done) return kj::READY_NOW;
    const kj::TimePoint now = loop_.timer().now();
    if (num_own_left_ > 0 && !is_alone_) {
      end_began_ = now;
    } else if (now - end_began_ > kEndGrace) {
      return kj::READY_NOW;
    }
    return loop_.timer().afterDelay(kAgentPollInterval).then([this] { return AwaitEnd(); });
  }

  void Close() { launcher_ = nullptr; }  // kills what still runs

 private:
  // A reader that is cut off or slow must hold up neither the loop nor the nodes.
  void Tell(const AgentReport& report) {
    if (report.kind == AgentReport::Kind::kLine && !writer_.HasRoom()) {
      ++num_left_out_;
      return;
    }
    // Before any report: after the end of a node there may be no further line.
    if (num_left_out_ > 0) {
      const std::string note = StrCat("(", Counted(std::exchange(num_left_out_, 0), "line"),
                                      " of the nodes of this host left out: they came faster "
                                      "than the network took them)");
      writer_.Add(ToLine({AgentReport::Kind::kLine, report.rank, 0, note}));
    }
    writer_.Add(ToLine(report));
  }

  control::ControlLoop& loop_;
  const HostAgentOptions& options_;
  uint32_t num_left_;             // nodes that are not finished
  uint32_t num_own_left_;         // those of them on this host
  std::vector<uint32_t> exited_;  // those of which the end was told
  kj::TimePoint end_began_;       // when the end of the job was not certain yet
  bool is_alone_ = false;         // nobody reads any more
  ReportWriter writer_{STDOUT_FILENO};
  uint64_t num_left_out_ = 0;  // lines
  ProcessNotes notes_;
  std::unique_ptr<LocalLauncher> launcher_;
};

}  // namespace

std::string ToLine(const AgentReport& report) {
  const char kind = kKinds[static_cast<int>(report.kind)];
  const std::string head = StrCat(std::string(1, kMark), std::string(1, kind), report.rank);
  if (report.kind == AgentReport::Kind::kFinished) return head;
  if (report.kind == AgentReport::Kind::kLine) return StrCat(head, " ", report.text);
  return StrCat(head, " ", report.wait_status, " ", report.text);
}

std::vector<AgentReport> ReportsOfLine(uint32_t rank, std::string_view line) {
  constexpr size_t kMaxTextBytes = LineSplitter::kMaxLineBytes - 16;  // the mark, kind and rank
  std::vector<AgentReport> reports;
  do {
    reports.push_back(
        {AgentReport::Kind::kLine, rank, 0, std::string(line.substr(0, kMaxTextBytes))});
    line.remove_prefix(std::min(line.size(), kMaxTextBytes));
  } while (!line.empty());
  return reports;
}

std::optional<AgentReport> ParseReport(std::string_view line) {
  if (line.size() < 3 || line[0] != kMark) return std::nullopt;
  AgentReport report;
  switch (line[1]) {
    case 'L':
      report.kind = AgentReport::Kind::kLine;
      break;
    case 'X':
      report.kind = AgentReport::Kind::kExit;
      break;
    case 'F':
      report.kind = AgentReport::Kind::kFinished;
      break;
    default:
      return std::nullopt;
  }
  line.remove_prefix(2);
  const std::string rank(TakeWord(&line));
  if (!absl::SimpleAtoi(rank, &report.rank)) return std::nullopt;
  if (report.kind == AgentReport::Kind::kExit) {
    const std::string status(TakeWord(&line));
    if (!absl::SimpleAtoi(status, &report.wait_status)) return std::nullopt;
  }
  report.text = std::string(line);
  return report;
}

std::string PinningName(CpuTopology::Sharing sharing) {
  return sharing == CpuTopology::Sharing::kNeighbours ? "neighbours" : "round-robin";
}

std::optional<CpuTopology::Sharing> ParsePinningName(std::string_view name) {
  for (const auto sharing :
       {CpuTopology::Sharing::kNeighbours, CpuTopology::Sharing::kRoundRobin}) {
    if (PinningName(sharing) == name) return sharing;
  }
  return std::nullopt;
}

absl::Status RunHostAgent(const HostAgentOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<control::ControlLoop> loop, control::ControlLoop::Start());
  Agent agent(*loop, options);
  absl::Status status = loop->Await([&agent]() -> control::StatusPromise { return agent.Start(); },
                                    kAgentStartTimeout, "the start of the nodes");
  if (status.ok()) {
    status = loop->Await([&agent] { return agent.AwaitEnd(); }, absl::InfiniteDuration(),
                         "the end of the nodes");
  }
  (void)loop->Await(
      [&agent]() -> kj::Promise<void> {
        agent.Close();
        return kj::READY_NOW;
      },
      kAgentStartTimeout, "the end of the agent");
  return status;
}

}  // namespace penstock::actors
