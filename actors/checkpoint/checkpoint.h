// A checkpoint as it is read: the states of a training run by name, however they are spread over
// files.
//
//   ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::Open("checkpoints/step-00000100"));
//   ASSIGN_OR_RETURN(const Tensor weights, checkpoint.Read("h0.mlp.w1"));
//
// A checkpoint is a folder with one file "model.safetensors", or with a file of each process,
// "model-00001-of-00002.safetensors", and "model.safetensors.index.json". The index has the keys
// that other programs know ("metadata", "weight_map"), the checksum of each file's header
// ("headers"), and one of its own ("xxh3"). Any safetensors file can be opened as a checkpoint,
// too.
//
// Errors begin with the path; kDataLoss names the tensor that is damaged.
//
// Thread rule: immutable; reads from any thread.

#ifndef PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_H_
#define PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "actors/checkpoint/safetensors.h"
#include "base/shape.h"
#include "base/tensor.h"

namespace penstock::actors {

// The names of the files in a checkpoint.
inline constexpr char kIndexFile[] = "model.safetensors.index.json";
// The name of one of `count` files of a checkpoint.
std::string CheckpointFileName(uint32_t index, uint32_t count);

// What a checkpoint says of the run beside its states.
struct CheckpointInfo {
  int64_t step = 0;       // steps that were run: the index of the next one
  int64_t sequences = 0;  // of the training text that were read
  int64_t seed = 0;       // of random operators and of the order of the data
  std::string strategy;   // of the run, as planner::ToString writes it
  std::string data;       // tells one set of training data from another; empty: not known
  std::vector<std::pair<std::string, std::string>> settings;  // of the program, by key
};
// As it stands in the headers of the files.
Metadata ToMetadata(const CheckpointInfo& info);
// kInvalidArgument: it is not the checkpoint of a training run.
absl::StatusOr<CheckpointInfo> InfoFromMetadata(const Metadata& metadata);

// A tensor that a checkpoint holds.
struct CheckpointTensor {
  std::string name;  // of the state
  TensorType type;   // of all of it
};

// A file that a process has written into a checkpoint.
struct CheckpointFile {
  std::string name;       // of the file, in the folder
  uint64_t checksum = 0;  // of its header
};

// Writes the index of a checkpoint whose files are there. kDataLoss: a file is not what its process
// has written, as on hosts that do not share the folder.
absl::Status WriteCheckpointIndex(const std::string& folder, absl::Span<const CheckpointFile> files,
                                  const Metadata& metadata);

// A checkpoint to read.
class Checkpoint {
 public:
  // A folder, or a file.
  static absl::StatusOr<Checkpoint> Open(const std::string& path);

  // The folder, or the file.
  const std::string& path() const { return path_; }
  // What the files say beside their tensors.
  const Metadata& metadata() const { return metadata_; }
  // Sorted by name.
  const std::vector<CheckpointTensor>& tensors() const { return tensors_; }
  // Those that it consists of.
  const std::vector<SafetensorsFile>& files() const { return files_; }
  // Whether Verify can tell a damaged tensor from a sound one.
  bool has_checksums() const;

  // Null: there is none of this name.
  const CheckpointTensor* Find(std::string_view name) const;
  // kResourceExhausted: the tensor is larger than the memory of this machine.
  absl::StatusOr<Tensor> Read(std::string_view name) const;
  // REQUIRES: the tensor is one of tensors(), here and below.
  absl::StatusOr<Tensor> Read(const CheckpointTensor& tensor) const;
  // Reads it in pieces and compares its checksums, if there are any.
  absl::Status Verify(const CheckpointTensor& tensor) const;
  // `value` has the tensor's type.
  absl::Status ReadInto(const CheckpointTensor& tensor, Tensor* value) const;

 private:
  // Elements of a tensor in a file.
  struct Part {
    size_t file = 0;
    size_t tensor = 0;  // of that file
    Shape offset;
  };

  Checkpoint() = default;
  absl::Status OpenIndex(const std::string& index_path);
  absl::Status AddFile(SafetensorsFile file);
  // Checks that each tensor is there as a whole, and sorts them.
  absl::Status Complete();
  const SafetensorsTensor& TensorOf(const Part& part) const;

  std::string path_;
  Metadata metadata_;
  std::vector<SafetensorsFile> files_;
  std::vector<CheckpointTensor> tensors_;
  std::map<std::string, size_t> numbers_;  // of tensors, while files are added
  std::vector<std::vector<Part>> parts_;   // of each tensor, in the order of tensors_
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_CHECKPOINT_H_
