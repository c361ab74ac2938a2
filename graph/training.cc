#include "graph/training.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/half.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/gradients.h"

namespace penstock::graph {
namespace {

constexpr double kPi = 3.14159265358979323846;
constexpr double kNormEpsilon = 1e-6;
constexpr double kMostLossScale = 1 << 24;
constexpr double kLeastLossScale = 1;
// Norms of gradients that overflowed are above it, or NaN.
constexpr double kMostNorm = 1e38;
// Tells the update that it keeps everything as it is (adamw.cc).
constexpr double kSkip = -1;

absl::Status CheckOptions(const TrainingOptions& options) {
  const auto refuse = [](std::string_view name, double value, std::string_view range) {
    return absl::InvalidArgumentError(StrCat(name, " = ", value, ": must be ", range));
  };
  if (!(options.learning_rate >= 0)) {
    return refuse("learning_rate", options.learning_rate, "at least 0");
  }
  if (!(options.min_learning_rate >= 0)) {
    return refuse("min_learning_rate", options.min_learning_rate, "at least 0");
  }
  if (!(options.beta1 >= 0 && options.beta1 < 1))
    return refuse("beta1", options.beta1, "in [0, 1)");
  if (!(options.beta2 >= 0 && options.beta2 < 1))
    return refuse("beta2", options.beta2, "in [0, 1)");
  if (!(options.epsilon > 0)) return refuse("epsilon", options.epsilon, "above 0");
  if (!(options.momentum >= 0 && options.momentum < 1)) {
    return refuse("momentum", options.momentum, "in [0, 1)");
  }
  if (!(options.weight_decay >= 0)) {
    return refuse("weight_decay", options.weight_decay, "at least 0");
  }
  if (!(options.clip_norm >= 0)) return refuse("clip_norm", options.clip_norm, "at least 0");
  if (!(options.loss_scale >= 0 && options.loss_scale <= kMostLossScale)) {
    return refuse("loss_scale", options.loss_scale, StrCat("0 to ", kMostLossScale));
  }
  if (options.loss_scale_growth_steps < 1) {
    return refuse("loss_scale_growth_steps", static_cast<double>(options.loss_scale_growth_steps),
                  "at least 1");
  }
  if (options.gradient_dtype != DType::kF32 && !IsHalf(options.gradient_dtype)) {
    return absl::InvalidArgumentError(
        StrCat("gradient_dtype = ", Name(options.gradient_dtype), ": must be f32, bf16 or f16"));
  }
  if (options.warmup_steps < 0) {
    return refuse("warmup_steps", static_cast<double>(options.warmup_steps), "at least 0");
  }
  if (options.schedule == LearningRateSchedule::kCosine && options.total_steps < 1) {
    return refuse("total_steps", static_cast<double>(options.total_steps), "at least 1");
  }
  return absl::OkStatus();
}

// Steps over which the cosine falls.
int64_t DecaySteps(const TrainingOptions& options) {
  return std::max<int64_t>(options.total_steps - options.warmup_steps, 1);
}

// Scalar arithmetic on graph values of one dtype.
class Scalars {
 public:
  Scalars(GraphBuilder& builder, DType dtype) : builder_(builder), type_{dtype, {}} {}

  ValueId Constant(double value) { return builder_.Constant(value, type_); }
  ValueId Unary(std::string_view op, ValueId x) { return builder_.Add(op, {x}); }
  ValueId Binary(std::string_view op, ValueId x, ValueId y) { return builder_.Add(op, {x, y}); }
  ValueId Binary(std::string_view op, ValueId x, double y) { return Binary(op, x, Constant(y)); }

