#include "actors/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "fmt/format.h"

#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/json_internal.h"
#include "actors/checkpoint/state_file.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/tile_copy.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tensor_memory.h"
#include "graph/kernel_spec.h"

namespace penstock::actors {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 28;
constexpr int64_t kMaxCount = int64_t{1} << 48;  // of steps and sequences
constexpr size_t kMaxParts = 1 << 12;            // of a tensor: as many as devices
constexpr char kIndexChecksum[] = "xxh3";
constexpr char kVersion[] = "version";  // of the names and the metadata in this file
constexpr char kThisVersion[] = "1";
constexpr char kStep[] = "step";
constexpr char kSequences[] = "sequences";
constexpr char kSeed[] = "seed";
constexpr char kStrategy[] = "strategy";
constexpr char kData[] = "data";
constexpr std::string_view kSettingPrefix = "setting/";

absl::StatusOr<int64_t> IntegerOf(const Metadata& metadata, const char* key, int64_t most) {
  const auto found = metadata.find(key);
  int64_t value = 0;
  if (found != metadata.end() && absl::SimpleAtoi(found->second, &value) && value >= 0 &&
      value <= most) {
    return value;
  }
  return absl::InvalidArgumentError(StrCat(
      "is not the checkpoint of a training run: its metadata have no ", key, " that can be"));
}

absl::StatusOr<std::string> ReadIndex(const std::string& path) {
  std::error_code error;
  const uint64_t size = fs::file_size(path, error);
  if (error || size > kMaxIndexBytes) {
    return absl::DataLossError(StrCat(path, ": is no index of a checkpoint"));
  }
  std::ifstream stream(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(stream)), std::istreambuf_iterator<char>());
  if (stream.bad()) return absl::UnavailableError(StrCat(path, ": cannot be read"));
  return text;
}

// The strings of a JSON object. kDataLoss: it holds something else.
absl::StatusOr<Metadata> StringsOf(const Json& json, const char* key) {
  Metadata strings;
  if (!json.is_object() || !json.contains(key) || !json[key].is_object()) {
    return absl::DataLossError(StrCat("has no table of strings ", key));
  }
  for (const auto& [name, value] : json[key].items()) {
    if (!value.is_string()) return absl::DataLossError(StrCat(key, ": ", name, " is no string"));
    strings[name] = value.get<std::string>();
  }
  return strings;
}

// Whether two tiles of a state have elements in common.
bool Overlap(const SafetensorsTensor& a, const Shape& a_offset, const SafetensorsTensor& b,
             const Shape& b_offset) {
  for (size_t i = 0; i < a_offset.size(); ++i) {
    const int64_t begin = std::max(a_offset[i], b_offset[i]);
    const int64_t end = std::min(a_offset[i] + a.type.shape[i], b_offset[i] + b.type.shape[i]);
    if (begin >= end) return false;
  }
  return true;
}

}  // namespace

std::string CheckpointFileName(uint32_t index, uint32_t count) {
  if (count == 1) return "model.safetensors";
  return fmt::format("model-{:05}-of-{:05}.safetensors", index + 1, count);
}

Metadata ToMetadata(const CheckpointInfo& info) {
  Metadata metadata;
  metadata[kWriterKey] = kWriter;
  metadata[kVersion] = kThisVersion;
  metadata[kStep] = StrCat(info.step);
  metadata[kSequences] = StrCat(info.sequences);
  metadata[kSeed] = StrCat(info.seed);
  metadata[kStrategy] = info.strategy;
  if (!info.data.empty()) metadata[kData] = info.data;
  for (const auto& [key, value] : info.settings) metadata[StrCat(kSettingPrefix, key)] = value;
  return metadata;
}

