#include "cli/environment.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "cli/device_kinds.h"
#include "cli/failure_report.h"
#include "cli/help_text.h"
#include "cli/job.h"
#include "cli/utf8.h"

#include "actors/cluster/cluster.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"
#include "penstock/version.h"

namespace penstock::cli {
namespace {

constexpr char kDescription[] =
    "Penstock runs tensor programs that do not fit one device. Its planner splits a graph over "
    "devices, micro-batches and pipeline stages and compiles it to a plan, a static network of "
    "actors. Its runtime executes the plan.";

constexpr char kFooter[] =
    "Examples:\n"
    "  penstock run examples/gpt/demo.toml                      Train a small GPT on text\n"
    "  penstock run JOB.toml --set 'parallel.strategy=\"dp=4\"'   Override the strategy of a job\n"
    "  penstock plan JOB.toml -o job.plan                       Compile a job without running it\n"
    "  penstock show job.plan                                   Print the contents of a plan\n\n"
    "`penstock COMMAND --help` describes one command and its options. With --json, a command "
    "prints\n"
    "only JSON to standard output; progress and messages go to standard error.\n\n"
    "Exit status: 0 success, 1 failure while running, 2 invalid usage or input, 130 after Ctrl-C, "
    "143\n"
    "after SIGTERM, 124 at the end of --timeout, 69 if not all processes joined in time. "
    "If a\n"
    "process that the command started dies, the command exits with that process's status (128 + "
    "the\n"
    "signal).";

// Wraps descriptions and prints an option's text (FILE, N) where one is set.
class HelpFormatter : public CLI::Formatter {
 public:
  HelpFormatter() {
    column_width(28);
    label("Positionals", "Arguments");
    label("SUBCOMMAND", "COMMAND");
  }

