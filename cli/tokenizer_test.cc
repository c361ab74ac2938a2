#include "cli/tokenizer.h"

#include <algorithm>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cli/byte_pairs.h"
#include "cli/files.h"
#include "cli/text_pattern.h"
#include "cli/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/device.h"
#include "base/strings.h"
#include "tests/support/model_files.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// ---- Merges.

// What BytePairs says that it does, one merge at a time.
void JoinSlowly(const std::vector<std::pair<int32_t, int32_t>>& merges, int32_t first_joined,
                std::vector<int32_t>* symbols) {
  while (true) {
    size_t best = merges.size();
    size_t at = 0;
    for (size_t i = 0; i + 1 < symbols->size(); ++i) {
      const auto found =
          std::find(merges.begin(), merges.end(), std::pair((*symbols)[i], (*symbols)[i + 1]));
      const auto rank = static_cast<size_t>(found - merges.begin());
      if (rank < best) {
        best = rank;
        at = i;
      }
    }
    if (best == merges.size()) return;
    (*symbols)[at] = first_joined + static_cast<int32_t>(best);
    symbols->erase(symbols->begin() + static_cast<int64_t>(at) + 1);
  }
}

TEST(BytePairsTest, RandomMergesAreMadeInTheirOrder) {
  std::mt19937 random(5);
  for (int round = 0; round < 200; ++round) {
    BytePairs pairs;
    std::vector<std::pair<int32_t, int32_t>> merges;
    const int32_t num_symbols = 4;
    for (int32_t i = 0; i < 12; ++i) {
      const auto known = static_cast<uint32_t>(num_symbols + i);
      const std::pair<int32_t, int32_t> merge(random() % known, random() % known);
      if (std::find(merges.begin(), merges.end(), merge) != merges.end()) {
        --i;
        continue;
      }
      merges.push_back(merge);
      pairs.Add(merge.first, merge.second, num_symbols + i);
    }
    std::vector<int32_t> word(random() % 40);
    for (int32_t& symbol : word) symbol = static_cast<int32_t>(random() % 4);
    std::vector<int32_t> expected = word;
    JoinSlowly(merges, num_symbols, &expected);
    pairs.Join(&word);
    EXPECT_EQ(word, expected);
  }
}

// ---- Words.

std::vector<std::string> MatchesOf(const std::string& pattern, const std::string& text) {
  const absl::StatusOr<TextPattern> compiled = TextPattern::Compile(pattern);
  EXPECT_TRUE(compiled.ok()) << compiled.status();
  std::vector<std::string> matches;
  EXPECT_TRUE(compiled
                  ->ForEachMatch(text,
                                 [&](size_t begin, size_t end) {
                                   matches.push_back(text.substr(begin, end - begin));
                                 })
                  .ok());
  return matches;
}

TEST(TextPatternTest, ClassesAreThoseOfUnicode) {
  EXPECT_THAT(MatchesOf(R"(\p{L}+)", "na\u00efve \u65e5\u672c 12"),
              ElementsAre("na\u00efve", "\u65e5\u672c"));
  EXPECT_THAT(MatchesOf(R"(\p{N})", "1\u00bd\u0663"), ElementsAre("1", "\u00bd", "\u0663"));
  EXPECT_THAT(MatchesOf(R"(\s+)", "a\u3000\u0085\tb\u180ec\u200b"), ElementsAre("\u3000\u0085\t"));
  EXPECT_THAT(MatchesOf(R"([^\s\]x]+)", "a]bx \u180e"), ElementsAre("a", "b", "\u180e"));
  EXPECT_THAT(MatchesOf(R"(\S+)", "a \u3000 b"), ElementsAre("a", "b"));
  EXPECT_THAT(MatchesOf("a*", "baab"), ElementsAre("aa"));  // none is empty
}

TEST(TextPatternTest, AWrongPatternIsRefused) {
  EXPECT_THAT(TextPattern::Compile("(a").status().ToString(),
              HasSubstr("the regular expression \"(a\" is wrong: missing closing parenthesis"));
}

