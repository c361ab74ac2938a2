// penstock eval: runs a graph in the text format once, as it is sharded in the file.

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/compile_job.h"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/input_values.h"
#include "cli/json.h"
#include "cli/npy.h"
#include "cli/option_checks.h"
#include "cli/processes.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "actors/cluster/cluster.h"
#include "actors/session/session.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "planner/plan/plan_io.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;

struct EvalOptions {
  std::string file;
  std::string inputs;
  std::string output;
  int64_t devices = 0;  // 0: what the graph needs
  int64_t processes = 1;
  int64_t threads = 1;
  uint64_t seed = 1;
  bool is_json = false;
};

// Stages are all or nothing; a graph without any is one stage.
absl::Status CompleteStages(const std::string& file, graph::Graph& graph) {
  const bool has_stages = std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                      [](const graph::Node& node) { return node.stage >= 0; });
  for (graph::NodeId id = 0; id < graph.num_nodes(); ++id) {
    graph::Node& node = graph.mutable_node(id);
    if (node.stage >= 0) continue;
    if (has_stages) {
      return absl::InvalidArgumentError(
          StrCat(file, ":", node.location.line, ":", node.location.column,
                 ": this statement has no stage, though others have: ", PrintNode(graph, node)));
    }
    node.stage = 0;
  }
  return absl::OkStatus();
}

// The file DIR/NAME.npy as a tensor of `type`; the name must not lead out of the folder.
absl::StatusOr<Tensor> LoadInput(const fs::path& path, std::string_view name,
                                 const TensorType& type) {
  ASSIGN_OR_RETURN(const Tensor stored, ReadNpy(path.string()));
  if (stored.shape() != type.shape) {
    return absl::InvalidArgumentError(StrCat(path.string(), ": holds ", ToString(stored.type()),
                                             "; ", name, " is ", ToString(type)));
  }
  absl::StatusOr<Tensor> converted = ConvertTensor(stored, type.dtype);
  if (!converted.ok()) {
    return absl::InvalidArgumentError(StrCat(path.string(), ": ",
                                             ToStd(converted.status().message()), " (", name,
                                             " is ", ToString(type), ")"));
  }
  return converted;
}

bool HasInput(const EvalOptions& options, const std::string& name, fs::path* path) {
  if (options.inputs.empty() || name.find('/') != std::string::npos) return false;
  *path = fs::path(options.inputs) / StrCat(name, ".npy");
  std::error_code error;
  return fs::is_regular_file(*path, error);
}

absl::StatusOr<planner::Plan> CompileFile(const Environment& environment,
                                          const EvalOptions& options) {
  const Registries& registries = environment.registries;
  ASSIGN_OR_RETURN(const std::string text, ReadGraphFile(options.file));
  ASSIGN_OR_RETURN(graph::Graph graph, graph::ParseGraph(text, options.file, registries.ops));
  RETURN_IF_ERROR(graph::VerifyGraph(graph));
  if (graph.returns().empty()) {
    return absl::InvalidArgumentError(StrCat(options.file, ": the graph returns nothing"));
  }
  RETURN_IF_ERROR(CompleteStages(options.file, graph));
  ASSIGN_OR_RETURN(
      const planner::FoldedPlan plan,
      CompileFoldedGraph(
          registries, std::move(graph),
          {.policy = "gpipe", .policies = registries.policies, .num_threads = options.threads}));
  const auto needed = static_cast<int64_t>(plan.num_devices());
  if (options.devices != 0 && options.devices < needed) {
    return absl::InvalidArgumentError(StrCat("--devices ", options.devices, ": ", options.file,
                                             " is laid out over ", Counted(needed, "device")));
  }
  // What runs is what a file would hold.
  ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(plan));
  return planner::PlanFromBytes(bytes);
}

struct Result {
  std::string name;
  TensorType type;
  double sum = 0;
  double abs_max = 0;
};

Result Summarize(const std::string& name, const Tensor& tensor) {
  Result result = {name, tensor.type(), 0, 0};
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const double value = ElementAsDouble(tensor, i);
    result.sum += value;
    // A NaN stays: it is larger than anything.
    if (!(std::abs(value) <= result.abs_max) && !std::isnan(result.abs_max)) {
      result.abs_max = std::abs(value);
    }
  }
  return result;
}

// "nan" whatever its sign.
std::string Figure(double value) {
  return std::isnan(value) ? std::string("nan") : fmt::format("{:.9g}", value);
}

void Print(const Environment& environment, const std::vector<Result>& results, bool is_json) {
  if (!is_json) {
    for (const Result& result : results) {
      environment.out << fmt::format("{} : {}  sum {}  abs_max {}\n", result.name,
                                     ToString(result.type), Figure(result.sum),
                                     Figure(result.abs_max));
    }
    return;
  }
  std::string text;
  for (const Result& result : results) {
    StrAppend(&text, text.empty() ? "" : ", ", "{\"name\": ", JsonString(result.name),
              ", \"shape\": ", ToString(result.type.shape),
              ", \"dtype\": ", JsonString(Name(result.type.dtype)),
              ", \"sum\": ", JsonNumber(result.sum, 17),
              ", \"abs_max\": ", JsonNumber(result.abs_max, 17), "}");
  }
  environment.out << "{\"results\": [" << text << "]}\n";
}

