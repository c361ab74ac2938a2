// Tensors between Python and C++: what is fed is read from any object that NumPy or DLPack can
// describe, and what is fetched is handed out as views that keep it alive.
//
// Thread rule: with the interpreter's lock held.

#ifndef PENSTOCK_PYTHON_TENSORS_H_
#define PENSTOCK_PYTHON_TENSORS_H_

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "absl/status/statusor.h"

#include "base/tensor.h"

namespace penstock::python {

// The elements of `value`: a penstock.Tensor shares its memory; anything else is copied, once, as
// feeds of a session want memory that does not change under them. kInvalidArgument if NumPy makes
// no array of it, or one whose type is none of ours.
absl::StatusOr<Tensor> ToTensor(nanobind::handle value);

// A view of the tensor's memory, which `owner` keeps alive, with the DLPack protocol (1.x and
// earlier).
nanobind::ndarray<nanobind::array_api> ViewOf(Tensor& tensor, nanobind::handle owner);
// The same as a NumPy array. kUnimplemented for bf16, which NumPy does not have.
absl::StatusOr<nanobind::ndarray<nanobind::numpy>> NumpyViewOf(Tensor& tensor,
                                                               nanobind::handle owner);

// The class penstock.Tensor.
void BindTensor(nanobind::module_& module);

}  // namespace penstock::python

#endif  // PENSTOCK_PYTHON_TENSORS_H_