TEST(TextPatternTest, TheWorkOfAMatchIsBounded) {
  const absl::StatusOr<TextPattern> pattern = TextPattern::Compile("(a+)+(?<!a)b");
  ASSERT_TRUE(pattern.ok());
  const absl::Status status =
      pattern->ForEachMatch(std::string(64, 'a') + "c", [](size_t, size_t) {});
  EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status)) << status;
  const absl::StatusOr<TextPattern> deep = TextPattern::Compile("((a|b)+x?)+$");
  ASSERT_TRUE(deep.ok());
  const absl::Status exhausted =
      deep->ForEachMatch(std::string(50000, 'a') + "c", [](size_t, size_t) {});
  EXPECT_TRUE(absl::IsResourceExhausted(exhausted)) << exhausted;
}

// ---- Files that the package tokenizers has written.

class TokenizerFilesTest : public ::testing::TestWithParam<const char*> {
 protected:
  static Tokenizer Load() {
    absl::StatusOr<Tokenizer> tokenizer =
        Tokenizer::Load(testing::ModelFile(StrCat(GetParam(), "/tokenizer.json")));
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }
};

TEST_P(TokenizerFilesTest, TextsHaveTheTokensOfThePackage) {
  const Tokenizer tokenizer = Load();
  const Json encodings = testing::ReadModelJson(StrCat(GetParam(), "/encodings.json"));
  ASSERT_TRUE(encodings.is_array());
  ASSERT_GT(encodings.size(), 20);
  for (const Json& row : encodings) {
    const auto text = row["text"].get<std::string>();
    SCOPED_TRACE(text);
    const auto expected = row["tokens"].get<std::vector<int32_t>>();
    const absl::StatusOr<std::vector<int32_t>> tokens = tokenizer.Encode(text);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens, expected);
    EXPECT_EQ(tokenizer.Decode(expected), row["decoded"].get<std::string>());
    // Token by token, in which a character may be cut.
    ReadableStream stream;
    std::string pieces;
    for (const int32_t token : expected) {
      EXPECT_LT(token, tokenizer.num_tokens());
      pieces += stream.Push(tokenizer.BytesOf(token));
    }
    EXPECT_EQ(stream.Finish(), "");
    EXPECT_THAT(pieces, ::testing::EndsWith(ReadableUtf8(row["decoded"].get<std::string>())));
  }
}

TEST_P(TokenizerFilesTest, LongTextsTakeLittleTime) {
  const Tokenizer tokenizer = Load();
  std::string words;
  for (int i = 0; i < 40000; ++i) StrAppend(&words, "the licence ", i, "\n");
  for (const std::string& text :
       {words, std::string(200000, ' '), std::string(200000, 'e'), std::string(200000, '\n')}) {
    const int64_t begin_ns = SteadyClock().NowNs();
    ASSERT_TRUE(tokenizer.Encode(text).ok());
    EXPECT_LT(SteadyClock().NowNs() - begin_ns, int64_t{30'000'000'000});
  }
}

INSTANTIATE_TEST_SUITE_P(Files, TokenizerFilesTest,
                         ::testing::Values("gpt2", "llama", "byte_fallback", "metaspace", "nfc",
                                           "nfkc_lowercase"),
                         [](const auto& info) { return std::string(info.param); });

// ---- Wrong files.

Json SmallTokenizer() {
  return Json::parse(R"({
    "added_tokens": [{"id": 5, "content": "<end>", "special": true, "normalized": false}],
    "normalizer": null, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false},
    "post_processor": null, "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2, "\u0120": 3}, "merges": ["a b"]}})");
}

absl::StatusOr<Tokenizer> FromJson(const Json& json) {
  absl::StatusOr<TokenizerSpec> spec = ParseTokenizer(json.dump());
  if (!spec.ok()) return spec.status();
  return Tokenizer::Create(*std::move(spec));
}

TEST(TokenizerTest, ASmallFileIsRead) {
  const absl::StatusOr<Tokenizer> tokenizer = FromJson(SmallTokenizer());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*tokenizer->Encode("abba ab<end>a"), ElementsAre(2, 1, 0, 3, 2, 5, 0));
  EXPECT_EQ(tokenizer->Decode({2, 5, 3, 1, 99, -1}), "ab b");
  EXPECT_EQ(tokenizer->num_tokens(), 6);
  EXPECT_THAT(tokenizer->Encode("abc").status().ToString(),
              HasSubstr("the tokenizer has no token for \"c\""));
  EXPECT_THAT(tokenizer->Encode("ab\xff").status().ToString(),
              HasSubstr("the text is not UTF-8 at byte 2"));
}

