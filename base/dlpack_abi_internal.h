// The structures of DLPack 1, by which libraries hand tensors to each other in one process. Their
// layout is the protocol: fields are neither added nor moved. Apart from that, the declarations are
// Penstock's own, so that the project's header is not needed to build.
//
// Thread rule: plain data.

#ifndef PENSTOCK_BASE_DLPACK_ABI_INTERNAL_H_
#define PENSTOCK_BASE_DLPACK_ABI_INTERNAL_H_

#include <cstdint>

// NOLINTBEGIN: names and types are the protocol's.
extern "C" {

struct DLPackVersion {
  uint32_t major;
  uint32_t minor;
};

struct DLDevice {
  int32_t device_type;
  int32_t device_id;
};

struct DLDataType {
  uint8_t code;
  uint8_t bits;
  uint16_t lanes;
};

struct DLTensor {
  void* data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t* shape;
  int64_t* strides;  // in elements; null: row-major
  uint64_t byte_offset;
};

struct DLManagedTensorVersioned {
  DLPackVersion version;
  void* manager_ctx;
  void (*deleter)(DLManagedTensorVersioned* self);  // may be null
  uint64_t flags;
  DLTensor dl_tensor;
};

}  // extern "C"
// NOLINTEND

namespace penstock::dlpack {

inline constexpr uint32_t kMajor = 1;
inline constexpr uint32_t kMinor = 0;

// Of DLDevice.
inline constexpr int32_t kCpu = 1;
inline constexpr int32_t kCudaHost = 3;  // pinned, which the host reads as any other

// Of DLDataType.
inline constexpr uint8_t kInt = 0;
inline constexpr uint8_t kUInt = 1;
inline constexpr uint8_t kFloat = 2;
inline constexpr uint8_t kBfloat = 4;
inline constexpr uint8_t kBool = 6;

// Of flags.
inline constexpr uint64_t kReadOnly = 1;

static_assert(sizeof(void*) != 8 ||
              (sizeof(DLTensor) == 48 && sizeof(DLManagedTensorVersioned) == 80));

}  // namespace penstock::dlpack

#endif  // PENSTOCK_BASE_DLPACK_ABI_INTERNAL_H_
