// Where a node is started, and through which program.
//
// Thread rule: a value.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_PLACE_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_PLACE_H_

#include <string>
#include <vector>

namespace penstock::actors {

// Where a node runs, and how it is started there.
struct NodePlace {
  std::string host;  // for messages, until the node has joined; empty: not known
  // Whether that is the host's name; otherwise it only tells the host from others.
  bool is_host_named = true;
  // Somebody else starts the node, which joins by itself. The rest does not matter then.
  bool is_awaited = false;
  // Runs the node's command there: a program on this host and its arguments, such as
  // {"ssh", "-T", "host"}; the command is added. Empty: a process of this host. A program without
  // a path is looked for in the PATH of the host that runs it.
  //
  // It passes on its standard input, from which the job's key is read, and what is printed there. A
  // single node through a shell: it ends with its status, or 128 + the signal that has ended it.
  std::vector<std::string> through;
  // Whether the program hands its arguments to a shell as one text, as ssh does.
  bool joins_arguments = false;
  // A file there that the node reads the job's key from, in place of its standard input; empty:
  // none. For programs that pass the standard input on without encryption.
  std::string key_file;
  // Where nodes there join: the coordinator's address in the host's network. Empty: the one that
  // the coordinator has listened at.
  std::string coordinator_host;
};

// For a POSIX shell: one word that stands for `text`.
std::string QuoteForShell(const std::string& text);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_PLACE_H_
