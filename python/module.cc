// The extension module penstock._penstock. The interpreter's lock is released while graphs are
// compiled and steps run.

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "penstock/penstock.h"
#include "status.h"
#include "tensors.h"

namespace nb = nanobind;
using nb::literals::operator""_a;

namespace penstock::python {
namespace {

using SharedRegistries = std::shared_ptr<const Registries>;

// A graph, with what tensor parallelism splits of it.
struct PyGraph {
  SharedRegistries registries;
  graph::Graph graph;
  std::vector<graph::SplitHint> splits;
};

struct PyPlan {
  SharedRegistries registries;
  planner::Plan plan;
};

// Ends with the interpreter's lock released: its threads may be in a step that another thread of
// Python waits for.
class PySession {
 public:
  PySession(const PyPlan& plan, actors::SessionOptions options) : registries_(plan.registries) {
    planner::Plan copy = plan.plan;
    const nb::gil_scoped_release unlocked;
    session_ = ValueOrThrow(StartSession(*registries_, std::move(copy), std::move(options)));
  }
  PySession(const PySession&) = delete;
  PySession& operator=(const PySession&) = delete;
  ~PySession() {
    const nb::gil_scoped_release unlocked;
    session_ = nullptr;
  }

  actors::Session& session() { return *session_; }

