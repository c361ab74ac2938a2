#include "cli/job_status_text.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "cli/json.h"
#include "cli/run_report.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using actors::ActorWait;
using actors::JobStatus;
using actors::ProcessSnapshot;
using State = actors::DeviceSnapshot::State;

// Waits of a device that are printed.
constexpr size_t kMaxWaits = 4;
// Levels of the tree that are indented.
constexpr size_t kMaxIndent = 12;
// Between two looks that tell rates.
constexpr double kLeastSecondsForRates = 0.3;
constexpr double kMostSecondsForRates = 5;
// Micro-batches of a stage that are to end between them.
constexpr double kMicrobatchesForRates = 2;

double Seconds(int64_t ns) { return 1e-9 * static_cast<double>(ns); }

// "0.3 s", "12 s", "3 min".
std::string Duration(double seconds) {
  if (seconds < 10) return fmt::format("{:.1f} s", seconds);
  if (seconds < 300) return fmt::format("{:.0f} s", seconds);
  return fmt::format("{:.0f} min", seconds / 60);
}

std::string_view Name(State state) {
  switch (state) {
    case State::kSilent:
      return "silent";
    case State::kIdle:
      return "idle";
    case State::kRunning:
      return "running";
    case State::kWaiting:
      return "waiting";
  }
  return "silent";
}

// " 0.3 s"; empty where a wait has hardly begun, as those of devices that wait for each other in
// turn have.
std::string WaitDuration(const actors::DeviceSnapshot& device) {
  constexpr double kShortestWait = 0.05;
  const double seconds = Seconds(device.still_ns);
  return seconds < kShortestWait ? "" : StrCat(" ", Duration(seconds));
}

const ProcessSnapshot* ProcessOf(const JobStatus& status, uint32_t device) {
  for (const ProcessSnapshot& process : status.processes) {
    if (device - process.first_device < process.num_devices) return &process;
  }
  return nullptr;
}

// "node 1 (process 4711 on host-b)".
std::string NameOf(const ProcessSnapshot& process) {
  return StrCat("node ", process.rank, " (process ", process.pid, " on ", Printable(process.host),
                ")");
}

// What a device does, if it waits for no other one: "runs 'h3.mm'".
std::string Activity(const JobStatus& status, uint32_t device) {
  const actors::DeviceSnapshot& state = status.devices[device].state;
  switch (state.state) {
    case State::kSilent: {
      const ProcessSnapshot* const process = ProcessOf(status, device);
      if (process == nullptr) return "does not answer";
      return StrCat("does not answer: ", NameOf(*process), " has been silent for ",
                    Duration(Seconds(process->silence_ns)));
    }
    case State::kIdle:
      return "has done all steps that were handed in";
    case State::kRunning:
      return state.running.empty() ? "runs" : StrCat("runs '", Printable(state.running), "'");
    case State::kWaiting:
      return "waits";
  }
  return "";
}

// Those that other devices keep waiting, since the rest may follow from them; all where there are
// none. Those that `towards` keeps waiting come first: receives are started long before their data
// are needed.
std::vector<const ActorWait*> WaitsOf(const JobStatus& status, uint32_t device,
                                      const std::vector<uint32_t>& towards) {
  std::vector<const ActorWait*> all;
  std::vector<const ActorWait*> kept_waiting;
  for (const ActorWait& wait : status.waits) {
    if (wait.device != device) continue;
    all.push_back(&wait);
    if (!wait.devices.empty()) kept_waiting.push_back(&wait);
  }
  if (kept_waiting.empty()) return all;
  std::stable_partition(
      kept_waiting.begin(), kept_waiting.end(), [&towards](const ActorWait* wait) {
        return std::any_of(towards.begin(), towards.end(), [wait](uint32_t other) {
          return std::find(wait->devices.begin(), wait->devices.end(), other) !=
                 wait->devices.end();
        });
      });
  return kept_waiting;
}

std::string JobLine(const JobStatus& status) {
  std::string line =
      StrCat(Printable(status.name), " (", Printable(status.strategy), "), process ", status.pid,
             " on ", Printable(status.host), ": ", Printable(status.activity), ", ",
             status.steps_done, " of ", Counted(status.steps, "step"), " done");
  if (!status.devices.empty()) {
    StrAppend(&line, ", ", Counted(status.devices.size(), "device"), " in ",
              Counted(status.processes.size(), "process", "es"));
  }
  return StrCat(line, ", for ", Duration(status.age_s));
}

