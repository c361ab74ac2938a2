#include "cli/data.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<uint8_t> Counting(int64_t size) {
  std::vector<uint8_t> text;
  for (int64_t i = 0; i < size; ++i) text.push_back(static_cast<uint8_t>(i % 251));
  return text;
}

std::vector<int32_t> Values(const Tensor& tensor) {
  return {tensor.As<int32_t>(), tensor.As<int32_t>() + tensor.num_elements()};
}

TEST(DataTest, EntropyOfEqualBytesIsZeroAndOfTwoKindsLnTwo) {
  const std::vector<uint8_t> same(8, 'a');
  EXPECT_EQ(UnigramEntropy(same), 0);
  const std::vector<uint8_t> two = {'a', 'b', 'a', 'b'};
  EXPECT_DOUBLE_EQ(UnigramEntropy(two), std::log(2.0));
}

TEST(DataTest, LabelsAreTheNextTokens) {
  const std::vector<uint8_t> text = Counting(50);
  const Batch batch = MakeBatch(text, {3, 10}, 4);
  EXPECT_EQ(batch.tokens.type(), (TensorType{DType::kI32, {2, 4}}));
  EXPECT_THAT(Values(batch.tokens), ElementsAre(3, 4, 5, 6, 10, 11, 12, 13));
  EXPECT_THAT(Values(batch.labels), ElementsAre(4, 5, 6, 7, 11, 12, 13, 14));
}

TEST(DataTest, ABatchIsAFunctionOfSeedAndStep) {
  const std::vector<uint8_t> text = Counting(5000);
  const Batches one(text, 4, 16, 1);
  const Batches again(text, 4, 16, 1);
  const Batches other(text, 4, 16, 2);
  EXPECT_EQ(Values(one.Get(7).tokens), Values(again.Get(7).tokens));
  EXPECT_NE(Values(one.Get(7).tokens), Values(other.Get(7).tokens));
  EXPECT_NE(Values(one.Get(7).tokens), Values(one.Get(8).tokens));
}

// The sequences of two batches of 4 are those of one batch of 8: micro-batches and layouts may
// slice them as they like.
TEST(DataTest, TheOrderOfSequencesDoesNotDependOnTheBatch) {
  const std::vector<uint8_t> text = Counting(5000);
  const Batches narrow(text, 4, 16, 1);
  const Batches wide(text, 8, 16, 1);
  std::vector<int32_t> joined = Values(narrow.Get(2).tokens);
  const std::vector<int32_t> second = Values(narrow.Get(3).tokens);
  joined.insert(joined.end(), second.begin(), second.end());
  EXPECT_EQ(joined, Values(wide.Get(1).tokens));
}

TEST(DataTest, AnEpochVisitsEveryWindowOnceInAnotherOrderEachTime) {
  const std::vector<uint8_t> text = Counting(1000);
  const Batches batches(text, 1, 10, 3);
  const int64_t windows = batches.windows_per_epoch();
  ASSERT_GT(windows, 90);
  std::vector<std::vector<int64_t>> epochs;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> starts;
    for (int64_t i = 0; i < windows; ++i) starts.push_back(batches.Start(epoch * windows + i));
    const std::set<int64_t> unique(starts.begin(), starts.end());
    EXPECT_EQ(static_cast<int64_t>(unique.size()), windows);
    EXPECT_GE(*unique.begin(), 0);
    EXPECT_LE(*unique.rbegin() + 10 + 1, 1000);
    EXPECT_FALSE(std::is_sorted(starts.begin(), starts.end()));
    epochs.push_back(std::move(starts));
  }
  EXPECT_NE(epochs[0], epochs[1]);
}

TEST(DataTest, ShuffledIndexIsAPermutationForEverySize) {
  for (const int64_t count : {1, 2, 3, 7, 16, 100, 1025}) {
    std::set<int64_t> seen;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t index = ShuffledIndex(i, count, 5, 0);
      EXPECT_GE(index, 0);
      EXPECT_LT(index, count);
      seen.insert(index);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), count);
  }
}

