// How far a run has come, on standard error: one line that is drawn over on a terminal, a plain
// line now and then elsewhere.
//
// Thread rule: one thread.

#ifndef PENSTOCK_CLI_PROGRESS_H_
#define PENSTOCK_CLI_PROGRESS_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <string_view>

namespace penstock::cli {

struct ProgressState {
  int64_t step = 0;  // done
  int64_t steps = 0;
  double loss = 0;
  double tokens_per_s = 0;  // 0: not shown
  double elapsed_s = 0;
  int64_t first = 0;  // steps that were done before, in no time
};

// "[#####.....]  50/100  loss 2.345  12.3k tokens/s  ETA 1:05".
std::string ProgressBar(const ProgressState& state, int width);
// "step 50/100  loss 2.345  12.3k tokens/s".
std::string ProgressLine(const ProgressState& state);
// "2.3450"; four significant digits below 0.01, "nan" whatever its sign.
std::string FormatLoss(double loss);
// "1:05", "2:03:04".
std::string FormatDuration(double seconds);
// "950", "12.3k", "4.56M".
std::string FormatCount(double count);
// "117 parameters", "3.22M parameters", "175B parameters": with K, M, B (10^9) and T, as people
// count those of models.
std::string FormatParameters(int64_t count);

// How far a text has come that takes long to make: "1200/4096 tokens  350 tokens/s", drawn over on
// a terminal, elsewhere a line every ten seconds.
class TextProgress {
 public:
  TextProgress(std::ostream& err, bool is_terminal) : err_(err), is_terminal_(is_terminal) {}
  ~TextProgress() { Clear(); }

  void Update(int64_t done, int64_t all, double tokens_per_s, double elapsed_s);
  // Leaves the terminal's line empty, for other output.
  void Clear();

 private:
  std::ostream& err_;
  const bool is_terminal_;
  size_t shown_ = 0;   // columns drawn
  double last_s_ = 0;  // when something was drawn or printed
};

// How far something has come that consists of parts: "[####....] 5/24  kernels of moe", drawn over
// on a terminal; elsewhere a line for each part with another name.
class PartProgress {
 public:
  PartProgress(std::ostream& err, bool is_terminal) : err_(err), is_terminal_(is_terminal) {}
  ~PartProgress() { Clear(); }

  // `done` of `all` parts are, and `next` comes next.
  void Update(int done, int all, std::string_view next);
  // Leaves the terminal's line empty, for other output.
  void Clear();

 private:
  std::ostream& err_;
  const bool is_terminal_;
  size_t shown_ = 0;  // columns drawn
  std::string last_;  // name printed
};

class Progress {
 public:
  // `every`: steps between two plain lines; 0: so that a run prints about fifty. `first`: steps
  // that were done before.
  Progress(std::ostream& err, bool is_terminal, int64_t every = 0, int64_t first = 0)
      : err_(err), is_terminal_(is_terminal), every_(every), first_(first) {}
  ~Progress() { Clear(); }

  void Update(ProgressState state);
  // Leaves the terminal's line empty, for other output.
  void Clear();

 private:
  std::ostream& err_;
  bool is_terminal_;
  int64_t every_;
  int64_t first_;
  size_t shown_ = 0;          // columns drawn
  double last_drawn_s_ = -1;  // of the run
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PROGRESS_H_
