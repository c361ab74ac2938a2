// What every command of `penstock` works with: the registries, built by main() and handed on, and
// where to print.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_ENVIRONMENT_H_
#define PENSTOCK_CLI_ENVIRONMENT_H_

#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "actors/cluster/node_place.h"
#include "penstock/registries.h"

namespace CLI {
class App;
}  // namespace CLI

namespace penstock::cli {

struct Registries : penstock::Registries {
  std::vector<std::string> transports;  // sorted
  std::vector<std::string> devices;     // kinds, sorted
};

// Everything that this build has.
Registries BuiltinRegistries();

struct Environment {
  const Registries& registries;
  std::ostream& out;  // results
  std::ostream& err;  // progress and messages
  bool err_is_terminal = false;
  std::string program = "/proc/self/exe";  // what --procs starts, with `node` and its options
  // Where it is started, by rank, and the address at which `run` then listens; empty: here.
  std::vector<actors::NodePlace> places = {};
  std::string listen = {};
  bool out_is_terminal = false;
  // Adds what a plug-in library has to `registries`. Null: there are no plug-ins.
  std::function<absl::Status(const std::string& path)> load_plugin = nullptr;
  // Of this call, by --plugin; nodes load them too.
  std::vector<std::string> plugins = {};
  // Of the command line that runs, for reports; set by RunCommandLine.
  std::vector<std::string> arguments = {};
};

// The same with another stream for progress and messages.
Environment WithErr(const Environment& given, std::ostream& err);

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

// Runs the command line (without the program's name) and returns the exit status: 0 done; 2 usage,
// configuration or bad input; what a shell would say of a process of the job that was lost; 1 any
// other failure while running.
int RunCommandLine(const Environment& environment, absl::Span<const std::string> arguments);

// 2 where the user can put it right, else 1; 0 for OK.
int ExitStatus(const absl::Status& status);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_ENVIRONMENT_H_
