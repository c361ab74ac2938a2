// penstock opt: applies passes to a graph in the text format and prints it.

#include <memory>
#include <string>
#include <utility>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/help_text.h"

#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "planner/opt.h"

namespace penstock::cli {
namespace {

struct OptOptions {
  std::string file;
  std::string passes;
  bool has_timing = false;
};

absl::Status Opt(const Environment& environment, const OptOptions& options) {
  ASSIGN_OR_RETURN(const std::string text, ReadGraphFile(options.file));
  planner::PassOptions pass_options;
  if (options.has_timing) {
    pass_options.on_timing = [&environment](const planner::PassTiming& timing) {
      environment.err << timing.name << ": " << FormatSeconds(1e-9 * timing.wall_ns) << ", "
                      << timing.num_nodes << " nodes\n";
    };
  }
  ASSIGN_OR_RETURN(const std::string printed,
                   planner::Optimize(text, options.file, options.passes, environment.registries.ops,
                                     pass_options));
  environment.out << printed;
  return absl::OkStatus();
}

std::string PassNames(const Environment& environment) {
  std::string names;
  for (const planner::Pass& pass : planner::NamedPasses(environment.registries.ops)) {
    StrAppend(&names, names.empty() ? "" : ", ", pass.name);
  }
  return names;
}

}  // namespace

void AddOptCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<OptOptions>();
  CLI::App* command = app.add_subcommand("opt", "Apply planner passes to a graph and print it.");
  command->footer(WrapText("Passes: " + PassNames(environment), kHelpColumns, 0));
  command->add_option("FILE", options->file, "Graph in the text format (.pst)")->required();
  command->add_option("--pass,--passes", options->passes, "Passes to apply, in this order")
      ->option_text("A,B");
  command->add_flag("--timing", options->has_timing,
                    "Print the time of each pass to standard error");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Opt(environment, *options); };
  });
}

}  // namespace penstock::cli
