#include "tests/support/reference_image_ops.h"

#include <cmath>
#include <optional>
#include <utility>

namespace penstock::testing {
namespace {

using graph::Attributes;

Values Zeros(Shape shape) {
  const int64_t count = NumElements(shape);
  return {std::move(shape), std::vector<double>(count)};
}

double& At(Values& x, int64_t a, int64_t b, int64_t c, int64_t d) {
  return x.elements[((a * x.shape[1] + b) * x.shape[2] + c) * x.shape[3] + d];
}
double At(const Values& x, int64_t a, int64_t b, int64_t c, int64_t d) {
  return At(const_cast<Values&>(x), a, b, c, d);
}

// What the attributes say, spelled out.
struct Window {
  Shape taps;
  Shape strides;
  Shape dilation = {1, 1};
  Shape padding = {0, 0, 0, 0};
  int64_t groups = 1;

  Window(const Attributes& attributes, Shape taps_given, Shape strides_given)
      : taps(std::move(taps_given)), strides(std::move(strides_given)) {
    if (attributes.Find("strides") != nullptr) strides = attributes.GetInts("strides");
    if (attributes.Find("dilation") != nullptr) dilation = attributes.GetInts("dilation");
    if (attributes.Find("padding") != nullptr) padding = attributes.GetInts("padding");
    if (padding.size() == 2) padding = {padding[0], padding[0], padding[1], padding[1]};
    groups = attributes.GetInt("groups", 1);
  }
  int64_t Results(int d, int64_t extent) const {
    int64_t count = 0;
    for (int64_t first = 0;
         first + dilation[d] * (taps[d] - 1) < extent + padding[2 * d] + padding[2 * d + 1];
         first += strides[d]) {
      ++count;
    }
    return count;
  }
  // The element that result `i` reads at a tap; none in the padding.
  std::optional<int64_t> Element(int d, int64_t i, int64_t tap, int64_t extent) const {
    const int64_t at = i * strides[d] + tap * dilation[d] - padding[2 * d];
    if (at < 0 || at >= extent) return std::nullopt;
    return at;
  }
};

// f(n, input channel, row, column, output channel, tap row, tap column, result row, result column)
// of all that meet in a convolution. The second index of weights counts within a group.
template <typename F>
void ForEachProduct(const Window& window, const Shape& x, const Shape& y, F f) {
  const int64_t c = x[1] / window.groups;
  const int64_t o = y[1] / window.groups;
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t out = 0; out < y[1]; ++out) {
      for (int64_t in = 0; in < c; ++in) {
        for (int64_t i = 0; i < y[2]; ++i) {
          for (int64_t j = 0; j < y[3]; ++j) {
            for (int64_t kh = 0; kh < window.taps[0]; ++kh) {
              for (int64_t kw = 0; kw < window.taps[1]; ++kw) {
                const auto row = window.Element(0, i, kh, x[2]);
                const auto column = window.Element(1, j, kw, x[3]);
                if (!row.has_value() || !column.has_value()) continue;
                f(n, out / o * c + in, *row, *column, out, in, kh, kw, i, j);
              }
            }
          }
        }
      }
    }
  }
}

Window PoolWindow(const Attributes& attributes, const Shape& plane) {
  const Shape taps = attributes.Find("window") == nullptr ? plane : attributes.GetInts("window");
  return Window(attributes, taps, taps);
}

Shape PoolShape(const Window& window, const Shape& x) {
  return {x[0], x[1], window.Results(0, x[2]), window.Results(1, x[3])};
}

// f(n, c, result row, result column, row, column) of all elements in all windows.
template <typename F>
void ForEachPooled(const Window& window, const Shape& x, F f) {
  const Shape y = PoolShape(window, x);
  for (int64_t n = 0; n < x[0]; ++n) {
    for (int64_t c = 0; c < x[1]; ++c) {
      for (int64_t i = 0; i < y[2]; ++i) {
        for (int64_t j = 0; j < y[3]; ++j) {
          for (int64_t kh = 0; kh < window.taps[0]; ++kh) {
            for (int64_t kw = 0; kw < window.taps[1]; ++kw) {
              const auto row = window.Element(0, i, kh, x[2]);
              const auto column = window.Element(1, j, kw, x[3]);
              if (row.has_value() && column.has_value()) f(n, c, i, j, *row, *column);
            }
          }
        }
      }
    }
  }
}

