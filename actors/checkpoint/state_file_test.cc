#include "actors/checkpoint/state_file.h"

#include <cstring>
#include <limits>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

const std::byte* AsBytes(const void* data) { return static_cast<const std::byte*>(data); }

// A column of a matrix of 2 x 4: `count` columns from `begin` on.
graph::TileDesc Columns(int64_t begin, int64_t count) {
  graph::TileDesc tile;
  tile.dtype = DType::kF32;
  tile.shape = {2, count};
  tile.global = {2, 4};
  tile.offset = {0, begin};
  return tile;
}

class StateFileTest : public ::testing::Test {
 protected:
  const testing::TempFolder folder_;
  const std::string path_ = folder_.Path("model.safetensors");
  const float left_[4] = {0, 1, 4, 5};
  const float right_[4] = {2, 3, 6, 7};
};

TEST_F(StateFileTest, AStateWhoseTilesAreAllHereIsOneTensor) {
  const StateToWrite state{"w",
                           {DType::kF32, {2, 4}},
                           {{Columns(0, 2), AsBytes(left_)}, {Columns(2, 2), AsBytes(right_)}}};
  const auto written = WriteStateFile(path_, {state}, {});
  ASSERT_TRUE(written.ok()) << written.status();
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsTensor* const tensor = file->Find("w");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->type, state.type);
  float values[8] = {};
  ASSERT_TRUE(file->Read(*tensor, reinterpret_cast<std::byte*>(values)).ok());
  for (int i = 0; i < 8; ++i) EXPECT_EQ(values[i], static_cast<float>(i));
  const auto place = PlaceOfTensor(*tensor, file->header().metadata);
  ASSERT_TRUE(place.ok());
  EXPECT_FALSE(place->has_value());
}

TEST_F(StateFileTest, ATileIsNamedAfterItsPlace) {
  const StateToWrite state{"w", {DType::kF32, {2, 4}}, {{Columns(2, 2), AsBytes(right_)}}};
  ASSERT_TRUE(WriteStateFile(path_, {state}, {{"step", "3"}}).ok());
  const auto file = SafetensorsFile::Open(path_);
  ASSERT_TRUE(file.ok()) << file.status();
  const SafetensorsTensor* const tensor = file->Find("w[0:2,2:4]");
  ASSERT_NE(tensor, nullptr);
  const auto place = PlaceOfTensor(*tensor, file->header().metadata);
  ASSERT_TRUE(place.ok()) << place.status();
  ASSERT_TRUE(place->has_value());
  EXPECT_EQ((*place)->state, "w");
  EXPECT_EQ((*place)->type, state.type);
  EXPECT_EQ((*place)->offset, Shape({0, 2}));
  EXPECT_TRUE(IsTileKey("tile/w[0:2,2:4]"));
  EXPECT_FALSE(IsTileKey("step"));
}

// Of a parameter that is whole, of one that is put together, and of a tile.
TEST_F(StateFileTest, ParametersAreFinite) {
  float bad[4] = {2, 3, 6, std::numeric_limits<float>::quiet_NaN()};
  StateToWrite state{"w", {DType::kF32, {2, 4}}, {}, true};
  state.tiles = {{Columns(0, 2), AsBytes(left_)}, {Columns(2, 2), AsBytes(bad)}};
  EXPECT_EQ(
      WriteStateFile(path_, {state}, {}).status(),
      absl::OutOfRangeError("the parameter w (f32[2, 4]) is nan at element 7; a run cannot go "
                            "on from such states"));
  bad[2] = -std::numeric_limits<float>::infinity();
  bad[3] = 7;
  state.tiles = {{Columns(2, 2), AsBytes(bad)}};
  EXPECT_THAT(ToStd(WriteStateFile(path_, {state}, {}).status().message()),
              HasSubstr("the parameter w[0:2,2:4] (f32[2, 2]) is infinite at element 2"));
  state.type.shape = {2, 2};
  state.tiles[0].tile.global = {2, 2};
  EXPECT_TRUE(absl::IsOutOfRange(WriteStateFile(path_, {state}, {}).status()));
  // No file is left; of other states all values are fine.
  state.is_parameter = false;
  EXPECT_TRUE(WriteStateFile(path_, {state}, {}).ok());
}

TEST_F(StateFileTest, PlacesThatCannotBeAreRefused) {
  const SafetensorsTensor tensor{"t", {DType::kF32, {2, 2}}, 0};
  for (const char* const place :
       {"", "1", "{}", R"({"tensor": 1, "shape": [2, 4], "offset": [0, 0]})",
        R"({"tensor": "w", "shape": [2], "offset": [0]})",
        R"({"tensor": "w\u001b[2J", "shape": [2, 4], "offset": [0, 0]})",
        R"({"tensor": "w", "shape": [2, 4], "offset": [0, 3]})",
        R"({"tensor": "w", "shape": [2, 4], "offset": [0, -1]})",
        R"({"tensor": "w", "shape": [2, 4], "offset": [0, 18446744073709551615]})",
        R"({"tensor": "w", "shape": [4294967296, 9223372036854775807], "offset": [0, 0]})"}) {
    const auto found = PlaceOfTensor(tensor, {{"tile/t", place}});
    EXPECT_TRUE(absl::IsDataLoss(found.status())) << place;
    EXPECT_THAT(ToStd(found.status().message()), HasSubstr("tensor t"));
  }
}

}  // namespace
}  // namespace penstock::actors
