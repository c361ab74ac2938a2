#include "cli/token_file.h"

#include <cstdint>
#include <string>
#include <vector>

#include "cli/npy.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/run_fixture.h"

namespace penstock::cli {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class TokenFileTest : public testing::RunFixture {
 protected:
  std::string ErrorOf(const std::string& path, int width = 2) {
    const auto file = TokenFile::Open(path, width);
    return file.ok() ? "" : std::string(ToStd(file.status().message()));
  }

  template <typename T>
  std::string Raw(const std::string& name, const std::vector<T>& tokens) {
    return Write(
        name, std::string(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T)));
  }

  static std::vector<int64_t> ValuesOf(const TokenSpan& tokens) {
    std::vector<int64_t> values;
    for (int64_t i = 0; i < tokens.size(); ++i) values.push_back(tokens[i]);
    return values;
  }
};

TEST_F(TokenFileTest, IntegersOfEveryWidthAreRead) {
  const std::vector<int64_t> expected = {1, 256, 50256, 65535};
  const auto u16 = TokenFile::Open(Raw<uint16_t>("t.u16", {1, 256, 50256, 65535}), 2);
  ASSERT_TRUE(u16.ok()) << u16.status();
  EXPECT_EQ(ValuesOf((*u16)->tokens()), expected);
  EXPECT_EQ(ValuesOf((*u16)->tokens().subspan(1, 2)), (std::vector<int64_t>{256, 50256}));
  const auto u32 = TokenFile::Open(Raw<uint32_t>("t.u32", {1, 256, 50256, 65535}), 4);
  ASSERT_TRUE(u32.ok()) << u32.status();
  EXPECT_EQ(ValuesOf((*u32)->tokens()), expected);
  Tensor tensor({DType::kI64, {4}});
  std::copy(expected.begin(), expected.end(), tensor.As<int64_t>());
  ASSERT_TRUE(WriteNpy(Path("t.npy"), tensor).ok());
  const auto npy = TokenFile::Open(Path("t.npy"), 2);
  ASSERT_TRUE(npy.ok()) << npy.status();
  EXPECT_EQ(ValuesOf((*npy)->tokens()), expected);
}

TEST_F(TokenFileTest, TheFirstTokenThatIsTooLargeIsFound) {
  std::vector<uint16_t> tokens(5000, 7);
  tokens[3000] = 300;
  tokens[3001] = 301;
  const std::vector<uint8_t> bytes(10, 255);
  const TokenSpan u16(tokens.data(), 2, 5000);
  EXPECT_EQ(u16.FindAtLeast(300), 3000);
  EXPECT_EQ(u16.FindAtLeast(301), 3001);
  EXPECT_EQ(u16.FindAtLeast(302), -1);
  EXPECT_EQ(u16.FindAtLeast(65536 + 7), -1);  // not taken modulo 2^16
  EXPECT_EQ(u16.FindAtLeast(7), 0);
  EXPECT_EQ(TokenSpan(bytes).FindAtLeast(255), 0);
  EXPECT_EQ(TokenSpan(bytes).FindAtLeast(256), -1);
  const std::vector<int64_t> wide = {1, -1};
  EXPECT_EQ(TokenSpan(wide.data(), 8, 2).FindAtLeast(int64_t{1} << 31), 1);
  EXPECT_EQ(TokenSpan().FindAtLeast(0), -1);
}

