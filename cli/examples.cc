#include "cli/examples.h"

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "cli/data.h"
#include "cli/npy.h"

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr int64_t kHeldOutEvery = 10;
constexpr size_t kMaxBytes = size_t{4} << 30;
constexpr size_t kReadBytes = size_t{1} << 20;
// Of a mapped file, between two parts that have been checked and are given back.
constexpr size_t kReleaseBytes = size_t{16} << 20;

absl::Status Refuse(std::string_view place, const std::string& what) {
  return absl::InvalidArgumentError(StrCat(place, ": ", what));
}

// Every tenth row is held out.
absl::Status Divide(Examples* examples) {
  for (int64_t row = 0; row < examples->num_rows(); ++row) {
    (row % kHeldOutEvery == kHeldOutEvery - 1 ? examples->held_out : examples->train)
        .push_back(row);
  }
  if (!examples->train.empty()) return absl::OkStatus();
  return Refuse(examples->source, "holds no examples");
}

bool IsCompressed(absl::Span<const uint8_t> bytes) {
  return bytes.size() >= 2 && bytes[0] == 0x1f && bytes[1] == 0x8b;  // as gzip begins
}

// The whole file, decompressed.
absl::StatusOr<std::string> Decompress(const std::string& path) {
  errno = 0;
  gzFile const file = gzopen(path.c_str(), "rb");
  if (file == nullptr) {
    return Refuse(path, errno != 0 ? std::strerror(errno) : "no memory to read it");
  }
  const auto close_file = absl::MakeCleanup([file] { gzclose_r(file); });
  std::string text;
  while (true) {
    const size_t size = text.size();
    if (size > kMaxBytes) return Refuse(path, StrCat("is longer than ", kMaxBytes, " bytes"));
    text.resize(size + kReadBytes);
    const int count = gzread(file, text.data() + size, kReadBytes);
    text.resize(size + static_cast<size_t>(std::max(count, 0)));
    int error = Z_OK;
    const char* const message = gzerror(file, &error);
    if (error != Z_OK && error != Z_STREAM_END) {
      return Refuse(path, error == Z_ERRNO ? std::strerror(errno)
                          : error == Z_BUF_ERROR
                              ? std::string("is cut off: its compressed data ends too early")
                              : StrCat("cannot be decompressed: ", message));
    }
    if (count <= 0) return text;
  }
}

// The number that fills the field; spaces around it are fine.
bool ParseNumber(std::string_view field, double* number) {
  while (!field.empty() && field.front() == ' ') field.remove_prefix(1);
  while (!field.empty() && field.back() == ' ') field.remove_suffix(1);
  if (!field.empty() && field.front() == '+') field.remove_prefix(1);
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), *number);
  return error == std::errc() && end == field.data() + field.size() && !field.empty();
}

bool IsLabel(double number) {
  return number >= 0 && number <= std::numeric_limits<int32_t>::max() &&
         number == std::floor(number);
}

constexpr std::string_view kLabel = "expected a label, an integer of at least 0, not ";

// The fields of one line of a CSV file.
class CsvLine {
 public:
  CsvLine(std::string_view line, std::string_view name, int64_t number)
      : line_(line), name_(name), number_(number) {
    for (size_t begin = 0; begin <= line.size();) {
      const size_t comma = std::min(line.find(',', begin), line.size());
      fields_.push_back(line.substr(begin, comma - begin));
      begin = comma + 1;
    }
  }

  const std::vector<std::string_view>& fields() const { return fields_; }
  std::string Place(size_t field) const {
    const auto column = fields_[field].data() - line_.data() + 1;
    return StrCat(name_, ":", number_, ":", column);
  }
  // A line of names.
  bool HasNoNumber() const {
    return std::none_of(fields_.begin(), fields_.end(), [](std::string_view field) {
      double number = 0;
      return ParseNumber(field, &number);
    });
  }

  // Checks all numbers, and adds the label.
  absl::Status AddTo(bool label_is_last, double scale, Examples* examples) const {
    const size_t label = label_is_last ? fields_.size() - 1 : 0;
    for (size_t i = 0; i < fields_.size(); ++i) {
      double number = 0;
      if (!ParseNumber(fields_[i], &number)) {
        return Refuse(Place(i), StrCat("expected a number, not '", Shortened(fields_[i]), "'"));
      }
      if (i == label) {
        if (!IsLabel(number)) return Refuse(Place(i), StrCat(kLabel, Shortened(fields_[i])));
        examples->labels.push_back(static_cast<int32_t>(number));
      } else if (!std::isfinite(static_cast<float>(number * scale))) {
        return Refuse(Place(i), StrCat(Shortened(fields_[i]), " is no finite number in f32"));
      }
    }
    return absl::OkStatus();
  }

 private:
  static std::string Shortened(std::string_view field) {
    constexpr size_t kMost = 40;
    return field.size() <= kMost ? std::string(field) : StrCat(field.substr(0, kMost), "...");
  }

