// The page of `penstock run --report`: one file of HTML that needs nothing else, for screens (light
// and dark), and for paper.
//
// Its size is bounded whatever was run: the parts that grow are cut (report_timeline.h,
// report_curves.h, report_collect.h and the constants below), and where that is not enough, because
// names are very long, the graph and the timeline are left out. The page says what it leaves out.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_REPORT_PAGE_H_
#define PENSTOCK_CLI_REPORT_PAGE_H_

#include <cstddef>
#include <string>

#include "cli/report.h"

namespace penstock::cli {

inline constexpr size_t kMaxReportBytes = 2'000'000;
inline constexpr size_t kMaxReportStages = 64;        // of more, the first ones
inline constexpr size_t kMaxReportDevices = 64;       // likewise
inline constexpr size_t kMaxReportCheckpoints = 100;  // the last ones
inline constexpr size_t kMaxReportBlockSteps = 800;   // of the plan's graph, in all
inline constexpr size_t kMaxReportText = 4000;        // bytes of a value, a warning or the sample

// Well-formed HTML and XML. Each number that `--json` gives too is in an attribute data-value, with
// the same digits, of an element whose attribute data-key is its name there.
std::string RenderReport(const Report& report);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_PAGE_H_
