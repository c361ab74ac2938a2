// Small file helpers of the commands.
//
// Thread rule: pure functions but for the files.

#ifndef PENSTOCK_CLI_FILES_H_
#define PENSTOCK_CLI_FILES_H_

#include <functional>
#include <ostream>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::cli {

// The whole file as bytes, at most `max_bytes`. Errors begin with the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, size_t max_bytes);

// Whether WriteTextFile could write there: what a long run writes at its end is checked at its
// beginning. A file that is not there is created and removed again; one that is there keeps its
// contents. An empty path is fine.
absl::Status CheckWritable(const std::string& path);

// All or nothing: a file that is there is replaced once the new one is complete, so a process that
// ends meanwhile leaves the old one, and beside it what it had written, as PATH.part-PID.
absl::Status WriteTextFile(const std::string& path, std::string_view text);

// The same, of what `write` writes to the stream, which holds nothing back: long pieces are best.
absl::Status WriteStreamedFile(const std::string& path,
                               const std::function<void(std::ostream&)>& write);

// Whether CreateFolder could create this folder, and files could be written in it. Folders and a
// file are created and removed again. An empty path is fine.
absl::Status CheckCreatable(const std::string& path);

// With its parents; fine if it is there.
absl::Status CreateFolder(const std::string& path);

// The text of a graph file; a job is refused with what to do.
absl::StatusOr<std::string> ReadGraphFile(const std::string& path);

bool HasSuffix(std::string_view text, std::string_view suffix);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_FILES_H_