// The place of the largest element of each window.
Values Largest(const Window& window, const Values& x) {
  Values best = Zeros(PoolShape(window, x.shape));
  for (double& place : best.elements) place = -1;
  ForEachPooled(window, x.shape,
                [&](int64_t n, int64_t c, int64_t i, int64_t j, int64_t row, int64_t column) {
                  double& place = At(best, n, c, i, j);
                  const auto at = static_cast<double>(
                      &At(const_cast<Values&>(x), n, c, row, column) - x.elements.data());
                  if (place < 0 || x.elements[static_cast<size_t>(at)] >
                                       x.elements[static_cast<size_t>(place)]) {
                    place = at;
                  }
                });
  return best;
}

// The channel of each element of x[n, c, ...].
std::vector<size_t> ChannelsOf(const Values& x) {
  int64_t run = 1;
  for (size_t d = 2; d < x.shape.size(); ++d) run *= x.shape[d];
  std::vector<size_t> channels;
  for (int64_t i = 0; i < static_cast<int64_t>(x.elements.size()); ++i) {
    channels.push_back(static_cast<size_t>(i / run % x.shape[1]));
  }
  return channels;
}

double Rstd(const Attributes& attributes, double variance) {
  return 1 / std::sqrt(variance + attributes.GetDouble("epsilon", 1e-5));
}

}  // namespace

Values Conv2d(const Attributes& attributes, const Values& x, const Values& w) {
  const Window window(attributes, {w.shape[2], w.shape[3]}, {1, 1});
  Values y =
      Zeros({x.shape[0], w.shape[0], window.Results(0, x.shape[2]), window.Results(1, x.shape[3])});
  ForEachProduct(window, x.shape, y.shape,
                 [&](int64_t n, int64_t in, int64_t row, int64_t column, int64_t out, int64_t c,
                     int64_t kh, int64_t kw, int64_t i, int64_t j) {
                   At(y, n, out, i, j) += At(x, n, in, row, column) * At(w, out, c, kh, kw);
                 });
  return y;
}

Values Conv2dInputGrad(const Attributes& attributes, const Values& w, const Values& dy) {
  const Window window(attributes, {w.shape[2], w.shape[3]}, {1, 1});
  const Shape plane = attributes.GetInts("plane");
  Values dx = Zeros({dy.shape[0], w.shape[1] * window.groups, plane[0], plane[1]});
  ForEachProduct(window, dx.shape, dy.shape,
                 [&](int64_t n, int64_t in, int64_t row, int64_t column, int64_t out, int64_t c,
                     int64_t kh, int64_t kw, int64_t i, int64_t j) {
                   At(dx, n, in, row, column) += At(dy, n, out, i, j) * At(w, out, c, kh, kw);
                 });
  return dx;
}

Values Conv2dWeightGrad(const Attributes& attributes, const Values& x, const Values& dy) {
  const Shape kernel = attributes.GetInts("kernel");
  const Window window(attributes, kernel, {1, 1});
  Values dw = Zeros({dy.shape[1], x.shape[1] / window.groups, kernel[0], kernel[1]});
  ForEachProduct(window, x.shape, dy.shape,
                 [&](int64_t n, int64_t in, int64_t row, int64_t column, int64_t out, int64_t c,
                     int64_t kh, int64_t kw, int64_t i, int64_t j) {
                   At(dw, out, c, kh, kw) += At(x, n, in, row, column) * At(dy, n, out, i, j);
                 });
  return dw;
}

Values MaxPool2d(const Attributes& attributes, const Values& x) {
  Values y = Largest(PoolWindow(attributes, {x.shape[2], x.shape[3]}), x);
  for (double& element : y.elements) element = x.elements[static_cast<size_t>(element)];
  return y;
}

Values MaxPool2dGrad(const Attributes& attributes, const Values& x, const Values& dy) {
  const Values places = Largest(PoolWindow(attributes, {x.shape[2], x.shape[3]}), x);
  Values dx = Zeros(x.shape);
  for (size_t i = 0; i < dy.elements.size(); ++i) {
    dx.elements[static_cast<size_t>(places.elements[i])] += dy.elements[i];
  }
  return dx;
}