TEST(TokenizerTest, WhatIsNotSupportedIsRefusedByItsName) {
  const auto error = [](const char* path, const Json& value) {
    Json json = SmallTokenizer();
    json[Json::json_pointer(path)] = value;
    return std::string(ToStd(FromJson(json).status().message()));
  };
  const auto type = [](const char* name) { return Json{{"type", name}}; };
  EXPECT_EQ(error("/model/type", "Unigram"), "the model Unigram (only BPE is) is not supported");
  EXPECT_EQ(error("/normalizer", type("Nmt")), "the normalizer Nmt is not supported");
  EXPECT_EQ(error("/pre_tokenizer", type("Whitespace")),
            "the pre-tokenizer Whitespace is not supported");
  EXPECT_EQ(error("/post_processor", type("BertProcessing")),
            "the post-processor BertProcessing is not supported");
  EXPECT_EQ(error("/decoder", type("WordPiece")), "the decoder WordPiece is not supported");
  EXPECT_EQ(error("/decoder", nullptr), "has no \"decoder\": what its tokens mean is not said");
  EXPECT_EQ(error("/model/dropout", 0.1), "model: \"dropout\" is not supported");
  EXPECT_EQ(error("/model/end_of_word_suffix", "</w>"),
            "model: \"end_of_word_suffix\" is not supported");
  EXPECT_EQ(error("/added_tokens/0/lstrip", true),
            "added_tokens: <end>: \"lstrip\" is not supported");
  EXPECT_EQ(error("/pre_tokenizer",
                  {{"type", "Split"}, {"pattern", {{"Regex", "x"}}}, {"behavior", "Removed"}}),
            "pre_tokenizer: Split: the behavior Removed is not supported");
}

