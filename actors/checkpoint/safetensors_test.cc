#include "actors/checkpoint/safetensors.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::string ReadBytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void WriteBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// A file of another program: a header and data as given.
std::string FileOf(const std::string& header, const std::string& data) {
  const uint64_t length = header.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header + data;
}

class SafetensorsTest : public ::testing::Test {
 protected:
  SafetensorsTest() {
    for (int i = 0; i < 6; ++i) weights_[i] = 0.5F * static_cast<float>(i);
    sources_.push_back({"h0.w", {DType::kF32, {2, 3}}, [this] { return AsBytes(weights_); }});
    sources_.push_back({"steps", {DType::kI64, {}}, [this] { return AsBytes(&steps_); }});
    sources_.push_back({"none", {DType::kU8, {0, 4}}, [this] { return AsBytes(weights_); }});
  }

  static const std::byte* AsBytes(const void* data) { return static_cast<const std::byte*>(data); }

  // Opens a file and reads all of it; the first error.
  absl::Status ReadAll(const std::string& path) const {
    const auto file = SafetensorsFile::Open(path);
    if (!file.ok()) return file.status();
    std::vector<std::byte> bytes(1024);
    for (const SafetensorsTensor& tensor : file->header().tensors) {
      const absl::Status status = file->Read(tensor, bytes.data());
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  }

  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("model.safetensors");
  float weights_[6] = {};
  int64_t steps_ = 41;
  std::vector<SafetensorsSource> sources_;
};

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  const auto written = WriteSafetensors(path_, sources_, {{"step", "41"}, {kWriterKey, kWriter}});
  ASSERT_TRUE(written.ok()) << written.status();
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->checksum(), *written);
  EXPECT_EQ(file->header().metadata, (Metadata{{"step", "41"}, {kWriterKey, kWriter}}));
  ASSERT_EQ(file->header().tensors.size(), 3u);
  const SafetensorsTensor* const weights = file->Find("h0.w");
  ASSERT_NE(weights, nullptr);
  EXPECT_EQ(weights->type, (TensorType{DType::kF32, {2, 3}}));
  float values[6] = {};
  ASSERT_TRUE(file->Read(*weights, reinterpret_cast<std::byte*>(values)).ok());
  EXPECT_EQ(memcmp(values, weights_, sizeof(values)), 0);
  int64_t steps = 0;
  ASSERT_TRUE(file->Read(*file->Find("steps"), reinterpret_cast<std::byte*>(&steps)).ok());
  EXPECT_EQ(steps, 41);
  EXPECT_EQ(file->Find("other"), nullptr);
  // The data of a mapped file are aligned.
  uint64_t length = 0;
  memcpy(&length, ReadBytes(path_).data(), sizeof(length));
  EXPECT_EQ(length % 8, 0u);
}

TEST_F(SafetensorsTest, AFileIsNotOverwritten) {
  WriteBytes(path_, "precious");
  EXPECT_FALSE(WriteSafetensors(path_, sources_, {}).ok());
  EXPECT_EQ(ReadBytes(path_), "precious");
}