TEST_F(TokenFileTest, BadFilesAreRefusedByName) {
  EXPECT_THAT(ErrorOf(Path("none")), HasSubstr("none: No such file"));
  EXPECT_THAT(ErrorOf(Write("empty", "")), HasSubstr("empty: is empty"));
  EXPECT_THAT(ErrorOf(Write("odd", "abc")),
              HasSubstr("odd: has 3 bytes, no multiple of the 2 bytes of a token"));
  EXPECT_THAT(ErrorOf(Path(".")), HasSubstr("is no file"));
  EXPECT_THAT(ErrorOf(Write("text.npy", "abcd")), HasSubstr("text.npy: is no .npy file"));
  Tensor matrix({DType::kI32, {2, 2}});
  ASSERT_TRUE(WriteNpy(Path("matrix.npy"), matrix).ok());
  EXPECT_THAT(ErrorOf(Path("matrix.npy")), HasSubstr("expected tokens in one dimension"));
  Tensor floats({DType::kF32, {4}});
  ASSERT_TRUE(WriteNpy(Path("floats.npy"), floats).ok());
  EXPECT_THAT(ErrorOf(Path("floats.npy")), HasSubstr("holds no tokens"));
  const std::string bytes = NpyToBytes(Tensor({DType::kI32, {100}}));
  for (size_t size = 6; size < bytes.size(); ++size) {
    EXPECT_NE(ErrorOf(Write("cut.npy", bytes.substr(0, size))), "") << size;
  }
}

TEST_F(TokenFileTest, ARunReadsTokensAsItReadsText) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text.push_back(static_cast<char>('a' + i * i % 23));
  std::vector<uint16_t> tokens(text.begin(), text.end());
  Write("text.txt", text);
  Raw("tokens.bin", tokens);
  const std::string job =
      Write("tokens.toml",
            "[model]\nname = \"mlp\"\nwidth = 16\ncontext = 8\n[train]\nsteps = 4\nbatch = 4\n"
            "[sample]\nbytes = 0\n[parallel]\nstrategy = \"dp=1\"\nmicrobatches = 1\n");
  const auto run = [&](const std::string& data) {
    return Call({"run", job, "--json", "--set", data});
  };
  const Outcome of_text = run(StrCat("data.text=[\"", Path("text.txt"), "\"]"));
  const Outcome of_tokens = run(StrCat("data.tokens=\"", Path("tokens.bin"), "\""));
  EXPECT_EQ(Losses(of_text).size(), 4u);
  EXPECT_EQ(Losses(of_text), Losses(of_tokens));
  const auto validation = [](const Outcome& outcome) {
    return nlohmann::json::parse(
        outcome.out.substr(outcome.out.find("{\"summary\"")))["summary"]["validation_loss"];
  };
  EXPECT_EQ(validation(of_text), validation(of_tokens));
  // Tokens that the model does not have.
  tokens[3210] = 300;
  Raw("other.bin", tokens);
  const Outcome other = run(StrCat("data.tokens=\"", Path("other.bin"), "\""));
  EXPECT_EQ(other.status, 2);
  EXPECT_THAT(other.err, HasSubstr("other.bin: token 3210 is 300; model.vocabulary is 256"));
  const Outcome both =
      Call({"run", job, "--set", "data.tokens=\"t\"", "--set", "data.text=[\"u\"]"});
  EXPECT_THAT(both.err, HasSubstr("data.tokens and data.text exclude each other"));
}

// What a prompt's tokens are, nobody has said.
TEST_F(TokenFileTest, GeneratingNeedsTheTokenizerOfAFile) {
  Raw("tokens.bin", std::vector<uint16_t>(1000, 65));
  const std::string job = Write(
      "gpt.toml", StrCat("[model]\nname = \"gpt\"\nlayers = 1\nwidth = 16\nheads = 2\n"
                         "context = 8\n[data]\ntokens = \"tokens.bin\"\n[train]\nsteps = 1\n"
                         "batch = 2\n[sample]\nbytes = 0\n[checkpoint]\npath = \"checkpoints\"\n"));
  const Outcome trained = Call({"run", job});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const Outcome outcome = Call({"generate", Path("checkpoints"), "--prompt", "a"});
  EXPECT_EQ(outcome.status, 2);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr(StrCat("was trained on tokens of ", Path("tokens.bin"))),
                                 HasSubstr("give --tokenizer")));
}

}  // namespace
}  // namespace penstock::cli
