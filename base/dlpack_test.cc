#include "base/dlpack.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/dlpack_abi_internal.h"
#include "base/strings.h"

namespace penstock {
namespace {

using ::testing::HasSubstr;

// A tensor of another library: 2 x 3 floats, aligned as ours are.
class Theirs {
 public:
  Theirs() {
    std::iota(values_, values_ + 32, 0.0F);
    managed.version = {1, 3};
    managed.manager_ctx = this;
    managed.deleter = [](DLManagedTensorVersioned* self) {
      ++static_cast<Theirs*>(self->manager_ctx)->num_deleted;
    };
    managed.dl_tensor = {values_, {dlpack::kCpu, 0}, 2, {dlpack::kFloat, 32, 1}, shape, nullptr, 0};
  }
  // That nothing was called twice.
  ~Theirs() { EXPECT_EQ(num_deleted, 1); }

  float* values() { return values_; }
  std::string Error() {
    const absl::StatusOr<Tensor> tensor = FromDlpack(&managed);
    EXPECT_EQ(num_deleted, 1);
    return tensor.ok() ? "" : std::string(ToStd(tensor.status().message()));
  }

  DLManagedTensorVersioned managed = {};
  int64_t shape[2] = {2, 3};
  int64_t strides[2] = {3, 1};
  int num_deleted = 0;