absl::StatusOr<CheckpointInfo> InfoFromMetadata(const Metadata& metadata) {
  CheckpointInfo info;
  ASSIGN_OR_RETURN(info.step, IntegerOf(metadata, kStep, kMaxCount));
  ASSIGN_OR_RETURN(info.sequences, IntegerOf(metadata, kSequences, kMaxCount));
  ASSIGN_OR_RETURN(info.seed, IntegerOf(metadata, kSeed, INT64_MAX));
  if (const auto found = metadata.find(kStrategy); found != metadata.end()) {
    info.strategy = found->second;
  }
  if (const auto found = metadata.find(kData); found != metadata.end()) info.data = found->second;
  for (const auto& [key, value] : metadata) {
    if (key.rfind(kSettingPrefix, 0) == 0) {
      info.settings.emplace_back(key.substr(kSettingPrefix.size()), value);
    }
  }
  return info;
}

absl::Status WriteCheckpointIndex(const std::string& folder, absl::Span<const CheckpointFile> files,
                                  const Metadata& metadata) {
  Json headers = Json::object();
  Json weight_map = Json::object();
  uint64_t total_bytes = 0;
  for (const CheckpointFile& file : files) {
    const std::string path = StrCat(folder, "/", file.name);
    const absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(path);
    if (!opened.ok() || opened->checksum() != file.checksum) {
      return absl::DataLossError(
          StrCat(path, ": is not there as its process has written it",
                 opened.ok() ? std::string() : StrCat(" (", ToStd(opened.status().message()), ")"),
                 "; all hosts of a job have to share the folder of its checkpoints"));
    }
    headers[file.name] = FormatChecksum(file.checksum);
    for (const SafetensorsTensor& tensor : opened->header().tensors) {
      weight_map[tensor.name] = file.name;
      total_bytes += tensor.type.num_bytes();
    }
  }
  Json strings = metadata;
  strings["total_size"] = StrCat(total_bytes);
  ASSIGN_OR_RETURN(std::string text, DumpJson({{"metadata", std::move(strings)},
                                               {"headers", std::move(headers)},
                                               {"weight_map", std::move(weight_map)},
                                               {kIndexChecksum, FormatChecksum(0)}}));
  const std::string zero = FormatChecksum(0);
  const std::string checksum = FormatChecksum(ChecksumOfSelf(text, kIndexChecksum, zero));
  const std::string field = StrCat("\"", kIndexChecksum, "\":\"");
  text.replace(text.find(field) + field.size(), checksum.size(), checksum);
  return WriteDurably(StrCat(folder, "/", kIndexFile), text);
}

absl::StatusOr<Checkpoint> Checkpoint::Open(const std::string& path) {
  Checkpoint checkpoint;
  checkpoint.path_ = path;
  std::error_code error;
  if (!fs::exists(path, error)) return absl::NotFoundError(StrCat(path, ": no such checkpoint"));
  if (!fs::is_directory(path, error)) {
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
    RETURN_IF_ERROR(checkpoint.AddFile(std::move(file)));
  } else if (const std::string index = StrCat(path, "/", kIndexFile); fs::exists(index, error)) {
    RETURN_IF_ERROR(checkpoint.OpenIndex(index));
  } else {
    const std::string name = StrCat(path, "/", CheckpointFileName(0, 1));
    if (!fs::exists(name, error)) {
      return absl::NotFoundError(StrCat(path, ": is no checkpoint: it has neither ", kIndexFile,
                                        " nor ", CheckpointFileName(0, 1)));
    }
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(name));
    RETURN_IF_ERROR(checkpoint.AddFile(std::move(file)));
  }
  if (const auto version = checkpoint.metadata_.find(kVersion);
      version != checkpoint.metadata_.end() && checkpoint.metadata_.count(kWriterKey) > 0 &&
      version->second != kThisVersion) {
    return absl::UnimplementedError(
        StrCat(path, ": has version ", version->second, "; this program reads ", kThisVersion));
  }
  if (const absl::Status status = checkpoint.Complete(); !status.ok()) {
    return WithPrefix(StrCat(path, ": "), status);
  }
  return checkpoint;
}

