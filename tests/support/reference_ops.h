// Operators by their definition: plain loops over doubles, with neither kernels nor element types,
// for tests that ask whether a kernel computed what its operands hold.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_REFERENCE_OPS_H_
#define PENSTOCK_TESTS_SUPPORT_REFERENCE_OPS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/shape.h"
#include "graph/attributes.h"
#include "tests/support/interpreter.h"

namespace penstock::testing {

// A row-major tensor of numbers.
struct Values {
  Shape shape;
  std::vector<double> elements;
};

// Every result of the operator, optional ones last. `is_integer`: a division rounds to zero, and by
// zero gives 0. kNotFound for an operator without a reference. REQUIRES: types were inferred for
// operands of these shapes.
absl::StatusOr<std::vector<Values>> EvaluateReference(const std::string& op,
                                                      const graph::Attributes& attributes,
                                                      const std::vector<Values>& operands,
                                                      bool is_integer,
                                                      const InterpretOptions& options);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_REFERENCE_OPS_H_
