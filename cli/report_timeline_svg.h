// The drawing of a step's timeline for a page (report_page.h).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_CLI_REPORT_TIMELINE_SVG_H_
#define PENSTOCK_CLI_REPORT_TIMELINE_SVG_H_

#include <string>

#include "cli/report.h"

namespace penstock::cli {

// Labels, and a drawing that fits any width: the critical path, then for each device its phases
// with the path marked on them, room for its kernels, and its communication. The script of the page
// zooms into it and draws the kernels, which follow as JSON.
std::string TimelineHtml(const ReportTimeline& timeline);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_TIMELINE_SVG_H_
