// Any plan, same numbers: the demo's model trained under every kind of parallelism gives the losses
// of one device at every step, and twice the same plan gives the same bits.

#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include <gtest/gtest.h>

namespace penstock::testing {
namespace {

struct Layout {
  std::string strategy;
  int devices;
  int microbatches;
  std::string policy;
};

// The losses of a run of the demo's job, a step each.
std::vector<double> Losses(const Layout& layout, const std::string& dtype, int steps) {
  const std::string command =
      std::string(PENSTOCK_COMMAND) + " run " PENSTOCK_SOURCE_DIR "/examples/gpt/demo.toml --json" +
      " --set train.steps=" + std::to_string(steps) + " --set train.learning_rate=3e-4" +
      " --set 'train.schedule=\"constant\"' --set 'train.dtype=\"" + dtype + "\"'" +
      " --set cluster.devices=" + std::to_string(layout.devices) + " --set 'parallel.strategy=\"" +
      layout.strategy + "\"'" + " --set 'parallel.schedule=\"" + layout.policy + "\"'" +
      " --set parallel.microbatches=" + std::to_string(layout.microbatches) + " 2>/dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string text;
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe.get())) > 0;)
    text.append(buffer, n);
  std::vector<double> losses;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const nlohmann::json line =
        nlohmann::json::parse(text.substr(begin, end - begin), nullptr, false);
    if (line.is_object() && line.contains("loss")) losses.push_back(line["loss"].get<double>());
    begin = end == std::string::npos ? text.size() : end + 1;
  }
  return losses;
}

void ExpectSameLosses(const Layout& layout, const std::string& dtype, int steps, double tolerance) {
  const std::vector<double> one = Losses({"dp=1", 1, 1, "1f1b"}, dtype, steps);
  const std::vector<double> many = Losses(layout, dtype, steps);
  ASSERT_EQ(one.size(), static_cast<size_t>(steps));
  ASSERT_EQ(many.size(), one.size());
  EXPECT_LT(one.back(), one.front());
  for (size_t step = 0; step < one.size(); ++step) {
    EXPECT_LE(std::abs(many[step] - one[step]), tolerance * std::abs(one[step])) << "step " << step;
  }
}

class AnyPlanTest : public ::testing::TestWithParam<Layout> {};

TEST_P(AnyPlanTest, GivesTheLossesOfOneDevice) { ExpectSameLosses(GetParam(), "f32", 50, 1e-4); }

INSTANTIATE_TEST_SUITE_P(
    Layouts, AnyPlanTest,
    ::testing::Values(Layout{"dp=2", 2, 1, "1f1b"}, Layout{"tp=2", 2, 1, "1f1b"},
                      Layout{"pp=2", 2, 1, "1f1b"}, Layout{"pp=2", 2, 1, "gpipe"},
                      Layout{"dp=2,tp=2", 4, 1, "1f1b"}, Layout{"dp=2,tp=2,pp=2", 8, 1, "1f1b"},
                      Layout{"dp=2", 2, 4, "1f1b"}, Layout{"tp=2", 2, 4, "1f1b"},
                      Layout{"pp=2", 2, 4, "1f1b"}, Layout{"pp=2", 2, 4, "gpipe"},
                      Layout{"dp=2,tp=2", 4, 4, "1f1b"}, Layout{"dp=2,tp=2,pp=2", 8, 4, "1f1b"}),
    [](const ::testing::TestParamInfo<Layout>& info) {
      std::string name = info.param.strategy + "_mb" + std::to_string(info.param.microbatches) +
                         "_" + info.param.policy;
      std::erase(name, '=');
      for (char& c : name) c = c == ',' ? '_' : c;
      return name;
    });

TEST(AnyPlanDoubleTest, AgreesToNineDigits) {
  ExpectSameLosses({"dp=2,tp=2,pp=2", 8, 4, "1f1b"}, "f64", 8, 2e-9);
}

TEST(AnyPlanTwiceTest, GivesTheSameBits) {
  const Layout layout = {"dp=2,tp=2,pp=2", 8, 4, "1f1b"};
  EXPECT_EQ(Losses(layout, "f32", 10), Losses(layout, "f32", 10));
}

}  // namespace
}  // namespace penstock::testing
