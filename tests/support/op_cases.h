// One case or more for every operator that computes: operand types, the range that their values are
// drawn from, attributes. Gradients, sharding rules and decompositions are checked on all of them;
// a new operator is one entry more.
//
// If there is a plug-in under test (tested_plugin.h), its cases take the place of these.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_OP_CASES_H_
#define PENSTOCK_TESTS_SUPPORT_OP_CASES_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "base/tensor.h"
#include "graph/attributes.h"

namespace penstock::testing {

// Floats lie in [low, high), integers too, bools are either.
struct OperandCase {
  TensorType type;
  double low = -2;
  double high = 2;
};

struct OpCase {
  std::string op;
  graph::Attributes attributes;
  std::vector<OperandCase> operands;
};

// Floats are f64. No two values are so near a kink of the operator that differences would see it.
std::vector<OpCase> OpCases();

// "matmul {transpose_a=true} (f64[2, 3], f64[2, 4])".
std::string ToString(const OpCase& test);

// How GoogleTest names a case in failures.
void PrintTo(const OpCase& test, std::ostream* out);

// Values in the operand's range, a function of `index` alone.
Tensor DrawOperand(const OperandCase& operand, uint32_t index);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_OP_CASES_H_
