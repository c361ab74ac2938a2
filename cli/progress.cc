#include "cli/progress.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "fmt/format.h"

namespace penstock::cli {
namespace {

constexpr int kBarWidth = 24;
constexpr int64_t kPlainLines = 50;  // in a whole run
constexpr double kRedrawSeconds = 0.1;
// Between two plain lines of a text.
constexpr double kTextLineSeconds = 10;

// Draws a line over the one before, of `*shown` columns.
void Redraw(const std::string& text, std::ostream& err, size_t* shown) {
  err << '\r' << text << std::string(*shown > text.size() ? *shown - text.size() : 0, ' ')
      << std::flush;
  *shown = text.size();
}

void ClearLine(std::ostream& err, size_t* shown) {
  if (*shown == 0) return;
  err << '\r' << std::string(*shown, ' ') << '\r' << std::flush;
  *shown = 0;
}

std::string Figures(const ProgressState& state) {
  std::string text = fmt::format("loss {}", FormatLoss(state.loss));
  if (state.tokens_per_s > 0) text += fmt::format("  {} tokens/s", FormatCount(state.tokens_per_s));
  return text;
}

}  // namespace

std::string FormatLoss(double loss) {
  if (std::isnan(loss)) return "nan";
  if (loss != 0 && std::abs(loss) < 0.01) return fmt::format("{:.4g}", loss);
  return fmt::format("{:.4f}", loss);
}

std::string FormatDuration(double seconds) {
  const auto total = static_cast<int64_t>(std::llround(std::max(seconds, 0.0)));
  const int64_t hours = total / 3600;
  const int64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

std::string FormatCount(double count) {
  if (count >= 1e9) return fmt::format("{:.3g}G", count / 1e9);
  if (count >= 1e6) return fmt::format("{:.3g}M", count / 1e6);
  if (count >= 1e3) return fmt::format("{:.3g}k", count / 1e3);
  return fmt::format("{:.3g}", count);
}

std::string FormatParameters(int64_t count) {
  constexpr std::array<std::string_view, 5> kUnits = {"", "K", "M", "B", "T"};
  auto amount = static_cast<double>(count);
  size_t unit = 0;
  while (amount >= 999.5 && unit + 1 < kUnits.size()) {
    amount /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g}{} {}", amount, kUnits[unit], count == 1 ? "parameter" : "parameters");
}

std::string ProgressBar(const ProgressState& state, int width) {
  const double fraction =
      state.steps > 0 ? static_cast<double>(state.step) / static_cast<double>(state.steps) : 1.0;
  const int filled = static_cast<int>(fraction * width);
  const auto done = static_cast<double>(state.step - state.first);
  const double left_s =
      done > 0 ? state.elapsed_s * static_cast<double>(state.steps - state.step) / done : 0;
  return fmt::format("[{}{}] {}/{}  {}  ETA {}", std::string(filled, '#'),
                     std::string(width - filled, '.'), state.step, state.steps, Figures(state),
                     FormatDuration(left_s));
}

std::string ProgressLine(const ProgressState& state) {
  return fmt::format("step {}/{}  {}", state.step, state.steps, Figures(state));
}

void Progress::Update(ProgressState state) {
  state.first = first_;
  const bool is_last = state.step == state.steps;
  if (is_terminal_) {
    if (!is_last && state.elapsed_s - last_drawn_s_ < kRedrawSeconds) return;
    last_drawn_s_ = state.elapsed_s;
    Redraw(ProgressBar(state, kBarWidth), err_, &shown_);
    return;
  }
  const int64_t every = every_ > 0 ? every_ : std::max<int64_t>(1, state.steps / kPlainLines);
  if (state.step == first_ + 1 || is_last || state.step % every == 0) {
    err_ << ProgressLine(state) << std::endl;
  }
}

void Progress::Clear() { ClearLine(err_, &shown_); }

void TextProgress::Update(int64_t done, int64_t all, double tokens_per_s, double elapsed_s) {
  if (elapsed_s - last_s_ < (is_terminal_ ? kRedrawSeconds : kTextLineSeconds)) return;
  last_s_ = elapsed_s;
  const std::string text =
      fmt::format("{}/{} tokens  {} tokens/s", done, all, FormatCount(tokens_per_s));
  if (is_terminal_) {
    Redraw(text, err_, &shown_);
  } else {
    err_ << text << std::endl;
  }
}

void TextProgress::Clear() { ClearLine(err_, &shown_); }

void PartProgress::Update(int done, int all, std::string_view next) {
  if (is_terminal_) {
    const int filled = all > 0 ? kBarWidth * done / all : kBarWidth;
    Redraw(fmt::format("[{}{}] {}/{}  {}", std::string(filled, '#'),
                       std::string(kBarWidth - filled, '.'), done, all, next),
           err_, &shown_);
    return;
  }
  if (next == last_) return;
  last_ = std::string(next);
  err_ << done << "/" << all << "  " << next << std::endl;
}

void PartProgress::Clear() { ClearLine(err_, &shown_); }

}  // namespace penstock::cli
