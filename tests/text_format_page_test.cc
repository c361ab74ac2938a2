// docs/TEXT_FORMAT.md against the parser, the verifier and the passes: what the page shows is what
// they do. The blocks of the page by the words after their fence:
//
//   pst           a graph that parses, verifies and survives printing
//   pst after A,B what the passes A,B make of the last `pst` block, as printed
//   pst error     a graph that is refused with exactly the message in the `text` block that follows
//   toml          a job that trains the last `pst` block

#include <fstream>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "cli/environment.h"
#include "cli/job.h"
#include "cli/job_graph.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/text.h"
#include "graph/verify.h"
#include "planner/opt.h"
#include "tests/support/temp_folder.h"

namespace penstock::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::string_view kFile = "mlp.pst";  // names the text in the errors that the page shows

struct Block {
  std::string info;  // the words after the fence
  std::string text;
  int line = 0;  // of the fence
};

class TextFormatPageTest : public ::testing::Test {
 protected:
  TextFormatPageTest() {
    std::ifstream stream(PENSTOCK_SOURCE_DIR "/docs/TEXT_FORMAT.md");
    EXPECT_TRUE(stream.good());
    Block* open = nullptr;
    std::string line;
    for (int number = 1; std::getline(stream, line); ++number) {
      StrAppend(&page_, line, "\n");
      if (line.substr(0, 3) != "```") {
        if (open != nullptr) StrAppend(&open->text, line, "\n");
      } else if (open != nullptr) {
        open = nullptr;
      } else {
        open = &blocks_.emplace_back(Block{line.substr(3), "", number});
      }
    }
    EXPECT_EQ(open, nullptr) << "the last block is not closed";
  }

  // What the parser or the verifier says of the text; empty: nothing.
  std::string ErrorOf(const std::string& text) const {
    const absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, kFile, registries_.ops);
    const absl::Status status = graph.ok() ? graph::VerifyGraph(*graph) : graph.status();
    return std::string(status.message());
  }

  const cli::Registries registries_ = cli::BuiltinRegistries();
  std::string page_;
  std::vector<Block> blocks_;
};

TEST_F(TextFormatPageTest, GraphsParseVerifyAndSurvivePrinting) {
  int num_graphs = 0;
  for (const Block& block : blocks_) {
    if (block.info != "pst") continue;
    SCOPED_TRACE(StrCat("TEXT_FORMAT.md:", block.line));
    ++num_graphs;
    const auto graph = graph::ParseGraph(block.text, kFile, registries_.ops);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    EXPECT_TRUE(graph::VerifyGraph(*graph).ok()) << graph::VerifyGraph(*graph);
    const auto again = graph::ParseGraph(graph::PrintGraph(*graph), kFile, registries_.ops);
    ASSERT_TRUE(again.ok()) << again.status().message();
    std::string difference;
    EXPECT_TRUE(graph::GraphsEqual(*graph, *again, &difference)) << difference;
  }
  EXPECT_GE(num_graphs, 10);
}

TEST_F(TextFormatPageTest, PassesGiveWhatIsShown) {
  constexpr std::string_view kAfter = "pst after ";
  const Block* source = nullptr;
  int num_results = 0;
  for (const Block& block : blocks_) {
    if (block.info == "pst") source = &block;
    if (block.info.substr(0, kAfter.size()) != kAfter) continue;
    SCOPED_TRACE(StrCat("TEXT_FORMAT.md:", block.line));
    ++num_results;
    ASSERT_NE(source, nullptr);
    const auto printed =
        planner::Optimize(source->text, kFile, block.info.substr(kAfter.size()), registries_.ops);
    ASSERT_TRUE(printed.ok()) << printed.status().message();
    EXPECT_EQ(*printed, block.text);
  }
  EXPECT_GE(num_results, 4);
}

TEST_F(TextFormatPageTest, ErrorsAreThoseShown) {
  int num_errors = 0;
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].info != "pst error") continue;
    SCOPED_TRACE(StrCat("TEXT_FORMAT.md:", blocks_[i].line));
    ++num_errors;
    ASSERT_LT(i + 1, blocks_.size());
    ASSERT_EQ(blocks_[i + 1].info, "text");
    EXPECT_EQ(ErrorOf(blocks_[i].text) + "\n", blocks_[i + 1].text);
  }
  EXPECT_GE(num_errors, 3);
}

TEST_F(TextFormatPageTest, TheJobTrainsTheGraphAboveIt) {
  const Block* source = nullptr;
  int num_jobs = 0;
  for (const Block& block : blocks_) {
    if (block.info == "pst") source = &block;
    if (block.info != "toml") continue;
    SCOPED_TRACE(StrCat("TEXT_FORMAT.md:", block.line));
    ++num_jobs;
    ASSERT_NE(source, nullptr);
    const TempFolder folder;
    std::ofstream(folder.Path("regression.pst")) << source->text;
    std::ofstream(folder.Path("job.toml")) << block.text;
    const auto job = cli::ReadJob(folder.Path("job.toml"), {});
    ASSERT_TRUE(job.ok()) << job.status().message();
    const auto graph = cli::BuildJobGraph(registries_, *job);
    ASSERT_TRUE(graph.ok()) << graph.status().message();
    EXPECT_EQ(graph->strategy, "dp=2,tp=1,pp=1");
    EXPECT_EQ(graph->microbatches, 2);
  }
  EXPECT_EQ(num_jobs, 1);
}

TEST_F(TextFormatPageTest, EveryBlockIsOfAKnownKind) {
  const std::set<std::string> known = {"pst", "pst error", "text", "toml"};
  for (const Block& block : blocks_) {
    EXPECT_TRUE(known.count(block.info) == 1 || block.info.substr(0, 10) == "pst after ")
        << "TEXT_FORMAT.md:" << block.line << ": " << block.info;
  }
}

TEST_F(TextFormatPageTest, NamesEveryPassAndEveryElementType) {
  for (const planner::Pass& pass : planner::NamedPasses(registries_.ops)) {
    EXPECT_THAT(page_, HasSubstr(StrCat("`", pass.name, "`")));
  }
  for (int i = 0; i < kNumDTypes; ++i) {
    EXPECT_THAT(page_, HasSubstr(StrCat("`", Name(static_cast<DType>(i)), "`")));
  }
}

}  // namespace
}  // namespace penstock::testing
