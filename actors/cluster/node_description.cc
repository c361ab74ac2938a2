#include "actors/cluster/node_description.h"

#include "base/counted.h"
#include "base/strings.h"

namespace penstock::actors {

std::string ToString(const NodeDescription& node) {
  std::string text = StrCat("rank ", node.rank, " on ", ShownHost(node), ": ");
  if (node.num_devices == 1) {
    StrAppend(&text, "device ", node.first_device, ", ");
  } else if (node.num_devices > 1) {
    StrAppend(&text, "devices ", node.first_device, " to ",
              node.first_device + node.num_devices - 1, ", ");
  }
  StrAppend(&text, Counted(CountCores({node.cores}), "core"));
  if (!node.interface.empty()) StrAppend(&text, ", interface ", node.interface);
  return text;
}

std::string NameOf(const NodeDescription& node) {
  std::string name = StrCat("node ", node.rank);
  const std::string pid = node.pid > 0 ? StrCat("pid ", node.pid) : "";
  const std::string host = ShownHost(node).empty() ? "" : StrCat("on ", ShownHost(node));
  if (pid.empty() && host.empty()) return name;
  return StrCat(name, " (", pid, pid.empty() || host.empty() ? "" : " ", host, ")");
}

}  // namespace penstock::actors
