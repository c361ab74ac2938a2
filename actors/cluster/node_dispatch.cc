#include <memory>

#include "actors/cluster/node_dispatch_internal.h"
#include "base/exception_text.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// An exception on the work thread, such as for a lack of memory, would end the node.
absl::Status RunGuarded(const std::function<absl::Status()>& work) {
  try {
    return work();
  } catch (...) {
    return absl::InternalError(StrCat("the call threw: ", ExceptionText()));
  }
}

}  // namespace

control::StatusPromise NodeDispatch::InSession(
    uint32_t generation, std::function<absl::Status(NodeSession&)> work) const {
  return Do([&sessions = sessions_, generation, work = std::move(work)]() -> absl::Status {
    ASSIGN_OR_RETURN(NodeSession* const session, sessions.Find(generation));
    return work(*session);
  });
}

control::StatusPromise NodeDispatch::Close(std::function<void()> work) const {
  return DoOn(
      work_,
      [work = std::move(work)] {
        work();
        return absl::OkStatus();
      },
      nullptr, WorkQueue::Kind::kClosing);
}

control::StatusPromise NodeDispatch::DoOn(WorkQueue& queue, Work work, After after,
                                          WorkQueue::Kind kind) const {
  auto pair = kj::newPromiseAndFulfiller<absl::Status>();
  auto fulfiller =
      std::make_shared<kj::Own<kj::PromiseFulfiller<absl::Status>>>(kj::mv(pair.fulfiller));
  const bool is_taken = queue.Push(
      [&loop = loop_, fulfiller = std::move(fulfiller), work = std::move(work),
       after = std::move(after)]() mutable {
        const absl::Status status = RunGuarded(work);
        // The fulfiller is the loop's, to the end.
        loop.Post([fulfiller = std::move(fulfiller), status] {
          (*fulfiller)->fulfill(absl::Status(status));
        });
        if (!after) return;
        (void)RunGuarded([&] {
          after(status);
          return absl::OkStatus();
        });
      },
      kind);
  if (!is_taken) return absl::ResourceExhaustedError("too many calls are under way");
  return kj::mv(pair.promise);
}

}  // namespace penstock::actors
