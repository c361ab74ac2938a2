#include <cstring>
#include <filesystem>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/message.h>

#include "actors/checkpoint/checkpoint.h"
#include "actors/cluster/state_write_internal.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

// Two states on one device, kept: w of two floats and v of one.
// `second` is the second value of w.
std::shared_ptr<const KeptTiles> Keep(float second = 2) {
  planner::Plan plan;
  plan.states.resize(2);
  plan.states[0].name = "w";
  plan.states[0].type = {DType::kF32, {2}};
  plan.states[0].placements.push_back({0, 0, {DType::kF32, {2}, {2}, {0}, {0}}});
  plan.states[0].is_parameter = true;
  plan.states[1].name = "v";
  plan.states[1].type = {DType::kF32, {1}};
  plan.states[1].placements.push_back({0, 1, {DType::kF32, {1}, {1}, {0}, {0}}});
  auto kept = KeptTiles::Copy(plan, {0, 1}, 0, 1,
                              [&](const planner::StatePlacement& placement, std::byte* bytes) {
                                const float values[] = {1, second};
                                memcpy(bytes, values, placement.tile.num_bytes());
                                return absl::OkStatus();
                              });
  EXPECT_TRUE(kept.ok()) << kept.status();
  return std::make_shared<const KeptTiles>(*std::move(kept));
}

class StateWriteTest : public ::testing::Test {
 protected:
  StateWriteTest() {
    write_.path = folder_.Path("model.safetensors");
    write_.tiles = {{0, 0}, {1, 0}};
    write_.kept = Keep();
  }
  absl::StatusOr<uint64_t> Write(bool is_over = false) {
    return WriteStates(write_, [is_over] { return is_over; });
  }

  const testing::TempFolder folder_;
  StateWrite write_;
};

TEST_F(StateWriteTest, TilesBecomeTensors) {
  write_.metadata["step"] = "3";
  const auto written = Write();
  ASSERT_TRUE(written.ok()) << written.status();
  const auto file = SafetensorsFile::Open(write_.path);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->checksum(), *written);
  EXPECT_EQ(file->header().tensors.size(), 2u);
  EXPECT_EQ(file->header().metadata.at("step"), "3");
}

TEST_F(StateWriteTest, ParametersAreFinite) {
  write_.kept = Keep(std::numeric_limits<float>::infinity());
  const auto written = Write();
  EXPECT_TRUE(absl::IsOutOfRange(written.status())) << written.status();
  EXPECT_FALSE(std::filesystem::exists(write_.path));
}

TEST_F(StateWriteTest, WhatIsNotThereIsNotFound) {
  write_.tiles.push_back({1, 1});
  EXPECT_TRUE(absl::IsNotFound(Write().status()));
  write_.tiles.back() = {2, 0};
  EXPECT_TRUE(absl::IsNotFound(Write().status()));
  write_.tiles.pop_back();
  write_.path = folder_.Path("none/model.safetensors");
  EXPECT_TRUE(absl::IsNotFound(Write().status()));
  write_.kept = nullptr;
  EXPECT_TRUE(absl::IsNotFound(Write().status()));
}

TEST_F(StateWriteTest, OnlyFilesOfCheckpointsAreWritten) {
  for (const std::string& path :
       {folder_.Path("passwd"), folder_.Path("model.txt"), std::string("model.safetensors")}) {
    write_.path = path;
    EXPECT_TRUE(absl::IsInvalidArgument(Write().status())) << path;
  }
}

TEST_F(StateWriteTest, TheEndOfANodeEndsItsWriting) {
  EXPECT_TRUE(absl::IsCancelled(Write(/*is_over=*/true).status()));
  EXPECT_FALSE(std::filesystem::exists(write_.path));
}

TEST_F(StateWriteTest, RequestsAreChecked) {
  const auto read = [](const std::vector<KeptTileId>& tiles, std::vector<const char*> metadata) {
    capnp::MallocMessageBuilder message;
    auto params = message.initRoot<control::Node::WriteStatesParams>();
    params.setPath("file");
    auto to = params.initTiles(static_cast<unsigned>(tiles.size()));
    for (unsigned i = 0; i < tiles.size(); ++i) {
      to[i].setState(tiles[i].state);
      to[i].setTile(tiles[i].tile);
    }
    auto entries = params.initMetadata(static_cast<unsigned>(metadata.size()));
    for (unsigned i = 0; i < metadata.size(); ++i) entries.set(i, metadata[i]);
    return ReadStateWrite(params.asReader());
  };
  const auto good = read({{0, 1}, {0, 2}, {3, 0}}, {"step", "3"});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->path, "file");
  EXPECT_EQ(good->tiles[2], (KeptTileId{3, 0}));
  EXPECT_EQ(good->metadata, (Metadata{{"step", "3"}}));
  EXPECT_TRUE(absl::IsInvalidArgument(read({}, {"step"}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(read({{0, 1}, {0, 1}}, {}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(read({{1, 0}, {0, 1}}, {}).status()));
}

}  // namespace
}  // namespace penstock::actors