// The lines of devices and of those that wait for them, each once.
class Tree {
 public:
  explicit Tree(const JobStatus& status)
      : status_(status), is_shown_(status.devices.size()), waiting_(status.devices.size()) {
    for (uint32_t d = 0; d < status.devices.size(); ++d) {
      for (const uint32_t other : status.devices[d].waits_for) waiting_[other].push_back(d);
    }
  }

  bool IsShown(uint32_t device) const { return is_shown_[device]; }

  // Breadth first, so that a device is below the one nearest to the root that it waits for.
  void Show(uint32_t root, std::string_view note) {
    if (is_shown_[root]) return;
    std::vector<std::vector<uint32_t>> below(status_.devices.size());
    std::vector<uint32_t> open = {root};
    std::vector<uint32_t> parents(status_.devices.size(), root);
    is_shown_[root] = true;
    for (size_t next = 0; next < open.size(); ++next) {
      for (const uint32_t other : waiting_[open[next]]) {
        if (is_shown_[other]) continue;
        is_shown_[other] = true;
        below[open[next]].push_back(other);
        parents[other] = open[next];
        open.push_back(other);
      }
    }
    // Without recursion: a chain may be long.
    std::vector<std::pair<uint32_t, size_t>> stack = {{root, 0}};
    while (!stack.empty()) {
      const auto [device, depth] = stack.back();
      stack.pop_back();
      AddDevice(device, depth, parents[device], depth == 0 ? note : "");
      for (auto it = below[device].rbegin(); it != below[device].rend(); ++it) {
        stack.emplace_back(*it, depth + 1);
      }
    }
  }

  const std::string& text() const { return text_; }

 private:
  void AddDevice(uint32_t device, size_t depth, uint32_t parent, std::string_view note) {
    const std::string indent(2 * std::min(depth, kMaxIndent), ' ');
    const actors::DeviceSnapshot& state = status_.devices[device].state;
    std::string line = StrCat(indent, "device ", device, " ", Activity(status_, device));
    if (state.state == State::kWaiting) line += WaitDuration(state);
    if (state.state == State::kWaiting || state.state == State::kRunning) {
      StrAppend(&line, ", in step ", state.step + 1);
    }
    StrAppend(&text_, line, note, "\n");
    const std::vector<const ActorWait*> waits = WaitsOf(status_, device, {parent});
    for (size_t i = 0; i < std::min(waits.size(), kMaxWaits); ++i) {
      StrAppend(&text_, indent, "    ");
      if (waits[i]->devices.empty()) StrAppend(&text_, "'", Printable(waits[i]->actor), "' ");
      StrAppend(&text_, "for ", Printable(waits[i]->what), "\n");
    }
    if (waits.size() > kMaxWaits) {
      StrAppend(&text_, indent, "    and ", waits.size() - kMaxWaits, " more\n");
    }
  }

  const JobStatus& status_;
  std::vector<bool> is_shown_;
  std::vector<std::vector<uint32_t>> waiting_;  // for a device
  std::string text_;
};

std::string JsonList(const std::vector<uint32_t>& values) {
  return StrCat("[", StrJoin(values, ", "), "]");
}

// "4.2 MB"; "-": not known.
std::string Bytes(uint64_t num_bytes) { return num_bytes == 0 ? "-" : FormatBytes(num_bytes); }

std::string Cut(std::string line, int columns) {
  const auto limit = static_cast<size_t>(columns);
  if (columns > 0 && line.size() > limit) line.resize(limit);
  return line;
}

std::string Percent(double fraction) {
  return std::isnan(fraction) ? "-" : fmt::format("{:.0f} %", 100 * fraction);
}

// "-": not known.
std::string Rate(double per_s) {
  if (std::isnan(per_s)) return "-";
  return per_s < 100 ? fmt::format("{:.1f}", per_s) : fmt::format("{:.0f}", per_s);
}

std::string StageTable(const std::vector<StageRates>& stages, size_t num_rows, int columns) {
  if (num_rows == 0) return "";
  const auto line = [columns](const auto&... fields) {
    return Cut(fmt::format("{:>6} {:>7} {:>6} {:>15} {:>10}", fields...), columns) + "\n";
  };
  std::string text = "\n" + line("STAGE", "DEVICES", "BUSY", "MICRO-BATCHES/S", "TOKENS/S");
  for (size_t i = 0; i < num_rows; ++i) {
    const StageRates& stage = stages[i];
    StrAppend(&text, line(i, stage.num_devices, Percent(stage.busy), Rate(stage.microbatches_per_s),
                          Rate(stage.tokens_per_s)));
  }
  if (num_rows < stages.size()) {
    StrAppend(&text, "and ", Counted(stages.size() - num_rows, "more stage"), "\n");
  }
  return text;
}

