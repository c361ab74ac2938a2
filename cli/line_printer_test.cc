#include "cli/line_printer.h"

#include <chrono>
#include <memory>
#include <sstream>
#include <streambuf>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(LinePrinterTest, PrintsAllInOrderBeforeItEnds) {
  std::ostringstream out;
  std::string expected;
  {
    LinePrinter printer(out);
    for (int i = 0; i < 1000; ++i) {
      const std::string line = "line " + std::to_string(i) + "\n";
      expected += line;
      printer.Print(line);
    }
  }
  EXPECT_EQ(out.str(), expected);
}

TEST(LinePrinterTest, TakesBytesAsTheyAre) {
  const std::string binary("a\0b\xff\x1b[31m\r\n", 10);
  const std::string parts[] = {"", "no newline", binary, std::string(5 << 20, 'x')};
  std::ostringstream out;
  {
    LinePrinter printer(out);
    for (const std::string& part : parts) printer.Print(part);
  }
  EXPECT_EQ(out.str(), parts[1] + parts[2] + parts[3]);
}

// A reader that takes nothing until it is told to.
class StalledBuffer final : public std::streambuf {
 public:
  void AwaitWriter() {
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&is_waiting_));
  }
  void Release() {
    const absl::MutexLock lock(&mutex_);
    is_released_ = true;
  }
  // All up to a line that ends with `last`.
  std::string Await(const std::string& last) {
    const auto has_come = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return text_.size() >= last.size() &&
             text_.compare(text_.size() - last.size(), last.size(), last) == 0;
    };
    const absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&has_come));
    return text_;
  }

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override {
    const absl::MutexLock lock(&mutex_);
    is_waiting_ = true;
    mutex_.Await(absl::Condition(&is_released_));
    text_.append(text, static_cast<size_t>(size));
    return size;
  }
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }

 private:
  absl::Mutex mutex_;
  bool is_waiting_ ABSL_GUARDED_BY(mutex_) = false;
  bool is_released_ ABSL_GUARDED_BY(mutex_) = false;
  std::string text_ ABSL_GUARDED_BY(mutex_);
};

struct Stalled {
  StalledBuffer buffer;
  std::ostream stream{&buffer};
};

// For good: the printer's thread ends at a time of its own.
Stalled& NewStalled() {
  static auto* const kept = new std::vector<std::unique_ptr<Stalled>>;
  return *kept->emplace_back(std::make_unique<Stalled>());
}

TEST(LinePrinterTest, WhoHandsInLinesDoesNotWaitForAReader) {
  Stalled& stalled = NewStalled();
  LinePrinter printer(stalled.stream);
  printer.Print("first\n");
  stalled.buffer.AwaitWriter();
  // More than are kept: the oldest of those that wait are left out.
  constexpr size_t kMore = 5;
  for (size_t i = 0; i < LinePrinter::kMaxLines + kMore; ++i) {
    printer.Print(std::to_string(i) + "\n");
  }
  stalled.buffer.Release();
  const std::string last = std::to_string(LinePrinter::kMaxLines + kMore - 1) + "\n";
  const std::string text = stalled.buffer.Await("\n" + last);
  EXPECT_EQ(text.substr(0, 10), "first\n5\n6\n");
}

TEST(LinePrinterTest, AReaderThatStallsDoesNotKeepItFromEnding) {
  Stalled& stalled = NewStalled();
  {
    LinePrinter printer(stalled.stream, std::chrono::milliseconds(1));
    printer.Print("first\n");
    printer.Print("last\n");
    stalled.buffer.AwaitWriter();
  }
  stalled.buffer.Release();
  EXPECT_EQ(stalled.buffer.Await("last\n"), "first\nlast\n");
}

}  // namespace
}  // namespace penstock::cli