 private:
  const SharedRegistries registries_;
  std::unique_ptr<actors::Session> session_;
};

actors::Feeds ToFeeds(const nb::dict& values) {
  actors::Feeds feeds;
  for (const auto& [key, value] : values) {
    const auto name = nb::cast<std::string>(key);
    absl::StatusOr<Tensor> tensor = ToTensor(value);
    if (!tensor.ok()) {
      throw StatusError(absl::Status(
          tensor.status().code(), StrCat("feed ", name, ": ", ToStd(tensor.status().message()))));
    }
    feeds[name] = *std::move(tensor);
  }
  return feeds;
}

nb::dict ToDict(actors::StepResult result) {
  nb::dict fetches;
  for (auto& [name, tensor] : result.fetches) fetches[name.c_str()] = nb::cast(std::move(tensor));
  return fetches;
}

// {name: (dtype, shape)}.
template <typename Values>
nb::dict TypesOf(const Values& values) {
  nb::dict types;
  for (const auto& value : values) {
    nb::list sizes;
    for (const int64_t size : value.type.shape) sizes.append(size);
    types[value.name.c_str()] =
        nb::make_tuple(std::string(Name(value.type.dtype)), nb::tuple(sizes));
  }
  return types;
}

graph::TrainingOptions TrainingOptionsOf(const std::string& optimizer, double learning_rate,
                                         double weight_decay, double clip_norm, double momentum) {
  graph::TrainingOptions options;
  if (optimizer != "adamw" && optimizer != "sgd") {
    throw StatusError(absl::InvalidArgumentError(
        StrCat("optimizer \"", optimizer, "\": expected \"adamw\" or \"sgd\"")));
  }
  if (optimizer == "sgd") options.optimizer = graph::Optimizer::kSgd;
  options.learning_rate = learning_rate;
  options.weight_decay = weight_decay;
  options.clip_norm = clip_norm;
  options.momentum = momentum;
  return options;
}

void BindGraph(nb::module_& module, const SharedRegistries& registries) {
  nb::class_<PyGraph>(module, "Graph", "A graph of tensor operators.")
      .def_static(
          "parse",
          [registries](const std::string& text, const std::string& name) {
            return PyGraph{
                registries, ValueOrThrow(graph::ParseGraph(text, name, registries->ops)), {}};
          },
          "text"_a, "name"_a = "graph.pst",
          "The graph of a program in the text format; `name` is for messages.")
      .def(
          "training_step",
          [](const PyGraph& self, const std::string& optimizer, double learning_rate,
             double weight_decay, double clip_norm, double momentum) {
            return PyGraph{self.registries,
                           ValueOrThrow(graph::BuildTrainingGraph(
                               self.registries->ops, self.graph,
                               TrainingOptionsOf(optimizer, learning_rate, weight_decay, clip_norm,
                                                 momentum))),
                           self.splits};
          },
          nb::kw_only(), "optimizer"_a = "adamw", "learning_rate"_a = 3e-4, "weight_decay"_a = 0.1,
          "clip_norm"_a = 1.0, "momentum"_a = 0.9,
          "The training step of a graph that returns one scalar, the loss: gradients and updates "
          "of all float parameters.")
      .def("__str__", [](const PyGraph& self) { return graph::PrintGraph(self.graph); });
}

PyPlan CompileGraph(const PyGraph& graph, const std::string& strategy,
                    std::optional<int64_t> devices, int64_t microbatches, const std::string& policy,
                    int threads, const std::vector<std::pair<std::string, int>>& splits) {
  ModelOptions options;
  options.strategy = strategy;
  if (devices.has_value() && strategy != "auto") {
    throw StatusError(absl::InvalidArgumentError(
        StrCat("devices = ", *devices,
               " goes with strategy=\"auto\"; other strategies have as many "
               "as their axes say")));
  }
  options.devices = devices.value_or(1);
  options.microbatches = microbatches;
  options.policy = policy;
  options.threads_per_device = threads;
  options.splits = graph.splits;
  for (const auto& [pattern, dim] : splits) {
    options.splits.push_back({.pattern = pattern, .dim = dim, .what = "elements"});
  }
  const nb::gil_scoped_release unlocked;
  return {graph.registries, ValueOrThrow(CompileModel(*graph.registries, graph.graph, options))};
}

void BindPlan(nb::module_& module, const SharedRegistries& registries) {
  nb::class_<PyPlan>(module, "Plan", "A compiled program: actors on devices, and their channels.")
      .def_prop_ro("strategy", [](const PyPlan& self) { return self.plan.strategy; })
      .def_prop_ro("num_devices", [](const PyPlan& self) { return self.plan.devices.size(); })
      .def_prop_ro(
          "feeds", [](const PyPlan& self) { return TypesOf(self.plan.feeds); },
          "What a step is fed, as {name: (dtype, shape)}.")
      .def_prop_ro(
          "states", [](const PyPlan& self) { return TypesOf(self.plan.states); },
          "What outlives a step, as {name: (dtype, shape)}.")
      .def(
          "to_bytes",
          [](const PyPlan& self) {
            const std::string bytes = ValueOrThrow(planner::PlanToBytes(self.plan));
            return nb::bytes(bytes.data(), bytes.size());
          },
          "The contents of a plan file.")
      .def_static(
          "from_bytes",
          [registries](const nb::bytes& bytes) {
            return PyPlan{
                registries,
                ValueOrThrow(planner::PlanFromBytes(std::string(bytes.c_str(), bytes.size())))};
          },
          "bytes"_a, "The verified plan of a plan file's contents.");
  module.def("compile", &CompileGraph, "graph"_a, nb::kw_only(), "strategy"_a = "",
             "devices"_a = nb::none(), "microbatches"_a = 0, "policy"_a = "", "threads"_a = 1,
             "splits"_a = std::vector<std::pair<std::string, int>>(),
             "The plan of a graph. `strategy` gives axis sizes, such as \"dp=2,tp=2\"; without "
             "one, the graph is laid out by the mesh and the shardings in its text. \"auto\" takes "
             "the one that is estimated to be fastest for a training step on `devices` devices of "
             "this host (1), and the order of a pipeline with it; otherwise `policy` orders it "
             "(1f1b). `splits` lists (pattern, dim): parameters whose names match the pattern are "
             "split over tp "
             "in that dimension.");
}

void BindSession(nb::module_& module) {
  nb::class_<PySession>(module, "Session",
                        "Runs a plan: all of its devices in this process. Methods may be called "
                        "from any thread.")
      .def(
          "__init__",
          [](PySession* self, const PyPlan& plan, uint64_t seed, int64_t first_step,
             double timeout) {
            actors::SessionOptions options;
            options.seed = seed;
            options.first_step = first_step;
            options.timeout = absl::Seconds(timeout);
            new (self) PySession(plan, std::move(options));
          },
          "plan"_a, nb::kw_only(), "seed"_a = 0, "first_step"_a = 0, "timeout"_a = 600.0,
          "`first_step` is the number of the first step, for random operators: a session that "
          "goes on where another has ended. `timeout` is that of a step, in seconds.")
      .def(
          "run",
          [](PySession& self, const nb::dict& feeds) {
            const actors::Feeds tensors = ToFeeds(feeds);
            absl::StatusOr<actors::StepResult> result;
            {
              const nb::gil_scoped_release unlocked;
              result = self.session().Run(tensors);
            }
            return ToDict(ValueOrThrow(std::move(result)));
          },
          "feeds"_a = nb::dict(), "Runs a step; returns {name: Tensor}.")
      .def(
          "submit",
          [](PySession& self, const nb::dict& feeds) {
            return ValueOrThrow(self.session().Submit(ToFeeds(feeds)));
          },
          "feeds"_a = nb::dict(),
          "Hands in a step and returns its number, for `wait`. Arrays are copied; a Tensor is not: "
          "the step reads its memory, which stays as it is until `wait` has returned.")
      .def(
          "wait",
          [](PySession& self, int64_t step) {
            absl::StatusOr<actors::StepResult> result;
            {
              const nb::gil_scoped_release unlocked;
              result = self.session().Wait(step);
            }
            return ToDict(ValueOrThrow(std::move(result)));
          },
          "step"_a, "The results of a submitted step, once.")
      .def(
          "fetch",
          [](PySession& self, const std::string& state) {
            absl::StatusOr<Tensor> value;
            {
              const nb::gil_scoped_release unlocked;
              value = self.session().Fetch(state);
            }
            return ValueOrThrow(std::move(value));
          },
          "state"_a, "The value of a parameter or another state.")
      .def(
          "set_state",
          [](PySession& self, const std::string& state, nb::handle value) {
            const Tensor tensor = ValueOrThrow(ToTensor(value));
            absl::Status status;
            {
              const nb::gil_scoped_release unlocked;
              status = self.session().SetState(state, tensor);
            }
            ThrowIfError(status);
          },
          "state"_a, "value"_a, "Sets a parameter or another state.")
      .def(
          "stop",
          [](PySession& self) {
            const nb::gil_scoped_release unlocked;
            self.session().Stop();
          },
          "Ends the session. Steps under way are abandoned.")
      .def("__enter__", [](nb::handle self) { return nb::borrow(self); })
      .def("__exit__", [](PySession& self, nb::args) {
        const nb::gil_scoped_release unlocked;
        self.session().Stop();
      });
}

// penstock.Error and its subclasses are written in Python (_errors.py).
void RaiseStatus(const std::exception_ptr& error, void*) {
  try {
    std::rethrow_exception(error);
  } catch (const StatusError& status) {
    const nb::object raised =
        nb::module_::import_("penstock._errors")
            .attr("from_status")(absl::StatusCodeToString(status.status().code()),
                                 std::string(status.what()));
    PyErr_SetObject(raised.type().ptr(), raised.ptr());
  }
}

}  // namespace
}  // namespace penstock::python

NB_MODULE(_penstock, module) {
  namespace python = penstock::python;
  nb::register_exception_translator(python::RaiseStatus);
  module.attr("__version__") = penstock::kVersion;
  // Graphs, plans and sessions share it.
  const auto registries =
      std::make_shared<const penstock::Registries>(penstock::BuiltinRegistries());
  python::BindTensor(module);
  python::BindGraph(module, registries);
  python::BindPlan(module, registries);
  python::BindSession(module);
}