  const std::string_view line_;
  const std::string_view name_;
  const int64_t number_;
  std::vector<std::string_view> fields_;
};

// Calls f with the memory of the feed as T.
template <typename F>
absl::Status WithType(const planner::FeedPlan& feed, F f) {
  switch (feed.type.dtype) {
    case DType::kF32:
      return f(float());
    case DType::kF64:
      return f(double());
    case DType::kI32:
      return f(int32_t());
    case DType::kI64:
      return f(int64_t());
    default:
      return absl::InvalidArgumentError(
          StrCat("input ", feed.name, " is ", ToString(feed.type),
                 "; examples feed images of f32 or f64, and labels of i32 or i64"));
  }
}

}  // namespace

absl::StatusOr<Examples> ReadNpyExamples(const std::string& images, const std::string& labels,
                                         double scale) {
  ASSIGN_OR_RETURN(NpyFile file, NpyFile::Open(images));
  const TensorType pixels = file.type();
  ASSIGN_OR_RETURN(const Tensor classes, ReadNpy(labels));
  if (pixels.shape.size() < 2 || pixels.num_elements() == 0) {
    return Refuse(
        images, StrCat("holds ", ToString(pixels), "; expected examples of numbers, [rows, ...]"));
  }
  if (classes.shape() != Shape{pixels.shape[0]} || IsFloat(classes.dtype())) {
    return Refuse(labels, StrCat("holds ", ToString(classes.type()),
                                 "; expected an integer for "
                                 "each of the ",
                                 pixels.shape[0], " rows of ", images));
  }
  Examples examples;
  examples.source = images;
  examples.row_size = pixels.num_elements() / pixels.shape[0];
  examples.images = std::make_shared<const NpyFile>(std::move(file));
  examples.scale = scale;
  for (int64_t row = 0; row < classes.num_elements(); ++row) {
    const double label = ElementAsDouble(classes, row);
    if (!IsLabel(label)) return Refuse(labels, StrCat("row ", row, ": ", kLabel, label));
    examples.labels.push_back(static_cast<int32_t>(label));
  }
  RETURN_IF_ERROR(Divide(&examples));
  return examples;
}

namespace {

// The line that begins at `begin`, without its end.
std::string_view LineAt(std::string_view text, size_t begin) {
  std::string_view line = text.substr(begin, text.find('\n', begin) - begin);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

// Checks the text once from its beginning to its end.
absl::StatusOr<Examples> IndexRows(std::shared_ptr<CsvRows> rows, std::string_view name,
                                   double scale) {
  Examples examples;
  examples.source = std::string(name);
  examples.scale = scale;
  const std::string_view text = rows->text;
  int64_t number = 0;
  size_t num_fields = 0;
  size_t released = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t line_begin = begin;
    begin = std::min(text.find('\n', begin), text.size()) + 1;
    ++number;
    if (rows->file != nullptr && begin - released > kReleaseBytes) {
      rows->file->Release(released, line_begin - released);
      released = line_begin;
    }
    const std::string_view content = LineAt(text, line_begin);
    if (content.empty()) continue;
    const CsvLine line(content, name, number);
    if (num_fields == 0 && number == 1 && line.HasNoNumber()) continue;
    if (num_fields == 0) {
      num_fields = line.fields().size();
      if (num_fields < 2) return Refuse(line.Place(0), "expected a label and numbers in a row");
    }
    if (line.fields().size() != num_fields) {
      return Refuse(
          line.Place(std::min(line.fields().size(), num_fields + 1) - 1),
          StrCat("this row has ", Counted(static_cast<int64_t>(line.fields().size()), "field"),
                 "; the ones before have ", num_fields));
    }
    RETURN_IF_ERROR(line.AddTo(rows->label_is_last, scale, &examples));
    rows->begins.push_back(static_cast<int64_t>(line_begin));
  }
  if (rows->file != nullptr) rows->file->Release(released, text.size() - released);
  examples.row_size = static_cast<int64_t>(num_fields) - 1;
  examples.csv = std::move(rows);
  RETURN_IF_ERROR(Divide(&examples));
  return examples;
}

}  // namespace

absl::StatusOr<Examples> ParseCsvExamples(std::string text, std::string_view name,
                                          bool label_is_last, double scale) {
  auto rows = std::make_shared<CsvRows>();
  rows->decompressed = std::move(text);
  rows->text = rows->decompressed;
  rows->label_is_last = label_is_last;
  return IndexRows(std::move(rows), name, scale);
}

absl::StatusOr<Examples> ReadCsvExamples(const std::string& path, bool label_is_last,
                                         double scale) {
  ASSIGN_OR_RETURN(std::shared_ptr<const MappedFile> file, MappedFile::Open(path));
  if (IsCompressed(file->bytes())) {
    ASSIGN_OR_RETURN(std::string text, Decompress(path));
    return ParseCsvExamples(std::move(text), path, label_is_last, scale);
  }
  auto rows = std::make_shared<CsvRows>();
  rows->text = file->text();
  rows->file = std::move(file);
  rows->label_is_last = label_is_last;
  return IndexRows(std::move(rows), path, scale);
}

