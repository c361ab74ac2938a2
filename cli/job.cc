#include "cli/job.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/ascii.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/job_keys_internal.h"
#include <toml.hpp>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "planner/cluster/toml_internal.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxJobBytes = 1 << 20;

std::string Place(std::string_view file, uint64_t line, uint64_t column) {
  return StrCat(file, ":", line, ":", column);
}

// Where the key of a value stands: toml11 tells where the value begins.
std::string PlaceOfKey(std::string_view file, std::string_view key, const toml::value& value) {
  const toml::source_location where = value.location();
  const std::string line = where.line_str();
  // The key stands before its value; a section is placed at its "[".
  const size_t limit = std::min<size_t>(where.column() - (value.is_table() ? 0 : 1), line.size());
  size_t found = std::string::npos;
  for (size_t at = line.find(key); at != std::string::npos && at <= limit;
       at = line.find(key, at + 1)) {
    found = at;
  }
  return Place(file, where.line(), found == std::string::npos ? where.column() : found + 1);
}

std::string PlaceOfValue(std::string_view file, const toml::value& value) {
  return Place(file, value.location().line(), value.location().column());
}

absl::Status Prefixed(std::string_view prefix, const absl::Status& status) {
  return absl::Status(status.code(), StrCat(prefix, ": ", ToStd(status.message())));
}

absl::Status SetKey(std::string_view name, const toml::value& value, const std::string& folder,
                    std::string_view place, Job& job) {
  const Key* key = FindKey(name);
  if (absl::Status status = key->set(value, folder, job); !status.ok()) {
    return Prefixed(place,
                    absl::Status(status.code(), StrCat(name, ": ", ToStd(status.message()))));
  }
  job.locations[std::string(name)] = std::string(place);
  return absl::OkStatus();
}

bool IsSection(std::string_view name) {
  return std::any_of(Keys().begin(), Keys().end(), [name](const Key& key) {
    return key.name.substr(0, key.name.find('.')) == name;
  });
}

std::vector<std::string_view> Sections() {
  std::vector<std::string_view> sections;
  for (const Key& key : Keys()) {
    const std::string_view section = key.name.substr(0, key.name.find('.'));
    if (sections.empty() || sections.back() != section) sections.push_back(section);
  }
  return sections;
}

// A graph in a file is a model of its own: the keys of a built-in one would be without effect, and
// so would text to validate it on.
absl::Status CheckModelKeys(const Job& job) {
  const auto file = job.locations.find("model.file");
  if (file == job.locations.end()) return absl::OkStatus();
  for (const auto& [key, place] : job.locations) {
    std::string_view reason;
    if (key == "data.validation") {
      reason = "only built-in models are validated";
    } else if (key != "model.file" && key.substr(0, 6) == "model.") {
      reason = "a graph file is trained as it is written; expected one of the two";
    } else {
      continue;
    }
    return absl::InvalidArgumentError(
        StrCat(place, ": ", key, " does not go with model.file (", file->second, "): ", reason));
  }
  return absl::OkStatus();
}

// A TOML text whose tables set a job's keys. With `section` it holds that one alone.
struct JobText {
  std::string_view text;
  std::string_view file;
  std::string folder;
  std::string_view section = "";
};

absl::Status SetKeys(const JobText& source, Job& job) {
  const std::string_view file = source.file;
  ASSIGN_OR_RETURN(const toml::value root,
                   planner::ParseToml(source.text, std::string(file), true));
  for (const auto& [section, table] : root.as_table()) {
    const bool is_expected = source.section.empty() || section == source.section;
    if (!IsSection(section) || !is_expected) {
      std::string message = StrCat(is_expected ? "unknown " : "unexpected ",
                                   table.is_table() ? "section" : "key", " '", section, "'");
      const std::string nearest = table.is_table() ? graph::NearestName(section, Sections()) : "";
      if (!is_expected) {
        StrAppend(&message,
                  table.is_table() ? "; this file holds [" : "; its keys stand below a line [",
                  source.section, table.is_table() ? "] alone" : "]");
      } else if (!nearest.empty()) {
        StrAppend(&message, "; did you mean '", nearest, "'?");
      } else if (!table.is_table()) {
        message = UnknownKey(section);
      }
      return absl::InvalidArgumentError(StrCat(PlaceOfKey(file, section, table), ": ", message));
    }
    if (!table.is_table()) {
      return Prefixed(PlaceOfValue(file, table),
                      Expected(StrCat("a section [", section, "]"), table));
    }
    for (const auto& [key, value] : table.as_table()) {
      const std::string name = StrCat(section, ".", key);
      if (FindKey(name) == nullptr) {
        return absl::InvalidArgumentError(
            StrCat(PlaceOfKey(file, key, value), ": ", UnknownKey(name)));
      }
      RETURN_IF_ERROR(SetKey(name, value, source.folder, PlaceOfValue(file, value), job));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Job> MakeJob(absl::Span<const JobText> sources,
                            absl::Span<const std::string> overrides) {
  Job job;
  for (const JobText& source : sources) RETURN_IF_ERROR(SetKeys(source, job));
  for (const std::string& assignment : overrides) {
    RETURN_IF_ERROR(ApplyOverride(assignment, job));
  }
  RETURN_IF_ERROR(CheckModelKeys(job));
  return job;
}

// What to write instead of a value that is not TOML: most often a string without quotes.
absl::Status ExplainValue(std::string_view key, std::string_view value, const absl::Status& error,
                          const Job& job) {
  const auto is_plain = [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) ||
           std::string_view("_./-=, ").find(c) != std::string_view::npos;
  };
  if (value.empty() || !std::all_of(value.begin(), value.end(), is_plain)) return error;
  const std::string place = StrCat("--set ", key, "=", value);
  Job copy = job;
  RETURN_IF_ERROR(SetKey(key, toml::value(std::string(value)), "", place, copy));
  return absl::InvalidArgumentError(StrCat(
      place, ": not a TOML value; a string needs quotes: --set '", key, "=\"", value, "\"'"));
}

// Whether a file for --cluster describes devices and networks (cluster_file.h) and is not a part of
// a job.
absl::StatusOr<bool> DescribesCluster(std::string_view text, const std::string& file) {
  ASSIGN_OR_RETURN(const toml::value root, planner::ParseToml(text, file, true));
  return root.as_table().count("kind") > 0 || root.as_table().count("level") > 0;
}

}  // namespace

absl::StatusOr<Job> ParseJob(std::string_view text, std::string_view file, std::string_view folder,
                             absl::Span<const std::string> overrides) {
  return MakeJob({{text, file, std::string(folder)}}, overrides);
}

absl::StatusOr<Job> ReadJob(const std::string& path, absl::Span<const std::string> overrides,
                            const std::string& cluster) {
  const auto folder_of = [](const std::string& file) {
    return std::filesystem::path(file).parent_path().string();
  };
  if (HasSuffix(path, ".pst")) {
    return absl::InvalidArgumentError(
        StrCat(path,
               ": a .pst file is a graph; name it in model.file of a job (a .toml file), or run it "
               "once with `penstock eval`"));
  }
  ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxJobBytes));
  std::vector<JobText> sources = {{text, path, folder_of(path)}};
  if (cluster.empty()) return MakeJob(sources, overrides);
  std::string cluster_text;
  // What is no path is the name of a preset, if only a wrong one.
  bool is_description = !std::filesystem::exists(cluster) && !HasSuffix(cluster, ".toml") &&
                        cluster.find('/') == std::string::npos;
  if (!is_description) {
    ASSIGN_OR_RETURN(cluster_text, ReadTextFile(cluster, kMaxJobBytes));
    ASSIGN_OR_RETURN(is_description, DescribesCluster(cluster_text, cluster));
  }
  if (!is_description) {
    sources.push_back({cluster_text, cluster, folder_of(cluster), "cluster"});
    return MakeJob(sources, overrides);
  }
  ASSIGN_OR_RETURN(Job job, MakeJob(sources, overrides));
  job.cluster.file = cluster;
  job.locations["cluster.file"] = StrCat("--cluster ", cluster);
  return job;
}