TEST(TokenizerTest, WrongFilesAreRefused) {
  const auto error = [](const char* path, const Json& value) {
    Json json = SmallTokenizer();
    json[Json::json_pointer(path)] = value;
    return std::string(ToStd(FromJson(json).status().message()));
  };
  EXPECT_EQ(error("/model", nullptr), "has no \"model\"");
  EXPECT_EQ(error("/model/vocab", 3), "model: \"vocab\" is no object");
  EXPECT_EQ(error("/model/vocab/a", -1),
            "model: vocab: the id of a token is no number below 4194304");
  EXPECT_EQ(error("/model/vocab/a", 1 << 30),
            "model: vocab: the id of a token is no number below 4194304");
  EXPECT_EQ(error("/model/merges", {"a b c"}), "model: merge 0 is no two tokens");
  EXPECT_EQ(error("/model/merges", {"b a"}), "merge 0: the vocabulary has no token \"ba\"");
  EXPECT_EQ(error("/model/unk_token", "<unk>"), "the vocabulary has no token \"<unk>\"");
  EXPECT_EQ(error("/model/byte_fallback", true), "the vocabulary has no token \"<0x00>\"");
  EXPECT_EQ(error("/added_tokens", {7}), "an entry of added_tokens is no object");
  EXPECT_EQ(error("/added_tokens/0/content", ""), "added_tokens: the token 5 is empty");
  EXPECT_THAT(error("/pre_tokenizer",
                    {{"type", "Split"}, {"pattern", {{"Regex", "(x"}}}, {"behavior", "Isolated"}}),
              HasSubstr("the regular expression \"(x\" is wrong"));
  EXPECT_EQ(error("/post_processor",
                  {{"type", "TemplateProcessing"},
                   {"single", {{{"SpecialToken", {{"id", "<s>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                   {"special_tokens", {{"<s>", {{"ids", {77}}}}}}}),
            "post_processor: there is no token with the id 77");
  EXPECT_THAT(ParseTokenizer("{").status().ToString(), HasSubstr("is no JSON object"));
  EXPECT_THAT(ParseTokenizer(R"({"model": {"vocab": {"a": 0, "a": 1}}})").status().ToString(),
              HasSubstr("names a twice"));
}

TEST(TokenizerTest, AnAddedTokenThatNormalizesToNothingIsNotFound) {
  Json json = SmallTokenizer();
  json["added_tokens"].push_back({{"id", 6}, {"content", "x"}, {"normalized", true}});
  json["normalizer"] = {{"type", "Replace"}, {"pattern", {{"String", "x"}}}, {"content", ""}};
  const absl::StatusOr<Tokenizer> tokenizer = FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*tokenizer->Encode("axb<end>"), ElementsAre(2, 5));
}

TEST(TokenizerTest, TextsDoNotGrowWithoutEnd) {
  const auto replace = [](const char* from, const std::string& to) {
    return Json{{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
  };
  const auto sequence = [](const char* list, std::vector<Json> parts) {
    return Json{{"type", "Sequence"}, {list, std::move(parts)}};
  };
  const std::vector<Json> growing(40, replace("a", "aa"));  // 2^40 times as much
  const char* const too_long = "the tokenizer makes more than 64 times as many bytes of a text";
  Json json = SmallTokenizer();
  json["normalizer"] = sequence("normalizers", growing);
  absl::StatusOr<Tokenizer> tokenizer = FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*tokenizer->Encode("b"), ElementsAre(1));
  EXPECT_EQ(tokenizer->Encode("ab").status(), absl::ResourceExhaustedError(too_long));
  // In one step, and of many texts that are small by themselves.
  json["normalizer"] = replace("b", std::string(200'000, 'a'));
  tokenizer = FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_TRUE(tokenizer->Encode("b").ok());
  EXPECT_EQ(tokenizer->Encode("bbbbbbbb").status(), absl::ResourceExhaustedError(too_long));
  EXPECT_EQ(tokenizer->Encode("b<end>b<end>b<end>b<end>b<end>b<end>b<end>b").status(),
            absl::ResourceExhaustedError(too_long));
  // What cuts a text, and what decodes the vocabulary.
  json = SmallTokenizer();
  json["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", std::string(500'000, 'a')}};
  tokenizer = FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ(tokenizer->Encode("b b b b").status(), absl::ResourceExhaustedError(too_long));
  json = SmallTokenizer();
  json["decoder"] = sequence("decoders", growing);
  EXPECT_EQ(FromJson(json).status(), absl::ResourceExhaustedError(too_long));
  json["decoder"] = sequence("decoders", std::vector<Json>(65, replace("x", "y")));
  EXPECT_THAT(FromJson(json).status().ToString(),
              HasSubstr("decoder of more than 64 parts is not supported"));
}

// Bytes of a good file are changed: it loads or is refused, and encodes what it can.
TEST(TokenizerTest, DamagedFilesDoNoHarm) {
  const absl::StatusOr<std::string> text =
      ReadTextFile(testing::ModelFile("llama/tokenizer.json"), 1 << 20);
  ASSERT_TRUE(text.ok());
  std::mt19937 random(3);
  int num_loaded = 0;
  for (int i = 0; i < 300; ++i) {
    std::string damaged = *text;
    for (uint32_t change = random() % 3 + 1; change > 0; --change) {
      // Every other file stays text.
      const uint32_t byte = i % 2 == 0 ? random() % 256 : ' ' + random() % 95;
      damaged[random() % damaged.size()] = static_cast<char>(byte);
    }
    absl::StatusOr<TokenizerSpec> spec = ParseTokenizer(damaged);
    if (!spec.ok()) continue;
    const absl::StatusOr<Tokenizer> tokenizer = Tokenizer::Create(*std::move(spec));
    if (!tokenizer.ok()) continue;
    ++num_loaded;
    tokenizer->Encode("The licence of this, 12345!").IgnoreError();
  }
  EXPECT_GT(num_loaded, 0);
}

}  // namespace
}  // namespace penstock::cli
