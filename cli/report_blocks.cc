#include "cli/report_blocks.h"

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>

#include "cli/report_html.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/strings.h"
#include "planner/draw/draw_graph.h"
#include "planner/draw/layer_names.h"

namespace penstock::cli {
namespace {

using planner::Block;
using planner::BlockStep;
using planner::BlockTransfer;
using planner::StageBlocks;

constexpr std::string_view kColumnNames[planner::kNumDrawnColumns] = {"Forward", "Backward",
                                                                      "Weight gradients", "Update"};
constexpr size_t kMaxTransfers = 4;  // of a step

// "Stage 0", "Stages 1 to 6", "Stages 1, 3".
std::string NameOf(const std::vector<int>& stages) {
  if (stages.size() == 1) return StrCat("Stage ", stages[0]);
  const bool is_range = stages.back() - stages.front() + 1 == static_cast<int>(stages.size());
  if (is_range && stages.size() > 2) {
    return StrCat("Stages ", stages.front(), " to ", stages.back());
  }
  return StrCat("Stages ", StrJoin(stages, ", "));
}

class BlocksWriter {
 public:
  BlocksWriter(int num_stages, size_t max_steps) : num_stages_(num_stages), max_steps_(max_steps) {}

  std::string Run(const std::vector<StageBlocks>& stages) {
    out_ =
        "<p class=\"text\">What each stage computes, in order, with the sharding of the result "
        "and, in red, what is communicated of it: bytes that a device receives, each time. What "
        "repeats is listed once.</p>\n<div class=\"cards\">\n";
    for (const StageBlocks& stage : stages) AddStage(stage);
    out_ += "</div>\n";
    if (left_out_ > 0) {
      StrAppend(&out_, "<p class=\"note\">", Counted(left_out_, "more operator"),
                " left out.</p>\n");
    }
    return std::move(out_);
  }

 private:
  void AddStage(const StageBlocks& stage) {
    StrAppend(&out_, "<article class=\"card\" style=\"--stage:",
              StageStyle(static_cast<size_t>(std::max(stage.stages[0], 0)),
                         static_cast<size_t>(std::max(num_stages_, 1))),
              "\">\n<h3>", NameOf(stage.stages), " <span class=\"dim\">",
              Counted(stage.num_steps, "operator"), stage.stages.size() > 1 ? " each" : "",
              " besides the update</span></h3>\n");
    for (size_t c = 0; c < static_cast<size_t>(planner::kNumDrawnColumns); ++c) {
      const std::vector<Block>& blocks = stage.columns[c];
      if (blocks.empty()) continue;
      int64_t steps = 0;
      for (const Block& block : blocks) {
        for (const BlockStep& step : block.steps) {
          steps += static_cast<int64_t>(block.count) * step.count;
        }
      }
      StrAppend(&out_, "<details", c == 0 ? " open=\"open\"" : "", "><summary>", kColumnNames[c],
                " <span class=\"dim\">", Counted(steps, "operator"));
      if (static_cast<planner::DrawnColumn>(c) == planner::DrawnColumn::kUpdate &&
          stage.stages.size() > 1) {
        StrAppend(&out_, " of stage ", stage.stages[0]);
      }
      out_ += "</span></summary>\n";
      for (const Block& block : blocks) AddBlock(block);
      out_ += "</details>\n";
    }
    out_ += "</article>\n";
  }

  void AddBlock(const Block& block) {
    if (num_listed_ >= max_steps_) {
      left_out_ += block.steps.size();
      return;
    }
    out_ += block.count > 1 ? "<div class=\"block repeated\">" : "<div class=\"block\">";
    if (block.count > 1) {
      const std::string_view first = planner::LayerOf(block.steps[0].name);
      const std::string_view last = planner::LayerOf(block.last_name);
      StrAppend(&out_, "<p class=\"times\">\u00d7 ", block.count);
      if (!first.empty() && !last.empty()) {
        StrAppend(&out_, " <span class=\"dim\">", HtmlText(first), " to ", HtmlText(last),
                  "</span>");
      }
      out_ += "</p>";
    }
    out_ += "<ol>\n";
    for (const BlockStep& step : block.steps) {
      if (num_listed_ >= max_steps_) {
        ++left_out_;
        continue;
      }
      ++num_listed_;
      AddStep(step, block.count);
    }
    out_ += "</ol></div>\n";
  }

  void AddStep(const BlockStep& step, int num_copies) {
    StrAppend(&out_, "<li title=\"", HtmlText(step.title), "\"><b>", HtmlText(step.op), "</b>");
    if (step.count > 1) StrAppend(&out_, " \u00d7 ", step.count);
    StrAppend(&out_, " <span class=\"dim name\">",
              HtmlText(num_copies > 1 ? planner::WithoutLayer(step.name) : step.name),
              "</span> <code>", HtmlText(step.sharding), "</code>");
    for (size_t i = 0; i < std::min(step.transfers.size(), kMaxTransfers); ++i) {
      const BlockTransfer& transfer = step.transfers[i];
      StrAppend(&out_, " <em class=\"", transfer.label == "send" ? "send" : "moved", "\">",
                HtmlText(transfer.label), " ",
                FormatBytes(static_cast<uint64_t>(std::max<int64_t>(transfer.bytes, 0))));
      if (transfer.copies < num_copies) {
        StrAppend(&out_, " in ", transfer.copies, " of ", num_copies);
      }
      out_ += "</em>";
    }
    if (step.transfers.size() > kMaxTransfers) {
      StrAppend(&out_, " <em class=\"moved\">and ", step.transfers.size() - kMaxTransfers,
                " more</em>");
    }
    out_ += "</li>\n";
  }

  const int num_stages_;
  const size_t max_steps_;
  size_t num_listed_ = 0;
  size_t left_out_ = 0;
  std::string out_;
};

}  // namespace

std::string StageStyle(size_t stage, size_t num_stages) {
  return planner::StageColour(static_cast<int>(std::min(stage, num_stages - 1)),
                              static_cast<int>(num_stages));
}

std::string BlocksHtml(const std::vector<StageBlocks>& stages, int num_stages, size_t max_steps) {
  return BlocksWriter(num_stages, max_steps).Run(stages);
}

}  // namespace penstock::cli
