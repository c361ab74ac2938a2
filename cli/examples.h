// Labelled examples as training data: a row of numbers each, such as the pixels of an image, and
// the number of a class. Every tenth row is held out, whatever the order of the rows is.
//
// Thread rule: a value; concurrent reads are safe.

#ifndef PENSTOCK_CLI_EXAMPLES_H_
#define PENSTOCK_CLI_EXAMPLES_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "cli/mapped_file.h"
#include "cli/npy.h"

#include "actors/session/session.h"
#include "base/tensor.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// The lines of a CSV file that hold examples. The numbers are read from the text when a row is
// needed: a line takes 8 bytes of memory beside the file, which is mapped.
struct CsvRows {
  CsvRows() = default;
  CsvRows(const CsvRows&) = delete;  // `text` may refer to it
  CsvRows& operator=(const CsvRows&) = delete;

  std::string_view text = {};
  std::shared_ptr<const MappedFile> file = nullptr;  // that holds the text; null: `decompressed`
  std::string decompressed = {};
  std::vector<int64_t> begins = {};  // of each row in the text
  bool label_is_last = false;
};

struct Examples {
  std::string source;  // names the data in messages
  int64_t row_size = 0;
  std::shared_ptr<const CsvRows> csv = nullptr;     // null: rows are those of `images`
  std::shared_ptr<const NpyFile> images = nullptr;  // likewise
  double scale = 1;                                 // of all values
  std::vector<int32_t> labels;
  // Numbers of rows.
  std::vector<int64_t> train;
  std::vector<int64_t> held_out;

  int64_t num_rows() const { return static_cast<int64_t>(labels.size()); }
  // The values of a row. An error: another program has changed the file. REQUIRES: `to` has room
  // for a row.
  absl::Status ReadRow(int64_t row, absl::Span<float> to) const;
  // The first values, at most `most`.
  std::vector<float> FirstValues(int64_t most) const;
};

// From .npy files, which are mapped into memory: `images` [rows, ...] of numbers, each multiplied
// by `scale`, and `labels` [rows] of integers. Errors begin with the path of the file that they are
// about.
absl::StatusOr<Examples> ReadNpyExamples(const std::string& images, const std::string& labels,
                                         double scale);

// From a CSV file: a row of numbers, separated by commas, of which the first or the last one is the
// label. A first line without any number is skipped, and so are empty lines. All numbers are
// checked here, once. Errors begin with PATH:LINE:COLUMN; the column counts characters from 1.
//
// The file is mapped into memory, and may be larger than it. One that is compressed by gzip is
// decompressed into memory.
absl::StatusOr<Examples> ReadCsvExamples(const std::string& path, bool label_is_last, double scale);

// The same from text; `name` names it in errors.
absl::StatusOr<Examples> ParseCsvExamples(std::string text, std::string_view name,
                                          bool label_is_last, double scale);

// The row that is the n-th example of the run. An epoch visits each training row once, in a
// shuffled order.
int64_t TrainingRow(const Examples& examples, int64_t n, uint64_t seed);

// The rows as the feeds "images" and "labels" declare them; feeds of other names are left out.
// REQUIRES: CheckExampleFeeds has accepted the feeds, and they have as many rows.
absl::StatusOr<actors::Feeds> ExampleFeeds(const Examples& examples,
                                           absl::Span<const planner::FeedPlan> feeds,
                                           absl::Span<const int64_t> rows);

// Whether the feeds "images", floats [batch, ...] of as many elements as a row has, and "labels",
// integers [batch], can hold rows. `num_classes` is what labels have to be below; 0: not known.
absl::Status CheckExampleFeeds(const Examples& examples, absl::Span<const planner::FeedPlan> feeds,
                               int64_t num_classes);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_EXAMPLES_H_
