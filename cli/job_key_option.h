// The job's key, for the commands that connect to a coordinator.
//
// Thread rule: one thread; pure, but for files, the input and the environment.

#ifndef PENSTOCK_CLI_JOB_KEY_OPTION_H_
#define PENSTOCK_CLI_JOB_KEY_OPTION_H_

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace penstock::cli {

// 64 hexadecimal digits from the file of --key-file ("-": the first line of the standard
// input), or where it is empty from PENSTOCK_KEY. A file that others than its owner may read is
// refused, unless root has made it readable for a group of this process and nobody else.
absl::StatusOr<std::string> ReadJobKey(const std::string& key_file);

// The key that another process has sealed with munge (munge_text.h) and sent here.
absl::StatusOr<std::string> OpenSentKey(const std::string& sealed);

// A new key in a file that this user alone may read, for nodes that others start. The file goes
// with the object.
class JobKeyFile {
 public:
  static absl::StatusOr<std::unique_ptr<JobKeyFile>> Create();
  ~JobKeyFile();
  JobKeyFile(const JobKeyFile&) = delete;
  JobKeyFile& operator=(const JobKeyFile&) = delete;

  const std::string& path() const { return path_; }
  const std::string& key() const { return key_; }

 private:
  JobKeyFile(std::string path, std::string key) : path_(std::move(path)), key_(std::move(key)) {}

  const std::string path_;
  const std::string key_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_KEY_OPTION_H_