 private:
  alignas(64) float values_[32];
};

std::vector<float> ValuesOf(const Tensor& tensor) {
  return {tensor.As<float>(), tensor.As<float>() + tensor.num_elements()};
}

TEST(DlpackTest, OursIsHandedOutWithoutACopy) {
  Tensor tensor({DType::kF32, {2, 3}});
  tensor.As<float>()[4] = 7;
  const void* const data = tensor.data();
  DLManagedTensorVersioned* const managed = ToDlpack(std::move(tensor));
  EXPECT_EQ(managed->version.major, 1u);
  EXPECT_EQ(managed->flags, 0u);
  const DLTensor& view = managed->dl_tensor;
  EXPECT_EQ(view.data, data);
  EXPECT_EQ(view.device.device_type, dlpack::kCpu);
  ASSERT_EQ(view.ndim, 2);
  EXPECT_EQ(view.shape[0], 2);
  EXPECT_EQ(view.shape[1], 3);
  EXPECT_EQ(view.strides[0], 3);
  EXPECT_EQ(view.strides[1], 1);
  EXPECT_EQ(view.byte_offset, 0u);
  EXPECT_EQ(view.dtype.code, dlpack::kFloat);
  EXPECT_EQ(view.dtype.bits, 32);
  EXPECT_EQ(static_cast<const float*>(view.data)[4], 7);  // its own reference
  managed->deleter(managed);
}

TEST(DlpackTest, TensorsOfEveryTypeComeBackAsTheyWere) {
  for (int i = 0; i < kNumDTypes; ++i) {
    for (const Shape& shape : {Shape(), Shape({3}), Shape({2, 0, 4}), Shape({1, 2, 3, 4})}) {
      const Tensor tensor({static_cast<DType>(i), shape});
      const absl::StatusOr<Tensor> back = FromDlpack(ToDlpack(tensor));
      ASSERT_TRUE(back.ok()) << back.status();
      EXPECT_EQ(back->type(), tensor.type());
      EXPECT_EQ(back->data(), tensor.data());
    }
  }
}

TEST(DlpackTest, TheirsIsTakenWithoutACopy) {
  Theirs theirs;
  {
    absl::StatusOr<Tensor> tensor = FromDlpack(&theirs.managed);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(tensor->type(), (TensorType{DType::kF32, {2, 3}}));
    EXPECT_EQ(tensor->data(), theirs.values());
    const Tensor copy = *tensor;
    tensor = absl::CancelledError();  // drops its reference
    EXPECT_EQ(theirs.num_deleted, 0);
    EXPECT_EQ(ValuesOf(copy), (std::vector<float>{0, 1, 2, 3, 4, 5}));
  }
  EXPECT_EQ(theirs.num_deleted, 1);
}

TEST(DlpackTest, AnOffsetCountsInBytes) {
  Theirs theirs;
  theirs.managed.dl_tensor.byte_offset = 64;
  theirs.managed.dl_tensor.strides = theirs.strides;
  const absl::StatusOr<Tensor> tensor = FromDlpack(&theirs.managed);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->data(), theirs.values() + 16);
}

// The tensor's own memory is aligned, row-major and may be written.
TEST(DlpackTest, WhatIsLaidOutInAnotherWayIsCopied) {
  const struct {
    uint64_t offset, flags;
    int64_t strides[2];
    std::vector<float> values;
  } cases[] = {
      {4, 0, {3, 1}, {1, 2, 3, 4, 5, 6}},   {0, dlpack::kReadOnly, {3, 1}, {0, 1, 2, 3, 4, 5}},
      {0, 0, {1, 2}, {0, 2, 4, 1, 3, 5}},    // column-major
      {0, 0, {8, 2}, {0, 2, 4, 8, 10, 12}},  // every other element
      {0, 0, {0, 1}, {0, 1, 2, 0, 1, 2}},    // a row for all
      {20, 0, {3, -1}, {5, 4, 3, 8, 7, 6}},  // backwards
  };
  for (const auto& [offset, flags, strides, values] : cases) {
    Theirs theirs;
    theirs.managed.flags = flags;
    theirs.managed.dl_tensor.byte_offset = offset;
    theirs.managed.dl_tensor.strides = theirs.strides;
    std::copy(strides, strides + 2, theirs.strides);
    const absl::StatusOr<Tensor> tensor = FromDlpack(&theirs.managed);
    ASSERT_TRUE(tensor.ok()) << tensor.status();
    EXPECT_EQ(theirs.num_deleted, 1);
    EXPECT_EQ(ValuesOf(*tensor), values);
  }
}

TEST(DlpackTest, WhatCannotBeTakenIsNamedAndReleased) {
  Theirs version;
  version.managed.version.major = 2;
  EXPECT_THAT(version.Error(), HasSubstr("version 2 of DLPack, not 1"));
  Theirs device;
  device.managed.dl_tensor.device.device_type = 2;
  EXPECT_THAT(device.Error(), HasSubstr("its DLPack device type is 2"));
  Theirs type;
  type.managed.dl_tensor.dtype = {dlpack::kUInt, 32, 1};
  EXPECT_THAT(type.Error(), HasSubstr("DLPack code 1, 32 bits, 1 lanes"));
  Theirs lanes;
  lanes.managed.dl_tensor.dtype.lanes = 4;
  EXPECT_THAT(lanes.Error(), HasSubstr("4 lanes"));
  Theirs rank;
  rank.managed.dl_tensor.ndim = 17;
  EXPECT_THAT(rank.Error(), HasSubstr("rank 17 is not between 0 and 16"));
  Theirs extent;
  extent.shape[1] = -3;
  EXPECT_THAT(extent.Error(), HasSubstr("extent -3 is negative"));
  Theirs huge;
  huge.shape[0] = int64_t{1} << 40;
  huge.managed.dl_tensor.byte_offset = 4;
  EXPECT_THAT(huge.Error(), HasSubstr("is larger than the memory of this machine"));
}

TEST(DlpackTest, ADeleterIsNotRequired) {
  alignas(64) static float values[16] = {3};
  int64_t shape[1] = {16};
  DLManagedTensorVersioned managed = {};
  managed.version = {1, 0};
  managed.dl_tensor = {values, {dlpack::kCudaHost, 0}, 1, {dlpack::kFloat, 32, 1}, shape, nullptr,
                       0};
  const absl::StatusOr<Tensor> tensor = FromDlpack(&managed);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(tensor->data(), values);
}

}  // namespace
}  // namespace penstock