absl::Status Checkpoint::OpenIndex(const std::string& index_path) {
  ASSIGN_OR_RETURN(std::string text, ReadIndex(index_path));
  const absl::StatusOr<Json> parsed = ParseJsonObject(text, "the index");
  if (!parsed.ok()) return WithPrefix(StrCat(index_path, ": "), parsed.status());
  const Json& json = *parsed;
  const absl::StatusOr<Metadata> weight_map = StringsOf(json, "weight_map");
  if (!weight_map.ok()) return WithPrefix(StrCat(index_path, ": "), weight_map.status());
  Metadata headers;
  if (json.contains("headers") || json.contains(kIndexChecksum)) {
    const std::string checksum = json.contains(kIndexChecksum) && json[kIndexChecksum].is_string()
                                     ? json[kIndexChecksum].get<std::string>()
                                     : std::string();
    const absl::StatusOr<Metadata> expected = StringsOf(json, "headers");
    if (!expected.ok() ||
        checksum != FormatChecksum(ChecksumOfSelf(std::move(text), kIndexChecksum, checksum))) {
      return absl::DataLossError(StrCat(index_path, ": is damaged: it does not have its checksum"));
    }
    headers = *expected;
  } else {  // of another program
    for (const auto& [tensor, file] : *weight_map) headers[file];
  }
  const fs::path folder = fs::path(index_path).parent_path();
  for (const auto& [name, checksum] : headers) {
    // A name could lead anywhere.
    if (name != fs::path(name).filename().string()) {
      return absl::DataLossError(StrCat(index_path, ": ", name, " is no file of the checkpoint"));
    }
    ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open((folder / name).string()));
    if (!checksum.empty() &&
        (!file.checksum().has_value() || FormatChecksum(*file.checksum()) != checksum)) {
      return absl::DataLossError(StrCat(file.path(), ": is not the file of this checkpoint"));
    }
    RETURN_IF_ERROR(AddFile(std::move(file)));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::AddFile(SafetensorsFile file) {
  if (files_.empty()) {
    for (const auto& [key, value] : file.header().metadata) {
      if (!IsTileKey(key)) metadata_[key] = value;
    }
  }
  const size_t index = files_.size();
  files_.push_back(std::move(file));
  const std::string& path = files_[index].path();
  const Metadata& metadata = files_[index].header().metadata;
  const std::vector<SafetensorsTensor>& tensors = files_[index].header().tensors;
  for (size_t t = 0; t < tensors.size(); ++t) {
    const SafetensorsTensor& tensor = tensors[t];
    const absl::StatusOr<std::optional<TilePlace>> tile = PlaceOfTensor(tensor, metadata);
    if (!tile.ok()) return WithPrefix(StrCat(path, ": "), tile.status());
    const TilePlace place =
        tile->value_or(TilePlace{tensor.name, tensor.type, Shape(tensor.type.shape.size(), 0)});
    const auto [it, is_new] = numbers_.try_emplace(place.state, tensors_.size());
    if (is_new) {
      tensors_.push_back({place.state, place.type});
      parts_.emplace_back();
    } else if (tensors_[it->second].type != place.type) {
      return absl::DataLossError(StrCat(path, ": tensor ", place.state, " is ",
                                        ToString(place.type), " here and ",
                                        ToString(tensors_[it->second].type), " in another file"));
    }
    parts_[it->second].push_back({index, t, place.offset});
    if (parts_[it->second].size() > kMaxParts) {
      return absl::DataLossError(StrCat(path, ": tensor ", place.state, " has too many parts"));
    }
  }
  return absl::OkStatus();
}

// Each element of a tensor has to be in one part.
absl::Status Checkpoint::Complete() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    int64_t count = 0;
    for (size_t a = 0; a < parts_[i].size(); ++a) {
      const SafetensorsTensor& tensor = TensorOf(parts_[i][a]);
      count += tensor.type.num_elements();
      for (size_t b = 0; b < a; ++b) {
        if (Overlap(tensor, parts_[i][a].offset, TensorOf(parts_[i][b]), parts_[i][b].offset)) {
          return absl::DataLossError(StrCat("tensor ", tensors_[i].name, ": its parts overlap"));
        }
      }
    }
    if (count != tensors_[i].type.num_elements()) {
      return absl::DataLossError(StrCat("tensor ", tensors_[i].name, ": only ", count, " of its ",
                                        tensors_[i].type.num_elements(), " elements are there"));
    }
  }
  // By name, with their parts.
  std::vector<size_t> order(tensors_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [this](size_t a, size_t b) { return tensors_[a].name < tensors_[b].name; });
  std::vector<CheckpointTensor> tensors;
  std::vector<std::vector<Part>> parts;
  for (const size_t i : order) {
    tensors.push_back(std::move(tensors_[i]));
    parts.push_back(std::move(parts_[i]));
  }
  tensors_ = std::move(tensors);
  parts_ = std::move(parts);
  return absl::OkStatus();
}

