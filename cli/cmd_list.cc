// penstock list: the names that jobs and options may use.

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/device_kinds.h"
#include "cli/environment.h"
#include "cli/json.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "graph/op.h"
#include "planner/cluster/presets.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kLists[] = {"ops",    "policies", "transports", "devices",
                                       "models", "presets",  "clusters"};

struct ListOptions {
  std::string what;
  bool is_json = false;
};

std::vector<std::string> Items(const Registries& registries, std::string_view what) {
  const auto copy = [](const auto& names) {
    return std::vector<std::string>(names.begin(), names.end());
  };
  if (what == "ops") return copy(registries.ops.Names());
  if (what == "policies") return copy(registries.policies.Names());
  if (what == "transports") return registries.transports;
  if (what == "devices") return registries.devices;
  if (what == "models") return copy(registries.models.ModelNames());
  if (what == "clusters") {
    std::vector<std::string> names;
    for (const planner::ClusterPreset& preset : planner::ClusterPresets()) {
      names.push_back(StrCat(preset.name, ":", preset.size));
    }
    std::sort(names.begin(), names.end());
    return names;
  }
  return copy(registries.models.PresetNames());
}

// What a listing for people says of a name besides itself.
std::string Remark(const Registries& registries, std::string_view what, std::string_view name) {
  if (what == "models") return registries.models.FindModel(name)->summary;
  if (what == "presets") {
    const graph::Preset* preset = registries.models.FindPreset(name);
    const graph::ModelConfig& config = preset->config;
    if (registries.models.FindModel(preset->model)->reads_images) {
      return StrCat(preset->model, ", ", config.layers, " layers, width ", config.width,
                    ", images of ", config.image, " x ", config.image, " with ", config.channels,
                    " channels, ", config.classes, " classes");
    }
    return StrCat(preset->model, ", ", config.layers, " layers, width ", config.width, ", ",
                  config.heads, " heads, context ", config.context, ", vocabulary ",
                  config.vocabulary);
  }
  for (const planner::ClusterPreset& preset : planner::ClusterPresets()) {
    if (what == "clusters" && name.substr(0, name.find(':')) == preset.name) {
      return std::string(preset.help);
    }
  }
  return "";
}

// The devices of this machine, by kind.
void ListDevices(const Environment& environment) {
  for (const std::string& kind : environment.registries.devices) {
    std::string label = kind;
    for (const std::string& line : DescribeDevices(kind)) {
      environment.out << label << std::string(label.size() < 14 ? 14 - label.size() : 1, ' ')
                      << line << "\n";
      label.clear();
    }
  }
}

absl::Status List(const Environment& environment, const ListOptions& options) {
  if (std::find(std::begin(kLists), std::end(kLists), options.what) == std::end(kLists)) {
    const std::string nearest = graph::NearestName(options.what, kLists);
    return absl::InvalidArgumentError(
        StrCat(options.what.empty() ? std::string("list: what to list is missing")
                                    : StrCat("list: there is no list '", options.what, "'"),
               nearest.empty() ? StrCat("; one of ", StrJoin(kLists, ", "))
                               : StrCat("; did you mean '", nearest, "'?")));
  }
  const std::vector<std::string> items = Items(environment.registries, options.what);
  if (options.is_json) {
    environment.out << DumpJson({{"items", items}}) << "\n";
    return absl::OkStatus();
  }
  if (options.what == "devices") {
    ListDevices(environment);
    return absl::OkStatus();
  }
  for (const std::string& item : items) {
    const std::string remark = Remark(environment.registries, options.what, item);
    environment.out << item;
    if (!remark.empty())
      environment.out << std::string(item.size() < 14 ? 14 - item.size() : 1, ' ') << remark;
    environment.out << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddListCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<ListOptions>();
  CLI::App* command = app.add_subcommand("list", "List operators, models and other names.");
  command->add_option("WHAT", options->what,
                      "One of ops, policies, transports, devices, models, presets, clusters");
  command->add_flag("--json", options->is_json, "Print {\"items\": [names]}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return List(environment, *options); };
  });
}

}  // namespace penstock::cli
