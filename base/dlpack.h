// Tensors of other libraries as Penstock's and the other way round, by the DLPack protocol: no
// copy, and no need for either library to know the other.
//
//   DLManagedTensorVersioned* const exported = ToDlpack(tensor);   // for a library that takes one
//   ASSIGN_OR_RETURN(Tensor tensor, FromDlpack(theirs));           // of a library that gives one
//
// The structure is DLPack's (github.com/dmlc/dlpack, version 1); whoever looks into it includes the
// header dlpack/dlpack.h of that project, of any version from 1.0 on.
//
// Thread rule: pure functions. A deleter may be called on any thread, by the last reference to the
// memory.

#ifndef PENSTOCK_BASE_DLPACK_H_
#define PENSTOCK_BASE_DLPACK_H_

#include "absl/status/statusor.h"

#include "base/tensor.h"

struct DLManagedTensorVersioned;

namespace penstock {

// The tensor's own memory, which lives at least until the result's deleter is called; that is up to
// the caller. Host memory, row-major, with strides, not read-only. REQUIRES: the tensor has memory.
DLManagedTensorVersioned* ToDlpack(Tensor tensor);

// A tensor whose memory is that of `managed`, whose deleter is called with the last reference to
// it. A copy, after which the deleter is called, of what is read-only, not row-major, or not
// aligned to 64 bytes. Takes `managed` over in any case: after an error its deleter has been
// called. REQUIRES: `managed` is not null, and what it says of its memory is true.
//
// kInvalidArgument: another major version, memory that is not the host's, an element type or a
// shape that tensors do not have. kResourceExhausted: there is no memory for a copy.
absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed);

}  // namespace penstock

#endif  // PENSTOCK_BASE_DLPACK_H_
