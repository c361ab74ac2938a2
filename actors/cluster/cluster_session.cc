#include <algorithm>
#include <optional>
#include <utility>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/wire_status_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

ClusterSession::ClusterSession(const planner::Plan& plan, uint32_t num_processes,
                               EngineObserver* observer, std::vector<uint32_t> process_devices,
                               int64_t first_step)
    : plan_(plan),
      num_processes_(num_processes),
      process_devices_(std::move(process_devices)),
      first_step_(first_step),
      observer_(observer),
      fetch_tiles_(plan),
      stall_detector_(plan) {
  for (uint32_t rank = 0; rank < num_processes_; ++rank) {
    const DeviceRange devices = DevicesOf(rank);
    feed_tiles_.emplace_back(plan_, devices.first, devices.count);
  }
}

DeviceRange ClusterSession::DevicesOf(uint32_t rank) const {
  return DevicesOfRank(rank, num_processes_, static_cast<int64_t>(plan_.devices.size()),
                       process_devices_);
}

// What a node tells. A lie is the failure of the node that tells it.
class ClusterSession::ObserverServer final : public control::Observer::Server {
 public:
  ObserverServer(std::shared_ptr<ClusterSession> session, uint32_t rank)
      : session_(std::move(session)), rank_(rank) {}

  kj::Promise<void> stepDone(StepDoneContext context) override {
    const auto params = context.getParams();
    if (!IsCurrent(params.getGeneration())) return kj::READY_NOW;
    absl::StatusOr<kj::Promise<void>> told = session_->StepDone(rank_, params);
    Check(told.status());
    return told.ok() ? *std::move(told) : kj::READY_NOW;
  }

  kj::Promise<void> error(ErrorContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) Check(session_->Error(rank_, params));
    return kj::READY_NOW;
  }

  kj::Promise<void> failure(FailureContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) {
      session_->OnFailure(rank_, control::ReadError(params.getStatus()));
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> linkCut(LinkCutContext context) override {
    const auto params = context.getParams();
    if (IsCurrent(params.getGeneration())) Check(session_->LinkCut(rank_, params.getDevice()));
    return kj::READY_NOW;
  }

  kj::Promise<void> declined(DeclinedContext context) override {
    if (IsCurrent(context.getParams().getGeneration())) session_->Declined();
    return kj::READY_NOW;
  }

 private:
  bool IsCurrent(uint32_t generation) const {
    return !session_->is_over() && generation == session_->generation_;
  }

  void Check(const absl::Status& status) {
    if (status.ok()) return;
    session_->OnFailure(rank_, absl::InternalError(StrCat("sent an unexpected message: ",
                                                          ToStd(status.message()))));
  }

  const std::shared_ptr<ClusterSession> session_;
  const uint32_t rank_;
};

void ClusterSession::Begin(const Context& context, uint32_t generation) {
  context_ = std::make_unique<Context>(context);
  generation_ = generation;
  for (uint32_t rank = 0; rank < num_processes_; ++rank) {
    told_.push_back(kj::Promise<void>(kj::READY_NOW).fork());
  }
}

void ClusterSession::End() {
  observer_ = nullptr;
  told_.clear();
  held_.clear();
  steps_.clear();
  calls_.cancel("the session is over");
}

void ClusterSession::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  last_step_ = step;
  steps_[step] = {buffers, std::vector<bool>(num_processes_, false), 0};
}

control::Observer::Client ClusterSession::MakeObserver(uint32_t rank) {
  return kj::heap<ObserverServer>(shared_from_this(), rank);
}

