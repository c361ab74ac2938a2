#include "cli/feeds.h"

#include <string>
#include <utility>

#include "cli/npy.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

// Streams of drawn inputs; models count from 0, data.cc has its own.
constexpr uint32_t kDrawnStream = 0xfeed0000;
constexpr uint32_t kIntegerLimit = 4;

bool IsText(const planner::FeedPlan& feed) {
  return feed.name == "tokens" || feed.name == "labels";
}

}  // namespace

absl::StatusOr<Tensor> DrawTensor(const TensorType& type, const RandomKey& key) {
  const bool is_float = IsFloat(type.dtype);
  // Drawn in the widest type of the kind, so that every dtype sees the same numbers.
  Tensor tensor({is_float                     ? DType::kF64
                 : type.dtype == DType::kBool ? DType::kBool
                                              : DType::kI64,
                 type.shape});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const auto index = static_cast<uint64_t>(i);
    if (is_float) {
      tensor.As<double>()[i] = RandomNormal(key, index);
    } else if (type.dtype == DType::kBool) {
      tensor.As<bool>()[i] = RandomWord(key, index) % 2 != 0;
    } else {
      tensor.As<int64_t>()[i] = RandomWord(key, index) % kIntegerLimit;
    }
  }
  return ConvertTensor(tensor, type.dtype);
}

absl::StatusOr<StepFeeds::Sizes> StepFeeds::TextSizes(const planner::Plan& plan) {
  Sizes sizes;
  const planner::FeedPlan* first = nullptr;
  for (const planner::FeedPlan& feed : plan.feeds) {
    if (!IsText(feed)) continue;
    if (!IsInteger(feed.type.dtype) || feed.type.shape.size() != 2 ||
        feed.type.num_elements() == 0 ||
        (feed.type.dtype != DType::kI32 && feed.type.dtype != DType::kI64)) {
      return absl::InvalidArgumentError(StrCat("input ", feed.name, " is ", ToString(feed.type),
                                               "; text comes as i32 or i64 [batch, context]"));
    }
    if (first != nullptr && first->type.shape != feed.type.shape) {
      return absl::InvalidArgumentError(StrCat("inputs ", first->name, " and ", feed.name,
                                               " differ in shape: ", ToString(first->type), " and ",
                                               ToString(feed.type)));
    }
    first = &feed;
    sizes = {feed.type.shape[0], feed.type.shape[1]};
  }
  return sizes;
}

StepFeeds::StepFeeds(const planner::Plan& plan, const Corpus* corpus, Sizes sizes, uint64_t seed)
    : plan_(plan), seed_(seed) {
  if (sizes.batch > 0) batches_.emplace(corpus->train, sizes.batch, sizes.context, seed);
}

absl::StatusOr<actors::Feeds> StepFeeds::Get(int64_t step) const {
  actors::Feeds feeds;
  if (batches_.has_value()) {
    ASSIGN_OR_RETURN(feeds, TextFeeds(plan_, batches_->Get(step)));
  }
  for (size_t i = 0; i < plan_.feeds.size(); ++i) {
    const planner::FeedPlan& feed = plan_.feeds[i];
    if (IsText(feed)) continue;
    const RandomKey key = {seed_, kDrawnStream + static_cast<uint32_t>(i),
                           static_cast<uint32_t>(step)};
    ASSIGN_OR_RETURN(feeds[feed.name], DrawTensor(feed.type, key));
  }
  return feeds;
}

absl::StatusOr<actors::Feeds> TextFeeds(const planner::Plan& plan, const Batch& batch) {
  actors::Feeds feeds;
  for (const planner::FeedPlan& feed : plan.feeds) {
    if (!IsText(feed)) continue;
    const Tensor& tensor = feed.name == "tokens" ? batch.tokens : batch.labels;
    ASSIGN_OR_RETURN(feeds[feed.name], ConvertTensor(tensor, feed.type.dtype));
  }
  return feeds;
}

}  // namespace penstock::cli
