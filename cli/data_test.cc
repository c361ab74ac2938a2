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

#include "base/machine.h"
#include "base/strings.h"
#include "tests/support/memory.h"
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

// The bytes of tokens of text.
std::string TextOf(const TokenSpan& tokens) {
  std::string text;
  for (int64_t i = 0; i < tokens.size(); ++i) text += static_cast<char>(tokens[i]);
  return text;
}

TEST(DataTest, EntropyOfEqualBytesIsZeroAndOfTwoKindsLnTwo) {
  EXPECT_EQ(EntropyOfCounts({0, 8, 0}), 0);
  EXPECT_DOUBLE_EQ(EntropyOfCounts({2, 0, 2}), std::log(2.0));
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

TEST_F(FolderTest, TheSmallestTextStillGivesBatches) {
  Write("a", "abcdefg");
  Write("b", "hij");
  const absl::StatusOr<Corpus> corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(TextOf(corpus->train_tokens()), "abcde");
  EXPECT_EQ(TextOf(corpus->validation_tokens()), "fghij");
  const Batches batches(corpus->train_tokens(), 3, 4, 1);
  EXPECT_THAT(Values(batches.Get(5).tokens),
              ElementsAre('a', 'b', 'c', 'd', 'a', 'b', 'c', 'd', 'a', 'b', 'c', 'd'));
}

TEST_F(FolderTest, TheLastTenthOfEachFileIsHeldOut) {
  Write("a", std::string(100, 'a'));
  Write("b", std::string(200, 'b'));
  const absl::StatusOr<Corpus> corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(TextOf(corpus->train_tokens()), std::string(90, 'a') + std::string(180, 'b'));
  EXPECT_EQ(TextOf(corpus->validation_tokens()), std::string(10, 'a') + std::string(20, 'b'));
}

// What lies in several files reads as one text, whatever part of it is looked at.
TEST_F(FolderTest, PartsOfATextOfManyFilesAreThoseOfOne) {
  std::string all;
  for (int i = 0; i < 40; ++i) {
    // Some are empty, some are long enough to be mapped.
    std::string text;
    for (int k = 0; k < (i % 5 == 0 ? 0 : i % 7 == 0 ? 70'000 : i); ++k) {
      text += static_cast<char>(k * 7 + i);
    }
    all += text;
    Write(StrCat("f", 100 + i), text);
  }
  const auto text = LoadText({folder_.string()}, 5);
  ASSERT_TRUE(text.ok()) << text.status();
  const TokenSpan tokens = (*text)->tokens();
  ASSERT_EQ(tokens.size(), static_cast<int64_t>(all.size()));
  ASSERT_TRUE(TextOf(tokens) == all);
  const auto middle = static_cast<int64_t>(all.size() / 3);
  EXPECT_TRUE(TextOf(tokens.subspan(middle, 100'000).subspan(10, 99'000)) ==
              all.substr(static_cast<size_t>(middle) + 10, 99'000));
  const std::vector<uint8_t> head = tokens.subspan(3, 90'000).Head(80'000);
  EXPECT_TRUE(std::string(head.begin(), head.end()) == all.substr(3, 80'000));
  const std::vector<uint8_t> bytes(all.begin(), all.end());
  EXPECT_EQ(Values(MakeBatch(tokens, {0, 69'990, middle}, 50).labels),
            Values(MakeBatch(bytes, {0, 69'990, middle}, 50).labels));
}

TEST_F(FolderTest, LongTextsTakeLittleMemory) {
  constexpr int64_t kSize = int64_t{256} << 20;
  Write("long", "text");
  fs::resize_file(folder_ / "long", kSize);
  const auto before = static_cast<int64_t>(ResidentBytes());
  const int64_t own_before = testing::AnonymousBytes();
  const absl::StatusOr<Corpus> corpus = LoadCorpus({folder_.string()}, 64);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(corpus->train_tokens().size() + corpus->validation_tokens().size(), kSize);
  EXPECT_GT(corpus->unigram_entropy, 0);
  EXPECT_LT(static_cast<int64_t>(ResidentBytes()) - before, kSize / 8);
  // What batches read stays mapped as long as there is memory.
  const Batches batches(corpus->train_tokens(), 8, 64, 1);
  for (int64_t step = 0; step < 20; ++step) batches.Get(step);
  EXPECT_LT(testing::AnonymousBytes() - own_before, kSize / 8);
}

TEST_F(FolderTest, FilesAreSortedAndSymbolicLinksSkipped) {
  Write("b", std::string(20, 'b'));
  Write("a", std::string(20, 'a'));
  Write("sub/c", std::string(20, 'c'));
  fs::create_symlink(folder_ / "b", folder_ / "link");
  const absl::StatusOr<Corpus> corpus = LoadCorpus({folder_.string()}, 4);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_EQ(TextOf(corpus->train_tokens()),
            std::string(18, 'a') + std::string(18, 'b') + std::string(18, 'c'));
}

TEST_F(FolderTest, ATextOfItsOwnIsReadWholeAndNeedsOneSequence) {
  Write("a", "aaaa");
  Write("b", "bb");
  const auto text = LoadText({folder_.string()}, 5);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_EQ(TextOf((*text)->tokens()), "aaaabb");
  EXPECT_THAT(
      std::string(ToStd(LoadText({folder_.string()}, 6).status().message())),
      HasSubstr("the text has 6 bytes; one sequence of context = 6 tokens needs at least 7"));
  const auto other = LoadText({(folder_ / "b").string()}, 1);
  ASSERT_TRUE(other.ok()) << other.status();
  const Corpus corpus = JoinCorpus(*text, *other);
  EXPECT_EQ(TextOf(corpus.train_tokens()), "aaaabb");
  EXPECT_EQ(TextOf(corpus.validation_tokens()), "bb");
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
