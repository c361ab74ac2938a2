// penstock checkpoint: what checkpoints hold, whether they are sound, and one file of many.

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/cleanup/cleanup.h"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/json.h"
#include "cli/utf8.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

#include "actors/checkpoint/checkpoint.h"
#include "actors/checkpoint/checkpoint_folder.h"
#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/state_file.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

using actors::Checkpoint;
using actors::CheckpointTensor;

struct CheckpointOptions {
  std::string path;
  std::string output;
  bool is_json = false;
};

absl::StatusOr<Checkpoint> Open(const CheckpointOptions& options) {
  return Checkpoint::Open(actors::CheckpointFolder::NewestOr(options.path));
}

uint64_t BytesOf(const Checkpoint& checkpoint) {
  uint64_t num_bytes = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) num_bytes += tensor.type.num_bytes();
  return num_bytes;
}

// "step-00000100: 30 tensors, 12.3 MiB in 2 files, after step 100 of a run under dp=2".
std::string Describe(const Checkpoint& checkpoint) {
  std::string text = StrCat(checkpoint.path(), ": ",
                            Counted(static_cast<int64_t>(checkpoint.tensors().size()), "tensor"),
                            ", ", FormatBytes(BytesOf(checkpoint)), " in ",
                            Counted(static_cast<int64_t>(checkpoint.files().size()), "file"));
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  if (info.ok()) {
    StrAppend(&text, ", after step ", info->step);
    if (!info->strategy.empty()) StrAppend(&text, " of a run under ", info->strategy);
  }
  return PrintableUtf8(text);
}

nlohmann::json ToJson(const Checkpoint& checkpoint) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    tensors.push_back(
        {{"name", tensor.name},
         {"dtype", std::string(Name(tensor.type.dtype))},
         {"shape", std::vector<int64_t>(tensor.type.shape.begin(), tensor.type.shape.end())}});
  }
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  return {{"path", checkpoint.path()},
          {"step", info.ok() ? nlohmann::json(info->step) : nlohmann::json()},
          {"tensors", std::move(tensors)},
          {"bytes", BytesOf(checkpoint)},
          {"files", checkpoint.files().size()},
          {"metadata", checkpoint.metadata()}};
}

void Print(const nlohmann::json& json, std::ostream& out) { out << DumpJson(json) << "\n"; }

absl::Status ShowCheckpoint(const Environment& environment, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Open(options));
  if (options.is_json) {
    Print(ToJson(checkpoint), environment.out);
    return absl::OkStatus();
  }
  const auto info = actors::InfoFromMetadata(checkpoint.metadata());
  environment.out << Describe(checkpoint) << "\n";
  if (info.ok() && !info->settings.empty()) {
    std::vector<std::string> settings;
    for (const auto& [name, value] : info->settings) settings.push_back(StrCat(name, " = ", value));
    const std::string text = PrintableUtf8(StrCat("made with ", StrJoin(settings, ", ")));
    environment.out << WrapText(text, kHelpColumns, 2) << "\n";
  }
  size_t width = 0;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    width = std::max(width, tensor.name.size());
  }
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    environment.out << fmt::format("  {:<{}}  {}\n", tensor.name, width, ToString(tensor.type));
  }
  return absl::OkStatus();
}

absl::Status Verify(const Environment& environment, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Open(options));
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    RETURN_IF_ERROR(checkpoint.Verify(tensor));
  }
  if (options.is_json) {
    nlohmann::json json = ToJson(checkpoint);
    json["has_checksums"] = checkpoint.has_checksums();
    Print(json, environment.out);
    return absl::OkStatus();
  }
  environment.out << Describe(checkpoint) << "\n"
                  << (checkpoint.has_checksums()
                          ? "every tensor has its checksum\n"
                          : "this file has no checksums: every tensor can be read, and whether "
                            "its values are damaged is not known\n");
  return absl::OkStatus();
}

absl::Status Merge(const Environment& environment, const CheckpointOptions& options) {
  ASSIGN_OR_RETURN(const Checkpoint checkpoint, Open(options));
  std::string output = options.output;
  if (output.empty()) {
    const std::filesystem::path path(checkpoint.path());
    output = StrCat((path.has_filename() ? path : path.parent_path()).string(), ".safetensors");
  }
  std::error_code error;
  if (std::filesystem::exists(output, error)) {
    return absl::AlreadyExistsError(
        StrCat(output, ": is already there; --output names another file"));
  }
  RETURN_IF_ERROR(CheckWritable(output));
  std::optional<Tensor> value;  // one at a time
  std::vector<actors::SafetensorsSource> sources;
  for (const CheckpointTensor& tensor : checkpoint.tensors()) {
    sources.push_back({tensor.name, tensor.type,
                       [&checkpoint, &tensor, &value]() -> absl::StatusOr<const std::byte*> {
                         value.reset();
                         ASSIGN_OR_RETURN(value, checkpoint.Read(tensor));
                         return static_cast<const std::byte*>(value->data());
                       }});
  }
  // The file is there as a whole or not at all.
  const std::string part = StrCat(output, ".part-", getpid());
  RETURN_IF_ERROR(actors::WriteSafetensors(part, sources, checkpoint.metadata()).status());
  const auto remove = absl::MakeCleanup([&part] { unlink(part.c_str()); });
  if (link(part.c_str(), output.c_str()) != 0) {
    return actors::FileError(output, "cannot be created", errno);
  }
  const std::filesystem::path folder = std::filesystem::path(output).parent_path();
  RETURN_IF_ERROR(actors::SyncFolder(folder.empty() ? "." : folder.string()));
  if (options.is_json) {
    nlohmann::json json = ToJson(checkpoint);
    json["path"] = output;
    json["files"] = 1;
    Print(json, environment.out);
  } else {
    environment.out << output << ": "
                    << Counted(static_cast<int64_t>(checkpoint.tensors().size()), "tensor") << ", "
                    << FormatBytes(BytesOf(checkpoint)) << "\n";
  }
  return absl::OkStatus();
}

}  // namespace

void AddCheckpointCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<CheckpointOptions>();
  CLI::App* command =
      app.add_subcommand("checkpoint", "Show, verify or merge the checkpoints of a run.");
  command->require_subcommand(1);
  const std::string footer = WrapText(
      "A checkpoint is a folder of safetensors files, with an index if there are several. PATH is "
      "a checkpoint, a safetensors file, or a folder of checkpoints, of which the newest one is "
      "meant.",
      kHelpColumns, 0);
  command->footer(footer);
  const auto add = [&](const char* name, const char* help, auto function) {
    CLI::App* sub = command->add_subcommand(name, help);
    sub->add_option("PATH", options->path, "Checkpoint, or folder of checkpoints")->required();
    sub->add_flag("--json", options->is_json, "Print one JSON object");
    sub->callback([options, &environment, action, function] {
      *action = [options, &environment, function] { return function(environment, *options); };
    });
    return sub;
  };
  add("show", "Print the step and the tensors of a checkpoint.", &ShowCheckpoint);
  add("verify", "Read a whole checkpoint and compare its checksums.", &Verify);
  add("merge", "Write a checkpoint as one safetensors file.", &Merge)
      ->add_option("-o,--output", options->output,
                   "File to write (the path of the checkpoint with .safetensors added)")
      ->option_text("FILE");
}

}  // namespace penstock::cli
