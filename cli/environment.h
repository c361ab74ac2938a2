// What every command of `penstock` works with: the registries, built by main() and handed on, and
// where to print.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_ENVIRONMENT_H_
#define PENSTOCK_CLI_ENVIRONMENT_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"

#include "actors/cluster/node_place.h"
#include "penstock/registries.h"

namespace CLI {
class App;
}  // namespace CLI

namespace penstock::cli {

class Interrupts;

struct Registries : penstock::Registries {
  std::vector<std::string> transports;  // sorted
  std::vector<std::string> devices;     // kinds, sorted
};

// Everything that this build has.
Registries BuiltinRegistries();

// How `run` gets its processes where `launch` has found out; set by `launch`, and where that is
// said by `run`.
struct LaunchPlan {
  std::vector<actors::NodePlace> places = {};  // by rank; empty: `run` starts them on this host
  uint32_t fanout = 0;                         // as ClusterOptions has it
  uint32_t max_starts = 0;                     // the same
  std::string listen = {};                     // the address at which it listens then
  std::string key = {};                        // the job's; empty: drawn
  absl::Duration join_timeout = absl::Minutes(1);
  // Nodes join without TLS, as ClusterOptions has it. `run` sets it, too.
  bool insecure = false;
  // What srun says of the binding to cores, which it is not asked for, is not shown.
  bool hides_core_binding = false;
  // Whether the links between the hosts are measured first; nullopt: where a strategy is looked
  // for.
  std::optional<bool> probes_links = {};
  // The command that has started this process as one of several, such as "srun"; empty: none has.
  std::string starter = {};
  // No such command has, but each process has variables of its own, such as RANK, that it needs
  // again when the job is resumed.
  bool needs_variables = false;
  // How the key is sent to nodes, as ClusterOptions has it; null: as it is.
  std::function<absl::StatusOr<std::string>(const std::string& key)> seal_key = {};
  // Told where nodes join, and the key.
  std::function<void(const std::string& address, const std::string& key)> on_listening = {};
  // Told of programs that start nodes on other hosts, as ClusterOptions has it.
  std::function<void(int pid, int pid_fd)> on_starter = {};
};

struct Environment {
  const Registries& registries;
  std::ostream& out;  // results
  std::ostream& err;  // progress and messages
  bool err_is_terminal = false;
  std::string program = "/proc/self/exe";  // what --procs starts, with `node` and its options
  std::string called_as = "penstock";      // by the user, for commands that are printed
  LaunchPlan launch = {};
  bool out_is_terminal = false;
  // Adds what a plug-in library has to `registries`. Null: there are no plug-ins.
  std::function<absl::Status(const std::string& path)> load_plugin = nullptr;
  // Of this call, by --plugin; nodes load them too.
  std::vector<std::string> plugins = {};
  // Of the command line that runs, for reports; set by RunCommandLine.
  std::vector<std::string> arguments = {};
  // Takes the signals of this call already; null: nobody does.
  Interrupts* interrupts = nullptr;
};

// The same with another stream for progress and messages.
Environment WithErr(const Environment& given, std::ostream& err);

// The argument with which the program ends what a launch has started, after that has died
// (actors/cluster/starter_watch.h). It is for the program itself.
inline constexpr char kWatchStarters[] = "--watch-starters";

// What a command does once its options are read. An error's code decides the exit status.
using Action = std::function<absl::Status()>;

// Each adds one command to the app; when it is the one given, it sets *action.
void AddRunCommand(CLI::App& app, const Environment& environment, Action* action);
void AddPlanCommand(CLI::App& app, const Environment& environment, Action* action);
void AddCalibrateCommand(CLI::App& app, const Environment& environment, Action* action);
void AddSimulateCommand(CLI::App& app, const Environment& environment, Action* action);
void AddScheduleCommand(CLI::App& app, const Environment& environment, Action* action);
void AddShowCommand(CLI::App& app, const Environment& environment, Action* action);
void AddOptCommand(CLI::App& app, const Environment& environment, Action* action);
void AddEvalCommand(CLI::App& app, const Environment& environment, Action* action);
void AddListCommand(CLI::App& app, const Environment& environment, Action* action);
void AddBenchCommand(CLI::App& app, const Environment& environment, Action* action);
void AddLaunchCommand(CLI::App& app, const Environment& environment, Action* action);
void AddNodeCommand(CLI::App& app, const Environment& environment, Action* action);
void AddProfileCommand(CLI::App& app, const Environment& environment, Action* action);
void AddCheckpointCommand(CLI::App& app, const Environment& environment, Action* action);
void AddGenerateCommand(CLI::App& app, const Environment& environment, Action* action);
void AddStackCommand(CLI::App& app, const Environment& environment, Action* action);
void AddTopCommand(CLI::App& app, const Environment& environment, Action* action);
void AddDoctorCommand(CLI::App& app, const Environment& environment, Action* action);

// Has `environment` load a plug-in library.
absl::Status LoadPlugin(const Environment& environment, const std::string& path);

// Runs the command line (without the program's name) and returns the exit status: 0 done; 2 usage,
// configuration or bad input; what a shell would say of a process of the job that was lost; 69 if
// not all processes joined in time; 124 at the end of a --timeout; 1 any other failure
// while running.
int RunCommandLine(const Environment& environment, absl::Span<const std::string> arguments);

// 2 where the user can put it right, else 1; 0 for OK.
int ExitStatus(const absl::Status& status);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ENVIRONMENT_H_
