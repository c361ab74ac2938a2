// A folder with a small job, and the commands called in this process on it.
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_COMMAND_LINE_FIXTURE_H_
#define PENSTOCK_TESTS_SUPPORT_COMMAND_LINE_FIXTURE_H_

#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "cli/environment.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::testing {

class CommandLineFixture : public ::testing::Test {
 public:
  struct Outcome {
    int status = 0;
    std::string out;
    std::string err;
  };

 protected:
  CommandLineFixture() : registries_(cli::BuiltinRegistries()) {
    Write("text.txt", Text());
    Write("job.toml", Job());
  }

  Outcome Call(std::vector<std::string> arguments) const {
    std::ostringstream out;
    std::ostringstream err;
    const cli::Environment environment = {registries_, out, err, false, PENSTOCK_COMMAND};
    Outcome outcome;
    outcome.status = cli::RunCommandLine(environment, arguments);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }

  std::string Write(const std::string& name, const std::string& text) const {
    const std::filesystem::path path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path.string();
  }

  std::string Path(const std::string& name) const { return (folder_ / name).string(); }

  std::string Read(const std::string& name) const {
    std::ifstream stream(folder_ / name, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  static std::string Text() {
    std::string text;
    for (int i = 0; i < 200; ++i) StrAppend(&text, "the quick brown fox ", i, " jumps; ");
    return text;
  }

  static std::string Job() {
    return "[model]\nname = \"gpt\"\nlayers = 2\nwidth = 16\nheads = 2\ncontext = 8\n"
           "dropout = 0.1\n"
           "[data]\ntext = [\"text.txt\"]\n"
           "[train]\nsteps = 3\nbatch = 8\nlearning_rate = 1e-2\ndtype = \"f64\"\n"
           "validation_sequences = 7\n"
           "[sample]\nbytes = 4\n";
  }

  // The JSON lines of `penstock run` on the job.
  std::vector<nlohmann::json> RunLines(std::vector<std::string> more) const {
    std::vector<std::string> arguments = {"run", Path("job.toml"), "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = Call(arguments);
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    std::vector<nlohmann::json> lines;
    std::istringstream stream(outcome.out);
    for (std::string line; std::getline(stream, line);) {
      lines.push_back(nlohmann::json::parse(line));
    }
    return lines;
  }

  cli::Registries registries_;
  const TempFolder temp_;
  const std::filesystem::path folder_ = temp_.path();
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_COMMAND_LINE_FIXTURE_H_
