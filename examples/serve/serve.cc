// A service that answers HTTP requests from one long-lived session:
//
//     serve [PORT]        prints the address on which it listens; without PORT, it takes any port
//
//     curl -d '{"x": [0.1, 0.2, 0.3, 0.4]}' localhost:PORT/predict
//
// A plan has a fixed batch. Requests that arrive while a step runs wait for the next one and share
// it: each step takes the rows that are there, as many as fit. A row's result does not depend on
// the others. A POST to /quit ends the service.

#include <httplib.h>
#include <sys/socket.h>

#include <algorithm>
#include <deque>
#include <future>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/synchronization/mutex.h"
#include "nlohmann/json.hpp"

#include "penstock/penstock.h"

namespace {

namespace actors = penstock::actors;
namespace graph = penstock::graph;
using nlohmann::json;
using penstock::Tensor;
using Row = std::vector<float>;

constexpr int64_t kBatch = 8;
constexpr int64_t kFeatures = 4;
constexpr int64_t kClasses = 3;
constexpr size_t kMaxWaiting = 1024;  // rows; further requests are refused
constexpr int kMaxConnectionsWaiting = 128;
constexpr size_t kMaxRequestBytes = size_t{1} << 16;

// A classifier whose weights lie on two devices, in halves. A real service would start its session
// from a checkpoint (actors/session/checkpoint_states.h).
constexpr std::string_view kModel = R"(
mesh m = [tp=2]
graph classifier {
  %x = input : f32[8, 4]
  %w1 = parameter {std=1.0, stream=1} : f32[4, 16] @[_, tp]
  %w2 = parameter {std=1.0, stream=2} : f32[16, 3]
  %hidden = matmul(%x, %w1) : f32[8, 16]
  %active = relu(%hidden) : f32[8, 16]
  %logits = matmul(%active, %w2) : f32[8, 3]
  %p = softmax(%logits) : f32[8, 3]
  return %p
}
)";

// Collects rows of concurrent requests into the batches of a session.
class Batcher {
 public:
  explicit Batcher(std::unique_ptr<actors::Session> session)
      : session_(std::move(session)), thread_([this] { Serve(); }) {}
  ~Batcher() {
    {
      const absl::MutexLock lock(&mutex_);
      is_closed_ = true;
    }
    thread_.join();
  }

  // Waits for the step that the row is part of, which the session's timeout bounds.
  absl::StatusOr<Row> Predict(Row row) {
    std::future<absl::StatusOr<Row>> result;
    {
      const absl::MutexLock lock(&mutex_);
      if (is_closed_ || waiting_.size() >= kMaxWaiting) {
        return absl::UnavailableError("too many requests are waiting");
      }
      result = waiting_.emplace_back(Waiting{std::move(row), {}}).result.get_future();
    }
    return result.get();
  }

 private:
  struct Waiting {
    Row row;
    std::promise<absl::StatusOr<Row>> result;
  };

  bool HasWorkOrIsClosed() const ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return is_closed_ || !waiting_.empty();
  }

  void Serve() {
    for (;;) {
      std::vector<Waiting> batch;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(this, &Batcher::HasWorkOrIsClosed));
        if (waiting_.empty()) return;
        while (!waiting_.empty() && batch.size() < kBatch) {
          batch.push_back(std::move(waiting_.front()));
          waiting_.pop_front();
        }
      }
      Answer(batch);
    }
  }

  void Answer(std::vector<Waiting>& batch) {
    Tensor x({penstock::DType::kF32, {kBatch, kFeatures}});
    for (size_t i = 0; i < batch.size(); ++i) {
      std::copy(batch[i].row.begin(), batch[i].row.end(), x.As<float>() + i * kFeatures);
    }
    const absl::StatusOr<actors::StepResult> step = session_->Run({{"x", x}});
    for (size_t i = 0; i < batch.size(); ++i) {
      if (!step.ok()) {
        batch[i].result.set_value(step.status());
        continue;
      }
      const float* p = step->fetches[0].second.As<float>() + i * kClasses;
      batch[i].result.set_value(Row(p, p + kClasses));
    }
  }

  const std::unique_ptr<actors::Session> session_;
  absl::Mutex mutex_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // the last member: it uses the others
};

