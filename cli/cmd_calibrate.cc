// penstock calibrate: a cluster file from measured training steps.

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/json.h"
#include "cli/option_checks.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/calibrate.h"
#include "planner/cluster/cluster_file.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxRowsBytes = size_t{1} << 24;
constexpr size_t kMaxRows = 1000;

struct CalibrateOptions {
  std::string rows;
  std::string output;
  std::string holdout;
  int64_t devices_per_node = 8;
  bool is_json = false;
};

absl::StatusOr<std::vector<planner::MeasuredStep>> ReadRows(const std::string& file) {
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(file, kMaxRowsBytes));
  ASSIGN_OR_RETURN(std::vector<planner::MeasuredStep> rows,
                   planner::ParseMeasuredSteps(text, file));
  if (rows.size() <= kMaxRows) return rows;
  return absl::InvalidArgumentError(
      StrCat(file, ": ", rows.size(), " rows, expected at most ", kMaxRows));
}

struct Errors {
  double mean = 0;
  double most = 0;
};

Errors ErrorsOf(const std::vector<planner::MeasuredStep>& rows,
                const std::vector<double>& predicted_s) {
  Errors errors;
  for (size_t i = 0; i < rows.size(); ++i) {
    const double error = std::abs(predicted_s[i] / rows[i].seconds - 1);
    errors.mean += error / static_cast<double>(rows.size());
    errors.most = std::max(errors.most, error);
  }
  return errors;
}

absl::Status CalibrateCluster(const Environment& environment, const CalibrateOptions& options) {
  RETURN_IF_ERROR(CheckWritable(options.output));
  ASSIGN_OR_RETURN(const std::vector<planner::MeasuredStep> rows, ReadRows(options.rows));
  std::vector<planner::MeasuredStep> held_out;
  if (!options.holdout.empty()) {
    ASSIGN_OR_RETURN(held_out, ReadRows(options.holdout));
  }
  planner::CalibrationOptions calibration_options;
  for (const planner::MeasuredStep& row : held_out) {
    calibration_options.least_devices =
        std::max(calibration_options.least_devices, row.num_devices);
  }
  calibration_options.ops = &environment.registries.ops;
  calibration_options.models = &environment.registries.models;
  calibration_options.devices_per_node = options.devices_per_node;
  calibration_options.on_trial = [&](int num_trials, double mean_error) {
    if (!environment.err_is_terminal) return;
    environment.err << fmt::format("\rtrial {} of at most {}: mean error {:.1f} % ", num_trials,
                                   calibration_options.max_trials, 100 * mean_error)
                    << std::flush;
  };
  ASSIGN_OR_RETURN(const planner::Calibration calibration,
                   planner::Calibrate(rows, calibration_options));
  if (environment.err_is_terminal) environment.err << "\n";
  const std::string text = StrCat("# Fitted by `penstock calibrate` to ",
                                  Counted(static_cast<int64_t>(rows.size()), "row"),
                                  " of measured steps. The rates hold for f32 jobs that stand for\n"
                                  "# what was measured, in whatever precision.\n",
                                  planner::FormatCluster(calibration.cluster));
  RETURN_IF_ERROR(WriteTextFile(options.output, text));
  nlohmann::json json = {{"rows", rows.size()},
                         {"mean_error", calibration.mean_error},
                         {"max_error", calibration.max_error},
                         {"predicted_s", calibration.predicted_s}};
  std::string summary =
      fmt::format("{}: {}, mean error {:.1f} %, largest {:.1f} %\n", options.output,
                  Counted(static_cast<int64_t>(rows.size()), "row"), 100 * calibration.mean_error,
                  100 * calibration.max_error);
  if (!held_out.empty()) {
    ASSIGN_OR_RETURN(const std::vector<double> predicted,
                     planner::PredictSteps(held_out, calibration.cluster, calibration_options));
    const Errors errors = ErrorsOf(held_out, predicted);
    json["holdout_rows"] = held_out.size();
    json["holdout_mean_error"] = errors.mean;
    json["holdout_max_error"] = errors.most;
    json["holdout_predicted_s"] = predicted;
    StrAppend(&summary,
              fmt::format("{} that were held out: mean error {:.1f} %, largest {:.1f} %\n",
                          Counted(static_cast<int64_t>(held_out.size()), "row"), 100 * errors.mean,
                          100 * errors.most));
  }
  environment.out << (options.is_json ? DumpJson(json) + "\n" : summary);
  return absl::OkStatus();
}

}  // namespace

void AddCalibrateCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<CalibrateOptions>();
  CLI::App* command =
      app.add_subcommand("calibrate", "Fit the rates of a cluster to measured training steps.");
  command->footer(WrapText(
      "ROWS.csv has a line of names and one for each step of a GPT with full recomputation under "
      "1F1B: gpus, global_batch, micro_batch, hidden, heads, layers, seq, tp, dp, pp, "
      "iteration_ms. Twenty rows take about a minute.",
      kHelpColumns, 0));
  command->add_option("ROWS", options->rows, "Measured steps")->required()->option_text("ROWS.csv");
  command
      ->add_option("-o,--output", options->output,
                   "Write the cluster to this file, for --cluster (required)")
      ->required()
      ->option_text("FILE.toml");
  command
      ->add_option("--holdout", options->holdout, "Also predict these steps, which are not fitted")
      ->option_text("ROWS.csv");
  command
      ->add_option("--devices-per-node", options->devices_per_node,
                   "Devices that share the fast network (8)")
      ->check(AtLeast(1))
      ->option_text("N");
  command->add_flag("--json", options->is_json, "Print the figures as one JSON object");
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return CalibrateCluster(environment, *options); };
  });
}

}  // namespace penstock::cli