// Mean of the last steps; 0: not known.
double SecondsOfMicrobatch(const JobStatus& status) {
  return status.step_time_s / static_cast<double>(std::max<int64_t>(status.microbatches, 1));
}

}  // namespace

double SecondsBetween(const JobStatus& before, const JobStatus& after) {
  double seconds = 0;
  for (uint32_t d = 0; d < std::min(before.devices.size(), after.devices.size()); ++d) {
    if (std::isnan(BusyFraction(before, after, d))) continue;
    seconds =
        std::max(seconds, Seconds(after.devices[d].state.age_ns - before.devices[d].state.age_ns));
  }
  return seconds;
}

double SecondsForRates(const JobStatus& first) {
  return std::clamp(kMicrobatchesForRates * SecondsOfMicrobatch(first), kLeastSecondsForRates,
                    kMostSecondsForRates);
}

double BusyFraction(const JobStatus& before, const JobStatus& after, uint32_t device) {
  if (before.session != after.session || device >= before.devices.size() ||
      device >= after.devices.size()) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const actors::DeviceSnapshot& first = before.devices[device].state;
  const actors::DeviceSnapshot& second = after.devices[device].state;
  const int64_t time = second.age_ns - first.age_ns;
  if (first.state == State::kSilent || second.state == State::kSilent || time <= 0) {
    return std::numeric_limits<double>::quiet_NaN();
  }
  const auto idle = static_cast<double>(second.idle_ns - first.idle_ns);
  return std::clamp(1 - idle / static_cast<double>(time), 0.0, 1.0);
}

std::vector<StageRates> RatesOfStages(const JobStatus& before, const JobStatus& after) {
  constexpr double kUnknown = std::numeric_limits<double>::quiet_NaN();
  struct Sums {
    double busy = 0;
    double microbatches_per_s = 0;
    uint32_t num_known = 0;
  };
  std::vector<StageRates> stages;
  std::vector<Sums> sums;
  for (uint32_t d = 0; d < after.devices.size(); ++d) {
    const uint32_t stage = after.devices[d].stage;
    // What comes from a socket may name any stage.
    if (stage >= after.devices.size()) continue;
    if (stage >= stages.size()) {
      stages.resize(stage + 1);
      sums.resize(stage + 1);
    }
    ++stages[stage].num_devices;
    const double busy = BusyFraction(before, after, d);
    if (std::isnan(busy)) continue;
    const actors::DeviceSnapshot& first = before.devices[d].state;
    const actors::DeviceSnapshot& second = after.devices[d].state;
    sums[stage].busy += busy;
    sums[stage].microbatches_per_s +=
        static_cast<double>(std::max<int64_t>(second.microbatches - first.microbatches, 0)) /
        Seconds(second.age_ns - first.age_ns);
    ++sums[stage].num_known;
  }
  // A stage that has ended nothing for so long stands still; before, it may just be on the way.
  const double microbatch_s = SecondsOfMicrobatch(after);
  const bool is_long = microbatch_s > 0 &&
                       SecondsBetween(before, after) >= 0.99 * kMicrobatchesForRates * microbatch_s;
  const double tokens_per_microbatch =
      after.tokens_per_s * after.step_time_s / static_cast<double>(after.microbatches);
  for (size_t i = 0; i < stages.size(); ++i) {
    const double count = sums[i].num_known > 0 ? sums[i].num_known : kUnknown;
    stages[i].busy = sums[i].busy / count;
    stages[i].microbatches_per_s = sums[i].microbatches_per_s / count;
    if (sums[i].microbatches_per_s == 0 && !is_long) stages[i].microbatches_per_s = kUnknown;
    stages[i].tokens_per_s =
        tokens_per_microbatch > 0 ? stages[i].microbatches_per_s * tokens_per_microbatch : kUnknown;
  }
  return stages;
}

