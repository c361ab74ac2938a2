#include <sys/stat.h>

#include <fstream>
#include <sstream>
#include <string_view>

#include "base/cgroup_internal.h"
#include "base/strings.h"

namespace penstock {
namespace {

// Whether a list such as "rw,cpu,cpuacct" has the controller "cpu".
bool ListsCpu(const std::string& list) {
  std::istringstream words(list);
  std::string word;
  while (std::getline(words, word, ',')) {
    if (word == "cpu") return true;
  }
  return false;
}

// The groups of this process by version, "" where it is in none.
struct CpuGroups {
  std::string v1;
  std::string v2;
};

// Of lines "id:controllers:path"; v2 has no controllers.
CpuGroups ParseCgroup(const std::string& text) {
  CpuGroups groups;
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controllers.empty()) groups.v2 = line.substr(second + 1);
    if (ListsCpu(controllers)) groups.v1 = line.substr(second + 1);
  }
  return groups;
}

// `group` as seen from a mount that shows the tree from `top` on.
std::string PathBelow(const std::string& top, const std::string& group) {
  if (top == "/") return group;
  if (group.compare(0, top.size(), top) != 0) return "/";
  const std::string path = group.substr(top.size());
  return !path.empty() && path[0] == '/' ? path : "/";
}

// Cores' worth of time that a group itself allows; 0: no limit.
double LimitOf(const std::string& folder) {
  double quota = 0;
  double period = 0;
  // v2: "max 100000" where there is no limit, and the first word is no number.
  if (!(std::ifstream(folder + "/cpu.max") >> quota >> period)) {
    // v1: -1 where there is no limit.
    quota = 0;
    std::ifstream(folder + "/cpu.cfs_quota_us") >> quota;
    std::ifstream(folder + "/cpu.cfs_period_us") >> period;
  }
  return quota > 0 && period > 0 ? quota / period : 0;
}

}  // namespace

std::vector<CgroupPlace> FindCpuCgroups(const std::string& cgroup, const std::string& mountinfo) {
  const CpuGroups groups = ParseCgroup(cgroup);
  std::vector<CgroupPlace> places;
  std::istringstream lines(mountinfo);
  std::string line;
  while (std::getline(lines, line)) {
    // "31 23 0:28 TOP FOLDER options [optional fields] - TYPE source superoptions".
    constexpr std::string_view kSeparator = " - ";
    const size_t separator = line.find(kSeparator);
    if (separator == std::string::npos) continue;
    std::istringstream mount(line.substr(0, separator));
    std::istringstream filesystem(line.substr(separator + kSeparator.size()));
    std::string skipped;
    std::string top;
    std::string folder;
    std::string type;
    std::string options;
    if (!(mount >> skipped >> skipped >> skipped >> top >> folder)) continue;
    if (!(filesystem >> type >> skipped >> options)) continue;
    const bool is_v1 = type == "cgroup" && ListsCpu(options);
    if (!is_v1 && type != "cgroup2") continue;
    const std::string& group = is_v1 ? groups.v1 : groups.v2;
    if (!group.empty()) places.push_back({folder, PathBelow(top, group)});
  }
  return places;
}

std::vector<CoreQuota> QuotasOf(const CgroupPlace& place) {
  std::vector<CoreQuota> quotas;
  // "/a/b", "/a" and "".
  for (std::string path = place.path == "/" ? "" : place.path;; path.resize(path.rfind('/'))) {
    const std::string folder = place.root + path;
    struct stat status = {};
    if (const double limit = LimitOf(folder); limit > 0 && stat(folder.c_str(), &status) == 0) {
      quotas.push_back({StrCat(status.st_dev, ":", status.st_ino), limit});
    }
    if (path.rfind('/') == std::string::npos) return quotas;
  }
}

}  // namespace penstock
