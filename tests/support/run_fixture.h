// Jobs for `penstock run`, called in this process: a graph file beside the job of
// command_line_fixture.h, and the losses that a run prints.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_RUN_FIXTURE_H_
#define PENSTOCK_TESTS_SUPPORT_RUN_FIXTURE_H_

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "base/tensor.h"
#include "tests/support/command_line_fixture.h"

namespace penstock::testing {

class RunFixture : public CommandLineFixture {
 protected:
  // loss = mean((x w1 - x w2)^2), with one input and two parameters that name no stream.
  std::string GraphJob(const std::string& more = "") const {
    Write("graph.pst",
          "graph g {\n  %x = input : f64[4, 3]\n"
          "  %w1 = parameter {std=0.5} : f64[3, 2]\n  %w2 = parameter {std=0.2} : f64[3, 2]\n"
          "  %a = matmul(%x, %w1) : f64[4, 2]\n  %b = matmul(%x, %w2) : f64[4, 2]\n"
          "  %d = sub(%a, %b) : f64[4, 2]\n  %q = mul(%d, %d) : f64[4, 2]\n"
          "  %l = reduce_mean(%q) {axes=[0, 1]} : f64[]\n  return %l\n}\n");
    return Write("graph.toml", StrCat("[model]\nfile = \"graph.pst\"\n[train]\nsteps = 3\n"
                                      "learning_rate = 0\nweight_decay = 0\n",
                                      more));
  }

  static Tensor Doubles(Shape shape, const std::vector<double>& values) {
    Tensor tensor({DType::kF64, std::move(shape)});
    std::copy(values.begin(), values.end(), tensor.As<double>());
    return tensor;
  }
  static Tensor Counting(Shape shape) {
    std::vector<double> values(static_cast<size_t>(NumElements(shape)));
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i);
    return Doubles(std::move(shape), values);
  }

  std::vector<double> Losses(const Outcome& outcome) const {
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::vector<double> losses;
    std::istringstream stream(outcome.out);
    for (std::string line; std::getline(stream, line);) {
      const nlohmann::json json = nlohmann::json::parse(line);
      if (json.contains("loss")) losses.push_back(json["loss"]);
    }
    return losses;
  }
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RUN_FIXTURE_H_
