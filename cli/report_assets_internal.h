// The style sheet and the script of the page, which the build takes from report_style.css and
// report_script.js.

#ifndef PENSTOCK_CLI_REPORT_ASSETS_INTERNAL_H_
#define PENSTOCK_CLI_REPORT_ASSETS_INTERNAL_H_

namespace penstock::cli {

extern const char kReportStyle[];
extern const char kReportScript[];

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_REPORT_ASSETS_INTERNAL_H_