absl::StatusOr<kj::Promise<void>> ClusterSession::StepDone(
    uint32_t rank, control::Observer::StepDoneParams::Reader params) {
  const int64_t step = params.getStep();
  const auto it = steps_.find(step);
  if (it == steps_.end() || it->second.has_reported[rank]) {
    return absl::InvalidArgumentError(StrCat("a report of ", StepName(step, first_step_)));
  }
  // The sizes first: a list's elements may take no bytes in the message that names them.
  const DeviceRange devices = DevicesOf(rank);
  const auto reported = params.getReports();
  if (reported.size() != devices.count) {
    return absl::InvalidArgumentError(
        StrCat("reports of ", reported.size(), " devices where it has ", devices.count));
  }
  std::vector<DeviceStepReport> reports;
  std::vector<bool> has_device(devices.count, false);
  for (const auto report : reported) {
    const uint32_t device = report.getDevice();
    if (!devices.Has(device) || has_device[device - devices.first]) {
      return absl::InvalidArgumentError(StrCat("a report of device ", device));
    }
    has_device[device - devices.first] = true;
    reports.push_back(
        {device, step, report.getIsPoisoned(), report.getWallNs(), report.getWaitNs()});
  }
  ByteTarget target = fetch_tiles_.To(devices.first, devices.count, it->second.buffers);
  control::ByteCounter num_received;
  if (context_->traffic_of) {
    num_received = CounterOf(context_->traffic_of(rank), &NodeTraffic::fetch_bytes);
  }
  const auto fetches = params.getFetches();
  control::AskChunk ask;
  if (fetches.isSource()) {
    ask = [session = shared_from_this(),
           ask_node =
               control::AskSource(std::make_shared<control::Source::Client>(fetches.getSource()))](
              uint64_t offset, uint32_t size) {
      KJ_REQUIRE(!session->is_over(), "the session is over");
      return ask_node(offset, size);
    };
  } else {
    RETURN_IF_ERROR(control::TakeEmbedded(control::AsText(fetches.getEmbedded()), target));
    if (num_received != nullptr) *num_received += target.num_bytes();
  }
  it->second.has_reported[rank] = true;
  auto told =
      told_[rank]
          .addBranch()
          .then([ask = std::move(ask), target = std::move(target),
                 num_received]() mutable -> control::StatusPromise {
            if (ask == nullptr) return absl::OkStatus();
            return control::ReadChunks(std::move(ask), std::move(target), std::move(num_received));
          })
          .catch_([](kj::Exception&& exception) { return control::FromException(exception); })
          .then([session = shared_from_this(), reports = std::move(reports), rank,
                 step](absl::Status&& status) {
            if (status.ok()) {
              session->TellStepDone(reports);
            } else {
              session->OnFailure(rank,
                                 WithPrefix(StrCat("reading the results of ",
                                                   StepName(step, session->first_step_), ": "),
                                            status));
            }
          })
          .fork();
  auto result = told.addBranch();
  told_[rank] = kj::mv(told);
  return result;
}

void ClusterSession::TellStepDone(const std::vector<DeviceStepReport>& reports) {
  if (is_over()) return;
  const auto step = steps_.find(reports.front().step);
  if (++step->second.num_told == num_processes_) steps_.erase(step);
  Report([this, reports] {
    for (const DeviceStepReport& report : reports) observer_->OnStepDone(report);
  });
}

absl::Status ClusterSession::Error(uint32_t rank, control::Observer::ErrorParams::Reader params) {
  const uint32_t device = params.getDevice();
  const int64_t step = params.getStep();
  if (!DevicesOf(rank).Has(device) || !steps_.contains(step)) {
    return absl::InvalidArgumentError(
        StrCat("an error of device ", device, ", ", StepName(step, first_step_)));
  }
  const absl::Status status = control::ReadError(params.getStatus());
  ReportError(status, [this, device, step, named = OfNode(rank, status)] {
    observer_->OnError(device, step, named);
  });
  return absl::OkStatus();
}

absl::Status ClusterSession::LinkCut(uint32_t rank, uint32_t device) {
  uint32_t other = 0;
  while (other < num_processes_ && !DevicesOf(other).Has(device)) ++other;
  if (other == num_processes_ || other == rank) {
    return absl::InvalidArgumentError(StrCat("a cut link to device ", device));
  }
  if (is_checking_link_) return absl::OkStatus();
  is_checking_link_ = true;
  auto answers = kj::heapArrayBuilder<kj::Promise<void>>(2);
  for (const uint32_t asked : {rank, other}) {
    KJ_IF_MAYBE (node, context_->node_of(asked)) {
      answers.add(node->pingRequest().send().ignoreResult());
    } else {
      return absl::OkStatus();  // its loss is told
    }
  }
  // The failure detector bounds the wait.
  context_->tasks.add(
      calls_.wrap(kj::joinPromises(answers.finish()))
          .then(
              [session = shared_from_this(), rank, other] {
                if (session->is_over()) return;
                const int64_t step = session->oldest_step();
                session->Fail(absl::UnavailableError(StrCat(
                    session->context_->name_of(rank), " hears nothing from ",
                    session->context_->name_of(other), step >= 0 ? " in " : "",
                    step >= 0 ? StepName(step, session->first_step_) : "", ": for ",
                    absl::FormatDuration(session->context_->link_timeout),
                    " nothing has passed between them that should have. Both answer this process, "
                    "so the link between their hosts is the likely cause: look at its cables, "
                    "switches, routes and firewalls")));
              },
              [](const kj::Exception&) {}));
  return absl::OkStatus();
}

void ClusterSession::Declined() {
  if (is_checking_stall_) return;
  is_checking_stall_ = true;
  context_->tasks.add(calls_.wrap(CheckStall())
                          .then(
                              // A node that does not answer now may do so the next time.
                              [session = shared_from_this()](absl::StatusOr<bool>&& has_stalled) {
                                session->is_checking_stall_ = has_stalled.value_or(false);
                              },
                              [session = shared_from_this()](kj::Exception&&) {
                                session->is_checking_stall_ = false;
                              }));
}