  std::string make_description(const CLI::App* app) const override {
    return WrapText(app->get_description(), kHelpColumns, 0) + "\n\n";
  }
  std::string make_option_desc(const CLI::Option* option) const override {
    return WrapText(option->get_description(), kHelpColumns - get_column_width(), 0);
  }
  std::string make_option_opts(const CLI::Option* option) const override {
    // The usage line shows which arguments are required.
    return option->get_positional() ? "" : CLI::Formatter::make_option_opts(option);
  }
};

// CLI11 would say only that a command is missing.
absl::Status CheckCommand(const CLI::App& app, std::string_view name) {
  std::vector<std::string_view> known;
  const std::vector<const CLI::App*> commands = app.get_subcommands({});
  for (const CLI::App* command : commands) known.push_back(command->get_name());
  if (std::find(known.begin(), known.end(), name) != known.end()) return absl::OkStatus();
  const std::string nearest = graph::NearestName(name, known);
  return absl::InvalidArgumentError(StrCat("unknown command '", name, "'; ",
                                           nearest.empty()
                                               ? StrCat("known: ", penstock::StrJoin(known, ", "))
                                               : StrCat("did you mean '", nearest, "'?")));
}

// CLI11 would list the arguments that are left, last first.
std::string UnexpectedArgument(const CLI::App& app, absl::Span<const std::string> arguments) {
  const CLI::App* command = app.get_subcommands().empty() ? &app : app.get_subcommands()[0];
  const std::string call = command == &app ? "penstock" : StrCat("penstock ", command->get_name());
  std::vector<std::string> options;
  for (const CLI::Option* option : command->get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  const std::vector<std::string_view> known(options.begin(), options.end());
  for (const std::string& argument : arguments) {
    const std::string name = argument.substr(0, argument.find('='));
    const bool is_option = name.size() > 1 && name[0] == '-' &&
                           !absl::ascii_isdigit(static_cast<unsigned char>(name[1]));
    if (!is_option || name == "--" || command->get_option_no_throw(name) != nullptr) continue;
    std::string message = StrCat("`", call, "` has no option ", name);
    if (command->get_name() == "launch" &&
        app.get_subcommand("run")->get_option_no_throw(name) != nullptr) {
      return StrCat(message,
                    ", but `penstock run` does: write the job and its options after --, as in "
                    "penstock launch ... -- JOB.toml ",
                    name);
    }
    for (const std::string_view key : JobKeys()) {
      const bool has_keys = command->get_option_no_throw("--set") != nullptr;
      if (has_keys && StrCat("--", key.substr(key.find('.') + 1)) == name) {
        return StrCat(message, "; did you mean --set ", key, "=...?");
      }
    }
    if (const std::string nearest = graph::NearestName(name, known); !nearest.empty()) {
      return StrCat(message, "; did you mean ", nearest, "?");
    }
    return StrCat(message, "; see `", call, " --help`");
  }
  const std::vector<std::string> left = app.remaining(true);
  return StrCat(
      "`", call, "` takes no argument ", left.empty() ? "here" : left[0],
      command->get_name() == "launch" ? "; hosts stand behind -H with commas between them" : "",
      "; see `", call, " --help`");
}

// "show, verify or merge".
std::string OneOf(const std::vector<const CLI::App*>& commands) {
  std::string text;
  for (size_t i = 0; i < commands.size(); ++i) {
    const bool is_last = i + 1 == commands.size();
    StrAppend(&text, i == 0 ? "" : is_last ? " or " : ", ", commands[i]->get_name());
  }
  return text;
}

// The error of a command whose second word is missing or unknown; empty: it is another error.
std::string MissingSubcommand(const CLI::App& app, absl::Span<const std::string> arguments) {
  if (app.get_subcommands().empty()) return "";
  const CLI::App* const command = app.get_subcommands()[0];
  const std::vector<const CLI::App*> known = command->get_subcommands({});
  if (known.empty() || !command->get_subcommands().empty()) return "";
  const std::string name = command->get_name();
  const std::string expected = StrCat("`penstock ", name, "` is followed by ", OneOf(known));
  return arguments.size() > 1
             ? StrCat(expected, ", not by '", arguments[1], "'")
             : StrCat(expected, ", as in `penstock ", name, " ", known[0]->get_name(), "`");
}

// For the commands that look up operators, kernels, models or policies.
void AddPluginOptions(CLI::App& app, std::vector<std::string>* plugins) {
  for (const char* name :
       {"run", "plan", "simulate", "opt", "eval", "list", "generate", "node", "launch"}) {
    app.get_subcommand(name)
        ->add_option("--plugin", *plugins,
                     "Load operators, models and policies from a plug-in library (.so). May be "
                     "repeated")
        ->option_text("FILE")
        ->allow_extra_args(false);
  }
}

absl::Status LoadPlugins(const Environment& environment) {
  for (const std::string& path : environment.plugins) {
    if (absl::Status loaded = LoadPlugin(environment, path); !loaded.ok()) return loaded;
  }
  return absl::OkStatus();
}

}  // namespace

Registries BuiltinRegistries() {
  Registries registries;
  static_cast<penstock::Registries&>(registries) = penstock::BuiltinRegistries();
  registries.transports = {"inproc", "ucx"};
  registries.devices.assign(std::begin(kDeviceKinds), std::end(kDeviceKinds));
  return registries;
}

absl::Status LoadPlugin(const Environment& environment, const std::string& path) {
  if (!environment.load_plugin) {
    return absl::UnimplementedError(StrCat("--plugin ", path, ": this program loads no plug-ins"));
  }
  const absl::Status loaded = environment.load_plugin(path);
  if (loaded.ok()) return loaded;
  return absl::Status(loaded.code(), StrCat("--plugin ", ToStd(loaded.message())));
}

int ExitStatus(const absl::Status& status) {
  int shell_status = 0;
  if (const auto payload = status.GetPayload(actors::kShellStatusPayload);
      payload.has_value() && absl::SimpleAtoi(std::string(*payload), &shell_status)) {
    return shell_status;
  }
  // A step has failed on a device: the command was called correctly.
  if (actors::OriginOf(status).device >= 0) return 1;
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return 0;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kAlreadyExists:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kDataLoss:
    case absl::StatusCode::kResourceExhausted:  // the devices are too small for the job
      return 2;
    default:
      return 1;
  }
}

Environment WithErr(const Environment& given, std::ostream& err) {
  return {.registries = given.registries,
          .out = given.out,
          .err = err,
          .err_is_terminal = given.err_is_terminal,
          .program = given.program,
          .called_as = given.called_as,
          .launch = given.launch,
          .out_is_terminal = given.out_is_terminal,
          .load_plugin = given.load_plugin,
          .plugins = given.plugins,
          .arguments = given.arguments,
          .interrupts = given.interrupts};
}

int RunCommandLine(const Environment& given, absl::Span<const std::string> arguments) {
  Environment environment = given;
  environment.arguments.assign(arguments.begin(), arguments.end());
  CLI::App app(kDescription, "penstock");
  app.formatter(std::make_shared<HelpFormatter>());
  app.require_subcommand(1);
  app.set_version_flag("-V,--version", StrCat("penstock ", kVersion));
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return StrCat("penstock: ", std::string(error.what()),
                  "\nRun with --help for more information.\n");
  });
  Action action;
  AddRunCommand(app, environment, &action);
  AddPlanCommand(app, environment, &action);
  AddSimulateCommand(app, environment, &action);
  AddScheduleCommand(app, environment, &action);
  AddShowCommand(app, environment, &action);
  AddOptCommand(app, environment, &action);
  AddEvalCommand(app, environment, &action);
  AddListCommand(app, environment, &action);
  AddBenchCommand(app, environment, &action);
  AddProfileCommand(app, environment, &action);
  AddCalibrateCommand(app, environment, &action);
  AddLaunchCommand(app, environment, &action);
  AddNodeCommand(app, environment, &action);
  AddCheckpointCommand(app, environment, &action);
  AddGenerateCommand(app, environment, &action);
  AddStackCommand(app, environment, &action);
  AddTopCommand(app, environment, &action);
  AddDoctorCommand(app, environment, &action);
  app.footer(kFooter);  // commands added before do not inherit it
  for (CLI::App* command : app.get_subcommands({})) command->group("Commands");
  AddPluginOptions(app, &environment.plugins);

  if (!arguments.empty() && arguments[0].substr(0, 1) != "-") {
    if (absl::Status status = CheckCommand(app, arguments[0]); !status.ok()) {
      environment.err << "penstock: " << ToStd(status.message()) << std::endl;
      return ExitStatus(status);
    }
  }
  // CLI11 takes the arguments last first.
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::ExtrasError&) {
    environment.err << "penstock: " << UnexpectedArgument(app, arguments) << std::endl;
    return 2;
  } catch (const CLI::ParseError& error) {
    const bool is_required = dynamic_cast<const CLI::RequiredError*>(&error) != nullptr;
    if (const std::string message = MissingSubcommand(app, arguments);
        is_required && !message.empty()) {
      environment.err << "penstock: " << PrintableUtf8(message) << std::endl;
      return 2;
    }
    if (is_required && app.get_subcommands().empty()) {
      if (!arguments.empty()) {
        environment.err << "penstock: " << UnexpectedArgument(app, arguments) << std::endl;
        return 2;
      }
      environment.err << "penstock: a command is missing, as in `penstock run JOB.toml`; `penstock "
                         "--help` lists the commands"
                      << std::endl;
      return 2;
    }
    // Prints the help that was asked for, or the message.
    return app.exit(error, environment.out, environment.err) == 0 ? 0 : 2;
  }
  absl::Status status = LoadPlugins(environment);
  if (status.ok()) status = action();
  if (status.ok() && !environment.out.flush()) {
    status = absl::UnavailableError("the results could not be written to standard output");
  }
  TellError(environment.err, &status);
  return ExitStatus(status);
}

}  // namespace penstock::cli
