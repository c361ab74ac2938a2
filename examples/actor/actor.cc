// A CAF application that holds a Session as one of its actors. The trainer owns the session; a
// source sends it batches as messages and a monitor receives the losses. When the monitor has seen
// enough, it asks the trainer for the weights and stops it.
//
// The application has an actor system of its own. A step blocks the actor that runs it, so the
// trainer is spawned detached, on a thread of its own.

#include <chrono>
#include <cmath>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "caf/all.hpp"

#include "penstock/penstock.h"

namespace actors = penstock::actors;
namespace graph = penstock::graph;
using penstock::Tensor;

// The messages. Tensors are values that share memory, so sending one copies no elements.
struct Batch {
  int64_t index = 0;
  Tensor x;
};
struct Loss {
  int64_t index = 0;
  Tensor value;
};
struct State {
  std::string name;
  Tensor value;
};

// They stay in this process.
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Batch)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(Loss)
CAF_ALLOW_UNSAFE_MESSAGE_TYPE(State)

namespace {

using FetchAtom = caf::atom_constant<caf::atom("fetch")>;
using NextAtom = caf::atom_constant<caf::atom("next")>;

constexpr int64_t kSteps = 10;
// A session answers within its own timeout of 10 minutes.
constexpr std::chrono::minutes kReplyTimeout(11);

// The mean square of y = x w, and a step of gradient descent by hand; split over two devices.
constexpr std::string_view kGraph = R"(
mesh m = [d=2]
graph least_squares {
  %x = input : f32[8, 4] @[d, _]
  %w = parameter : f32[4, 2]
  %y = matmul(%x, %w) : f32[8, 2]
  %yy = mul(%y, %y) : f32[8, 2]
  %loss = reduce_mean(%yy) {axes=[0, 1]} : f32[]
  %dw = matmul(%x, %y) {transpose_a=true} : f32[4, 2]
  %rate = constant {value=0.0125} : f32[4, 2]
  %scaled = mul(%dw, %rate) : f32[4, 2]
  %next = sub(%w, %scaled) : f32[4, 2]
  assign(%w, %next)
  return %loss
}
)";

// A status as an error of CAF, for the actor that asked.
caf::error ToError(const absl::Status& status) {
  return caf::make_error(caf::sec::runtime_error, std::string(status.message()));
}

// Batch -> Loss; (fetch, name) -> State. A failed step is the error of its reply.
caf::behavior Trainer(caf::event_based_actor* self, std::shared_ptr<actors::Session> session) {
  // The session ends with its actor.
  self->attach_functor([session] { session->Stop(); });
  return {
      [session](const Batch& batch) -> caf::result<Loss> {
        const absl::StatusOr<actors::StepResult> result = session->Run({{"x", batch.x}});
        if (!result.ok()) return ToError(result.status());
        return Loss{batch.index, *result->Find("loss")};
      },
      [session](FetchAtom, const std::string& name) -> caf::result<State> {
        const absl::StatusOr<Tensor> value = session->Fetch(name);
        if (!value.ok()) return ToError(value.status());
        return State{name, *value};
      },
  };
}

// (next, index) -> Batch.
caf::behavior Source() {
  return {[](NextAtom, int64_t index) {
    Tensor x({penstock::DType::kF32, {8, 4}});
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      x.As<float>()[i] = static_cast<float>((i + index) % 5) - 2;
    }
    return Batch{index, std::move(x)};
  }};
}

// Asks the source for a batch, has the trainer run it, prints the loss, and so on. The errors of
// replies end it, and with it the application.
class Monitor : public caf::event_based_actor {
 public:
  Monitor(caf::actor_config& config, caf::actor source, caf::actor trainer)
      : caf::event_based_actor(config), source_(std::move(source)), trainer_(std::move(trainer)) {}

  caf::behavior make_behavior() override {
    Advance(0);
    return {[](caf::unit_t) {}};
  }

 private:
  void Advance(int64_t index) {
    if (index == kSteps) {
      request(trainer_, kReplyTimeout, FetchAtom::value, std::string("w"))
          .then([this](const State& state) {
            double norm = 0;
            for (int64_t i = 0; i < state.value.num_elements(); ++i) {
              norm += std::pow(state.value.As<float>()[i], 2);
            }
            std::cout << "norm of " << state.name << " " << std::sqrt(norm) << "\n";
            quit();
          });
      return;
    }
    request(source_, kReplyTimeout, NextAtom::value, index).then([this](const Batch& batch) {
      request(trainer_, kReplyTimeout, batch).then([this](const Loss& loss) {
        std::cout << "step " << loss.index + 1 << " loss " << *loss.value.As<float>() << "\n";
        Advance(loss.index + 1);
      });
    });
  }

  const caf::actor source_;
  const caf::actor trainer_;
};

absl::StatusOr<std::shared_ptr<actors::Session>> Start(const penstock::Registries& registries) {
  ASSIGN_OR_RETURN(graph::Graph program,
                   graph::ParseGraph(kGraph, "least_squares.pst", registries.ops));
  ASSIGN_OR_RETURN(penstock::planner::Plan plan,
                   penstock::CompileModel(registries, std::move(program)));
  ASSIGN_OR_RETURN(std::unique_ptr<actors::Session> session,
                   penstock::StartSession(registries, std::move(plan)));
  return std::shared_ptr<actors::Session>(std::move(session));
}

absl::Status RunApplication() {
  const penstock::Registries registries = penstock::BuiltinRegistries();
  ASSIGN_OR_RETURN(std::shared_ptr<actors::Session> session, Start(registries));
  caf::actor_system_config config;
  caf::actor_system system(config);
  caf::scoped_actor main(system);
  const caf::actor trainer = system.spawn<caf::detached>(Trainer, std::move(session));
  const caf::actor source = system.spawn(Source);
  const caf::actor monitor = system.spawn<Monitor>(source, trainer);

  // The monitor ends by itself; then the others are told to.
  absl::Status status;
  main->monitor(monitor);
  main->receive([&](const caf::down_msg& down) {
    if (down.reason) status = absl::InternalError(system.render(down.reason));
  });
  main->send_exit(source, caf::exit_reason::user_shutdown);
  main->send_exit(trainer, caf::exit_reason::user_shutdown);
  main->wait_for(source, trainer);
  return status;
}

}  // namespace

int main() {
  const absl::Status status = RunApplication();
  if (!status.ok()) std::cerr << status << std::endl;
  return status.ok() ? 0 : 1;
}