kj::Promise<absl::StatusOr<bool>> ClusterSession::CheckStall() {
  using Reports = absl::StatusOr<std::vector<ActivityReport>>;
  using Stalled = kj::Promise<absl::StatusOr<bool>>;
  return AskForActivity().then([this, last_step = last_step_](Reports&& first) -> Stalled {
    if (!first.ok()) {
      // GCC 12 takes what a promise of the value itself holds for uninitialised.
      return kj::Promise<void>(kj::READY_NOW)
          .then([status = first.status()]() -> absl::StatusOr<bool> { return status; });
    }
    return context_->timer.afterDelay(kActivityInterval)
        .then([this] { return AskForActivity(); })
        .then([this, last_step,
               first = *std::move(first)](Reports&& second) mutable -> absl::StatusOr<bool> {
          if (!second.ok()) return second.status();
          if (last_step_ != last_step) return false;
          const std::optional<size_t> stalled = stall_detector_.FindStall(first, *second);
          if (!stalled.has_value()) return false;
          const auto rank = static_cast<uint32_t>(*stalled);
          absl::Status status = absl::FailedPreconditionError(
              StrCat(kPolicyStalled, (*second)[rank].declined, ", on ", context_->name_of(rank)));
          SetOrigin({.rank = static_cast<int32_t>(rank)}, &status);
          ReportError(status, [this, status] { observer_->OnFailure(status); });
          return true;
        });
  });
}

// A node answers once it has done what it was asked before: the steps that were submitted are known
// to its devices.
kj::Promise<absl::StatusOr<std::vector<ActivityReport>>> ClusterSession::AskForActivity() {
  const auto reports = std::make_shared<std::vector<ActivityReport>>(num_processes_);
  auto calls = kj::heapArrayBuilder<control::StatusPromise>(num_processes_);
  for (uint32_t rank = 0; rank < num_processes_; ++rank) {
    KJ_IF_MAYBE (node, context_->node_of(rank)) {
      auto call = node->reportActivityRequest();
      call.setGeneration(generation_);
      calls.add(
          control::StatusOf(call.send(), [this, rank, reports](auto&& response) -> absl::Status {
            absl::StatusOr<ActivityReport> report = GetActivity(rank, response);
            if (!report.ok()) {
              OnFailure(rank, report.status());
              return report.status();
            }
            (*reports)[rank] = *std::move(report);
            return absl::OkStatus();
          }));
    } else {
      calls.add(absl::UnavailableError("a node is gone"));
    }
  }
  return control::JoinStatuses(calls.finish())
      .then([reports](absl::Status&& status) -> absl::StatusOr<std::vector<ActivityReport>> {
        if (!status.ok()) return std::move(status);
        return std::move(*reports);
      });
}

absl::StatusOr<ActivityReport> ClusterSession::GetActivity(
    uint32_t rank, control::Node::ReportActivityResults::Reader results) const {
  // The sizes first.
  const DeviceRange devices = DevicesOf(rank);
  const size_t num_communications = stall_detector_.NumCommunications(devices.first, devices.count);
  if (results.getMoves().size() != devices.count ||
      results.getIdlePolls().size() != devices.count ||
      results.getCommunications().size() != num_communications) {
    return absl::InternalError("reported the activity of other devices than its own");
  }
  ActivityReport report;
  for (const int64_t moves : results.getMoves()) report.moves.push_back(moves);
  for (const int64_t polls : results.getIdlePolls()) report.idle_polls.push_back(polls);
  report.num_decisions = results.getNumDecisions();
  for (const uint64_t count : results.getCommunications()) report.communications.push_back(count);
  const auto declined = results.getDeclined();
  report.declined.assign(declined.begin(), std::min(declined.size(), control::kMaxTextBytes));
  return report;
}

void ClusterSession::OnFailure(uint32_t rank, const absl::Status& status) {
  if (is_over()) return;
  ReportError(status, [this, named = OfNode(rank, status)] { observer_->OnFailure(named); });
}

absl::Status ClusterSession::OfNode(uint32_t rank, const absl::Status& status) const {
  absl::Status named = WithPrefix(StrCat(context_->name_of(rank), ": "), status);
  SetOrigin({.rank = static_cast<int32_t>(rank)}, &named);
  return named;
}

void ClusterSession::Fail(const absl::Status& cause) {
  EngineObserver* const observer = observer_;
  End();
  if (observer != nullptr) observer->OnFailure(cause);
}

// Passes `report` on, now or after the errors that are held.
void ClusterSession::Report(std::function<void()> report) {
  if (is_holding_) {
    held_.push_back(std::move(report));
  } else {
    report();
  }
}

void ClusterSession::ReportError(const absl::Status& status, std::function<void()> report) {
  if (is_over()) return;
  if (absl::IsUnavailable(status) && !is_holding_) {
    is_holding_ = true;
    num_held_errors_ = 0;
    context_->tasks.add(context_->timer.afterDelay(kPeerGrace).then([session = shared_from_this()] {
      session->is_holding_ = false;
      for (const std::function<void()>& held : std::exchange(session->held_, {})) {
        if (!session->is_over()) held();
      }
    }));
  }
  if (is_holding_ && ++num_held_errors_ > kMaxHeldErrors) return;
  Report(std::move(report));
}

}  // namespace penstock::actors