absl::Status Examples::ReadRow(int64_t row, absl::Span<float> to) const {
  if (images != nullptr) {
    images->Read(row * row_size, scale, to.subspan(0, static_cast<size_t>(row_size)));
    return absl::OkStatus();
  }
  std::string_view rest =
      LineAt(csv->text, static_cast<size_t>(csv->begins[static_cast<size_t>(row)]));
  const int64_t label = csv->label_is_last ? row_size : 0;
  for (int64_t i = 0, value = 0; i <= row_size; ++i) {
    const size_t comma = std::min(rest.find(','), rest.size());
    double number = 0;
    if ((i < row_size) != (comma < rest.size()) || !ParseNumber(rest.substr(0, comma), &number)) {
      return absl::UnavailableError(
          StrCat(source, ": example ", row + 1,
                 " is no longer what it was when the file was checked: another program has changed "
                 "it"));
    }
    if (i != label) to[static_cast<size_t>(value++)] = static_cast<float>(number * scale);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
  }
  return absl::OkStatus();
}

std::vector<float> Examples::FirstValues(int64_t most) const {
  const int64_t count = std::min(most, num_rows() * row_size);
  std::vector<float> first(static_cast<size_t>(count));
  if (images != nullptr) {
    images->Read(0, scale, absl::MakeSpan(first));
    return first;
  }
  std::vector<float> values(static_cast<size_t>(row_size));
  for (int64_t begin = 0; begin < count; begin += row_size) {
    if (!ReadRow(begin / row_size, absl::MakeSpan(values)).ok()) break;
    std::copy_n(values.begin(), std::min(row_size, count - begin), first.begin() + begin);
  }
  return first;
}

int64_t TrainingRow(const Examples& examples, int64_t n, uint64_t seed) {
  const auto count = static_cast<int64_t>(examples.train.size());
  const auto epoch = static_cast<uint32_t>(n / count);
  return examples.train[static_cast<size_t>(ShuffledIndex(n % count, count, seed, epoch))];
}

absl::StatusOr<actors::Feeds> ExampleFeeds(const Examples& examples,
                                           absl::Span<const planner::FeedPlan> plan_feeds,
                                           absl::Span<const int64_t> rows) {
  actors::Feeds feeds;
  for (const planner::FeedPlan& feed : plan_feeds) {
    if (feed.name != "images" && feed.name != "labels") continue;
    Tensor tensor(feed.type);
    std::vector<float> pixels(static_cast<size_t>(examples.row_size));
    RETURN_IF_ERROR(WithType(feed, [&]<typename T>(T) {
      T* to = tensor.As<T>();
      for (const int64_t row : rows) {
        if (feed.name == "labels") {
          *to++ = static_cast<T>(examples.labels[static_cast<size_t>(row)]);
          continue;
        }
        RETURN_IF_ERROR(examples.ReadRow(row, absl::MakeSpan(pixels)));
        to = std::transform(pixels.begin(), pixels.end(), to,
                            [](float value) { return static_cast<T>(value); });
      }
      return absl::OkStatus();
    }));
    feeds[feed.name] = std::move(tensor);
  }
  return feeds;
}

absl::Status CheckExampleFeeds(const Examples& examples, absl::Span<const planner::FeedPlan> feeds,
                               int64_t num_classes) {
  for (const planner::FeedPlan& feed : feeds) {
    const Shape& shape = feed.type.shape;
    const bool is_images = feed.name == "images";
    const bool fits = is_images ? IsFloat(feed.type.dtype) && shape.size() >= 2 && shape[0] > 0 &&
                                      feed.type.num_elements() == shape[0] * examples.row_size
                                : !IsFloat(feed.type.dtype) && shape.size() == 1 && shape[0] > 0;
    if (!fits) {
      return Refuse(examples.source,
                    StrCat("input ", feed.name, " is ", ToString(feed.type),
                           is_images ? StrCat("; a row of the examples has ",
                                              Counted(examples.row_size, "number"))
                                     : std::string("; labels are integers [batch]")));
    }
    RETURN_IF_ERROR(WithType(feed, [](auto) { return absl::OkStatus(); }));
    if (shape[0] != feeds[0].type.shape[0]) {
      return Refuse(examples.source, StrCat("inputs ", feeds[0].name, " and ", feed.name,
                                            " differ in the batch: ", ToString(feeds[0].type),
                                            " and ", ToString(feed.type)));
    }
  }
  for (int64_t row = 0; num_classes > 0 && row < examples.num_rows(); ++row) {
    const int32_t label = examples.labels[static_cast<size_t>(row)];
    if (label < num_classes) continue;
    return Refuse(examples.source, StrCat("example ", row + 1, " has the label ", label,
                                          ", but model.classes = ", num_classes));
  }
  return absl::OkStatus();
}

}  // namespace penstock::cli