absl::StatusOr<Row> ParseRequest(const std::string& body) {
  const json request = json::parse(body, nullptr, /*allow_exceptions=*/false);
  const auto x = request.is_object() ? request.find("x") : request.end();
  const bool is_row =
      x != request.end() && x->is_array() && x->size() == kFeatures &&
      std::all_of(x->begin(), x->end(), [](const json& v) { return v.is_number(); });
  if (!is_row) {
    return absl::InvalidArgumentError(
        penstock::StrCat("expected {\"x\": [", kFeatures, " numbers]}"));
  }
  return x->get<Row>();
}

void Reply(const absl::StatusOr<Row>& result, httplib::Response& response) {
  json body;
  if (result.ok()) {
    body["p"] = *result;
  } else {
    body["error"] = std::string(result.status().message());
    response.status = absl::IsInvalidArgument(result.status()) ? 400
                      : absl::IsUnavailable(result.status())   ? 503
                                                               : 500;
  }
  response.set_content(body.dump(), "application/json");
}

// Web pages reach whatever a browser reaches: with an Origin that is not this server's, or through
// a name that resolves to this host. Neither may predict, let alone quit.
bool IsForeign(const httplib::Request& request, int port) {
  const std::string host = request.get_header_value("Host");
  const bool is_own =
      host == penstock::StrCat("127.0.0.1:", port) || host == penstock::StrCat("localhost:", port);
  const std::string origin = request.get_header_value("Origin");
  return !is_own || (!origin.empty() && origin != penstock::StrCat("http://", host));
}

absl::Status Run(int port) {
  const penstock::Registries registries = penstock::BuiltinRegistries();
  ASSIGN_OR_RETURN(graph::Graph model, graph::ParseGraph(kModel, "classifier.pst", registries.ops));
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(model)));
  actors::SessionOptions options;
  options.seed = 1;
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                   penstock::StartSession(registries, std::move(plan), options));
  Batcher batcher(std::move(session));

  httplib::Server server;
  server.set_payload_max_length(kMaxRequestBytes);
  server.set_pre_routing_handler(
      [&port](const httplib::Request& request, httplib::Response& response) {
        if (!IsForeign(request, port)) return httplib::Server::HandlerResponse::Unhandled;
        response.status = 403;
        response.set_content(R"({"error": "requests of other servers' pages are refused"})",
                             "application/json");
        return httplib::Server::HandlerResponse::Handled;
      });
  server.Post("/predict", [&](const httplib::Request& request, httplib::Response& response) {
    absl::StatusOr<Row> row = ParseRequest(request.body);
    Reply(row.ok() ? batcher.Predict(*std::move(row)) : row, response);
  });
  server.Post("/quit", [&](const httplib::Request&, httplib::Response&) { server.stop(); });
  int listener = -1;
  server.set_socket_options([&listener](socket_t socket) {
    constexpr int kYes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &kYes, sizeof(kYes));
    listener = socket;
  });
  constexpr char kHost[] = "127.0.0.1";
  const bool is_bound =
      port > 0 ? server.bind_to_port(kHost, port) : (port = server.bind_to_any_port(kHost)) > 0;
  if (!is_bound) {
    return absl::UnavailableError(penstock::StrCat("cannot listen on ", kHost, ":", port));
  }
  // The library lets 5 connections wait, and the system resets some of those beyond.
  if (listen(listener, kMaxConnectionsWaiting) != 0) {
    return absl::UnavailableError(penstock::StrCat("cannot listen for more connections: ", port));
  }
  std::cout << "listening on http://" << kHost << ":" << port << std::endl;
  if (!server.listen_after_bind()) return absl::UnavailableError("the server failed");
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  int port = 0;
  const bool is_valid =
      argc <= 2 && (argc < 2 || (absl::SimpleAtoi(argv[1], &port) && port > 0 && port < 65536));
  if (!is_valid) {
    std::cerr << "usage: serve [PORT]\n";
    return 2;
  }
  const absl::Status status = Run(port);
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
