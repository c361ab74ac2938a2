#include "actors/checkpoint/checkpoint.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/checkpoint/durable_file.h"
#include "actors/checkpoint/state_file.h"
#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

const std::byte* BytesAt(const void* data) { return static_cast<const std::byte*>(data); }

std::string ReadFileBytes(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void WriteFileBytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

// Rows of a matrix of 4 x 2.
graph::TileDesc Rows(int64_t begin, int64_t count) {
  graph::TileDesc tile;
  tile.dtype = DType::kF32;
  tile.shape = {count, 2};
  tile.global = {4, 2};
  tile.offset = {begin, 0};
  return tile;
}

// Two processes: each has half of w, the second all of v.
class CheckpointTest : public ::testing::Test {
 protected:
  CheckpointTest() {
    info_.step = 30;
    info_.sequences = 480;
    info_.seed = 7;
    info_.strategy = "tp=2";
    info_.settings = {{"model.name", "gpt"}, {"train.optimizer", "adamw"}};
  }

  CheckpointFile WriteFile(uint32_t index, uint32_t count, std::vector<StateToWrite> states) {
    const std::string name = CheckpointFileName(index, count);
    const auto written = WriteStateFile(folder_.Path(name), states, ToMetadata(info_));
    EXPECT_TRUE(written.ok()) << written.status();
    return {name, written.value_or(0)};
  }
  StateToWrite HalfOfW(int64_t begin) {
    return {"w", {DType::kF32, {4, 2}}, {{Rows(begin, 2), BytesAt(w_ + 2 * begin)}}};
  }
  StateToWrite AllOfV() {
    graph::TileDesc tile;
    tile.dtype = DType::kF32;
    tile.shape = tile.global = {2};
    tile.offset = {0};
    return {"v", {DType::kF32, {2}}, {{tile, BytesAt(w_)}}};
  }
  void WriteTwoFiles() {
    const std::vector<CheckpointFile> files = {WriteFile(0, 2, {HalfOfW(0)}),
                                               WriteFile(1, 2, {HalfOfW(2), AllOfV()})};
    const absl::Status status =
        WriteCheckpointIndex(folder_.path().string(), files, ToMetadata(info_));
    ASSERT_TRUE(status.ok()) << status;
  }
  absl::Status ErrorOf(const std::string& path) const {
    const auto checkpoint = Checkpoint::Open(path);
    if (!checkpoint.ok()) return checkpoint.status();
    for (const CheckpointTensor& tensor : checkpoint->tensors()) {
      const auto value = checkpoint->Read(tensor.name);
      if (!value.ok()) return value.status();
    }
    return absl::OkStatus();
  }

  const testing::TempFolder folder_;
  const std::string index_ = folder_.Path(kIndexFile);
  const float w_[8] = {0, 1, 2, 3, 4, 5, 6, 7};
  CheckpointInfo info_;
};

TEST_F(CheckpointTest, TilesOfSeveralFilesAreOneTensor) {
  WriteTwoFiles();
  const auto checkpoint = Checkpoint::Open(folder_.path().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(checkpoint->has_checksums());
  ASSERT_EQ(checkpoint->tensors().size(), 2u);
  EXPECT_EQ(checkpoint->tensors()[0].name, "v");
  const auto w = checkpoint->Read("w");
  ASSERT_TRUE(w.ok()) << w.status();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(w->As<float>()[i], static_cast<float>(i));
  EXPECT_TRUE(absl::IsNotFound(checkpoint->Read("u").status()));
}

TEST_F(CheckpointTest, WhatItSaysOfTheRunIsRead) {
  WriteTwoFiles();
  const auto checkpoint = Checkpoint::Open(folder_.path().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto info = InfoFromMetadata(checkpoint->metadata());
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->step, 30);
  EXPECT_EQ(info->sequences, 480);
  EXPECT_EQ(info->seed, 7);
  EXPECT_EQ(info->strategy, "tp=2");
  EXPECT_EQ(info->settings, info_.settings);
  EXPECT_FALSE(InfoFromMetadata({{"format", "pt"}}).ok());
}

TEST_F(CheckpointTest, OneFileNeedsNoIndex) {
  WriteFile(0, 1, {AllOfV()});
  EXPECT_TRUE(ErrorOf(folder_.path().string()).ok());
  EXPECT_TRUE(ErrorOf(folder_.Path(CheckpointFileName(0, 1))).ok());
}

TEST_F(CheckpointTest, AMissingPartIsNamed) {
  WriteFile(0, 1, {HalfOfW(0)});
  const absl::Status status = ErrorOf(folder_.path().string());
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(ToStd(status.message()), HasSubstr("tensor w: only 4 of its 8 elements are there"));
}

TEST_F(CheckpointTest, PartsThatOverlapAreRefused) {
  const std::vector<CheckpointFile> files = {WriteFile(0, 2, {HalfOfW(0)}),
                                             WriteFile(1, 2, {HalfOfW(1)})};
  ASSERT_TRUE(WriteCheckpointIndex(folder_.path().string(), files, ToMetadata(info_)).ok());
  EXPECT_THAT(ToStd(ErrorOf(folder_.path().string()).message()),
              HasSubstr("tensor w: its parts overlap"));
}

// On hosts that do not share a folder, the files of others are not there.
TEST_F(CheckpointTest, AnIndexIsOfFilesThatAreThere) {
  CheckpointFile file = WriteFile(0, 2, {HalfOfW(0)});
  const std::string folder = folder_.path().string();
  absl::Status status =
      WriteCheckpointIndex(folder, {file, {CheckpointFileName(1, 2), {}}}, ToMetadata(info_));
  EXPECT_TRUE(absl::IsDataLoss(status));
  EXPECT_THAT(ToStd(status.message()), HasSubstr("have to share the folder"));
  ++file.checksum;
  EXPECT_TRUE(absl::IsDataLoss(WriteCheckpointIndex(folder, {file}, ToMetadata(info_))));
}

TEST_F(CheckpointTest, AFileOfAnotherCheckpointIsRefused) {
  WriteTwoFiles();
  const std::string second = folder_.Path(CheckpointFileName(1, 2));
  std::filesystem::remove(second);
  info_.step = 40;
  WriteFile(1, 2, {HalfOfW(2), AllOfV()});
  EXPECT_THAT(ToStd(ErrorOf(folder_.path().string()).message()),
              HasSubstr("is not the file of this checkpoint"));
  std::filesystem::remove(second);
  EXPECT_TRUE(absl::IsNotFound(ErrorOf(folder_.path().string())));
}

TEST_F(CheckpointTest, EveryFlippedBitOfAnIndexIsNoticed) {
  WriteTwoFiles();
  const std::string bytes = ReadFileBytes(index_);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    std::string damaged = bytes;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    WriteFileBytes(index_, damaged);
    const absl::Status status = ErrorOf(folder_.path().string());
    ASSERT_FALSE(status.ok()) << "bit " << bit;
    ASSERT_THAT(ToStd(status.message()), HasSubstr(folder_.path().string()));
  }
}

TEST_F(CheckpointTest, AnIndexDoesNotLeadOutOfItsFolder) {
  WriteTwoFiles();
  WriteFileBytes(index_, R"({"weight_map": {"w": "../../etc/passwd"}})");
  EXPECT_THAT(ToStd(ErrorOf(folder_.path().string()).message()),
              HasSubstr("../../etc/passwd is no file of the checkpoint"));
}

TEST_F(CheckpointTest, AHostileIndexIsRefused) {
  WriteTwoFiles();
  for (const std::string& index :
       {std::string(R"({"xxh3":)") + std::string(1'000'000, '['), std::string("[]"),
        std::string(R"({"xxh3": 1, "headers": {}, "weight_map": {}})"),
        std::string(R"({"weight_map": {"w": 1}})"), std::string(R"({"headers": {}})")}) {
    WriteFileBytes(index_, index);
    EXPECT_TRUE(absl::IsDataLoss(ErrorOf(folder_.path().string()))) << index.substr(0, 40);
  }
}

TEST_F(CheckpointTest, NumbersThatCannotBeAreRefused) {
  const Metadata good = ToMetadata(info_);
  for (const auto& [key, value] :
       {std::pair("step", "-1"), std::pair("step", "x"),
        std::pair("sequences", "9223372036854775796"), std::pair("seed", "-3"),
        std::pair("step", "9223372036854775807")}) {
    Metadata metadata = good;
    metadata[key] = value;
    EXPECT_FALSE(InfoFromMetadata(metadata).ok()) << key << " " << value;
  }
}

// As other programs write it, without checksums.
TEST_F(CheckpointTest, AnIndexOfAnotherProgramIsRead) {
  WriteFile(0, 2, {AllOfV()});
  WriteFile(1, 2, {});
  WriteFileBytes(index_, StrCat(R"({"metadata": {"total_size": 8}, "weight_map": {"v": ")",
                                CheckpointFileName(0, 2), R"("}})"));
  EXPECT_TRUE(ErrorOf(folder_.path().string()).ok()) << ErrorOf(folder_.path().string());
}