std::string JobStatusJson(const JobStatus& status, const JobStatus* before) {
  std::vector<std::string> waits;
  for (const ActorWait& wait : status.waits) {
    waits.push_back(StrCat(
        "{\"actor\": ", JsonString(wait.actor), ", \"device\": ", wait.device,
        ", \"for\": ", JsonString(wait.what), ", \"devices\": ", JsonList(wait.devices),
        ", \"waiting_s\": ", JsonNumber(Seconds(status.devices[wait.device].state.still_ns)), "}"));
  }
  std::vector<std::string> devices;
  for (uint32_t d = 0; d < status.devices.size(); ++d) {
    const JobStatus::Device& device = status.devices[d];
    const ProcessSnapshot* const process = ProcessOf(status, d);
    std::string text = StrCat("{\"device\": ", d, ", \"stage\": ", device.stage,
                              ", \"rank\": ", process == nullptr ? 0 : process->rank,
                              ", \"state\": ", JsonString(Name(device.state.state)),
                              ", \"actor\": ", JsonString(device.state.running),
                              ", \"step\": ", device.state.step + 1,
                              ", \"waiting_s\": ", JsonNumber(Seconds(device.state.still_ns)),
                              ", \"memory_bytes\": ", device.memory_bytes,
                              ", \"microbatches\": ", device.state.microbatches,
                              ", \"credits\": ", device.state.channels.credits,
                              ", \"credits_in_use\": ", device.state.channels.credits_in_use,
                              ", \"tokens_waiting\": ", device.state.channels.tokens_waiting,
                              ", \"channel_bytes_in_use\": ", device.state.channels.bytes_in_use,
                              ", \"waits_for\": ", JsonList(device.waits_for));
    if (before != nullptr) {
      StrAppend(&text, ", \"busy\": ", JsonNumber(BusyFraction(*before, status, d), 4));
    }
    devices.push_back(text + "}");
  }
  std::string stages;
  if (before != nullptr) {
    std::vector<std::string> list;
    for (const StageRates& stage : RatesOfStages(*before, status)) {
      list.push_back(StrCat("{\"stage\": ", list.size(), ", \"devices\": ", stage.num_devices,
                            ", \"busy\": ", JsonNumber(stage.busy, 4),
                            ", \"microbatches_per_s\": ", JsonNumber(stage.microbatches_per_s),
                            ", \"tokens_per_s\": ", JsonNumber(stage.tokens_per_s), "}"));
    }
    stages = StrCat("\"stages\": [", StrJoin(list, ", "),
                    "], \"interval_s\": ", JsonNumber(SecondsBetween(*before, status), 4), ", ");
  }
  std::vector<std::string> processes;
  for (const ProcessSnapshot& process : status.processes) {
    processes.push_back(StrCat("{\"rank\": ", process.rank, ", \"pid\": ", process.pid,
                               ", \"host\": ", JsonString(process.host),
                               ", \"answers\": ", process.answers ? "true" : "false",
                               ", \"silence_s\": ", JsonNumber(Seconds(process.silence_ns)),
                               ", \"resident_bytes\": ", process.resident_bytes,
                               ", \"first_device\": ", process.first_device,
                               ", \"devices\": ", process.num_devices, "}"));
  }
  std::vector<std::string> roots;
  for (const uint32_t root : status.roots) {
    const ProcessSnapshot* const process = ProcessOf(status, root);
    roots.push_back(StrCat("{\"device\": ", root,
                           ", \"rank\": ", process == nullptr ? 0 : process->rank,
                           ", \"pid\": ", process == nullptr ? 0 : process->pid,
                           ", \"why\": ", JsonString(Activity(status, root)), "}"));
  }
  std::vector<std::string> cycles;
  for (const std::vector<uint32_t>& cycle : status.cycles) cycles.push_back(JsonList(cycle));
  return StrCat(
      "{\"waits\": [", StrJoin(waits, ", "), "], \"roots\": [", StrJoin(roots, ", "),
      "], \"cycles\": [", StrJoin(cycles, ", "), "], ", stages, "\"devices\": [",
      StrJoin(devices, ", "), "], \"processes\": [", StrJoin(processes, ", "),
      "], \"job\": {\"id\": ", JsonString(status.id), ", \"name\": ", JsonString(status.name),
      ", \"strategy\": ", JsonString(status.strategy), ", \"pid\": ", status.pid,
      ", \"host\": ", JsonString(status.host), ", \"activity\": ", JsonString(status.activity),
      ", \"note\": ", JsonString(status.note), ", \"age_s\": ", JsonNumber(status.age_s),
      "}, \"step\": ", status.steps_done, ", \"steps\": ", status.steps,
      ", \"loss\": ", JsonNumber(status.loss),
      ", \"step_time_s\": ", JsonNumber(status.step_time_s),
      ", \"tokens_per_s\": ", JsonNumber(status.tokens_per_s), "}");
}

