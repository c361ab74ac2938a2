// Labelled examples from CSV and .npy files, and jobs that are trained on them.

#include "cli/examples.h"

#include <zlib.h>

#include <fstream>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/random.h"
#include "tests/support/memory.h"
#include "tests/support/run_fixture.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string ErrorOf(std::string_view text, bool label_is_last = false) {
  const auto examples = ParseCsvExamples(std::string(text), "d.csv", label_is_last, 1);
  return examples.ok() ? "" : std::string(ToStd(examples.status().message()));
}

std::vector<float> ValuesOf(const Examples& examples) {
  std::vector<float> values;
  std::vector<float> row(static_cast<size_t>(examples.row_size));
  for (int64_t i = 0; i < examples.num_rows(); ++i) {
    EXPECT_TRUE(examples.ReadRow(i, absl::MakeSpan(row)).ok());
    values.insert(values.end(), row.begin(), row.end());
  }
  return values;
}

TEST(CsvExamplesTest, RowsAreReadWithTheLabelAtEitherEnd) {
  const auto first = ParseCsvExamples("label,a,b\n1,2.5,-3e1\r\n\n0, 4 ,+5\n", "d.csv", false, 2);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->row_size, 2);
  EXPECT_THAT(ValuesOf(*first), ElementsAre(5, -60, 8, 10));
  EXPECT_THAT(first->FirstValues(3), ElementsAre(5, -60, 8));
  EXPECT_THAT(first->FirstValues(9), ElementsAre(5, -60, 8, 10));
  EXPECT_THAT(first->labels, ElementsAre(1, 0));
  const auto last = ParseCsvExamples("2.5,-30,1\n4,5,0", "d.csv", true, 1);
  ASSERT_TRUE(last.ok()) << last.status();
  EXPECT_THAT(ValuesOf(*last), ElementsAre(2.5, -30, 4, 5));
  EXPECT_THAT(last->labels, ElementsAre(1, 0));
}

TEST(CsvExamplesTest, BadRowsAreNamedByLineAndColumn) {
  EXPECT_EQ(ErrorOf("1,2,3\n1,2,x\n"), "d.csv:2:5: expected a number, not 'x'");
  EXPECT_EQ(ErrorOf("1,2,3\n\n1,,3\n"), "d.csv:3:3: expected a number, not ''");
  EXPECT_EQ(ErrorOf("1,2,3\n1,2\n"), "d.csv:2:3: this row has 2 fields; the ones before have 3");
  EXPECT_EQ(ErrorOf("1,2,3\n1,2,3,4,5\n"),
            "d.csv:2:7: this row has 5 fields; the ones before have 3");
  EXPECT_EQ(ErrorOf("1.5,2\n"), "d.csv:1:1: expected a label, an integer of at least 0, not 1.5");
  EXPECT_EQ(ErrorOf("2,-1\n", true),
            "d.csv:1:3: expected a label, an integer of at least 0, not -1");
  EXPECT_EQ(ErrorOf("2,1e99\n"), "d.csv:1:3: 1e99 is no finite number in f32");
  EXPECT_EQ(ErrorOf("2,nan\n"), "d.csv:1:3: nan is no finite number in f32");
  EXPECT_EQ(ErrorOf("7\n"), "d.csv:1:1: expected a label and numbers in a row");
  EXPECT_EQ(ErrorOf("label,a\n"), "d.csv: holds no examples");
  EXPECT_EQ(ErrorOf(""), "d.csv: holds no examples");
}

TEST(CsvExamplesTest, EveryTenthRowIsHeldOutAndTheOthersAreVisitedOnceAnEpoch) {
  std::string text;
  for (int row = 0; row < 35; ++row) text += StrCat(row, ",0\n");
  const auto examples = ParseCsvExamples(text, "d.csv", false, 1);
  ASSERT_TRUE(examples.ok());
  EXPECT_THAT(examples->held_out, ElementsAre(9, 19, 29));
  std::vector<std::vector<int64_t>> epochs(2);
  for (int64_t n = 0; n < 64; ++n) epochs[n / 32].push_back(TrainingRow(*examples, n, 3));
  EXPECT_NE(epochs[0], epochs[1]);
  for (const std::vector<int64_t>& epoch : epochs) {
    EXPECT_EQ(std::set<int64_t>(epoch.begin(), epoch.end()).size(), 32u);
  }
}