// The file is sparse: 4 TiB of nothing, which it says is one tensor.
TEST_F(CheckpointTest, ATensorLargerThanTheMachineIsNotRead) {
  const std::string path = folder_.Path("huge.safetensors");
  const std::string header =
      R"({"w":{"dtype":"F32","shape":[1099511627776],"data_offsets":[0,4398046511104]}})";
  const uint64_t length = header.size();
  WriteFileBytes(path,
                 std::string(reinterpret_cast<const char*>(&length), sizeof(length)) + header);
  std::error_code error;
  std::filesystem::resize_file(path, sizeof(length) + length + (uint64_t{4} << 40), error);
  if (error) GTEST_SKIP() << "no files of 4 TiB here: " << error.message();
  const absl::Status status = ErrorOf(path);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(ToStd(status.message()),
              HasSubstr(path + ": tensor w: f32[1099511627776] is larger than the memory"));
}

TEST_F(CheckpointTest, AllPartsAreVerified) {
  WriteTwoFiles();
  const auto verify = [this] {
    const auto checkpoint = Checkpoint::Open(folder_.path().string());
    absl::Status status = checkpoint.status();
    for (size_t i = 0; status.ok() && i < checkpoint->tensors().size(); ++i) {
      status = checkpoint->Verify(checkpoint->tensors()[i]);
    }
    return status;
  };
  EXPECT_TRUE(verify().ok()) << verify();
  for (const uint32_t index : {0, 1}) {
    const std::string path = folder_.Path(CheckpointFileName(index, 2));
    const std::string bytes = ReadFileBytes(path);
    WriteFileBytes(path, bytes.substr(0, bytes.size() - 1) + "!");
    EXPECT_TRUE(absl::IsDataLoss(verify())) << index;
    WriteFileBytes(path, bytes);
  }
}

TEST_F(CheckpointTest, WhatIsNoCheckpointIsTold) {
  EXPECT_TRUE(absl::IsNotFound(ErrorOf(folder_.Path("none"))));
  EXPECT_THAT(ToStd(ErrorOf(folder_.path().string()).message()), HasSubstr("is no checkpoint"));
}

}  // namespace
}  // namespace penstock::actors
