#include "cli/progress.h"

#include <limits>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

TEST(ProgressTest, FormatsDurationsAndCounts) {
  EXPECT_EQ(FormatDuration(5), "0:05");
  EXPECT_EQ(FormatDuration(65), "1:05");
  EXPECT_EQ(FormatDuration(7384), "2:03:04");
  EXPECT_EQ(FormatCount(950), "950");
  EXPECT_EQ(FormatCount(12345), "12.3k");
  EXPECT_EQ(FormatCount(4.56e6), "4.56M");
}

TEST(ProgressTest, ParametersHaveTheUnitsOfModels) {
  EXPECT_EQ(FormatParameters(1), "1 parameter");
  EXPECT_EQ(FormatParameters(117), "117 parameters");
  EXPECT_EQ(FormatParameters(12'300), "12.3K parameters");
  EXPECT_EQ(FormatParameters(3'217'000), "3.22M parameters");
  EXPECT_EQ(FormatParameters(124'439'808), "124M parameters");
  EXPECT_EQ(FormatParameters(174'591'683'584), "175B parameters");
  EXPECT_EQ(FormatParameters(999'600'000'000), "1T parameters");
}

TEST(ProgressTest, SmallLossesKeepTheirDigitsAndNanHasNoSign) {
  EXPECT_EQ(FormatLoss(2.5), "2.5000");
  EXPECT_EQ(FormatLoss(0), "0.0000");
  EXPECT_EQ(FormatLoss(0.01), "0.0100");
  EXPECT_EQ(FormatLoss(0.00123456), "0.001235");
  EXPECT_EQ(FormatLoss(-3.21987e-9), "-3.22e-09");
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(FormatLoss(nan), "nan");
  EXPECT_EQ(FormatLoss(-nan), "nan");
  EXPECT_EQ(ProgressLine({.step = 1, .steps = 2, .loss = -nan}), "step 1/2  loss nan");
}

TEST(ProgressTest, TheBarTellsTheRest) {
  const ProgressState state = {
      .step = 5, .steps = 10, .loss = 2.5, .tokens_per_s = 1000, .elapsed_s = 60};
  EXPECT_EQ(ProgressBar(state, 10), "[#####.....] 5/10  loss 2.5000  1k tokens/s  ETA 1:00");
  EXPECT_EQ(ProgressLine(state), "step 5/10  loss 2.5000  1k tokens/s");
}

TEST(ProgressTest, APipeGetsFewPlainLines) {
  std::ostringstream err;
  {
    Progress progress(err, false);
    for (int64_t step = 1; step <= 1000; ++step) {
      progress.Update({.step = step, .steps = 1000, .loss = 1, .tokens_per_s = 0, .elapsed_s = 0});
    }
  }
  int lines = 0;
  for (const char c : err.str()) {
    if (c == '\n') ++lines;
    EXPECT_NE(c, '\r');
  }
  EXPECT_EQ(lines, 51);
}

TEST(ProgressTest, ATerminalIsLeftClean) {
  std::ostringstream err;
  {
    Progress progress(err, true);
    progress.Update({.step = 1, .steps = 2, .loss = 1, .tokens_per_s = 0, .elapsed_s = 1});
  }
  const std::string text = err.str();
  EXPECT_EQ(text.front(), '\r');
  EXPECT_EQ(text.back(), '\r');
}

TEST(TextProgressTest, APipeGetsALineEveryTenSeconds) {
  std::ostringstream err;
  {
    TextProgress progress(err, false);
    progress.Update(1, 4096, 300, 9);
    EXPECT_EQ(err.str(), "");
    progress.Update(1200, 4096, 350, 10);
    progress.Update(1900, 4096, 350, 19);
    progress.Update(2400, 4096, 1500, 20.5);
  }
  EXPECT_EQ(err.str(), "1200/4096 tokens  350 tokens/s\n2400/4096 tokens  1.5k tokens/s\n");
}

TEST(PartProgressTest, APipeGetsALineForEachName) {
  std::ostringstream err;
  {
    PartProgress progress(err, false);
    progress.Update(0, 4, "products");
    progress.Update(1, 4, "kernels of gpt");
    progress.Update(2, 4, "kernels of gpt");
    progress.Update(3, 4, "kernels of moe");
  }
  EXPECT_EQ(err.str(), "0/4  products\n1/4  kernels of gpt\n3/4  kernels of moe\n");
}

TEST(PartProgressTest, ATerminalsLineIsDrawnOverAndCleared) {
  std::ostringstream err;
  {
    PartProgress progress(err, true);
    progress.Update(1, 4, "kernels");
    progress.Update(2, 4, "a");
    EXPECT_EQ(err.str(),
              "\r[######..................] 1/4  kernels\r[############............] 2/4  a      ");
  }
  EXPECT_EQ(err.str().back(), '\r');
}

TEST(TextProgressTest, ATerminalsLineIsDrawnOverAndCleared) {
  std::ostringstream err;
  TextProgress progress(err, true);
  progress.Update(10, 20, 1500, 1);
  progress.Update(11, 20, 1500, 1.05);
  progress.Update(12, 20, 9, 1.2);
  EXPECT_EQ(err.str(), "\r10/20 tokens  1.5k tokens/s\r12/20 tokens  9 tokens/s   ");
  const std::string drawn = err.str();
  progress.Clear();
  progress.Clear();
  EXPECT_EQ(err.str(), drawn + "\r" + std::string(24, ' ') + "\r");
}

}  // namespace
}  // namespace penstock::cli