const SafetensorsTensor& Checkpoint::TensorOf(const Part& part) const {
  return files_[part.file].header().tensors[part.tensor];
}

bool Checkpoint::has_checksums() const {
  return std::all_of(files_.begin(), files_.end(),
                     [](const SafetensorsFile& file) { return file.checksum().has_value(); });
}

const CheckpointTensor* Checkpoint::Find(std::string_view name) const {
  const auto found = std::lower_bound(
      tensors_.begin(), tensors_.end(), name,
      [](const CheckpointTensor& tensor, std::string_view key) { return tensor.name < key; });
  return found == tensors_.end() || found->name != name ? nullptr : &*found;
}

absl::StatusOr<Tensor> Checkpoint::Read(std::string_view name) const {
  const CheckpointTensor* const tensor = Find(name);
  if (tensor == nullptr) return absl::NotFoundError(StrCat(path_, ": has no tensor ", name));
  return Read(*tensor);
}

absl::StatusOr<Tensor> Checkpoint::Read(const CheckpointTensor& tensor) const {
  if (const absl::Status status = CheckFitsMemory(tensor.type); !status.ok()) {
    return WithPrefix(StrCat(path_, ": tensor ", tensor.name, ": "), status);
  }
  Tensor value(tensor.type);
  RETURN_IF_ERROR(ReadInto(tensor, &value));
  return value;
}

absl::Status Checkpoint::Verify(const CheckpointTensor& tensor) const {
  const auto index = static_cast<size_t>(&tensor - tensors_.data());
  for (const Part& part : parts_[index]) {
    RETURN_IF_ERROR(files_[part.file].Verify(TensorOf(part)));
  }
  return absl::OkStatus();
}

absl::Status Checkpoint::ReadInto(const CheckpointTensor& tensor, Tensor* value) const {
  const auto index = static_cast<size_t>(&tensor - tensors_.data());
  std::vector<std::byte> tile;
  for (const Part& part : parts_[index]) {
    const SafetensorsFile& file = files_[part.file];
    const SafetensorsTensor& stored = TensorOf(part);
    if (stored.type.shape == tensor.type.shape) {
      RETURN_IF_ERROR(file.Read(stored, static_cast<std::byte*>(value->data())));
      continue;
    }
    tile.resize(stored.type.num_bytes());
    RETURN_IF_ERROR(file.Read(stored, tile.data()));
    graph::TileDesc desc;
    desc.dtype = tensor.type.dtype;
    desc.shape = stored.type.shape;
    desc.global = tensor.type.shape;
    desc.offset = part.offset;
    TileCopy(desc).ToGlobal(tile.data(), value->data(), 0);
  }
  return absl::OkStatus();
}

}  // namespace penstock::actors