 private:
  GraphBuilder& builder_;
  TensorType type_;
};

// The learning rate as a value; `step` (f[]) counts from 1. As LearningRate.
ValueId AddLearningRate(Scalars& scalars, ValueId step, const TrainingOptions& options) {
  ValueId rate = scalars.Constant(options.learning_rate);
  if (options.schedule == LearningRateSchedule::kCosine) {
    const double half_range = 0.5 * (options.learning_rate - options.min_learning_rate);
    const ValueId past = scalars.Binary("sub", step, static_cast<double>(options.warmup_steps));
    const ValueId fraction = scalars.Binary("div", past, static_cast<double>(DecaySteps(options)));
    const ValueId progress = scalars.Binary("min", scalars.Binary("max", fraction, 0.0), 1.0);
    const ValueId wave = scalars.Unary("cos", scalars.Binary("mul", progress, kPi));
    rate = scalars.Binary("add", scalars.Binary("mul", wave, half_range),
                          options.min_learning_rate + half_range);
  }
  if (options.warmup_steps > 0) {
    const ValueId ramp = scalars.Binary(
        "min", scalars.Binary("div", step, static_cast<double>(options.warmup_steps)), 1.0);
    rate = scalars.Binary("mul", rate, ramp);
  }
  return rate;
}

// The sum as a balanced tree: terms that lie next to each other, and so on one stage, meet first.
ValueId AddTreeSum(GraphBuilder& builder, std::vector<ValueId> terms) {
  while (terms.size() > 1) {
    std::vector<ValueId> sums;
    for (size_t i = 0; i + 1 < terms.size(); i += 2) {
      sums.push_back(builder.Add("add", {terms[i], terms[i + 1]}, {}, "squares"));
    }
    if (terms.size() % 2 == 1) sums.push_back(terms.back());
    terms = std::move(sums);
  }
  return terms[0];
}

ValueId CastTo(GraphBuilder& builder, ValueId value, DType dtype) {
  if (!builder.status().ok() || builder.type(value).dtype == dtype) return value;
  return builder.Add("cast", {value}, {{"dtype", dtype}});
}

// The gradient that devices add up in fewer bits, as `dtype`.
ValueId WidenSum(GraphBuilder& builder, ValueId gradient, DType dtype) {
  if (builder.type(gradient).dtype == dtype) return gradient;
  return builder.Add("cast", {gradient}, {{"dtype", dtype}, {"partial_sums", std::string("add")}},
                     StrCat(builder.graph().value(gradient).name, ".sum"));
}

// A state like the parameter, of the same type and zero at first.
ValueId StateLike(GraphBuilder& builder, ValueId parameter, std::string_view suffix) {
  if (!builder.status().ok()) return kNoValue;
  const Value& value = builder.graph().value(parameter);
  const std::string name = StrCat(value.name, ".", suffix);
  return builder.Declare("state", name, value.type, {{"init", "zeros"}});
}

void Assign(GraphBuilder& builder, ValueId state, ValueId value) {
  builder.AddMulti("assign", {state, value});
}

// The scale and its state, at the end of a forward graph.
LossScale DeclareLossScale(GraphBuilder& builder, DType dtype, const TrainingOptions& options) {
  const TensorType type = {dtype, {}};
  LossScale scale;
  scale.state = builder.Declare("state", "loss_scale", type, {{"init", "ones"}});
  scale.value = builder.Add("mul", {scale.state, builder.Constant(options.loss_scale, type)}, {},
                            "loss_scale.value");
  return scale;
}

// Halves the scale after gradients that are not finite, and doubles it after many that are.
void AdaptLossScale(GraphBuilder& builder, const LossScale& scale, ValueId is_finite,
                    const TrainingOptions& options) {
  if (!builder.status().ok()) return;
  const TensorType type = builder.type(scale.state);
  const TensorType counter = {DType::kI64, {}};
  const auto times = [&](double factor) {
    return builder.Add("mul", {scale.state, builder.Constant(factor, type)});
  };
  // `op`: min or max.
  const auto bounded = [&](std::string_view op, ValueId value, double bound) {
    return builder.Add(op, {value, builder.Constant(bound / options.loss_scale, type)});
  };
  const ValueId steps = builder.Declare("state", "loss_scale.steps", counter, {{"init", "zeros"}});
  const ValueId zero = builder.Constant(0, counter);
  const ValueId more = builder.Add("add", {steps, builder.Constant(1, counter)});
  const ValueId finite_steps = builder.Add("where", {is_finite, more, zero});
  const ValueId grows = builder.Add(
      "equal", {finite_steps,
                builder.Constant(static_cast<double>(options.loss_scale_growth_steps), counter)});
  const ValueId grown =
      builder.Add("where", {grows, bounded("min", times(2), kMostLossScale), scale.state});
  const ValueId halved = bounded("max", times(0.5), std::min(options.loss_scale, kLeastLossScale));
  Assign(builder, scale.state,
         builder.Add("where", {is_finite, grown, halved}, {}, "loss_scale.new"));
  Assign(builder, steps,
         builder.Add("where", {grows, zero, finite_steps}, {}, "loss_scale.steps.new"));
}

}  // namespace

double LearningRate(const TrainingOptions& options, int64_t step) {
  double rate = options.learning_rate;
  const auto t = static_cast<double>(step);
  if (options.schedule == LearningRateSchedule::kCosine) {
    const double progress = std::clamp(
        (t - static_cast<double>(options.warmup_steps)) / static_cast<double>(DecaySteps(options)),
        0.0, 1.0);
    rate = options.min_learning_rate + 0.5 * (options.learning_rate - options.min_learning_rate) *
                                           (1 + std::cos(kPi * progress));
  }
  if (options.warmup_steps > 0) {
    rate *= std::min(1.0, t / static_cast<double>(options.warmup_steps));
  }
  return rate;
}

bool IsDecayed(const Graph& graph, ValueId parameter) {
  const Value& value = graph.value(parameter);
  const std::string init = graph.node(value.producer).attributes.GetString("init", "normal");
  return value.type.shape.size() >= 2 && init == "normal";
}

absl::Status AddOptimizer(GraphBuilder& builder, absl::Span<const ValueId> parameters,
                          absl::Span<const ValueId> gradients, const TrainingOptions& options,
                          DType scalar_dtype, ValueId* norm, const LossScale& loss_scale) {
  builder.set_phase(Phase::kUpdate);
  Scalars scalars(builder, scalar_dtype);
  const bool is_scaled = loss_scale.value != kNoValue;

  ValueId total = kNoValue;  // the norm of the gradients as they are given
  if (options.clip_norm > 0 || norm != nullptr || is_scaled) {
    std::vector<ValueId> squares;
    for (const ValueId gradient : gradients) {
      squares.push_back(
          CastTo(builder, builder.Add("sum_squares", {gradient}, {}, "squares"), scalar_dtype));
    }
    total = builder.Add("sqrt", {AddTreeSum(builder, std::move(squares))}, {},
                        is_scaled ? "scaled_gradient_norm" : "gradient_norm");
  }
  ValueId is_finite = kNoValue;
  ValueId unscale = kNoValue;
  if (is_scaled) {
    is_finite = builder.Add("less", {total, scalars.Constant(kMostNorm)}, {}, "is_finite");
    unscale = builder.Add("div", {scalars.Constant(1.0), loss_scale.value}, {}, "unscale");
  }

  const TensorType counter = {DType::kI64, {}};
  const ValueId steps_done = builder.Declare("state", "step", counter, {{"init", "zeros"}});
  ValueId done = builder.Constant(1, counter);
  if (is_scaled) done = builder.Add("where", {is_finite, done, builder.Constant(0, counter)});
  const ValueId step = builder.Add("add", {steps_done, done}, {}, "step.new");
  const ValueId step_float = builder.Add("cast", {step}, {{"dtype", scalar_dtype}}, "step.float");
  const ValueId rate = AddLearningRate(scalars, step_float, options);

  ValueId scale = kNoValue;
  if (is_scaled) total = builder.Add("mul", {total, unscale}, {}, "gradient_norm");
  if (norm != nullptr) *norm = total;
  if (options.clip_norm > 0) {
    const ValueId safe = scalars.Binary("add", total, kNormEpsilon);
    const ValueId ratio = builder.Add("div", {scalars.Constant(options.clip_norm), safe});
    scale = builder.Add("min", {ratio, scalars.Constant(1.0)}, {}, "clip");
  }
  if (is_scaled) {
    if (scale != kNoValue) unscale = builder.Add("mul", {scale, unscale});
    scale = builder.Add("where", {is_finite, unscale, scalars.Constant(kSkip)}, {}, "scale");
    AdaptLossScale(builder, loss_scale, is_finite, options);
  }
  if (scale == kNoValue) scale = scalars.Constant(1.0);

  for (size_t i = 0; i < parameters.size() && builder.status().ok(); ++i) {
    const ValueId w = parameters[i];
    const ValueId g = gradients[i];
    const std::string name = builder.graph().value(w).name;
    const DType dtype = builder.type(w).dtype;
    const ValueId w_rate = CastTo(builder, rate, dtype);
    const ValueId w_scale = CastTo(builder, scale, dtype);
    const double decay = IsDecayed(builder.graph(), w) ? options.weight_decay : 0.0;
    if (options.optimizer == Optimizer::kAdamW) {
      const ValueId m = StateLike(builder, w, "m");
      const ValueId v = StateLike(builder, w, "v");
      const std::vector<ValueId> updated =
          builder.AddMulti("adamw", {w, g, m, v, step, w_rate, w_scale},
                           {{"beta1", options.beta1},
                            {"beta2", options.beta2},
                            {"epsilon", options.epsilon},
                            {"weight_decay", decay}},
                           StrCat(name, ".new"));
      if (updated.size() != 3) break;
      Assign(builder, w, updated[0]);
      Assign(builder, m, updated[1]);
      Assign(builder, v, updated[2]);
    } else if (options.momentum > 0) {
      const ValueId buffer = StateLike(builder, w, "momentum");
      const std::vector<ValueId> updated = builder.AddMulti(
          "sgd", {w, g, w_rate, w_scale, buffer},
          {{"momentum", options.momentum}, {"weight_decay", decay}}, StrCat(name, ".new"));
      if (updated.size() != 2) break;
      Assign(builder, w, updated[0]);
      Assign(builder, buffer, updated[1]);
    } else {
      Assign(builder, w,
             builder.Add("sgd", {w, g, w_rate, w_scale}, {{"weight_decay", decay}},
                         StrCat(name, ".new")));
    }
  }
  Assign(builder, steps_done, step);
  builder.set_phase(Phase::kForward);
  return builder.status();
}

absl::StatusOr<Graph> BuildTrainingGraph(const OpRegistry& ops, Graph forward,
                                         const TrainingOptions& options) {
  RETURN_IF_ERROR(CheckOptions(options));
  if (forward.returns().size() != 1) {
    return absl::InvalidArgumentError(
        StrCat("training needs a graph that returns one scalar, the loss; graph ", forward.name(),
               " returns ", forward.returns().size(), " values"));
  }
  const ValueId loss = forward.returns()[0].value;
  LossScale scale;
  if (options.loss_scale > 0) {
    GraphBuilder before(ops, forward);
    scale = DeclareLossScale(before, forward.value(loss).type.dtype, options);
    RETURN_IF_ERROR(before.status());
  }
  ASSIGN_OR_RETURN(Differentiated result, Differentiate(ops, forward, loss,
                                                        {.loss_gradient = scale.value,
                                                         .sum_dtype = options.gradient_dtype}));
  // Values of the forward graph keep their names.
  for (ValueId* value : {&scale.state, &scale.value}) {
    if (*value != kNoValue) *value = result.graph.FindValue(forward.value(*value).name);
  }
  std::vector<ValueId> parameters;
  std::vector<ValueId> gradients;
  for (size_t i = 0; i < result.parameters.size(); ++i) {
    if (!IsFloat(result.graph.value(result.parameters[i]).type.dtype)) continue;
    parameters.push_back(result.parameters[i]);
    gradients.push_back(result.gradients[i]);
  }
  if (parameters.empty()) {
    return absl::InvalidArgumentError(
        StrCat("graph ", forward.name(), " has no float parameter to train"));
  }
  GraphBuilder builder(ops, result.graph);
  builder.set_phase(Phase::kUpdate);
  for (size_t i = 0; i < parameters.size(); ++i) {
    gradients[i] = WidenSum(builder, gradients[i], builder.type(parameters[i]).dtype);
  }
  ValueId norm = kNoValue;
  const DType scalar_dtype = result.graph.value(result.loss).type.dtype;
  RETURN_IF_ERROR(AddOptimizer(builder, parameters, gradients, options, scalar_dtype,
                               options.return_gradient_norm ? &norm : nullptr, scale));
  if (options.return_gradient_norm) result.graph.mutable_returns().push_back({norm, std::nullopt});
  return std::move(result.graph);
}

}  // namespace penstock::graph