absl::Status Eval(const Environment& environment, const EvalOptions& options) {
  std::error_code error;
  if (!options.inputs.empty() && !fs::is_directory(options.inputs, error)) {
    return absl::NotFoundError(StrCat("--inputs ", options.inputs,
                                      fs::exists(options.inputs, error)
                                          ? ": is a file; expected a folder with NAME.npy files"
                                          : ": no such folder"));
  }
  ASSIGN_OR_RETURN(planner::Plan plan, CompileFile(environment, options));
  actors::SessionOptions session_options;
  session_options.threads_per_device = static_cast<int>(options.threads);
  session_options.seed = options.seed;
  session_options.kernels = &environment.registries.kernels;
  session_options.policies = &environment.registries.policies;
  std::unique_ptr<actors::Cluster> cluster;
  if (options.processes > static_cast<int64_t>(plan.devices.size())) {
    return absl::InvalidArgumentError(StrCat("--procs ", options.processes, ": the graph has ",
                                             Counted(plan.devices.size(), "device"),
                                             ", and each process needs at least one"));
  }
  if (options.processes > 1) {
    ASSIGN_OR_RETURN(
        cluster,
        StartProcesses(environment, {.count = options.processes,
                                     .num_devices = static_cast<int64_t>(plan.devices.size())}));
    session_options.start_engine = cluster->engine_factory();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(std::move(plan), session_options));

  fs::path path;
  std::vector<std::string_view> drawn;  // from the seed, without a file
  for (const planner::StatePlan& state : session->plan().states) {
    if (!HasInput(options, state.name, &path)) {
      if (state.init == "normal") drawn.push_back(state.name);
      continue;
    }
    ASSIGN_OR_RETURN(const Tensor value, LoadInput(path, state.name, state.type));
    RETURN_IF_ERROR(session->SetState(state.name, value));
  }
  actors::Feeds feeds;
  for (const planner::FeedPlan& feed : session->plan().feeds) {
    if (HasInput(options, feed.name, &path)) {
      ASSIGN_OR_RETURN(feeds[feed.name], LoadInput(path, feed.name, feed.type));
    } else {
      drawn.push_back(feed.name);
      ASSIGN_OR_RETURN(feeds[feed.name], DrawInput(feed.name, feed.type, options.seed, 0));
    }
  }
  if (!options.inputs.empty() && !drawn.empty()) {
    std::sort(drawn.begin(), drawn.end());
    environment.err << "note: no file in " << options.inputs << " for "
                    << penstock::StrJoin(drawn, ", ") << ": drawn from seed " << options.seed
                    << std::endl;
  }
  ASSIGN_OR_RETURN(const actors::StepResult step, session->Run(feeds));

  if (!options.output.empty()) RETURN_IF_ERROR(CreateFolder(options.output));
  std::vector<Result> results;
  for (size_t i = 0; i < step.fetches.size(); ++i) {
    const auto& [name, tensor] = step.fetches[i];
    results.push_back(Summarize(name, tensor));
    if (options.output.empty()) continue;
    RETURN_IF_ERROR(
        WriteNpy((fs::path(options.output) / StrCat("return", i, ".npy")).string(), tensor));
  }
  Print(environment, results, options.is_json);
  return absl::OkStatus();
}

}  // namespace

void AddEvalCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<EvalOptions>();
  CLI::App* command =
      app.add_subcommand("eval", "Run a graph once, with the shardings written in its file.");
  command->add_option("FILE", options->file, "Graph in the text format (.pst)")->required();
  command
      ->add_option("--inputs", options->inputs,
                   "Read inputs, parameters and states from DIR/NAME.npy. Without a file, an input "
                   "is random and a parameter or state has its initial value")
      ->option_text("DIR");
  command
      ->add_option("-o,--output", options->output,
                   "Write the gathered results to DIR/return0.npy, DIR/return1.npy, ...")
      ->option_text("DIR");
  command
      ->add_option("--devices", options->devices,
                   "Fail if the graph needs more devices than this (no limit)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_option("--procs", options->processes, "Number of processes (1)")
      ->option_text("N")
      ->check(AtLeast(1));
  command->add_option("--threads", options->threads, "Threads per device (1)")
      ->option_text("N")
      ->check(CLI::Range(1, 1024));
  command
      ->add_option("--seed", options->seed,
                   "Seed of random inputs, initial values and random operators (1)")
      ->option_text("N");
  command->add_flag("--json", options->is_json,
                    "Print {\"results\": [{name, shape, dtype, sum, abs_max}]}");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Eval(environment, *options); };
  });
}

}  // namespace penstock::cli
