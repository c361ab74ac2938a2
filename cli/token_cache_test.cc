#include "cli/token_cache.h"

#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/data.h"
#include "cli/files.h"
#include "cli/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "tests/support/model_files.h"
#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Tokens = std::vector<int32_t>;

// ---- Cuts.

TEST(FindCutTest, LinesAreCutInFrontOfTheirEnds) {
  EXPECT_EQ(FindCut("one two\nthree\nfour five six", 20), 13u);
  EXPECT_EQ(FindCut("one two\nthree\n\nfour", 14), 13u);  // not between the two
  EXPECT_EQ(FindCut("one\ntwo.\nthree four", 9), 8u);     // the only one in the second half
  EXPECT_EQ(FindCut("one two\r\nthree\r\nfour five six", 20), 14u);
  EXPECT_EQ(FindCut("one two\r\nthree\r\nfour", 14), 14u);  // its \n lies behind the limit
  EXPECT_EQ(FindCut("a t\u00e9\nb.\nfour", 9), 5u);
  EXPECT_EQ(FindCut("a t\u4e00\nb.\nfour", 10), 6u);
  EXPECT_EQ(FindCut("a t\u2014\nb.\nfour", 10), 9u);  // a dash is no letter
  EXPECT_EQ(FindCut("one two three four", 9), 9u);
  EXPECT_EQ(FindCut("ab\u65e5\u672c\u8a9e", 6), 5u);  // between characters
}

// A text of lines with what the encodings of the tokenizer's test hold.
std::string TextFor(const std::string& tokenizer, size_t num_bytes) {
  std::string text;
  const nlohmann::json rows = testing::ReadModelJson(StrCat(tokenizer, "/encodings.json"));
  for (size_t i = 0; text.size() < num_bytes; ++i) {
    StrAppend(&text, rows[i % rows.size()]["text"].get<std::string>(), " line ", i,
              i % 3 == 0 ? "\n\n" : "\n",
              i % 5 == 0   ? "  two words.\r\n"
              : i % 5 == 1 ? "word\r\n"
                           : "word\n");
  }
  return text;
}

class TokenCacheTest : public testing::RunFixture {
 protected:
  static std::string FileOf(const std::string& tokenizer) {
    return testing::ModelFile(StrCat(tokenizer, "/tokenizer.json"));
  }
  TokenCache Open(const std::string& tokenizer) const {
    absl::StatusOr<TokenCache> cache = TokenCache::Open(FileOf(tokenizer), Path("cache"));
    EXPECT_TRUE(cache.ok()) << cache.status();
    return *std::move(cache);
  }
  static Tokens TokensOf(const TokenSpan& span) {
    Tokens tokens;
    for (int64_t i = 0; i < span.size(); ++i) tokens.push_back(static_cast<int32_t>(span[i]));
    return tokens;
  }
  static Tokens Encode(const TokenCache& cache, const std::vector<std::string>& files,
                       TextPart part = TextPart::kAll) {
    const auto file = cache.Encode(files, part);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? TokensOf((*file)->tokens()) : Tokens();
  }
  std::vector<fs::path> Cached() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_ / "cache")) {
      files.push_back(entry.path());
    }
    return files;
  }
};

class TokenCacheFilesTest : public TokenCacheTest,
                            public ::testing::WithParamInterface<const char*> {};

INSTANTIATE_TEST_SUITE_P(Files, TokenCacheFilesTest,
                         ::testing::Values("gpt2", "llama", "byte_fallback", "metaspace"));

