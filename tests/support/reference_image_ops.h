// Convolutions, poolings and batch normalization by their definition, for reference_ops.h.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_REFERENCE_IMAGE_OPS_H_
#define PENSTOCK_TESTS_SUPPORT_REFERENCE_IMAGE_OPS_H_

#include <vector>

#include "graph/attributes.h"
#include "tests/support/reference_ops.h"

namespace penstock::testing {

Values Conv2d(const graph::Attributes& attributes, const Values& x, const Values& w);
Values Conv2dInputGrad(const graph::Attributes& attributes, const Values& w, const Values& dy);
Values Conv2dWeightGrad(const graph::Attributes& attributes, const Values& x, const Values& dy);

Values MaxPool2d(const graph::Attributes& attributes, const Values& x);
Values MaxPool2dGrad(const graph::Attributes& attributes, const Values& x, const Values& dy);
Values AvgPool2d(const graph::Attributes& attributes, const Values& x);
Values AvgPool2dGrad(const graph::Attributes& attributes, const Values& dy);

// x, scale, bias -> y, mean, variance.
std::vector<Values> BatchNorm(const graph::Attributes& attributes, const std::vector<Values>& x);
Values BatchNormInference(const graph::Attributes& attributes, const std::vector<Values>& x);
std::vector<Values> BatchNormWeightGrad(const graph::Attributes& attributes,
                                        const std::vector<Values>& x);
Values BatchNormGrad(const graph::Attributes& attributes, const std::vector<Values>& x);
Values ChannelVariance(const Values& x, const Values& mean);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_REFERENCE_IMAGE_OPS_H_
