// Propagation on files: NAME.pst is propagated and compared, as a graph, with NAME.expected.pst.
// The cases of this repository lie in planner/sharding/testdata/propagation; those in
// ../shared/cases/propagation are run as well where that folder exists. A case that is not for
// `propagate` says so in its first line: "# --pass propagate:basic".

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "graph/op.h"
#include "graph/text.h"
#include "planner/opt.h"

namespace penstock {
namespace {

namespace fs = std::filesystem;

std::string ReadFile(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

std::string PassOf(const std::string& text) {
  constexpr std::string_view kMark = "# --pass ";
  if (text.compare(0, kMark.size(), kMark) != 0) return "propagate";
  return text.substr(kMark.size(), text.find('\n') - kMark.size());
}

// Runs every case of the folder and returns how many there were.
int RunFolder(const fs::path& folder) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  int num_cases = 0;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path input = entry.path();
    const std::string name = input.stem().string();
    if (input.extension() != ".pst" || fs::path(name).extension() == ".expected") continue;
    ++num_cases;
    const std::string text = ReadFile(input);
    const fs::path expected_path = folder / (name + ".expected.pst");
    const absl::StatusOr<std::string> printed =
        planner::Optimize(text, input.string(), PassOf(text), ops);
    if (!printed.ok()) {
      ADD_FAILURE() << printed.status().message();
      continue;
    }
    const auto actual = graph::ParseGraph(*printed, name, ops);
    const auto expected = graph::ParseGraph(ReadFile(expected_path), expected_path.string(), ops);
    if (!actual.ok() || !expected.ok()) {
      ADD_FAILURE() << actual.status().message() << "\n" << expected.status().message();
      continue;
    }
    std::string difference;
    EXPECT_TRUE(graph::GraphsEqual(*actual, *expected, &difference))
        << name << ": " << difference << "\n"
        << *printed;
  }
  return num_cases;
}

TEST(PropagationCasesTest, OwnCases) {
  const fs::path folder = fs::path(PENSTOCK_SOURCE_DIR) / "planner/sharding/testdata/propagation";
  EXPECT_GE(RunFolder(folder), 8);
}

TEST(PropagationCasesTest, SharedCases) {
  const fs::path folder = fs::path(PENSTOCK_SOURCE_DIR) / "../shared/cases/propagation";
  if (!fs::is_directory(folder)) GTEST_SKIP() << "there are no shared cases here";
  EXPECT_GT(RunFolder(folder), 0);
}

}  // namespace
}  // namespace penstock
