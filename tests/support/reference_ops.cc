#include "tests/support/reference_ops.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "absl/status/status.h"

#include "base/random.h"
#include "base/strings.h"
#include "tests/support/reference_image_ops.h"

namespace penstock::testing {
namespace {

using graph::Attributes;

// ---- Indices.

Values Zeros(Shape shape) {
  const int64_t count = NumElements(shape);
  return {std::move(shape), std::vector<double>(count)};
}

int64_t PositionOf(const Shape& index, const Shape& shape) {
  int64_t position = 0;
  for (size_t i = 0; i < shape.size(); ++i) position = position * shape[i] + index[i];
  return position;
}

double& At(Values& x, const Shape& index) { return x.elements[PositionOf(index, x.shape)]; }
double At(const Values& x, const Shape& index) { return x.elements[PositionOf(index, x.shape)]; }

// body(index) at every place of the shape, row-major.
template <typename F>
void ForEachIndex(const Shape& shape, F body) {
  const int64_t count = NumElements(shape);
  for (int64_t position = 0; position < count; ++position) {
    Shape index(shape.size());
    int64_t rest = position;
    for (size_t i = shape.size(); i-- > 0;) {
      index[i] = rest % shape[i];
      rest /= shape[i];
    }
    body(index);
  }
}

// A tensor of the shape whose elements are f(index).
template <typename F>
Values Generate(const Shape& shape, F f) {
  Values y = Zeros(shape);
  ForEachIndex(shape, [&](const Shape& index) { At(y, index) = f(index); });
  return y;
}

int AxisOf(const Attributes& attributes, int64_t fallback, const Values& x) {
  const int64_t axis = attributes.GetInt("axis", fallback);
  return static_cast<int>(axis < 0 ? axis + static_cast<int64_t>(x.shape.size()) : axis);
}

Shape Plus(Shape a, const Shape& b) {
  for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
  return a;
}

// x[..., n] as rows.
int64_t RowSize(const Values& x) { return x.shape.back(); }
int64_t NumRows(const Values& x) { return NumElements(Shape(x.shape.begin(), x.shape.end() - 1)); }
Shape RowsShape(const Values& x) { return Shape(x.shape.begin(), x.shape.end() - 1); }
double& At(Values& x, int64_t row, int64_t i) { return x.elements[row * RowSize(x) + i]; }
double At(const Values& x, int64_t row, int64_t i) { return x.elements[row * RowSize(x) + i]; }

// ---- Elementwise.

double Sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double Gelu(double x, bool is_exact) {
  if (is_exact) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double GeluSlope(double x, bool is_exact) {
  if (is_exact) {
    return 0.5 * std::erfc(-x / std::sqrt(2.0)) + x * std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
  }
  const double t = std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

bool IsExact(const Attributes& attributes) {
  return attributes.GetString("approximate", "tanh") == "none";
}

// f of the same element of every operand; scalars go with all elements, and a shorter shape with
// every leading index.
template <typename F>
Values Map(const std::vector<Values>& operands, F f) {
  const Values* widest = &operands[0];
  for (const Values& x : operands) {
    if (x.shape.size() > widest->shape.size()) widest = &x;
  }
  Values y = Zeros(widest->shape);
  for (size_t i = 0; i < y.elements.size(); ++i) {
    std::vector<double> x;
    for (const Values& operand : operands) {
      x.push_back(operand.elements[i % operand.elements.size()]);
    }
    y.elements[i] = f(x);
  }
  return y;
}

// ---- Contractions and reductions.

// c = sum of a b over the letters that c lacks.
Values Contract(const std::string& a_labels, const Values& a, const std::string& b_labels,
                const Values& b, const std::string& c_labels) {
  std::string letters = c_labels;
  std::map<char, int64_t> extents;
  for (const auto& [labels, x] : {std::pair{&a_labels, &a}, std::pair{&b_labels, &b}}) {
    for (size_t i = 0; i < labels->size(); ++i) {
      extents[(*labels)[i]] = x->shape[i];
      if (letters.find((*labels)[i]) == std::string::npos) letters.push_back((*labels)[i]);
    }
  }
  Shape all;
  for (char letter : letters) all.push_back(extents[letter]);
  Values c = Zeros(Shape(all.begin(), all.begin() + c_labels.size()));
  ForEachIndex(all, [&](const Shape& index) {
    const auto select = [&](const std::string& labels) {
      Shape selected;
      for (char letter : labels) selected.push_back(index[letters.find(letter)]);
      return selected;
    };
    At(c, select(c_labels)) += At(a, select(a_labels)) * At(b, select(b_labels));
  });
  return c;
}

Values Einsum(const Attributes& attributes, const std::vector<Values>& x) {
  std::string equation = attributes.GetString("equation", "");
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  const std::string result = equation.substr(arrow + 2);
  if (x.size() == 1) return Contract(left, x[0], "", {{}, {1.0}}, result);
  const size_t comma = left.find(',');
  return Contract(left.substr(0, comma), x[0], left.substr(comma + 1), x[1], result);
}

Values Matmul(const Attributes& attributes, const std::vector<Values>& x) {
  const auto leading = [](const Values& operand) {
    return std::string("abcdefghijklmn").substr(0, operand.shape.size() - 2);
  };
  const bool ta = attributes.GetBool("transpose_a", false);
  const bool tb = attributes.GetBool("transpose_b", false);
  return Contract(leading(x[0]) + (ta ? "KM" : "MK"), x[0], leading(x[1]) + (tb ? "NK" : "KN"),
                  x[1], leading(x[0]) + "MN");
}

// fold(so far, element) over the axes, from `initial` on.
template <typename F>
Values Reduce(const Attributes& attributes, const Values& x, double initial, F fold) {
  const auto rank = static_cast<int64_t>(x.shape.size());
  std::vector<bool> is_reduced(rank);
  for (int64_t axis : attributes.GetInts("axes")) is_reduced[axis < 0 ? axis + rank : axis] = true;
  const bool keeps = attributes.GetBool("keepdims", false);
  const auto kept = [&](const Shape& index, int64_t reduced) {
    Shape selected;
    for (int64_t i = 0; i < rank; ++i) {
      if (!is_reduced[i]) {
        selected.push_back(index[i]);
      } else if (keeps) {
        selected.push_back(reduced);
      }
    }
    return selected;
  };
  Values y = Generate(kept(x.shape, 1), [&](const Shape&) { return initial; });
  ForEachIndex(x.shape, [&](const Shape& index) {
    double& to = At(y, kept(index, 0));
    to = fold(to, At(x, index));
  });
  return y;
}

Values ReduceMean(const Attributes& attributes, const Values& x) {
  Values y = Reduce(attributes, x, 0, std::plus<>());
  const double count =
      static_cast<double>(x.elements.size()) / static_cast<double>(y.elements.size());
  for (double& element : y.elements) element /= count;
  return y;
}

// ---- Normalisation.

struct Statistics {
  Values mean;
  Values rstd;
};

// Of each row; with `is_centred` false the mean is left out, as rms_norm does.
Statistics StatisticsOf(const Attributes& attributes, const Values& x, bool is_centred) {
  const auto n = static_cast<double>(RowSize(x));
  Statistics s{Zeros(RowsShape(x)), Zeros(RowsShape(x))};
  for (int64_t row = 0; row < NumRows(x); ++row) {
    double mean = 0;
    for (int64_t i = 0; is_centred && i < RowSize(x); ++i) mean += At(x, row, i) / n;
    double square = 0;
    for (int64_t i = 0; i < RowSize(x); ++i) square += std::pow(At(x, row, i) - mean, 2) / n;
    s.mean.elements[row] = mean;
    s.rstd.elements[row] = 1 / std::sqrt(square + attributes.GetDouble("epsilon", 1e-5));
  }
  return s;
}

// (x - mean) rstd; `mean` null: x rstd.
Values Normalise(const Values& x, const Values* mean, const Values& rstd) {
  Values h = x;
  for (int64_t row = 0; row < NumRows(x); ++row) {
    for (int64_t i = 0; i < RowSize(x); ++i) {
      const double m = mean != nullptr ? mean->elements[row] : 0;
      At(h, row, i) = (At(x, row, i) - m) * rstd.elements[row];
    }
  }
  return h;
}

Values NormGrad(const Values& dy, const Values& x, const Values& scale, const Values* mean,
                const Values& rstd) {
  const Values h = Normalise(x, mean, rstd);
  const auto n = static_cast<double>(RowSize(x));
  Values dx = x;
  for (int64_t row = 0; row < NumRows(x); ++row) {
    double mean_g = 0;
    double mean_gh = 0;
    const auto g = [&](int64_t i) { return At(dy, row, i) * scale.elements[i]; };
    for (int64_t i = 0; i < RowSize(x); ++i) {
      if (mean != nullptr) mean_g += g(i) / n;
      mean_gh += g(i) * At(h, row, i) / n;
    }
    for (int64_t i = 0; i < RowSize(x); ++i) {
      At(dx, row, i) = rstd.elements[row] * (g(i) - mean_g - At(h, row, i) * mean_gh);
    }
  }
  return dx;
}

// {dscale, dbias}.
std::vector<Values> NormWeightGrad(const Values& dy, const Values& x, const Values* mean,
                                   const Values& rstd) {
  const Values h = Normalise(x, mean, rstd);
  std::vector<Values> sums(2, Zeros({RowSize(x)}));
  for (int64_t row = 0; row < NumRows(x); ++row) {
    for (int64_t i = 0; i < RowSize(x); ++i) {
      sums[0].elements[i] += At(dy, row, i) * At(h, row, i);
      sums[1].elements[i] += At(dy, row, i);
    }
  }
  return sums;
}

// ---- Softmax and losses.

double LogSumExp(const Values& x, int64_t row) {
  double sum = 0;
  for (int64_t i = 0; i < RowSize(x); ++i) sum += std::exp(At(x, row, i));
  return std::log(sum);
}

Values SumAlong(const Values& x, int axis) {
  return Reduce({{"axes", graph::AttrValue::Ints({axis})}, {"keepdims", true}}, x, 0,
                std::plus<>());
}

// The element of `sums`, whose `axis` has one entry, that belongs to `index`.
double AlongAxis(const Values& sums, Shape index, int axis) {
  index[axis] = 0;
  return At(sums, index);
}

Values Softmax(const Attributes& attributes, const Values& x) {
  const int axis = AxisOf(attributes, -1, x);
  const Values exps = Map({x}, [](const auto& v) { return std::exp(v[0]); });
  const Values sums = SumAlong(exps, axis);
  return Generate(
      x.shape, [&](const Shape& index) { return At(exps, index) / AlongAxis(sums, index, axis); });
}

Values SoftmaxGrad(const Attributes& attributes, const Values& y, const Values& dy) {
  const int axis = AxisOf(attributes, -1, y);
  const Values dots = SumAlong(Map({y, dy}, [](const auto& v) { return v[0] * v[1]; }), axis);
  return Generate(y.shape, [&](const Shape& index) {
    return At(y, index) * (At(dy, index) - AlongAxis(dots, index, axis));
  });
}

std::vector<Values> CrossEntropy(const Values& x, const Values& labels) {
  std::vector<Values> results(3, Zeros(RowsShape(x)));  // the loss, the maximum, the log of the sum
  for (int64_t row = 0; row < NumRows(x); ++row) {
    double max = At(x, row, 0);
    for (int64_t i = 1; i < RowSize(x); ++i) max = std::max(max, At(x, row, i));
    const double lse = LogSumExp(x, row);
    results[0].elements[row] = lse - At(x, row, static_cast<int64_t>(labels.elements[row]));
    results[1].elements[row] = max;
    results[2].elements[row] = lse - max;
  }
  return results;
}

Values CrossEntropyGrad(const std::vector<Values>& x) {
  Values dx = x[0];
  for (int64_t row = 0; row < NumRows(dx); ++row) {
    for (int64_t i = 0; i < RowSize(dx); ++i) {
      const double p = std::exp(At(x[0], row, i) - x[2].elements[row] - x[3].elements[row]);
      const bool is_label = i == static_cast<int64_t>(x[1].elements[row]);
      At(dx, row, i) = x[4].elements[row] * (p - (is_label ? 1 : 0));
    }
  }
  return dx;
}

// ---- Attention, on heads [b, h, s, d].

// The head of the keys that head h of the queries sees; `heads` and `key_heads` are all of them.
int64_t KeyHead(int64_t h, int64_t heads, int64_t key_heads) { return h * key_heads / heads; }

double Score(const Values& q, const Values& k, int64_t b, int64_t h, int64_t s, int64_t t) {
  const int64_t g = KeyHead(h, q.shape[1], k.shape[1]);
  double score = 0;
  for (int64_t d = 0; d < q.shape[3]; ++d) score += At(q, {b, h, s, d}) * At(k, {b, g, t, d});
  return score / std::sqrt(static_cast<double>(q.shape[3]));
}

// The first key that query s does not see.
int64_t EndOfKeys(const Attributes& attributes, const Values& q, const Values& k, int64_t s) {
  const int64_t keys = k.shape[2];
  return attributes.GetBool("causal", false) ? std::min(keys, s + keys - q.shape[2] + 1) : keys;
}

// {o, lse} over those keys seen that lie in `part`.
std::vector<Values> Attend(const Attributes& attributes, const Values& q, const Values& k,
                           const Values& v, Range part) {
  std::vector<Values> results = {Zeros(q.shape), Zeros(RowsShape(q))};
  ForEachIndex(RowsShape(q), [&](const Shape& row) {
    const auto [b, h, s] = std::tuple(row[0], row[1], row[2]);
    const int64_t end = std::min(part.end, EndOfKeys(attributes, q, k, s));
    double sum = 0;
    for (int64_t t = part.begin; t < end; ++t) sum += std::exp(Score(q, k, b, h, s, t));
    At(results[1], row) = std::log(sum);
    for (int64_t t = part.begin; t < end; ++t) {
      const double p = std::exp(Score(q, k, b, h, s, t)) / sum;
      const int64_t g = KeyHead(h, q.shape[1], k.shape[1]);
      for (int64_t d = 0; d < q.shape[3]; ++d) {
        At(results[0], {b, h, s, d}) += p * At(v, {b, g, t, d});
      }
    }
  });
  return results;
}

std::vector<Values> AttendInParts(const Attributes& attributes, const std::vector<Values>& x) {
  const int64_t parts = attributes.GetInt("parts", 1);
  std::vector<Values> joined(2);
  for (int64_t part = 0; part < parts; ++part) {
    const std::vector<Values> results =
        Attend(attributes, x[0], x[1], x[2], PartOf(x[1].shape[2], part, parts));
    for (size_t r = 0; r < results.size(); ++r) {
      joined[r].shape = results[r].shape;
      joined[r].shape.insert(joined[r].shape.begin(), parts);
      joined[r].elements.insert(joined[r].elements.end(), results[r].elements.begin(),
                                results[r].elements.end());
    }
  }
  return joined;
}

// {dq, dk, dv} of operands q, k, v, o, lse, do.
std::vector<Values> AttentionGrad(const Attributes& attributes, const std::vector<Values>& x) {
  const Values& q = x[0];
  const Values& k = x[1];
  std::vector<Values> grads = {Zeros(q.shape), Zeros(k.shape), Zeros(k.shape)};
  const double scale = 1 / std::sqrt(static_cast<double>(q.shape[3]));
  ForEachIndex(RowsShape(q), [&](const Shape& row) {
    const auto [b, h, s] = std::tuple(row[0], row[1], row[2]);
    const int64_t g = KeyHead(h, q.shape[1], k.shape[1]);
    double delta = 0;
    for (int64_t d = 0; d < q.shape[3]; ++d)
      delta += At(x[3], {b, h, s, d}) * At(x[5], {b, h, s, d});
    for (int64_t t = 0; t < EndOfKeys(attributes, q, k, s); ++t) {
      const double p = std::exp(Score(q, k, b, h, s, t) - At(x[4], row));
      double dp = 0;
      for (int64_t d = 0; d < q.shape[3]; ++d)
        dp += At(x[5], {b, h, s, d}) * At(x[2], {b, g, t, d});
      const double ds = p * (dp - delta) * scale;
      for (int64_t d = 0; d < q.shape[3]; ++d) {
        At(grads[0], {b, h, s, d}) += ds * At(k, {b, g, t, d});
        At(grads[1], {b, g, t, d}) += ds * At(q, {b, h, s, d});
        At(grads[2], {b, g, t, d}) += p * At(x[5], {b, h, s, d});
      }
    }
  });
  return grads;
}

// [b, h, s, d] from [b, s, h, d], or back.
Values SwapHeadsAndRows(const Values& x) {
  return Generate({x.shape[0], x.shape[2], x.shape[1], x.shape[3]}, [&](const Shape& i) {
    return At(x, {i[0], i[2], i[1], i[3]});
  });
}

// q, k and v as heads, of qkv[b, s, 3, h, d].
std::vector<Values> Unpack(const Values& qkv) {
  const Shape& shape = qkv.shape;
  std::vector<Values> heads;
  for (int64_t part = 0; part < 3; ++part) {
    heads.push_back(Generate({shape[0], shape[3], shape[1], shape[4]}, [&](const Shape& i) {
      return At(qkv, {i[0], i[2], part, i[1], i[3]});
    }));
  }
  return heads;
}

std::vector<Values> QkvAttention(const Attributes& attributes, const Values& qkv) {
  const std::vector<Values> heads = Unpack(qkv);
  std::vector<Values> results = Attend(attributes, heads[0], heads[1], heads[2], {0, qkv.shape[1]});
  results[0] = SwapHeadsAndRows(results[0]);
  return results;
}

Values QkvAttentionGrad(const Attributes& attributes, const std::vector<Values>& x) {
  const std::vector<Values> heads = Unpack(x[0]);
  const std::vector<Values> grads = AttentionGrad(
      attributes,
      {heads[0], heads[1], heads[2], SwapHeadsAndRows(x[1]), x[2], SwapHeadsAndRows(x[3])});
  return Generate(x[0].shape, [&](const Shape& i) {
    return At(grads[i[2]], {i[0], i[3], i[1], i[4]});
  });
}

// Operands qkv, cache, start; or q, cache, start, k, v.
std::vector<Values> CachedAttention(const std::vector<Values>& x) {
  const Values& cache = x[1];
  const bool is_packed = x.size() == 3;
  const int64_t s = x[0].shape[1];
  const int64_t c = cache.shape[1];
  const auto first = [&x](int64_t b) { return static_cast<int64_t>(At(x[2], {b})); };
  // The key (part 1) or the value (part 2) of a new token; likewise its query.
  const auto token = [&](int64_t b, int64_t row, int64_t part, int64_t g, int64_t d) {
    return is_packed ? At(x[0], {b, row, part, g, d}) : At(x[2 + part], {b, row, g, d});
  };
  const auto query = [&](int64_t b, int64_t row, int64_t h, int64_t d) {
    return is_packed ? At(x[0], {b, row, 0, h, d}) : At(x[0], {b, row, h, d});
  };
  const Values filled = Generate(cache.shape, [&](const Shape& i) {
    const int64_t row = i[1] - first(i[0]);
    return row >= 0 && row < s ? token(i[0], row, i[2] + 1, i[3], i[4]) : At(cache, i);
  });
  const int64_t heads = x[0].shape[is_packed ? 3 : 2];
  const int64_t width = cache.shape[4];
  const Values o = Generate({cache.shape[0], s, heads, width}, [&](const Shape& i) {
    const int64_t last = first(i[0]) + i[1];
    if (last >= c) return 0.0;
    const int64_t g = KeyHead(i[2], heads, cache.shape[3]);
    double sum = 0;
    double total = 0;
    for (int64_t j = 0; j <= last; ++j) {
      double score = 0;
      for (int64_t d = 0; d < width; ++d) {
        score += query(i[0], i[1], i[2], d) * At(filled, {i[0], j, 0, g, d});
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(width)));
      sum += weight;
      total += weight * At(filled, {i[0], j, 1, g, i[3]});
    }
    return total / sum;
  });
  return {filled, o};
}

// Calls body(index of the query {b, s, h, d = 0}, the key's index in kv[b, t, 2, h, d]) for each
// pair of a step of ring attention that see each other, by query.
template <typename Begin, typename Body, typename End>
void ForEachPairOfBlocks(const Attributes& attributes, const Values& q, const Values& kv,
                         Begin begin, Body body, End end) {
  const int64_t block = attributes.GetInt("block", 1);
  const int64_t parts = kv.shape[1] / block;
  ForEachIndex({q.shape[0], q.shape[1], q.shape[2], 1}, [&](const Shape& query) {
    begin(query);
    const int64_t part = query[1] / (q.shape[1] / parts);
    for (int64_t key = part * block; key < (part + 1) * block; ++key) {
      const int64_t keys = kv.shape[1];
      // Where the key stood before it was rolled.
      const int64_t place = (key + keys - attributes.GetInt("shift", 0) * block % keys) % keys;
      if (!attributes.GetBool("causal", false) || place <= query[1]) {
        body(query, Shape{query[0], key, 0, KeyHead(query[2], q.shape[2], kv.shape[3]), 0});
      }
    }
    end(query);
  });
}

Shape With(Shape index, size_t dim, int64_t value) {
  index[dim] = value;
  return index;
}

double BlockScore(const Values& q, const Values& kv, const Shape& query, const Shape& key) {
  double score = 0;
  for (int64_t d = 0; d < q.shape[3]; ++d) {
    score += At(q, With(query, 3, d)) * At(kv, With(key, 4, d));
  }
  return score / std::sqrt(static_cast<double>(q.shape[3]));
}

// {o, lse} of operands q, kv, and those of other keys if there are any.
std::vector<Values> BlockAttention(const Attributes& attributes, const std::vector<Values>& x) {
  const Values& q = x[0];
  std::vector<Values> results = {Zeros(q.shape), Zeros({q.shape[0], q.shape[2], q.shape[1]})};
  double sum = 0;
  const auto lse_at = [](const Shape& query) { return Shape{query[0], query[2], query[1]}; };
  ForEachPairOfBlocks(
      attributes, q, x[1],
      [&](const Shape& query) {
        sum = x.size() > 2 ? std::exp(At(x[3], lse_at(query))) : 0;
        for (int64_t d = 0; d < q.shape[3]; ++d) {
          At(results[0], With(query, 3, d)) = x.size() > 2 ? sum * At(x[2], With(query, 3, d)) : 0;
        }
      },
      [&](const Shape& query, const Shape& key) {
        const double p = std::exp(BlockScore(q, x[1], query, key));
        sum += p;
        for (int64_t d = 0; d < q.shape[3]; ++d) {
          At(results[0], With(query, 3, d)) += p * At(x[1], With(With(key, 2, 1), 4, d));
        }
      },
      [&](const Shape& query) {
        for (int64_t d = 0; d < q.shape[3]; ++d) At(results[0], With(query, 3, d)) /= sum;
        At(results[1], lse_at(query)) = std::log(sum);
      });
  return results;
}

// {dq, dkv} of operands q, kv, o, lse, do.
std::vector<Values> BlockAttentionGrad(const Attributes& attributes, const std::vector<Values>& x) {
  const Values& q = x[0];
  const Values& kv = x[1];
  std::vector<Values> grads = {Zeros(q.shape), Zeros(kv.shape)};
  const double scale = 1 / std::sqrt(static_cast<double>(q.shape[3]));
  double delta = 0;
  ForEachPairOfBlocks(
      attributes, q, kv,
      [&](const Shape& query) {
        delta = 0;
        for (int64_t d = 0; d < q.shape[3]; ++d) {
          delta += At(x[2], With(query, 3, d)) * At(x[4], With(query, 3, d));
        }
      },
      [&](const Shape& query, const Shape& key) {
        const Shape value = With(key, 2, 1);
        const double p =
            std::exp(BlockScore(q, kv, query, key) - At(x[3], {query[0], query[2], query[1]}));
        double dp = 0;
        for (int64_t d = 0; d < q.shape[3]; ++d) {
          dp += At(x[4], With(query, 3, d)) * At(kv, With(value, 4, d));
        }
        const double ds = p * (dp - delta) * scale;
        for (int64_t d = 0; d < q.shape[3]; ++d) {
          At(grads[0], With(query, 3, d)) += ds * At(kv, With(key, 4, d));
          At(grads[1], With(key, 4, d)) += ds * At(q, With(query, 3, d));
          At(grads[1], With(value, 4, d)) += p * At(x[4], With(query, 3, d));
        }
      },
      [](const Shape&) {});
  return grads;
}

// Of x[b, s, ..., d]: the halves of a row are the two coordinates of d / 2 points.
Values Rotary(const Attributes& attributes, const std::vector<Values>& x) {
  const int64_t width = x[0].shape.back();
  const double base = attributes.GetDouble("base", 1e4);
  const std::string scaling = attributes.GetString("scaling", "none");
  const double factor = attributes.GetDouble("factor", 1);
  // As the package transformers puts it, by wavelengths.
  const auto scale = [&](double frequency) {
    if (scaling == "none") return frequency;
    const auto context = static_cast<double>(attributes.GetInt("context", 8192));
    const double low = attributes.GetDouble("low_factor", 1);
    const double high = attributes.GetDouble("high_factor", 4);
    const double wavelength = 2 * std::acos(-1.0) / frequency;
    if (scaling == "linear" || wavelength > context / low) return frequency / factor;
    if (wavelength < context / high) return frequency;
    const double smooth = (context / wavelength - low) / (high - low);
    return (1 - smooth) * frequency / factor + smooth * frequency;
  };
  return Generate(x[0].shape, [&](const Shape& i) {
    const bool is_first = i.back() < width / 2;
    const int64_t pair = i.back() % (width / 2);
    const double start = x.size() > 1 ? At(x[1], {i[0]}) : 0;
    const double angle =
        (start + static_cast<double>(i[1])) *
        scale(std::pow(base, -2.0 * static_cast<double>(pair) / static_cast<double>(width)));
    Shape other = i;
    other.back() = is_first ? pair + width / 2 : pair;
    const double turn = attributes.GetBool("inverse", false) == is_first ? 1 : -1;
    return std::cos(angle) * At(x[0], i) + turn * std::sin(angle) * At(x[0], other);
  });
}

// ---- Moves.

Values Roll(const Attributes& attributes, const Values& x) {
  const auto rank = static_cast<int64_t>(x.shape.size());
  const int64_t axis = (attributes.GetInt("axis", 0) + rank) % rank;
  const int64_t extent = x.shape[axis];
  return Generate(x.shape, [&](Shape i) {
    i[axis] = ((i[axis] - attributes.GetInt("shift", 0)) % extent + extent) % extent;
    return At(x, i);
  });
}

// Writes `part` into `whole` from `start` on.
void Place(const Values& part, const Shape& start, Values* whole) {
  ForEachIndex(part.shape, [&](const Shape& i) { At(*whole, Plus(i, start)) = At(part, i); });
}

Values Slice(const Values& x, const Shape& start, const Shape& sizes, const Shape& stride) {
  return Generate(sizes, [&](Shape i) {
    for (size_t d = 0; d < i.size(); ++d) i[d] = start[d] + i[d] * stride[d];
    return At(x, i);
  });
}

Values SliceByRange(const Attributes& attributes, const Values& x) {
  const Shape start = attributes.GetInts("start");
  const Shape limit = attributes.GetInts("limit");
  Shape stride(start.size(), 1);
  if (attributes.Find("stride") != nullptr) stride = attributes.GetInts("stride");
  Shape sizes;
  for (size_t d = 0; d < start.size(); ++d) {
    int64_t size = 0;
    for (int64_t at = start[d]; at < limit[d]; at += stride[d]) ++size;
    sizes.push_back(size);
  }
  return Slice(x, start, sizes, stride);
}

// Where a window of these sizes starts, moved so that it fits.
Shape WindowStart(const Values& x, const Values& start, const Shape& sizes) {
  Shape clamped;
  for (size_t d = 0; d < sizes.size(); ++d) {
    clamped.push_back(
        std::clamp<int64_t>(static_cast<int64_t>(start.elements[d]), 0, x.shape[d] - sizes[d]));
  }
  return clamped;
}

Values Transpose(const Attributes& attributes, const Values& x) {
  const Shape permutation = attributes.GetInts("permutation");
  Shape shape;
  for (int64_t axis : permutation) shape.push_back(x.shape[axis]);
  return Generate(shape, [&](const Shape& to) {
    Shape from(to.size());
    for (size_t i = 0; i < to.size(); ++i) from[permutation[i]] = to[i];
    return At(x, from);
  });
}

Values Broadcast(const Attributes& attributes, const Values& x) {
  const Shape axes = attributes.GetInts("axes");
  return Generate(attributes.GetInts("shape"), [&](const Shape& to) {
    Shape from;
    for (int64_t axis : axes) from.push_back(to[axis]);
    return At(x, from);
  });
}

Values Concat(const Attributes& attributes, const std::vector<Values>& operands) {
  const int axis = AxisOf(attributes, 0, operands[0]);
  Shape shape = operands[0].shape;
  shape[axis] = 0;
  for (const Values& operand : operands) shape[axis] += operand.shape[axis];
  Values y = Zeros(shape);
  Shape start(shape.size(), 0);
  for (const Values& operand : operands) {
    Place(operand, start, &y);
    start[axis] += operand.shape[axis];
  }
  return y;
}

std::vector<Values> Split(const Attributes& attributes, const Values& x) {
  const int axis = AxisOf(attributes, 0, x);
  Shape sizes = x.shape;
  sizes[axis] /= attributes.GetInt("parts", 1);
  std::vector<Values> parts;
  for (int64_t i = 0; i < attributes.GetInt("parts", 1); ++i) {
    Shape start(sizes.size(), 0);
    start[axis] = i * sizes[axis];
    parts.push_back(Slice(x, start, sizes, Shape(sizes.size(), 1)));
  }
  return parts;
}

Values Pad(const Attributes& attributes, const Values& x) {
  const Shape low = attributes.GetInts("low");
  Values y = Zeros(Plus(Plus(x.shape, low), attributes.GetInts("high")));
  Place(x, low, &y);
  return y;
}

Values Embedding(const Values& table, const Values& ids) {
  Values y = Zeros(ids.shape);
  y.shape.push_back(RowSize(table));
  y.elements.clear();
  for (double id : ids.elements) {
    const auto row = table.elements.begin() + static_cast<int64_t>(id) * RowSize(table);
    y.elements.insert(y.elements.end(), row, row + RowSize(table));
  }
  return y;
}

Values EmbeddingGrad(const Attributes& attributes, const Values& dy, const Values& ids) {
  Values table = Zeros({attributes.GetInt("rows", 0), RowSize(dy)});
  for (int64_t i = 0; i < NumRows(dy); ++i) {
    for (int64_t d = 0; d < RowSize(dy); ++d) {
      At(table, static_cast<int64_t>(ids.elements[i]), d) += At(dy, i, d);
    }
  }
  return table;
}

// ---- Routing of tokens to experts.

std::vector<Values> TopK(const Attributes& attributes, const Values& x) {
  Shape shape = x.shape;
  shape.back() = attributes.GetInt("k", 1);
  std::vector<Values> results = {Zeros(shape), Zeros(shape)};
  for (int64_t row = 0; row < NumRows(x); ++row) {
    std::vector<int64_t> order(RowSize(x));
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int64_t a, int64_t b) { return At(x, row, a) > At(x, row, b); });
    for (int64_t j = 0; j < shape.back(); ++j) {
      At(results[0], row, j) = At(x, row, order[j]);
      At(results[1], row, j) = static_cast<double>(order[j]);
    }
  }
  return results;
}

std::vector<Values> ExpertSlots(const Attributes& attributes, const Values& choices) {
  const int64_t capacity = attributes.GetInt("capacity", 1);
  Shape load = RowsShape(choices);
  const int64_t s = load.back();
  load.back() = attributes.GetInt("experts", 1);
  std::vector<Values> results = {Zeros(choices.shape), Zeros(load)};
  for (int64_t group = 0; group < NumRows(results[1]); ++group) {
    for (int64_t j = 0; j < RowSize(choices); ++j) {
      for (int64_t token = 0; token < s; ++token) {
        const auto expert = static_cast<int64_t>(At(choices, group * s + token, j));
        const auto place = static_cast<int64_t>(At(results[1], group, expert)++);
        At(results[0], group * s + token, j) =
            place < capacity ? static_cast<double>(expert * capacity + place) : -1;
      }
    }
  }
  return results;
}

// Tokens [..., s, d], slots [..., s, k] and places [e, ..., c, d] as matrices: body(token, choice,
// place) for every choice that has a place.
template <typename F>
void ForEachPlace(const Values& slots, const Shape& places, F body) {
  const int64_t c = places[places.size() - 2];
  const int64_t s = slots.shape[slots.shape.size() - 2];
  const int64_t groups = NumRows(slots) / s;
  for (int64_t token = 0; token < NumRows(slots); ++token) {
    for (int64_t j = 0; j < RowSize(slots); ++j) {
      const auto slot = static_cast<int64_t>(At(slots, token, j));
      if (slot < 0 || slot >= places[0] * c) continue;
      body(token, token * RowSize(slots) + j, (slot / c * groups + token / s) * c + slot % c);
    }
  }
}

double WeightOf(const std::vector<Values>& x, int64_t choice) {
  return x.size() > 2 ? x[2].elements[choice] : 1;
}

Values Dispatch(const Attributes& attributes, const std::vector<Values>& x) {
  Shape shape = RowsShape(x[0]);
  shape.back() = attributes.GetInt("capacity", 1);
  shape.push_back(RowSize(x[0]));
  shape.insert(shape.begin(), attributes.GetInt("experts", 1));
  Values y = Zeros(shape);
  ForEachPlace(x[1], shape, [&](int64_t token, int64_t choice, int64_t place) {
    for (int64_t d = 0; d < RowSize(y); ++d)
      At(y, place, d) += WeightOf(x, choice) * At(x[0], token, d);
  });
  return y;
}

Values Combine(const std::vector<Values>& x) {
  Shape shape = RowsShape(x[1]);
  shape.push_back(RowSize(x[0]));
  Values z = Zeros(shape);
  ForEachPlace(x[1], x[0].shape, [&](int64_t token, int64_t choice, int64_t place) {
    for (int64_t d = 0; d < RowSize(z); ++d)
      At(z, token, d) += WeightOf(x, choice) * At(x[0], place, d);
  });
  return z;
}

Values CombineWeightGrad(const std::vector<Values>& x) {
  Values weights = Zeros(x[2].shape);
  ForEachPlace(x[2], x[1].shape, [&](int64_t token, int64_t choice, int64_t place) {
    for (int64_t d = 0; d < RowSize(x[0]); ++d) {
      weights.elements[choice] += At(x[0], token, d) * At(x[1], place, d);
    }
  });
  return weights;
}

// ---- Optimisers.

std::vector<Values> Adamw(const Attributes& attributes, const std::vector<Values>& x) {
  const double beta1 = attributes.GetDouble("beta1", 0.9);
  const double beta2 = attributes.GetDouble("beta2", 0.999);
  const double epsilon = attributes.GetDouble("epsilon", 1e-8);
  const double decay = attributes.GetDouble("weight_decay", 0);
  const double step = x[4].elements[0];
  const double lr = x[5].elements[0];
  std::vector<Values> results = {x[0], x[2], x[3]};
  if (x[6].elements[0] < 0) return results;
  for (size_t i = 0; i < x[0].elements.size(); ++i) {
    double& w = results[0].elements[i];
    double& m = results[1].elements[i];
    double& v = results[2].elements[i];
    const double g = x[1].elements[i] * x[6].elements[0];
    m = beta1 * m + (1 - beta1) * g;
    v = beta2 * v + (1 - beta2) * g * g;
    const double mean = m / (1 - std::pow(beta1, step));
    const double square = v / (1 - std::pow(beta2, step));
    w -= lr * (mean / (std::sqrt(square) + epsilon) + decay * w);
  }
  return results;
}

std::vector<Values> Sgd(const Attributes& attributes, const std::vector<Values>& x) {
  const double momentum = attributes.GetDouble("momentum", 0);
  const double decay = attributes.GetDouble("weight_decay", 0);
  const double lr = x[2].elements[0];
  std::vector<Values> results = {x[0]};
  if (x.size() == 5) results.push_back(x[4]);
  if (x[3].elements[0] < 0) return results;
  for (size_t i = 0; i < x[0].elements.size(); ++i) {
    const double w = x[0].elements[i];
    double step = x[1].elements[i] * x[3].elements[0] + decay * w;
    if (x.size() == 5) {
      double& buffer = results[1].elements[i];
      buffer = momentum * buffer + step;
      step = attributes.GetBool("nesterov", false) ? step + momentum * buffer : buffer;
    }
    results[0].elements[i] = w - lr * step;
  }
  return results;
}

// ---- The table.

struct Call {
  const Attributes& attributes;
  const std::vector<Values>& x;
  bool is_integer;
  const InterpretOptions& options;
};

using Evaluate = std::function<std::vector<Values>(const Call&)>;

Evaluate Unary(double (*f)(double)) {
  return [f](const Call& call) -> std::vector<Values> {
    return {Map(call.x, [f](const auto& v) { return f(v[0]); })};
  };
}

Evaluate Binary(double (*f)(double, double)) {
  return [f](const Call& call) -> std::vector<Values> {
    return {Map(call.x, [f](const auto& v) { return f(v[0], v[1]); })};
  };
}

std::vector<Values> Divide(const Call& call) {
  return {Map(call.x, [&](const auto& v) {
    if (!call.is_integer) return v[0] / v[1];
    return v[1] == 0 ? 0 : std::trunc(v[0] / v[1]);
  })};
}

std::vector<Values> Dropout(const Call& call) {
  const RandomKey key{.seed = call.options.seed,
                      .stream = static_cast<uint32_t>(call.attributes.GetInt("stream", 0)),
                      .step = static_cast<uint32_t>(call.options.step)};
  const double rate = call.attributes.GetDouble("rate", 0);
  Values y = call.x[0];
  for (size_t i = 0; i < y.elements.size(); ++i) {
    y.elements[i] = RandomUniform(key, i) >= rate ? y.elements[i] / (1 - rate) : 0;
  }
  return {y};
}

std::vector<Values> SumExp(const Call& call) {
  Values y = call.x[1];
  for (int64_t row = 0; row < NumRows(call.x[0]); ++row) {
    y.elements[row] = std::exp(LogSumExp(call.x[0], row) - call.x[1].elements[row]);
  }
  return {y};
}

std::vector<Values> Pick(const Call& call) {
  Values y = call.x[1];
  for (int64_t row = 0; row < NumRows(call.x[0]); ++row) {
    y.elements[row] = At(call.x[0], row, static_cast<int64_t>(call.x[1].elements[row]));
  }
  return {y};
}

std::vector<Values> LayerNorm(const Call& call) {
  const Statistics s = StatisticsOf(call.attributes, call.x[0], /*is_centred=*/true);
  const Values h = Normalise(call.x[0], &s.mean, s.rstd);
  return {Map({h, call.x[1], call.x[2]}, [](const auto& v) { return v[0] * v[1] + v[2]; }), s.mean,
          s.rstd};
}

std::vector<Values> RmsNorm(const Call& call) {
  const Statistics s = StatisticsOf(call.attributes, call.x[0], /*is_centred=*/false);
  const Values h = Normalise(call.x[0], nullptr, s.rstd);
  return {Map({h, call.x[1]}, [](const auto& v) { return v[0] * v[1]; }), s.rstd};
}

Values Sum(const Values& x, const Values& y) {
  return Map({x, y}, [](const auto& v) { return v[0] + v[1]; });
}

Values EinsumBias(const Call& c) {
  const Values y = Sum(Einsum(c.attributes, {c.x[0], c.x[1]}), c.x[2]);
  return c.x.size() > 3 ? Sum(y, c.x[3]) : y;
}

const std::map<std::string, Evaluate>& Table() {
  using Results = std::vector<Values>;
  static const auto* const kTable = new std::map<std::string, Evaluate>{
      {"add", Binary([](double a, double b) { return a + b; })},
      {"sub", Binary([](double a, double b) { return a - b; })},
      {"mul", Binary([](double a, double b) { return a * b; })},
      {"div", Divide},
      {"max", Binary([](double a, double b) { return std::max(a, b); })},
      {"min", Binary([](double a, double b) { return std::min(a, b); })},
      {"equal", Binary([](double a, double b) { return a == b ? 1.0 : 0.0; })},
      {"less", Binary([](double a, double b) { return a < b ? 1.0 : 0.0; })},
      {"greater", Binary([](double a, double b) { return a > b ? 1.0 : 0.0; })},
      {"where",
       [](const Call& c) -> Results {
         return {Map(c.x, [](const auto& v) { return v[0] != 0 ? v[1] : v[2]; })};
       }},
      {"neg", Unary([](double x) { return -x; })},
      {"abs", Unary([](double x) { return std::abs(x); })},
      {"exp", Unary([](double x) { return std::exp(x); })},
      {"log", Unary([](double x) { return std::log(x); })},
      {"tanh", Unary([](double x) { return std::tanh(x); })},
      {"sqrt", Unary([](double x) { return std::sqrt(x); })},
      {"square", Unary([](double x) { return x * x; })},
      {"rsqrt", Unary([](double x) { return 1 / std::sqrt(x); })},
      {"sin", Unary([](double x) { return std::sin(x); })},
      {"cos", Unary([](double x) { return std::cos(x); })},
      {"relu", Unary([](double x) { return std::max(x, 0.0); })},
      {"silu", Unary([](double x) { return x * Sigmoid(x); })},
      {"sigmoid", Unary(Sigmoid)},
      {"cast", Unary([](double x) { return x; })},
      {"copy", Unary([](double x) { return x; })},
      {"to_host", Unary([](double x) { return x; })},
      {"to_device", Unary([](double x) { return x; })},
      {"reshard", Unary([](double x) { return x; })},
      {"gelu",
       [](const Call& c) -> Results {
         const bool is_exact = IsExact(c.attributes);
         return {Map(c.x, [=](const auto& v) { return Gelu(v[0], is_exact); })};
       }},
      {"gelu_grad",
       [](const Call& c) -> Results {
         const bool is_exact = IsExact(c.attributes);
         return {Map(c.x, [=](const auto& v) { return v[1] * GeluSlope(v[0], is_exact); })};
       }},
      {"bias_add", Binary([](double x, double b) { return x + b; })},
      {"bias_gelu",
       [](const Call& c) -> Results {
         const bool is_exact = IsExact(c.attributes);
         return {Map(c.x, [=](const auto& v) { return Gelu(v[0] + v[1], is_exact); })};
       }},
      {"bias_gelu_grad",
       [](const Call& c) -> Results {
         const bool is_exact = IsExact(c.attributes);
         return {Map(c.x, [=](const auto& v) { return v[2] * GeluSlope(v[0] + v[1], is_exact); })};
       }},
      {"reshape",
       [](const Call& c) -> Results {
         return {{c.attributes.GetInts("shape"), c.x[0].elements}};
       }},
      {"transpose", [](const Call& c) -> Results { return {Transpose(c.attributes, c.x[0])}; }},
      {"broadcast", [](const Call& c) -> Results { return {Broadcast(c.attributes, c.x[0])}; }},
      {"slice", [](const Call& c) -> Results { return {SliceByRange(c.attributes, c.x[0])}; }},
      {"concat", [](const Call& c) -> Results { return {Concat(c.attributes, c.x)}; }},
      {"pad", [](const Call& c) -> Results { return {Pad(c.attributes, c.x[0])}; }},
      {"roll", [](const Call& c) -> Results { return {Roll(c.attributes, c.x[0])}; }},
      {"split", [](const Call& c) { return Split(c.attributes, c.x[0]); }},
      {"dynamic_slice",
       [](const Call& c) -> Results {
         const Shape sizes = c.attributes.GetInts("sizes");
         return {Slice(c.x[0], WindowStart(c.x[0], c.x[1], sizes), sizes, Shape(sizes.size(), 1))};
       }},
      {"dynamic_update_slice",
       [](const Call& c) -> Results {
         Values y = c.x[0];
         Place(c.x[1], WindowStart(c.x[0], c.x[2], c.x[1].shape), &y);
         return {y};
       }},
      {"matmul", [](const Call& c) -> Results { return {Matmul(c.attributes, c.x)}; }},
      {"einsum", [](const Call& c) -> Results { return {Einsum(c.attributes, c.x)}; }},
      {"einsum_bias", [](const Call& c) -> Results { return {EinsumBias(c)}; }},
      {"einsum_bias_gelu",
       [](const Call& c) -> Results {
         const Values z = EinsumBias(c);
         return {Map({z}, [](const auto& v) { return Gelu(v[0], false); }), z};
       }},
      {"einsum_gelu_grad",
       [](const Call& c) -> Results {
         const Values dy = Einsum(c.attributes, {c.x[0], c.x[1]});
         return {Map({dy, c.x[2]}, [](const auto& v) { return v[0] * GeluSlope(v[1], false); })};
       }},
      {"reduce_sum",
       [](const Call& c) -> Results { return {Reduce(c.attributes, c.x[0], 0, std::plus<>())}; }},
      {"reduce_mean", [](const Call& c) -> Results { return {ReduceMean(c.attributes, c.x[0])}; }},
      {"reduce_max",
       [](const Call& c) -> Results {
         return {Reduce(c.attributes, c.x[0], -std::numeric_limits<double>::infinity(),
                        [](double a, double b) { return std::max(a, b); })};
       }},
      {"sum_squares",
       [](const Call& c) -> Results {
         Values y = Zeros({});
         for (double x : c.x[0].elements) y.elements[0] += x * x;
         return {y};
       }},
      {"sum_exp", SumExp},
      {"pick", Pick},
      {"softmax", [](const Call& c) -> Results { return {Softmax(c.attributes, c.x[0])}; }},
      {"softmax_grad",
       [](const Call& c) -> Results { return {SoftmaxGrad(c.attributes, c.x[0], c.x[1])}; }},
      {"layer_norm", LayerNorm},
      {"layer_norm_grad",
       [](const Call& c) -> Results {
         const Values dx = NormGrad(c.x[0], c.x[1], c.x[2], &c.x[3], c.x[4]);
         return {c.x.size() > 5 ? Sum(dx, c.x[5]) : dx};
       }},
      {"layer_norm_weight_grad",
       [](const Call& c) { return NormWeightGrad(c.x[0], c.x[1], &c.x[2], c.x[3]); }},
      {"rms_norm", RmsNorm},
      {"rms_norm_grad",
       [](const Call& c) -> Results {
         const Values dx = NormGrad(c.x[0], c.x[1], c.x[2], nullptr, c.x[3]);
         return {c.x.size() > 4 ? Sum(dx, c.x[4]) : dx};
       }},
      {"rms_norm_weight_grad",
       [](const Call& c) -> Results {
         return {NormWeightGrad(c.x[0], c.x[1], nullptr, c.x[2])[0]};
       }},
      {"rotary", [](const Call& c) -> Results { return {Rotary(c.attributes, c.x)}; }},
      {"embedding", [](const Call& c) -> Results { return {Embedding(c.x[0], c.x[1])}; }},
      {"embedding_grad",
       [](const Call& c) -> Results { return {EmbeddingGrad(c.attributes, c.x[0], c.x[1])}; }},
      {"attention",
       [](const Call& c) {
         return Attend(c.attributes, c.x[0], c.x[1], c.x[2], {0, c.x[1].shape[2]});
       }},
      {"attention_parts", [](const Call& c) { return AttendInParts(c.attributes, c.x); }},
      {"attention_grad", [](const Call& c) { return AttentionGrad(c.attributes, c.x); }},
      {"block_attention", [](const Call& c) { return BlockAttention(c.attributes, c.x); }},
      {"block_attention_grad", [](const Call& c) { return BlockAttentionGrad(c.attributes, c.x); }},
      {"qkv_attention", [](const Call& c) { return QkvAttention(c.attributes, c.x[0]); }},
      {"qkv_attention_grad",
       [](const Call& c) -> Results { return {QkvAttentionGrad(c.attributes, c.x)}; }},
      {"cached_attention", [](const Call& c) { return CachedAttention(c.x); }},
      {"cross_entropy", [](const Call& c) { return CrossEntropy(c.x[0], c.x[1]); }},
      {"cross_entropy_grad", [](const Call& c) -> Results { return {CrossEntropyGrad(c.x)}; }},
      {"top_k", [](const Call& c) { return TopK(c.attributes, c.x[0]); }},
      {"expert_slots", [](const Call& c) { return ExpertSlots(c.attributes, c.x[0]); }},
      {"dispatch", [](const Call& c) -> Results { return {Dispatch(c.attributes, c.x)}; }},
      {"combine", [](const Call& c) -> Results { return {Combine(c.x)}; }},
      {"combine_weight_grad", [](const Call& c) -> Results { return {CombineWeightGrad(c.x)}; }},
      {"conv2d", [](const Call& c) -> Results { return {Conv2d(c.attributes, c.x[0], c.x[1])}; }},
      {"conv2d_input_grad",
       [](const Call& c) -> Results { return {Conv2dInputGrad(c.attributes, c.x[0], c.x[1])}; }},
      {"conv2d_weight_grad",
       [](const Call& c) -> Results { return {Conv2dWeightGrad(c.attributes, c.x[0], c.x[1])}; }},
      {"max_pool2d", [](const Call& c) -> Results { return {MaxPool2d(c.attributes, c.x[0])}; }},
      {"max_pool2d_grad",
       [](const Call& c) -> Results { return {MaxPool2dGrad(c.attributes, c.x[0], c.x[1])}; }},
      {"avg_pool2d", [](const Call& c) -> Results { return {AvgPool2d(c.attributes, c.x[0])}; }},
      {"avg_pool2d_grad",
       [](const Call& c) -> Results { return {AvgPool2dGrad(c.attributes, c.x[0])}; }},
      {"batch_norm", [](const Call& c) { return BatchNorm(c.attributes, c.x); }},
      {"batch_norm_inference",
       [](const Call& c) -> Results { return {BatchNormInference(c.attributes, c.x)}; }},
      {"batch_norm_weight_grad",
       [](const Call& c) { return BatchNormWeightGrad(c.attributes, c.x); }},
      {"batch_norm_grad",
       [](const Call& c) -> Results { return {BatchNormGrad(c.attributes, c.x)}; }},
      {"channel_variance",
       [](const Call& c) -> Results { return {ChannelVariance(c.x[0], c.x[1])}; }},
      {"dropout", Dropout},
      {"adamw", [](const Call& c) { return Adamw(c.attributes, c.x); }},
      {"sgd", [](const Call& c) { return Sgd(c.attributes, c.x); }},
  };
  return *kTable;
}

}  // namespace

absl::StatusOr<std::vector<Values>> EvaluateReference(const std::string& op,
                                                      const Attributes& attributes,
                                                      const std::vector<Values>& operands,
                                                      bool is_integer,
                                                      const InterpretOptions& options) {
  const auto evaluate = Table().find(op);
  if (evaluate == Table().end()) {
    return absl::NotFoundError(StrCat(op, ": has no reference in tests/support/reference_ops.cc"));
  }
  return evaluate->second({attributes, operands, is_integer, options});
}

}  // namespace penstock::testing