std::string StackText(const JobStatus& status) {
  std::string text = JobLine(status) + "\n";
  if (!status.note.empty()) StrAppend(&text, Printable(status.note), "\n");
  if (status.devices.empty()) return text;
  StrAppend(&text, "\n");
  Tree tree(status);
  for (const uint32_t root : status.roots) tree.Show(root, "  <- root: others wait for it");
  for (const std::vector<uint32_t>& cycle : status.cycles) {
    if (cycle.empty()) continue;
    tree.Show(cycle[0],
              StrCat("  <- cycle: devices ", StrJoin(cycle, ", "), " wait for each other"));
  }
  for (uint32_t d = 0; d < status.devices.size(); ++d) tree.Show(d, "");
  return text + tree.text();
}

std::string TopText(const JobStatus& status, const JobStatus* before, int max_rows, int columns) {
  std::string text = Cut(JobLine(status), columns) + "\n";
  std::string numbers;
  if (status.step_time_s > 0) {
    if (!std::isnan(status.loss)) numbers = fmt::format("loss {:.4f}  ", status.loss);
    StrAppend(&numbers, StrCat("step ", FormatSeconds(status.step_time_s), " (",
                               fmt::format("{:.{}f}/s)", 1 / status.step_time_s,
                                           status.step_time_s < 0.01 ? 0 : 2)));
    if (status.tokens_per_s > 0) {
      StrAppend(&numbers, fmt::format("  {:.0f} tokens/s", status.tokens_per_s));
    }
  }
  for (const ProcessSnapshot& process : status.processes) {
    if (process.answers) continue;
    StrAppend(&numbers, numbers.empty() ? "" : "  ", NameOf(process), " is silent for ",
              Duration(Seconds(process.silence_ns)));
  }
  if (!numbers.empty()) StrAppend(&text, Cut(numbers, columns), "\n");
  if (!status.note.empty()) StrAppend(&text, Cut(Printable(status.note), columns), "\n");
  if (status.devices.empty()) return text;
  const size_t num_rows = max_rows > 0 ? static_cast<size_t>(max_rows) : SIZE_MAX;
  size_t num_device_rows = std::min(status.devices.size(), num_rows);
  if (before != nullptr) {
    const std::vector<StageRates> stages = RatesOfStages(*before, status);
    // With little room, devices come first.
    const size_t num_stage_rows =
        std::min(stages.size(), std::max(num_rows - num_device_rows, num_rows / 3));
    StrAppend(&text, StageTable(stages, num_stage_rows, columns));
    num_device_rows = std::min(num_device_rows, num_rows - num_stage_rows);
  }
  StrAppend(&text, "\n",
            Cut(fmt::format("{:>6} {:>5} {:>4} {:>6} {:>6} {:>10} {:>10}  {}", "DEVICE", "STAGE",
                            "NODE", "STEP", "BUSY", "PLANNED", "RESIDENT", "DOES"),
                columns),
            "\n");
  for (uint32_t d = 0; d < num_device_rows; ++d) {
    const JobStatus::Device& device = status.devices[d];
    const ProcessSnapshot* const process = ProcessOf(status, d);
    const double busy = before != nullptr ? BusyFraction(*before, status, d)
                                          : std::numeric_limits<double>::quiet_NaN();
    std::string does = Activity(status, d);
    if (device.state.state == State::kWaiting) {
      const std::vector<const ActorWait*> waits = WaitsOf(status, d, status.roots);
      does = StrCat("waits", WaitDuration(device.state));
      if (!waits.empty()) {
        StrAppend(&does, " for ", Printable(waits[0]->what));
        if (waits[0]->devices.empty()) StrAppend(&does, " ('", Printable(waits[0]->actor), "')");
      }
    }
    // The memory of a process is on the line of its first device.
    const bool is_first = process != nullptr && process->first_device == d;
    StrAppend(
        &text,
        Cut(fmt::format("{:>6} {:>5} {:>4} {:>6} {:>6} {:>10} {:>10}  {}", d, device.stage,
                        process == nullptr ? 0 : process->rank,
                        device.state.state == State::kSilent ? "-" : StrCat(device.state.step + 1),
                        Percent(busy), Bytes(device.memory_bytes),
                        is_first ? Bytes(process->resident_bytes) : "", does),
            columns),
        "\n");
  }
  if (num_device_rows < status.devices.size()) {
    StrAppend(&text, "and ", Counted(status.devices.size() - num_device_rows, "more device"), "\n");
  }
  return text;
}

}  // namespace penstock::cli