absl::Status ApplyOverride(std::string_view assignment, Job& job) {
  const std::string place = StrCat("--set ", assignment);
  const size_t equals = assignment.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return absl::InvalidArgumentError(StrCat(place, ": expected key=value, as train.steps=5"));
  }
  std::string_view name = assignment.substr(0, equals);
  while (!name.empty() && name.back() == ' ') name.remove_suffix(1);
  // One input of several: the others stay as they are.
  constexpr std::string_view kInputs = "data.inputs";
  std::string_view input;
  if (name.substr(0, kInputs.size()) == kInputs && name.size() > kInputs.size() + 1 &&
      name[kInputs.size()] == '.') {
    input = name.substr(kInputs.size() + 1);
    name = kInputs;
  }
  if (FindKey(name) == nullptr) {
    return absl::InvalidArgumentError(StrCat(place, ": ", UnknownKey(name)));
  }
  const absl::StatusOr<toml::value> root =
      planner::ParseToml(StrCat("value = ", assignment.substr(equals + 1), "\n"), place, false);
  if (!root.ok()) return ExplainValue(name, assignment.substr(equals + 1), root.status(), job);
  if (root->as_table().size() != 1) {
    return absl::InvalidArgumentError(StrCat(place, ": expected one value"));
  }
  const toml::value& value = root->as_table().at("value");
  if (input.empty()) return SetKey(name, value, "", place, job);
  const auto all = job.data.all_inputs;
  auto inputs = job.data.inputs;
  RETURN_IF_ERROR(SetKey(name, toml::table{{std::string(input), value}}, "", place, job));
  inputs.insert_or_assign(std::string(input), job.data.inputs.begin()->second);
  job.data.inputs = std::move(inputs);
  job.data.all_inputs = all;
  return absl::OkStatus();
}

absl::Status AtKey(const Job& job, absl::Span<const std::string_view> keys, absl::Status status) {
  if (status.ok()) return status;
  for (const std::string_view key : keys) {
    const auto found = job.locations.find(key);
    if (found != job.locations.end()) return Prefixed(found->second, status);
  }
  return status;
}

graph::TrainingOptions TrainingOptionsOf(const Job& job) {
  graph::TrainingOptions options = job.train.options;
  options.total_steps = job.train.steps;
  options.min_learning_rate = job.train.min_learning_rate.value_or(options.learning_rate / 10);
  constexpr double kLossScaleOfF16 = 65536;
  options.loss_scale =
      job.train.loss_scale.value_or(job.train.dtype == DType::kF16 ? kLossScaleOfF16 : 0);
  return options;
}

std::vector<std::string_view> JobKeys() {
  std::vector<std::string_view> names;
  for (const Key& key : Keys()) names.push_back(key.name);
  return names;
}

std::string DescribeJobKeys() {
  constexpr size_t kHelpColumn = 30;  // where the descriptions begin; no name reaches it
  std::string text;
  for (const Key& key : Keys()) {
    std::string line = StrCat("  ", key.name);
    line.resize(kHelpColumn, ' ');
    StrAppend(&text, line, WrapText(key.help, kHelpColumns - kHelpColumn, kHelpColumn), "\n");
  }
  return text;
}

}  // namespace penstock::cli