Values AvgPool2d(const Attributes& attributes, const Values& x) {
  const Window window = PoolWindow(attributes, {x.shape[2], x.shape[3]});
  Values y = Zeros(PoolShape(window, x.shape));
  const auto count = static_cast<double>(window.taps[0] * window.taps[1]);
  ForEachPooled(window, x.shape,
                [&](int64_t n, int64_t c, int64_t i, int64_t j, int64_t row, int64_t column) {
                  At(y, n, c, i, j) += At(x, n, c, row, column) / count;
                });
  return y;
}

Values AvgPool2dGrad(const Attributes& attributes, const Values& dy) {
  const Shape plane = attributes.GetInts("plane");
  const Window window = PoolWindow(attributes, plane);
  Values dx = Zeros({dy.shape[0], dy.shape[1], plane[0], plane[1]});
  const auto count = static_cast<double>(window.taps[0] * window.taps[1]);
  ForEachPooled(window, dx.shape,
                [&](int64_t n, int64_t c, int64_t i, int64_t j, int64_t row, int64_t column) {
                  At(dx, n, c, row, column) += At(dy, n, c, i, j) / count;
                });
  return dx;
}

std::vector<Values> BatchNorm(const Attributes& attributes, const std::vector<Values>& x) {
  const std::vector<size_t> channel = ChannelsOf(x[0]);
  const double count =
      static_cast<double>(x[0].elements.size()) / static_cast<double>(x[0].shape[1]);
  Values mean = Zeros({x[0].shape[1]});
  for (size_t i = 0; i < channel.size(); ++i) {
    mean.elements[channel[i]] += x[0].elements[i] / count;
  }
  const Values variance = ChannelVariance(x[0], mean);
  return {BatchNormInference(attributes, {x[0], x[1], x[2], mean, variance}), mean, variance};
}

Values BatchNormInference(const Attributes& attributes, const std::vector<Values>& x) {
  const std::vector<size_t> channel = ChannelsOf(x[0]);
  Values y = x[0];
  for (size_t i = 0; i < channel.size(); ++i) {
    const size_t c = channel[i];
    y.elements[i] = (x[0].elements[i] - x[3].elements[c]) * Rstd(attributes, x[4].elements[c]) *
                        x[1].elements[c] +
                    x[2].elements[c];
  }
  return y;
}

std::vector<Values> BatchNormWeightGrad(const Attributes& attributes,
                                        const std::vector<Values>& x) {
  const std::vector<size_t> channel = ChannelsOf(x[0]);
  Values dscale = Zeros({x[0].shape[1]});
  Values dbias = dscale;
  for (size_t i = 0; i < channel.size(); ++i) {
    const size_t c = channel[i];
    const double z = (x[1].elements[i] - x[2].elements[c]) * Rstd(attributes, x[3].elements[c]);
    dscale.elements[c] += x[0].elements[i] * z;
    dbias.elements[c] += x[0].elements[i];
  }
  return {dscale, dbias};
}

Values BatchNormGrad(const Attributes& attributes, const std::vector<Values>& x) {
  const std::vector<size_t> channel = ChannelsOf(x[0]);
  const double count =
      static_cast<double>(x[0].elements.size()) / static_cast<double>(x[0].shape[1]);
  Values dx = x[0];
  for (size_t i = 0; i < channel.size(); ++i) {
    const size_t c = channel[i];
    const double rstd = Rstd(attributes, x[4].elements[c]);
    const double z = (x[1].elements[i] - x[3].elements[c]) * rstd;
    dx.elements[i] = x[2].elements[c] * rstd *
                     (x[0].elements[i] - x[6].elements[c] / count - z * x[5].elements[c] / count);
  }
  return dx;
}

Values ChannelVariance(const Values& x, const Values& mean) {
  const std::vector<size_t> channel = ChannelsOf(x);
  const double count = static_cast<double>(x.elements.size()) / static_cast<double>(x.shape[1]);
  Values variance = Zeros({x.shape[1]});
  for (size_t i = 0; i < channel.size(); ++i) {
    const double deviation = x.elements[i] - mean.elements[channel[i]];
    variance.elements[channel[i]] += deviation * deviation / count;
  }
  return variance;
}

}  // namespace penstock::testing
