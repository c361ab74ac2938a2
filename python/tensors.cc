#include "tensors.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "base/tensor_memory.h"
#include "status.h"

namespace nb = nanobind;

namespace penstock::python {
namespace {

using AnyArray = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

nb::dlpack::dtype ToDlpack(DType dtype) {
  using nb::dlpack::dtype_code;
  dtype_code code = dtype_code::Int;
  if (dtype == DType::kBF16) {
    code = dtype_code::Bfloat;
  } else if (dtype == DType::kBool) {
    code = dtype_code::Bool;
  } else if (dtype == DType::kU8) {
    code = dtype_code::UInt;
  } else if (IsFloat(dtype)) {
    code = dtype_code::Float;
  }
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * ByteSize(dtype)), 1};
}

std::optional<DType> FromDlpack(nb::dlpack::dtype dtype) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto ours = static_cast<DType>(i);
    if (ToDlpack(ours) == dtype) return ours;
  }
  return std::nullopt;
}

// What numpy.ascontiguousarray makes of it: lists, numbers, other layouts.
std::optional<AnyArray> AsArray(nb::handle value) {
  AnyArray array;
  if (nb::try_cast(value, array)) return array;
  try {
    const nb::object converted =
        nb::module_::import_("numpy").attr("asarray")(value, nb::arg("order") = "C");
    if (nb::try_cast(converted, array)) return array;
  } catch (nb::python_error&) {
    // What is wrong with the value is said by the caller.
  }
  return std::nullopt;
}

std::string TypeName(nb::handle value) {
  return nb::cast<std::string>(value.type().attr("__name__"));
}

absl::StatusOr<Tensor> ZerosOf(const std::vector<int64_t>& shape, const std::string& dtype) {
  const std::optional<DType> parsed = ParseDType(dtype);
  if (!parsed.has_value()) {
    return absl::InvalidArgumentError(StrCat("there is no dtype \"", dtype, "\"; such as \"f32\""));
  }
  RETURN_IF_ERROR(CheckShape(shape));
  const TensorType type = {*parsed, Shape(shape.begin(), shape.end())};
  RETURN_IF_ERROR(CheckFitsMemory(type));
  return Tensor(type);
}

}  // namespace

absl::StatusOr<Tensor> ToTensor(nb::handle value) {
  Tensor* own = nullptr;
  if (nb::try_cast(value, own) && own != nullptr) return *own;
  const std::optional<AnyArray> array = AsArray(value);
  if (!array.has_value()) {
    return absl::InvalidArgumentError(
        StrCat("expected an array in host memory (NumPy, DLPack), not ", TypeName(value)));
  }
  const std::optional<DType> dtype = FromDlpack(array->dtype());
  if (!dtype.has_value()) {
    const nb::dlpack::dtype given = array->dtype();
    return absl::InvalidArgumentError(
        StrCat("arrays of this type are not supported: DLPack code ", static_cast<int>(given.code),
               ", ", static_cast<int>(given.bits),
               " bits; expected f16, bf16, f32, f64, i8, u8, i32, i64 or bool"));
  }
  const Shape shape(array->shape_ptr(), array->shape_ptr() + array->ndim());
  RETURN_IF_ERROR(CheckShape(shape));
  Tensor tensor({*dtype, shape});
  if (tensor.num_bytes() > 0) std::memcpy(tensor.data(), array->data(), tensor.num_bytes());
  return tensor;
}

nb::ndarray<nb::array_api> ViewOf(Tensor& tensor, nb::handle owner) {
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  return nb::ndarray<nb::array_api>(tensor.data(), shape.size(), shape.data(), owner, nullptr,
                                    ToDlpack(tensor.dtype()), nb::device::cpu::value, 0, 'C');
}

absl::StatusOr<nb::ndarray<nb::numpy>> NumpyViewOf(Tensor& tensor, nb::handle owner) {
  if (tensor.dtype() == DType::kBF16) {
    return absl::UnimplementedError(
        "NumPy has no bf16; use the DLPack protocol, such as torch.from_dlpack(tensor)");
  }
  const std::vector<size_t> shape(tensor.shape().begin(), tensor.shape().end());
  return nb::ndarray<nb::numpy>(tensor.data(), shape.size(), shape.data(), owner, nullptr,
                                ToDlpack(tensor.dtype()), nb::device::cpu::value, 0, 'C');
}

void BindTensor(nb::module_& module) {
  const auto numpy_view = [](nb::handle self) {
    return ValueOrThrow(NumpyViewOf(nb::cast<Tensor&>(self), self));
  };
  nb::class_<Tensor>(module, "Tensor",
                     "A dense row-major tensor in host memory, which it owns. NumPy arrays and "
                     "DLPack tensors made of it are views of the same memory.")
      .def_static(
          "zeros",
          [](const std::vector<int64_t>& shape, const std::string& dtype) {
            return ValueOrThrow(ZerosOf(shape, dtype));
          },
          nb::arg("shape"), nb::arg("dtype") = "f32",
          "A tensor of zeros. Filled through numpy(), it is fed to a session without a copy.")
      .def_prop_ro("shape",
                   [](const Tensor& tensor) {
                     nb::list sizes;
                     for (const int64_t size : tensor.shape()) sizes.append(size);
                     return nb::tuple(sizes);
                   })
      .def_prop_ro(
          "dtype", [](const Tensor& tensor) { return std::string(Name(tensor.dtype())); },
          "The name of the element type, such as \"f32\".")
      .def_prop_ro("nbytes", &Tensor::num_bytes)
      .def("numpy", numpy_view, "A NumPy array of the same memory.")
      .def(
          "__array__",
          [numpy_view](nb::handle self, nb::object dtype, nb::object copy) {
            nb::object array = nb::cast(numpy_view(self));
            const bool is_copied = !copy.is_none() && nb::cast<bool>(copy);
            if (!dtype.is_none()) {
              const nb::object other = array.attr("astype")(dtype, nb::arg("copy") = false);
              if (!copy.is_none() && !is_copied && !other.is(array)) {
                throw nb::value_error(
                    "a penstock.Tensor of another dtype cannot be had without a "
                    "copy");
              }
              if (!other.is(array)) return other;
            }
            return is_copied ? nb::object(array.attr("copy")()) : array;
          },
          nb::arg("dtype") = nb::none(), nb::arg("copy") = nb::none())
      .def("__dlpack__",
           [](nb::handle self, nb::kwargs options) {
             const nb::object view = nb::cast(ViewOf(nb::cast<Tensor&>(self), self));
             return nb::object(view.attr("__dlpack__")(**options));
           })
      .def("__dlpack_device__",
           [](nb::handle) { return nb::make_tuple(nb::device::cpu::value, 0); })
      .def("__float__",
           [numpy_view](nb::handle self) {
             return nb::cast<double>(nb::cast(numpy_view(self)).attr("item")());
           })
      .def("__repr__", [](const Tensor& tensor) {
        return StrCat("penstock.Tensor(", ToString(tensor.type()), ")");
      });
}

}  // namespace penstock::python