TEST(DataTest, TheSmallestTextStillGivesBatches) {
  const absl::StatusOr<Corpus> corpus = MakeCorpus({"abcdefghij"}, 4);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->train.size(), 5);
  EXPECT_EQ(corpus->validation.size(), 5);
  const Batches batches(corpus->train, 3, 4, 1);
  EXPECT_THAT(Values(batches.Get(5).tokens),
              ElementsAre('a', 'b', 'c', 'd', 'a', 'b', 'c', 'd', 'a', 'b', 'c', 'd'));
}

TEST(DataTest, TheLastTenthOfEachFileIsHeldOut) {
  const std::string a(100, 'a');
  const std::string b(200, 'b');
  const absl::StatusOr<Corpus> corpus = MakeCorpus({a, b}, 4);
  ASSERT_TRUE(corpus.ok());
  EXPECT_EQ(corpus->train.size(), 270);
  EXPECT_EQ(std::count(corpus->validation.begin(), corpus->validation.end(), 'a'), 10);
  EXPECT_EQ(std::count(corpus->validation.begin(), corpus->validation.end(), 'b'), 20);
}

TEST(DataTest, ValidationWindowsAreFixedAndInside) {
  const std::vector<int64_t> starts = ValidationStarts(1000, 10, 7);
  EXPECT_EQ(starts.size(), 7);
  EXPECT_EQ(starts, ValidationStarts(1000, 10, 7));
  for (size_t i = 0; i < starts.size(); ++i) {
    EXPECT_LE(starts[i] + 11, 1000);
    if (i > 0) {
      EXPECT_GE(starts[i], starts[i - 1] + 10);
    }
  }
  EXPECT_TRUE(ValidationStarts(5, 10, 7).empty());
  EXPECT_THAT(ValidationStarts(11, 10, 7), ElementsAre(0));
}

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() { fs::create_directories(folder_ / "sub"); }

  void Write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
  }

  const testing::TempFolder temp_;
  const fs::path folder_ = temp_.path();
};

TEST_F(FolderTest, FilesAreSortedAndSymbolicLinksSkipped) {
  Write("b", std::string(20, 'b'));
  Write("a", std::string(20, 'a'));
  Write("sub/c", std::string(20, 'c'));
  fs::create_symlink(folder_ / "b", folder_ / "link");
  const absl::StatusOr<Corpus> corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  const std::string train(corpus->train.begin(), corpus->train.end());
  EXPECT_EQ(train, std::string(18, 'a') + std::string(18, 'b') + std::string(18, 'c'));
}

TEST_F(FolderTest, ATextOfItsOwnIsReadWholeAndNeedsOneSequence) {
  Write("a", "aaaa");
  Write("b", "bb");
  const absl::StatusOr<std::vector<uint8_t>> text = LoadText({folder_.string()}, 5);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(std::string(text->begin(), text->end()), "aaaabb");
  EXPECT_THAT(
      std::string(ToStd(LoadText({folder_.string()}, 6).status().message())),
      HasSubstr("the text has 6 bytes; one sequence of context = 6 tokens needs at least 7"));
  const Corpus corpus = JoinCorpus({'a', 'a'}, {'b', 'b'});
  EXPECT_EQ(corpus.train, std::vector<uint8_t>({'a', 'a'}));
  EXPECT_EQ(corpus.validation, std::vector<uint8_t>({'b', 'b'}));
  EXPECT_NEAR(corpus.unigram_entropy, std::log(2.0), 1e-12);
}

TEST_F(FolderTest, BadTextIsRefusedWithItsPath) {
  const std::string missing = (folder_ / "nothing").string();
  absl::StatusOr<Corpus> corpus = LoadCorpus({missing}, 4);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(ToStd(corpus.status().message())), HasSubstr(missing));

  Write("empty", "");
  corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(ToStd(corpus.status().message())), HasSubstr("the text is empty"));

  Write("short", "12345");
  corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_FALSE(corpus.ok());
  EXPECT_THAT(std::string(ToStd(corpus.status().message())), HasSubstr("need at least 10"));
}

}  // namespace
}  // namespace penstock::cli