// Beside the file, memory holds a label and a place for each row.
TEST(CsvExamplesTest, RowsAreReadFromTheMappedFile) {
  const testing::TempFolder folder;
  const std::string path = (folder.path() / "d.csv").string();
  constexpr int64_t kRows = 8000;
  constexpr int64_t kRowSize = 1000;
  const auto number = [](int64_t row, int64_t i) { return 100 + (row * 7 + i) % 900; };
  int64_t num_bytes = 0;
  std::ofstream file(path);
  for (int64_t row = 0; row < kRows; ++row) {
    std::string line = StrCat(row % 3);
    for (int64_t i = 0; i < kRowSize; ++i) StrAppend(&line, ",", number(row, i));
    file << line << "\n";
    num_bytes += static_cast<int64_t>(line.size()) + 1;
  }
  file.close();
  ASSERT_GT(num_bytes, 30'000'000);
  const int64_t before = testing::AnonymousBytes();
  const auto examples = ReadCsvExamples(path, false, 0.5);
  ASSERT_TRUE(examples.ok()) << examples.status();
  ASSERT_EQ(examples->num_rows(), kRows);
  std::vector<float> values(kRowSize);
  for (int64_t n = 0; n < kRows; ++n) {
    const int64_t row = n < 7200 ? TrainingRow(*examples, n, 3) : n;
    ASSERT_TRUE(examples->ReadRow(row, absl::MakeSpan(values)).ok());
    for (const int64_t i : {int64_t{0}, kRowSize / 2, kRowSize - 1}) {
      ASSERT_EQ(values[static_cast<size_t>(i)], 0.5F * static_cast<float>(number(row, i))) << row;
    }
    ASSERT_EQ(examples->labels[static_cast<size_t>(row)], row % 3);
  }
  EXPECT_LT(testing::AnonymousBytes() - before, num_bytes / 16);

  std::ofstream(path, std::ios::app) << "1,x\n";
  EXPECT_EQ(ToStd(ReadCsvExamples(path, false, 1).status().message()),
            StrCat(path, ":8001:3: this row has 2 fields; the ones before have 1001"));
  // A row that has changed since it was checked is not taken for numbers.
  std::ofstream(path, std::ios::in | std::ios::out).seekp(5) << "x";
  EXPECT_EQ(ToStd(examples->ReadRow(0, absl::MakeSpan(values)).message()),
            StrCat(path,
                   ": example 1 is no longer what it was when the file was checked: another "
                   "program has changed it"));
}

TEST(NpyExamplesTest, ImagesAreReadFromTheMappedFile) {
  const testing::TempFolder folder;
  constexpr int64_t kRows = 3000;
  constexpr int64_t kRowSize = 40 * 700;  // 84 MB of bytes
  Tensor pixels({DType::kU8, {kRows, 40, 700}});
  for (int64_t i = 0; i < pixels.num_elements(); ++i) {
    pixels.As<uint8_t>()[i] = static_cast<uint8_t>(i % 253);
  }
  Tensor labels({DType::kI32, {kRows}});
  for (int64_t row = 0; row < kRows; ++row) labels.As<int32_t>()[row] = row % 3;
  const std::string images = (folder.path() / "images.npy").string();
  const std::string classes = (folder.path() / "labels.npy").string();
  ASSERT_TRUE(WriteNpy(images, pixels).ok());
  ASSERT_TRUE(WriteNpy(classes, labels).ok());
  const int64_t before = testing::AnonymousBytes();
  const auto examples = ReadNpyExamples(images, classes, 0.5);
  ASSERT_TRUE(examples.ok()) << examples.status();
  EXPECT_LT(testing::AnonymousBytes() - before, pixels.num_elements() / 8);
  EXPECT_EQ(examples->row_size, kRowSize);
  std::vector<float> row(kRowSize);
  ASSERT_TRUE(examples->ReadRow(2999, absl::MakeSpan(row)).ok());
  for (int64_t i = 0; i < kRowSize; ++i) {
    ASSERT_EQ(row[static_cast<size_t>(i)], static_cast<float>((2999 * kRowSize + i) % 253) * 0.5F);
  }
  EXPECT_EQ(examples->FirstValues(3), std::vector<float>({0, 0.5, 1}));
}