TEST_F(SafetensorsTest, AnErrorOfASourceLeavesNoFile) {
  sources_[1].bytes = [] { return absl::UnavailableError("the node is gone"); };
  EXPECT_EQ(WriteSafetensors(path_, sources_, {}).status(),
            absl::UnavailableError("the node is gone"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// A limit on the size of files stands for a full disk.
TEST_F(SafetensorsTest, AFullDiskLeavesNoFile) {
  signal(SIGXFSZ, SIG_IGN);
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit tight = {100, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &tight);
  const auto written = WriteSafetensors(path_, sources_, {});
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_TRUE(absl::IsUnavailable(written.status())) << written.status();
  EXPECT_THAT(ToStd(written.status().message()), HasSubstr(path_));
  EXPECT_THAT(ToStd(written.status().message()), HasSubstr("(File too large)"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// Every bit of the file is covered: by its format, a checksum, or the size of the file.
TEST_F(SafetensorsTest, EveryFlippedBitIsNoticed) {
  ASSERT_TRUE(WriteSafetensors(path_, sources_, {{kWriterKey, kWriter}}).ok());
  const std::string bytes = ReadBytes(path_);
  const std::string flipped = folder_.Path("flipped.safetensors");
  uint64_t length = 0;
  memcpy(&length, bytes.data(), sizeof(length));
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    WriteBytes(flipped, damaged);
    const absl::Status status = ReadAll(flipped);
    ASSERT_TRUE(absl::IsDataLoss(status)) << "bit " << bit << ": " << status;
    if (bit / 8 < sizeof(length) + length) continue;
    ASSERT_THAT(ToStd(status.message()),
                AnyOf(HasSubstr("tensor h0.w is damaged"), HasSubstr("tensor steps is damaged")));
  }
}

TEST_F(SafetensorsTest, ACutFileIsNoticed) {
  ASSERT_TRUE(WriteSafetensors(path_, sources_, {}).ok());
  const std::string bytes = ReadBytes(path_);
  for (size_t size = 0; size < bytes.size(); ++size) {
    WriteBytes(path_, bytes.substr(0, size));
    ASSERT_TRUE(absl::IsDataLoss(ReadAll(path_))) << size << " bytes";
  }
  WriteBytes(path_, bytes + "x");
  EXPECT_TRUE(absl::IsDataLoss(ReadAll(path_)));
}

TEST_F(SafetensorsTest, FilesOfOtherProgramsHaveNoChecksums) {
  WriteBytes(path_, FileOf(R"({"__metadata__":{"format":"pt"},)"
                           R"("b":{"dtype":"F32","shape":[1],"data_offsets":[8,12]},)"
                           R"("a":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}  )",
                           std::string(12, '\1')));
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->checksum(), std::nullopt);
  EXPECT_EQ(file->header().tensors[0].name, "a");
  EXPECT_EQ(file->header().metadata.at("format"), "pt");
  EXPECT_TRUE(ReadAll(path_).ok());
}

TEST_F(SafetensorsTest, HeadersThatLieAreRefused) {
  const struct {
    std::string header;
    std::string message;
  } cases[] = {
      {"[]", "no JSON object"},
      {"{", "no JSON object"},
      {R"({"a":1})", "expected dtype, shape and data_offsets"},
      {R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "unknown dtype \"F33\""},
      {R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "no list of sizes"},
      {R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "no list of sizes"},
      {R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,8]}})",
       "tensor a"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "does not have 4 bytes"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})", "outside of the file"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "outside of the file"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "byte 0"},
      {R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", "the file has 8"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("b":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "begins at byte 0"},
      {R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
       R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "names a twice"},
      {R"({"__metadata__":{"x":1},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "more than strings"},
      {R"({"__metadata__":{"writer":"penstock"},"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
       "does not have its checksum"},
      {"{\"a\":" + std::string(100000, '['), "no JSON object"},
      {"{\"a\\u001b[2J\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       "control characters"},
      // One that terminals take for the beginning of a command, and an error that would print it.
      {"{\"a\\u009b2J\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}",
       "control characters"},
      {"{\"a\\u001b[2J\":1}", "control characters"},
  };
  for (const auto& [header, message] : cases) {
    WriteBytes(path_, FileOf(header, std::string(8, '\0')));
    const auto file = SafetensorsFile::Open(path_);
    ASSERT_TRUE(absl::IsDataLoss(file.status())) << header << ": " << file.status();
    EXPECT_THAT(ToStd(file.status().message()), HasSubstr(path_));
    EXPECT_THAT(ToStd(file.status().message()), HasSubstr(message));
  }
}

// It need not be ours.
TEST_F(SafetensorsTest, AnotherWriterHasNoChecksums) {
  WriteBytes(path_, FileOf(R"({"__metadata__":{"writer":"someone"},)"
                           R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                           std::string(8, '\0')));
  EXPECT_TRUE(ReadAll(path_).ok()) << ReadAll(path_);
}

// Wherever a header names them, and however many begin at one byte.
TEST_F(SafetensorsTest, EmptyTensorsLieBetweenOthers) {
  WriteBytes(path_, FileOf(R"({"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                           R"("x":{"dtype":"F32","shape":[0],"data_offsets":[0,0]},)"
                           R"("y":{"dtype":"F32","shape":[0,4],"data_offsets":[8,8]},)"
                           R"("a":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}})",
                           std::string(8, '\0')));
  EXPECT_TRUE(ReadAll(path_).ok()) << ReadAll(path_);
}

TEST_F(SafetensorsTest, ATensorHasANameOfItsOwn) {
  sources_[0].name = "__metadata__";
  absl::Status status = WriteSafetensors(path_, sources_, {}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(ToStd(status.message()), HasSubstr("a tensor cannot be called __metadata__"));
  sources_[0].name = "steps";
  status = WriteSafetensors(path_, sources_, {}).status();
  EXPECT_THAT(ToStd(status.message()), HasSubstr("two tensors are called steps"));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

// A tensor of more than one piece.
TEST_F(SafetensorsTest, TensorsAreVerifiedInPieces) {
  std::vector<uint8_t> bytes(size_t{9} << 20);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 >> 7);
  const TensorType type = {DType::kU8, {static_cast<int64_t>(bytes.size())}};
  sources_.push_back({"z", type, [&bytes] { return AsBytes(bytes.data()); }});
  ASSERT_TRUE(WriteSafetensors(path_, sources_, {}).ok());
  const auto verify = [this] {
    const auto file = SafetensorsFile::Open(path_);
    absl::Status status = file.status();
    for (size_t i = 0; status.ok() && i < file->header().tensors.size(); ++i) {
      status = file->Verify(file->header().tensors[i]);
    }
    return status;
  };
  EXPECT_TRUE(verify().ok()) << verify();
  std::fstream file(path_, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(-3, std::ios::end);
  file.put('!');
  file.close();
  EXPECT_THAT(ToStd(verify().message()), HasSubstr("tensor z is damaged"));
}

TEST_F(SafetensorsTest, NamesAreUtf8) {
  sources_[0].name = "h0\xff";
  EXPECT_TRUE(absl::IsInvalidArgument(WriteSafetensors(path_, sources_, {}).status()));
  EXPECT_FALSE(std::filesystem::exists(path_));
}

TEST_F(SafetensorsTest, AFileThatChangesIsNotRead) {
  ASSERT_TRUE(WriteSafetensors(path_, sources_, {}).ok());
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok());
  const std::string bytes = ReadBytes(path_);
  std::filesystem::remove(path_);
  std::byte to[64];
  EXPECT_TRUE(absl::IsNotFound(file->Read(file->header().tensors[0], to)));
  WriteBytes(path_, bytes + " ");
  EXPECT_TRUE(absl::IsDataLoss(file->Read(file->header().tensors[0], to)));
}

TEST_F(SafetensorsTest, APipeKeepsNobodyWaiting) {
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  EXPECT_TRUE(absl::IsInvalidArgument(SafetensorsFile::Open(path_).status()));
}

TEST_F(SafetensorsTest, WhatCannotBeOpenedIsNamed) {
  EXPECT_TRUE(absl::IsNotFound(SafetensorsFile::Open(path_).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(SafetensorsFile::Open(folder_.path()).status()));
}

// Random damage to the header gives an error or a file, and no more memory than the file has.
TEST_F(SafetensorsTest, RandomHeadersAreHarmless) {
  const std::string good = R"({"__metadata__":{"format":"pt"},)"
                           R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  std::mt19937 random(7);
  for (int round = 0; round < 3000; ++round) {
    std::string header = good;
    for (uint32_t i = 0; i < 1 + random() % 4; ++i) {
      header[random() % header.size()] = "0123456789{}[]\":,-eaF\\u"[random() % 23];
    }
    WriteBytes(path_, FileOf(header, std::string(8, '\0')));
    const auto file = SafetensorsFile::Open(path_);
    if (!file.ok()) {
      ASSERT_TRUE(absl::IsDataLoss(file.status())) << header << ": " << file.status();
    }
  }
}

}  // namespace
}  // namespace penstock::actors
