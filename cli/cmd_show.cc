// penstock show: what a plan holds.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "nlohmann/json.hpp"

#include "base/status_macros.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/show_plan.h"

namespace penstock::cli {
namespace {

struct ShowOptions {
  std::string file;
  std::optional<uint32_t> device;
  bool is_json = false;
};

absl::Status Show(const Environment& environment, const ShowOptions& options) {
  ASSIGN_OR_RETURN(const planner::FoldedPlan plan, planner::ReadFoldedPlan(options.file));
  if (options.is_json) {
    const planner::PlanCounts counts = planner::Count(plan);
    environment.out << DumpJson({{"actors", counts.actors},
                                 {"channels", counts.channels},
                                 {"devices", plan.num_devices()},
                                 {"collectives", counts.collectives},
                                 {"stages", plan.common.stages.size()},
                                 {"strategy", plan.common.strategy},
                                 {"microbatches", plan.common.num_microbatches}})
                    << "\n";
    return absl::OkStatus();
  }
  if (!options.device.has_value()) {
    ASSIGN_OR_RETURN(const std::string text, planner::ShowPlan(plan));
    environment.out << text;
    return absl::OkStatus();
  }
  const uint32_t device = *options.device;
  std::vector<uint32_t> devices;
  if (device < plan.num_devices()) devices.push_back(device);
  ASSIGN_OR_RETURN(const planner::Plan expanded, planner::ExpandDevices(plan, devices));
  ASSIGN_OR_RETURN(const std::string text, planner::ShowDevice(expanded, device));
  environment.out << text;
  return absl::OkStatus();
}

}  // namespace

void AddShowCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<ShowOptions>();
  CLI::App* command = app.add_subcommand("show", "Print the contents of a plan.");
  command->add_option("FILE", options->file, "Plan (.plan)")->required();
  command
      ->add_option("--device", options->device,
                   "Print one device in full: registers, phases, and actors in the planned order")
      ->check(AtLeast(0))
      ->check(CLI::Range(int64_t{0}, int64_t{std::numeric_limits<uint32_t>::max()}))
      ->option_text("N");
  command->add_flag("--json", options->is_json, "Print the counts as one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Show(environment, *options); };
  });
}

}  // namespace penstock::cli