// Images of one bright line, horizontal or vertical, in noise.
class ExamplesRunTest : public testing::RunFixture {
 protected:
  ExamplesRunTest() {
    pixels_ = Tensor({DType::kF64, {kRows, 8, 8}});
    labels_ = Tensor({DType::kI64, {kRows}});
    for (int64_t row = 0; row < kRows; ++row) {
      const auto draw = [row](int64_t i) {
        return RandomUniform({.seed = 1, .stream = static_cast<uint32_t>(row)},
                             static_cast<uint64_t>(i));
      };
      const int64_t label = row / 7 % 2;
      const auto line = static_cast<int64_t>(8 * draw(64));
      labels_.As<int64_t>()[row] = label;
      csv_ += StrCat(label);
      for (int64_t i = 0; i < 64; ++i) {
        const bool is_bright = (label == 0 ? i / 8 : i % 8) == line;
        const double pixel = is_bright ? 9 : static_cast<int>(4 * draw(i));
        pixels_.As<double>()[row * 64 + i] = pixel;
        csv_ += StrCat(",", static_cast<int>(pixel));
      }
      csv_ += "\n";
    }
    Write("images.csv", csv_);
    job_ = Write("images.toml",
                 "[model]\nname = \"convnet\"\nlayers = 2\nwidth = 4\nclasses = 2\n"
                 "dropout = 0.2\n[data]\ncsv = \"images.csv\"\nscale = 0.1\n[train]\n"
                 "steps = 12\nbatch = 8\nlearning_rate = 0.02\ndtype = \"f64\"\n[parallel]\n"
                 "strategy = \"dp=1\"\nmicrobatches = 1\n");
  }

  static nlohmann::json SummaryOf(const Outcome& outcome) {
    const size_t at = outcome.out.find("{\"summary\"");
    return at == std::string::npos ? nlohmann::json()
                                   : nlohmann::json::parse(outcome.out.substr(at))["summary"];
  }

  // --set for another source.
  static std::vector<std::string> Set(const std::string& assignment) {
    return {"--set", assignment};
  }

  Outcome Train(const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", job_, "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return Call(arguments);
  }

  static constexpr int64_t kRows = 120;
  Tensor pixels_;
  Tensor labels_;
  std::string csv_;
  std::string job_;
};

// Batch normalization has the statistics of the whole batch under every plan.
TEST_F(ExamplesRunTest, EveryPlanGivesTheLossesOfOneDevice) {
  const Outcome one = Train({});
  const std::vector<double> losses = Losses(one);
  ASSERT_EQ(losses.size(), 12u);
  EXPECT_LT(losses.back(), 0.5 * losses.front());
  const double accuracy = SummaryOf(one)["validation_accuracy"];
  EXPECT_GE(accuracy, 0.75);
  for (const char* strategy : {"dp=2", "tp=2", "dp=2,tp=2,zero=2", "pp=2", "dp=4,zero=3"}) {
    SCOPED_TRACE(strategy);
    const Outcome other = Train({"--strategy", strategy});
    const std::vector<double> others = Losses(other);
    ASSERT_EQ(others.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(others[i], losses[i], 1e-9 * losses[i]) << i;
    }
    EXPECT_EQ(SummaryOf(other)["validation_accuracy"], accuracy);
    EXPECT_NEAR(SummaryOf(other)["validation_loss"], SummaryOf(one)["validation_loss"], 1e-8);
  }
}

TEST_F(ExamplesRunTest, MicrobatchesAreNormalizedTogether) {
  const std::vector<double> losses = Losses(Train({}));
  for (const char* strategy : {"dp=1", "dp=2"}) {
    const std::vector<double> others =
        Losses(Train({"--strategy", strategy, "--set", "parallel.microbatches=2"}));
    ASSERT_EQ(others.size(), losses.size()) << strategy;
    for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(others[i], losses[i], 1e-9) << i;
  }
}

