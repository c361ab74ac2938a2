#include "kernels/emulated/emulated_kernels.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/emulated_device.h"

namespace penstock::kernels {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kTimeoutNs = 10'000'000'000;
constexpr int64_t kSize = 3;
constexpr size_t kBytes = kSize * sizeof(float);

class EmulatedKernelsTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Kernel>> Make(const std::string& op, DType index = DType::kF32) {
    KernelSpec spec;
    spec.op = op;
    const TileDesc tile = {DType::kF32, {kSize}, {kSize}, {0}, {0}};
    spec.inputs = {tile, tile};
    spec.inputs[1].dtype = index;
    spec.outputs = {tile};
    return kernels_.Find(op)->create(spec, *device_, *stream_);
  }
  void Write(const Memory& memory, const std::vector<float>& values) {
    stream_->Copy(memory.data(), values.data(), kBytes, CopyKind::kHostToDevice);
    ASSERT_EQ(WaitUntilDone(*stream_, *event_, kTimeoutNs), absl::OkStatus());
  }
  std::vector<float> Read(const Memory& memory) {
    std::vector<float> values(kSize);
    stream_->Copy(values.data(), memory.data(), kBytes, CopyKind::kDeviceToHost);
    EXPECT_EQ(WaitUntilDone(*stream_, *event_, kTimeoutNs), absl::OkStatus());
    return values;
  }
  std::unique_ptr<Memory> Allocate() { return *device_->Allocate(kBytes, MemoryKind::kDevice); }

  const KernelRegistry kernels_ = EmulatedKernels(CpuKernels());
  const std::unique_ptr<EmulatedDevice> device_ = EmulatedDevice::Create({});
  const std::unique_ptr<Memory> a_ = Allocate();
  const std::unique_ptr<Memory> b_ = Allocate();
  const std::unique_ptr<Memory> c_ = Allocate();
  const std::unique_ptr<Event> event_ = device_->CreateEvent();
  const std::unique_ptr<Stream> stream_ = device_->CreateStream();
};

TEST_F(EmulatedKernelsTest, RunWithTheArgumentsOfTheirLaunch) {
  const auto add = Make("add");
  ASSERT_TRUE(add.ok()) << add.status();
  Write(*a_, {1, 2, 3});
  Write(*b_, {10, 20, 30});
  void* inputs[] = {a_->data(), b_->data()};
  void* outputs[] = {c_->data()};
  KernelArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  args.stream = stream_.get();
  EXPECT_EQ((*add)->Run(args), absl::OkStatus());
  inputs[0] = c_->data();
  EXPECT_EQ((*add)->Run(args), absl::OkStatus());
  inputs[0] = inputs[1] = outputs[0] = nullptr;
  EXPECT_EQ(Read(*c_), (std::vector<float>{21, 42, 63}));
}

TEST_F(EmulatedKernelsTest, WhatFailsLaterIsAnErrorOfTheStream) {
  const auto pick = Make("pick", DType::kI32);
  ASSERT_TRUE(pick.ok()) << pick.status();
  void* inputs[] = {a_->data(), nullptr};  // no memory of the device
  int host = 0;
  inputs[1] = &host;
  void* outputs[] = {c_->data()};
  KernelArgs args;
  args.inputs = inputs;
  args.outputs = outputs;
  args.stream = stream_.get();
  args.launch = 7;
  EXPECT_EQ((*pick)->Run(args), absl::OkStatus());
  EXPECT_THAT(std::string(WaitUntilDone(*stream_, *event_, kTimeoutNs).message()),
              HasSubstr("argument 1 is no memory of the device"));
  ASSERT_NE(event_->error(), nullptr);
  EXPECT_EQ(event_->error()->launch, 7u);
}

TEST_F(EmulatedKernelsTest, AreMadeOnEmulatedDevicesOnly) {
  const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
  const std::unique_ptr<Stream> stream = cpu->CreateStream();
  KernelSpec spec;
  spec.op = "add";
  const auto made = kernels_.Find("add")->create(spec, *cpu, *stream);
  EXPECT_EQ(made.status().message(),
            "the emulated kernel for add needs an emulated device, not a cpu device");
}

TEST_F(EmulatedKernelsTest, RefuseWhatTheirKernelRefuses) {
  EXPECT_EQ(Make("embedding", DType::kF32).status().code(), absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace penstock::kernels