TEST_P(TokenCacheFilesTest, PartsHaveTheTokensOfTheWhole) {
  const TokenCache cache = Open(GetParam());
  const std::string text = TextFor(GetParam(), 20'000);
  const absl::StatusOr<Tokens> whole = cache.tokenizer()->Encode(text);
  ASSERT_TRUE(whole.ok()) << whole.status();
  Tokens joined;
  int num_parts = 0;
  for (std::string_view rest = text; !rest.empty(); ++num_parts) {
    const size_t cut = rest.size() > 700 ? FindCut(rest, 700) : rest.size();
    const absl::StatusOr<Tokens> tokens = cache.tokenizer()->EncodePart(
        rest.substr(0, cut), {.is_first = num_parts == 0, .is_last = cut == rest.size()});
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    joined.insert(joined.end(), tokens->begin(), tokens->end());
    rest.remove_prefix(cut);
  }
  EXPECT_GT(num_parts, 20);
  EXPECT_EQ(joined, *whole);
}

// Of several chunks.
TEST_P(TokenCacheFilesTest, FilesHaveTheTokensOfTheirTexts) {
  const TokenCache cache = Open(GetParam());
  const std::string text = TextFor(GetParam(), 2'500'000);
  const std::string few = "the licence";
  const std::vector<std::string> files = {Write("a.txt", text), Write("b.txt", few)};
  Tokens expected = *cache.tokenizer()->Encode(text);
  const Tokens more = *cache.tokenizer()->Encode(few);
  expected.insert(expected.end(), more.begin(), more.end());
  EXPECT_EQ(Encode(cache, files), expected);

  Tokens joined = Encode(cache, {files[0]}, TextPart::kTraining);
  const Tokens held_out = Encode(cache, {files[0]}, TextPart::kHeldOut);
  EXPECT_NEAR(static_cast<double>(held_out.size()), 0.1 * static_cast<double>(expected.size()),
              0.003 * static_cast<double>(expected.size()));
  joined.insert(joined.end(), held_out.begin(), held_out.end());
  expected.resize(expected.size() - more.size());
  EXPECT_EQ(joined, expected);
}

// ---- The folder.

TEST_F(TokenCacheTest, TextsAreEncodedOnce) {
  const TokenCache cache = Open("gpt2");
  const std::string text = Write("text.txt", TextFor("gpt2", 1000));
  const Tokens tokens = Encode(cache, {text});
  ASSERT_EQ(Cached().size(), 1u);
  const fs::path file = Cached()[0];
  // What is there is taken: here the tokens of another text, under the name of this one.
  const Tokens other = Encode(Open("gpt2"), {Write("other.txt", "another text")});
  ASSERT_EQ(Cached().size(), 2u);
  const fs::path of_other = Cached()[0] == file ? Cached()[1] : Cached()[0];
  fs::copy_file(of_other, file, fs::copy_options::overwrite_existing);
  EXPECT_EQ(Encode(Open("gpt2"), {text}), other);
  // What is damaged is not.
  fs::resize_file(file, fs::file_size(file) - 1);
  EXPECT_EQ(Encode(cache, {text}), tokens);
  std::string bytes = Read(StrCat("cache/", file.filename().string()));
  bytes[bytes.size() - 1] = '\x7f';
  Write(StrCat("cache/", file.filename().string()), bytes);
  EXPECT_EQ(Encode(cache, {text}), tokens);
  // Another text, and another tokenizer, have files of their own.
  Write("text.txt", TextFor("gpt2", 999) + "!");
  EXPECT_NE(Encode(cache, {text}), tokens);
  EXPECT_NE(Encode(Open("llama"), {text}), tokens);
  EXPECT_EQ(Cached().size(), 4u);
}

TEST_F(TokenCacheTest, WhatCannotBeEncodedIsNamed) {
  const TokenCache cache = Open("gpt2");
  const auto error = [&](const std::string& file) {
    return cache.Encode({file}, TextPart::kAll).status().ToString();
  };
  const std::string wrong = Write("wrong.txt", TextFor("gpt2", 1'500'000) + "\xff");
  EXPECT_THAT(error(wrong),
              HasSubstr(StrCat("wrong.txt: is not UTF-8 at byte ", fs::file_size(wrong) - 1)));
  EXPECT_THAT(error(Path("none.txt")), HasSubstr("none.txt: cannot be opened (No such file"));
  EXPECT_EQ(Cached().size(), 0u);  // nothing is left of the attempt
  const auto no_folder = TokenCache::Open(FileOf("gpt2"), Path("text.txt"));
  ASSERT_TRUE(no_folder.ok());
  EXPECT_THAT(no_folder->Encode({Path("job.toml")}, TextPart::kAll).status().ToString(),
              HasSubstr(Path("text.txt")));
  EXPECT_THAT(TokenCache::Open(Path("job.toml"), "").status().ToString(),
              HasSubstr("job.toml: the text is no JSON object"));
}

// ---- Corpora.

TEST_F(TokenCacheTest, ACorpusHoldsOutTheEndOfEachText) {
  const TokenCache cache = Open("gpt2");
  const std::vector<std::string> texts = {Write("a.txt", TextFor("gpt2", 5000)),
                                          Write("b.txt", TextFor("gpt2", 9000))};
  const auto corpus = LoadEncodedText(cache, texts, {}, 16);
  ASSERT_TRUE(corpus.ok()) << corpus.status();
  EXPECT_TRUE(corpus->is_text());
  EXPECT_EQ(TokensOf(corpus->train_tokens()), Encode(cache, texts, TextPart::kTraining));
  EXPECT_EQ(TokensOf(corpus->validation_tokens()), Encode(cache, texts, TextPart::kHeldOut));
  EXPECT_GT(corpus->unigram_entropy, 3);
  EXPECT_LT(corpus->unigram_entropy, std::log(cache.tokenizer()->num_tokens()));

  const auto apart = LoadEncodedText(cache, {texts[0]}, {texts[1]}, 16);
  ASSERT_TRUE(apart.ok()) << apart.status();
  EXPECT_EQ(TokensOf(apart->train_tokens()), Encode(cache, {texts[0]}));
  EXPECT_EQ(TokensOf(apart->validation_tokens()), Encode(cache, {texts[1]}));

  // A tenth would be less than a sequence.
  const auto few = LoadEncodedText(cache, {texts[0]}, {}, 1000);
  ASSERT_TRUE(few.ok()) << few.status();
  EXPECT_EQ(few->validation_tokens().size(), 1001);
  EXPECT_EQ(few->train_tokens().size() + 1001,
            static_cast<int64_t>(Encode(cache, {texts[0]}).size()));
  EXPECT_THAT(LoadEncodedText(cache, {texts[0]}, {}, 100'000).status().ToString(),
              HasSubstr("sequences of context = 100000 tokens need at least 200002"));
  EXPECT_THAT(LoadEncodedText(cache, {texts[0]}, {Write("c.txt", "the")}, 16).status().ToString(),
              HasSubstr("one sequence of context = 16 tokens needs at least 17"));
}

// ---- Runs.

TEST_F(TokenCacheTest, ARunTrainsAndSamplesWithATokenizer) {
  Write("text.txt", TextFor("gpt2", 20'000));
  const std::vector<std::string> settings = {
      "--set", StrCat("data.tokenizer=\"", FileOf("gpt2"), "\""),
      "--set", StrCat("data.cache=\"", Path("cache"), "\""),
      "--set", "sample.bytes=40"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), settings.begin(), settings.end());
    return more;
  };
  const std::vector<nlohmann::json> lines =
      RunLines(with({"--set", "model.vocabulary=400", "--set",
                     StrCat("checkpoint.path=\"", Path("checkpoints"), "\"")}));
  EXPECT_NEAR(lines[0]["loss"].get<double>(), std::log(400), 0.2);
  const nlohmann::json summary = lines.back()["summary"];
  EXPECT_LT(summary["validation_loss"].get<double>(), 6.2);
  const std::string sample = summary["sample"];
  EXPECT_GE(sample.size(), 40u);
  EXPECT_LT(sample.size(), 60u);
  const double entropy = summary["unigram_entropy"];
  EXPECT_GT(entropy, 3);
  EXPECT_EQ(Cached().size(), 2u);

  // The checkpoint has the tokenizer beside it.
  const std::vector<std::string> generate = {"generate", Path("checkpoints"), "--json",
                                             "--prompt", "The licence",       "--tokens",
                                             "5",        "--temperature",     "0"};
  const Outcome generated = Call(generate);
  ASSERT_EQ(generated.status, 0) << generated.err;
  const nlohmann::json made = nlohmann::json::parse(generated.out);
  const TokenCache cache = Open("gpt2");
  EXPECT_EQ(made["text"].get<std::string>(),
            cache.tokenizer()->Decode(made["tokens"][0].get<Tokens>()));
  // A run that is refused leaves it alone, and so does one that would go on with another.
  const std::string kept = ReadTextFile(Path("checkpoints/tokenizer.json"), 1 << 20).value();
  const std::string other = Write("other.json", kept + "\n");
  for (const auto& [option, message] :
       {std::pair<std::string, std::string>("--json", "holds the checkpoints of an earlier run"),
        std::pair<std::string, std::string>(
            "--resume", "other.json differs from " + Path("checkpoints/tokenizer.json"))}) {
    const Outcome refused = Call(
        {"run", Path("job.toml"), option, "--set", StrCat("data.tokenizer=\"", other, "\""),
         "--set", StrCat("data.cache=\"", Path("cache"), "\""), "--set", "model.vocabulary=400",
         "--set", StrCat("checkpoint.path=\"", Path("checkpoints"), "\"")});
    EXPECT_NE(refused.status, 0);
    EXPECT_THAT(refused.err, HasSubstr(message));
    EXPECT_EQ(ReadTextFile(Path("checkpoints/tokenizer.json"), 1 << 20).value(), kept);
  }
  fs::remove(folder_ / "checkpoints/tokenizer.json");
  EXPECT_THAT(Call(generate).err, HasSubstr("give --tokenizer"));
  std::vector<std::string> given = generate;
  given.insert(given.end(), {"--tokenizer", FileOf("gpt2")});
  const Outcome again = Call(given);
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(nlohmann::json::parse(again.out)["tokens"], made["tokens"]);

  const auto error = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"run", Path("job.toml")};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 2) << outcome.err;
    return outcome.err;
  };
  EXPECT_THAT(error(with({})), HasSubstr("gpt2/tokenizer.json has 384 tokens, but the model's "
                                         "vocabulary has 256; set model.vocabulary = 384 or more"));
  EXPECT_THAT(error({"--set", "data.cache=\"c\""}),
              HasSubstr("data.cache goes with data.tokenizer, which is not set"));
  EXPECT_THAT(error({"--set", "data.tokenizer=\"none.json\""}),
              HasSubstr("none.json: no such file"));
}

}  // namespace
}  // namespace penstock::cli