// Activations have 16 bits, the statistics of a batch do not.
TEST_F(ExamplesRunTest, LossesInMixedPrecisionAreNearThoseInF32) {
  const auto train = [this](const char* dtype, const char* strategy, const char* microbatches) {
    return Losses(Train({"--strategy", strategy, "--set", StrCat("train.dtype=\"", dtype, "\""),
                         "--set", StrCat("parallel.microbatches=", microbatches)}));
  };
  const std::vector<double> losses = train("f32", "dp=1", "1");
  ASSERT_EQ(losses.size(), 12u);
  for (const auto& [strategy, microbatches] :
       {std::pair{"dp=1", "1"}, {"dp=2", "1"}, {"dp=1", "2"}}) {
    SCOPED_TRACE(StrCat(strategy, ", micro-batches ", microbatches));
    const std::vector<double> others = train("bf16", strategy, microbatches);
    ASSERT_EQ(others.size(), losses.size());
    for (size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(others[i], losses[i], 5e-2 * losses.front()) << i;
    }
  }
}

TEST_F(ExamplesRunTest, NpyFilesAndCompressedCsvGiveTheSameLosses) {
  const std::vector<double> losses = Losses(Train({}));
  gzFile const file = gzopen(Path("images.csv.gz").c_str(), "wb");
  ASSERT_EQ(gzwrite(file, csv_.data(), static_cast<unsigned>(csv_.size())),
            static_cast<int>(csv_.size()));
  gzclose_w(file);
  EXPECT_EQ(Losses(Train(Set(StrCat("data.csv=\"", Path("images.csv.gz"), "\"")))), losses);
  ASSERT_TRUE(WriteNpy(Path("pixels.npy"), pixels_).ok());
  ASSERT_TRUE(WriteNpy(Path("labels.npy"), labels_).ok());
  EXPECT_EQ(Losses(Train({"--set", "data.csv=\"\"", "--set",
                          StrCat("data.images=\"", Path("pixels.npy"), "\""), "--set",
                          StrCat("data.labels=\"", Path("labels.npy"), "\"")})),
            losses);
}

TEST_F(ExamplesRunTest, AResumedRunGoesOnWithTheNextExamplesAndItsStatistics) {
  const std::vector<double> losses = Losses(Train({}));
  const std::string folder = StrCat("checkpoint.path=\"", Path("checkpoints"), "\"");
  Losses(Train({"--set", folder, "--set", "train.steps=5"}));
  const Outcome resumed = Train({"--set", folder, "--resume"});
  EXPECT_EQ(Losses(resumed), std::vector<double>(losses.begin() + 5, losses.end()));
  EXPECT_EQ(resumed.err.find("the training data is not that"), std::string::npos) << resumed.err;
  csv_[2] = csv_[2] == '1' ? '2' : '1';
  Write("images.csv", csv_);
  const Outcome other = Train({"--set", folder, "--resume", "--set", "train.steps=13"});
  EXPECT_THAT(other.err, HasSubstr("note: the training data is not that of the checkpoint"));
}

TEST_F(ExamplesRunTest, WhatDoesNotFitIsRefusedAtItsKey) {
  const auto error = [this](const std::vector<std::string>& more) {
    const Outcome outcome = Train(more);
    EXPECT_NE(outcome.status, 0);
    return outcome.err;
  };
  EXPECT_THAT(error(Set("model.image=16")),
              AllOf(HasSubstr("images.toml:8:7: "), HasSubstr("images.csv: input images is f64[8, "
                                                              "1, 16, 16]; a row of the examples "
                                                              "has 64 numbers")));
  EXPECT_THAT(error(Set("model.classes=1")),
              HasSubstr("example 8 has the label 1, but model.classes = 1"));
  EXPECT_THAT(error(Set("data.csv=\"none.csv\"")), HasSubstr("none.csv: No such file"));
  EXPECT_THAT(error(Set("data.csv=\"\"")), HasSubstr("feeds images and labels from a CSV file"));
  EXPECT_THAT(error(Set("data.labels=\"l.npy\"")),
              HasSubstr("data.labels goes with data.images, which is not set"));
  EXPECT_THAT(error(Set("model.image=3")), HasSubstr("image = 3: the model halves it 2 times"));
  Write("images.csv", StrCat(csv_, "1,2\n"));
  EXPECT_THAT(error({}), HasSubstr("images.csv:121:3: this row has 2 fields"));
}

}  // namespace
}  // namespace penstock::cli
