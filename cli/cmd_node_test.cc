// `penstock run --listen` and `penstock node` as a user types them: what both sides print, and what
// is said of wrong addresses, ranks, keys and interfaces.

#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/machine.h"
#include "base/strings.h"
#include "tests/support/command_line_fixture.h"
#include "tests/support/program.h"

namespace penstock::cli {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Program;

class CmdNodeTest : public testing::CommandLineFixture {
 protected:
  // A job of two devices in two processes that waits for nodes.
  std::unique_ptr<Program> Listen(const std::string& address, const char* steps = "3",
                                  const std::vector<std::string>& more = {}) const {
    std::vector<std::string> arguments = {
        PENSTOCK_COMMAND, "run",   Path("job.toml"), "--json",
        "--devices",      "2",     "--procs",        "2",
        "--listen",       address, "--set",          StrCat("train.steps=", steps)};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Program>(arguments);
  }

  // From the command that the coordinator prints.
  void ReadCommand(Program& run) {
    ASSERT_TRUE(run.AwaitLine("penstock node --join ")) << run.output();
    std::smatch match;
    ASSERT_TRUE(std::regex_search(
        run.output(), match, std::regex("penstock node --join (\\S+) --key-file (\\S+)( .*)?\n")))
        << run.output();
    address_ = match[1];
    key_file_ = match[2];
    std::ifstream(key_file_) >> key_;
    EXPECT_THAT(run.output(), Not(HasSubstr(key_)));
  }

  std::unique_ptr<Program> Join(std::vector<std::string> more = {}, const std::string& key = "") {
    std::vector<std::string> arguments = {PENSTOCK_COMMAND, "node", "--join", address_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return std::make_unique<Program>(arguments, std::vector<std::pair<std::string, std::string>>{
                                                    {"PENSTOCK_KEY", key.empty() ? key_ : key}});
  }

  // What a program prints that does not end well.
  static std::string Finish(const std::unique_ptr<Program>& program) {
    EXPECT_NE(program->AwaitEnd(), 0) << program->output();
    return program->output();
  }

  std::string address_;
  std::string key_file_;
  std::string key_;
};

TEST_F(CmdNodeTest, ThePrintedCommandIsCompleteAndBothSidesReportTheNode) {
  // Without a port: any.
  const auto run = Listen("127.0.0.1");
  ReadCommand(*run);
  EXPECT_THAT(address_, ::testing::MatchesRegex("127\\.0\\.0\\.1:[1-9][0-9]*"));
  const auto second = Join({"--rank", "1"});
  ASSERT_TRUE(second->AwaitOutput("\n")) << second->output();
  const auto first = Join();
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
  EXPECT_EQ(first->AwaitEnd(), 0) << first->output();
  EXPECT_EQ(second->AwaitEnd(), 0) << second->output();
  EXPECT_FALSE(std::filesystem::exists(key_file_));
  const std::string cores = UsableCores() == 1 ? "1 core" : StrCat(UsableCores(), " cores");
  for (int rank = 0; rank < 2; ++rank) {
    const std::string line = StrCat("rank ", rank, " on ", HostName(), ": device ", rank, ", ",
                                    cores, ", interface lo\n");
    EXPECT_THAT(run->output(), HasSubstr(StrCat("joined: ", line)));
    EXPECT_EQ((rank == 0 ? first : second)->output(),
              StrCat("joined as ", line, "the job is done\n"));
  }
}

TEST_F(CmdNodeTest, WildcardsArePrintedAsAnAddressToConnectTo) {
  const auto run = Listen("0.0.0.0:0");
  ReadCommand(*run);
  EXPECT_THAT(address_, Not(::testing::StartsWith("0.0.0.0")));
  const auto nodes = {Join(), Join()};
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
  for (const auto& node : nodes) EXPECT_EQ(node->AwaitEnd(), 0) << node->output();
}

TEST_F(CmdNodeTest, WithoutTlsNodesJoinOnLoopbackAlone) {
  const auto run = Listen("127.0.0.1:0", "3", {"--insecure"});
  ReadCommand(*run);
  EXPECT_THAT(run->output(), HasSubstr(" --insecure\n"));
  // One that speaks TLS is not understood.
  EXPECT_THAT(Finish(Join()), HasSubstr("the connection was closed before"));
  const auto nodes = {Join({"--insecure"}), Join({"--insecure"})};
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
  for (const auto& node : nodes) EXPECT_EQ(node->AwaitEnd(), 0) << node->output();

  const auto elsewhere = Listen("0.0.0.0:0", "3", {"--insecure"});
  EXPECT_EQ(elsewhere->AwaitEnd(), 2);
  EXPECT_THAT(elsewhere->output(), HasSubstr("--insecure sends the job's key and messages as they "
                                             "are, and goes with a loopback address alone"));
  address_ = "10.0.0.1:80";
  const auto node = Join({"--insecure"});
  EXPECT_EQ(node->AwaitEnd(), 2);
  EXPECT_THAT(node->output(), HasSubstr("--insecure sends"));
}

// The printed command has the kinds of the job's devices.
TEST_F(CmdNodeTest, NodesHaveDevicesOfTheKindsOfTheJob) {
  const auto run =
      Listen("127.0.0.1:0", "3", {"--set", "cluster.device_kind=[\"cpu\", \"emulated\"]"});
  ASSERT_TRUE(run->AwaitLine(" --device cpu:1,emulated:1")) << run->output();
  ReadCommand(*run);
  const auto nodes = {Join({"--device", "cpu:1,emulated:1"}), Join({"--device", "emulated"})};
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
  for (const auto& node : nodes) EXPECT_EQ(node->AwaitEnd(), 0) << node->output();
}

TEST_F(CmdNodeTest, WhatIsWrongWithANodeIsSaidInOurWords) {
  const auto run = Listen("127.0.0.1:0");
  ReadCommand(*run);
  const auto first = Join({"--rank", "0"});
  ASSERT_TRUE(first->AwaitOutput("joined as rank 0")) << first->output();

  const std::string readable = Path("readable.key");
  std::filesystem::copy_file(key_file_, readable);
  std::filesystem::permissions(readable, std::filesystem::perms(0644));

  // Root's, and a group may read it: any of these is one too many.
  const std::vector<std::pair<std::string, unsigned>> groups = {{"writable.key", 0460},
                                                                {"of_all.key", 0444}};
  for (const auto& [name, mode] : groups) {
    std::filesystem::copy_file(key_file_, Path(name));
    std::filesystem::permissions(Path(name), std::filesystem::perms(mode));
  }

  struct Case {
    std::vector<std::string> options;
    std::string key;
    std::string message;
  };
  const std::vector<Case> cases = {
      {{"--rank", "0"}, "", "rank 0 is taken by node 0 (pid "},
      {{"--rank", "0"}, "", "; ranks that are free: 1 (without --rank a node takes the first)"},
      {{"--rank", "9"}, "", "rank 9 is out of range: the job has ranks 0 to 1"},
      {{"--device", "tpu"}, "", "--device tpu: unknown kind of device \"tpu\"; expected \"cpu\", "},
      {{},
       std::string(64, 'a'),
       "the connection was closed before the coordinator answered: the key is not the one of this "
       "job (PENSTOCK_KEY or --key-file), or the server at 127.0.0.1:"},
      {{},
       "abc",
       "PENSTOCK_KEY: the job's key has 64 hexadecimal digits; what is given has 3 characters; "
       "`penstock run --listen` prints which file has it"},
      {{"--key-file", Path("none")}, "", StrCat("--key-file ", Path("none"), ": no such file")},
      {{"--key-file", Path("job.toml")},
       "",
       StrCat("--key-file ", Path("job.toml"), ": the job's key has 64 hexadecimal digits; ")},
      {{"--key-file", readable},
       "",
       StrCat("--key-file ", readable, ": others may read the job's key; chmod 600 ", readable)},
      {{"--key-file", Path("writable.key")}, "", "writable.key: others may read the job's key"},
      {{"--key-file", Path("of_all.key")}, "", "of_all.key: others may read the job's key"},
      {{"--interface", "eth77"},
       "",
       "network interface 'eth77': there is none of that name that "
       "is up; this host has "},
  };
  for (const Case& test : cases) {
    const auto node = Join(test.options, test.key);
    EXPECT_EQ(node->AwaitEnd(), 2) << node->output();
    EXPECT_THAT(node->output(), HasSubstr(test.message));
    EXPECT_THAT(node->output(), ContainsRegex("(^|\n)penstock: "));
    EXPECT_THAT(node->output(), Not(HasSubstr("prematurely")));
  }
  // And the job is not disturbed.
  const auto second = Join();
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
}

TEST_F(CmdNodeTest, SurvivorsOfALostNodeSayWhichItWas) {
  const auto run = Listen("127.0.0.1:0", "100000000");
  ReadCommand(*run);
  const auto lost = Join({"--rank", "0"});
  const auto survivor = Join({"--rank", "1"});
  ASSERT_TRUE(run->AwaitOutput("\"step\": 3")) << run->output();
  kill(lost->pid(), SIGKILL);
  const std::string cause = StrCat("node 0 \\(pid ", lost->pid(), " on ", HostName(),
                                   "\\) has closed its connection (in|after) step [0-9]+\n");
  EXPECT_EQ(run->AwaitEnd(), 1) << run->output();
  EXPECT_THAT(run->output(), ContainsRegex(StrCat("\npenstock: ", cause)));
  EXPECT_EQ(survivor->AwaitEnd(), 1) << survivor->output();
  EXPECT_THAT(survivor->output(),
              ContainsRegex(StrCat("\npenstock: the job has failed: ", cause, "$")));
}

// Neither an interrupt nor SIGKILL keeps the next job from listening at the same path.
TEST_F(CmdNodeTest, SocketFilesDoNotStayInTheWay) {
  const std::string address = StrCat("unix:", Path("socket"));
  for (const int signal : {SIGINT, SIGKILL}) {
    const auto run = Listen(address);
    ReadCommand(*run);
    EXPECT_TRUE(std::filesystem::exists(Path("socket")));
    // A job that is alive keeps its socket.
    EXPECT_THAT(Finish(Listen(address)), HasSubstr("Address already in use; choose a path where no "
                                                   "other job listens"));
    kill(run->pid(), signal);
    EXPECT_EQ(run->AwaitEnd(), 128 + signal) << run->output();
    EXPECT_EQ(std::filesystem::exists(Path("socket")), signal == SIGKILL);
  }
  const auto run = Listen(address);
  ReadCommand(*run);
  const auto nodes = {Join(), Join()};
  EXPECT_EQ(run->AwaitEnd(), 0) << run->output();
  for (const auto& node : nodes) EXPECT_EQ(node->AwaitEnd(), 0) << node->output();
  EXPECT_FALSE(std::filesystem::exists(Path("socket")));
}

TEST_F(CmdNodeTest, NodesOfAJobThatFailsSayWhy) {
  // The loss is not finite from the first step on.
  const auto run = Listen("127.0.0.1:0", "3",
                          {"--set", "train.learning_rate=1e30", "--set", "train.dtype=\"f32\""});
  ReadCommand(*run);
  const auto nodes = {Join(), Join()};
  EXPECT_EQ(run->AwaitEnd(), 1) << run->output();
  for (const auto& node : nodes) {
    EXPECT_EQ(node->AwaitEnd(), 1) << node->output();
    EXPECT_THAT(node->output(),
                ContainsRegex("\npenstock: the job has failed: the loss of step [0-9]+ is .*\n$"));
  }
}

TEST_F(CmdNodeTest, NodesOfAnInterruptedJobSaySo) {
  const auto run = Listen("127.0.0.1:0", "100000000");
  ReadCommand(*run);
  const auto nodes = {Join(), Join()};
  ASSERT_TRUE(run->AwaitOutput("\"step\": 3")) << run->output();
  kill(run->pid(), SIGINT);
  EXPECT_EQ(run->AwaitEnd(), 128 + SIGINT) << run->output();
  for (const auto& node : nodes) {
    EXPECT_EQ(node->AwaitEnd(), 1) << node->output();
    EXPECT_THAT(node->output(), HasSubstr("\npenstock: the job was ended: interrupted "));
  }
}

TEST_F(CmdNodeTest, WhatUcxRefusesIsExplained) {
  struct Case {
    std::vector<std::pair<std::string, std::string>> environment;
    const char* message;
  };
  const std::vector<Case> cases = {
      {{{"UCX_TLS", "foo"}},
       ": data plane: starting UCX on interface lo failed: the environment sets UCX_TLS=foo; "
       "correct or unset it (UCX: no usable "},
      {{{"UCX_TLS", "tcp,self"}, {"UCX_NET_DEVICES", "eth9"}},
       " cannot be reached over UCX_NET_DEVICES=eth9: the environment sets UCX_TLS=tcp,self and "
       "UCX_NET_DEVICES=eth9; correct or unset them (UCX: "},
  };
  for (const Case& test : cases) {
    Program run({PENSTOCK_COMMAND, "run", Path("job.toml"), "--devices", "2", "--procs", "2"},
                test.environment);
    EXPECT_EQ(run.AwaitEnd(), 1) << run.output();
    EXPECT_THAT(run.output(), HasSubstr(test.message));
    EXPECT_THAT(run.output(), Not(ContainsRegex("UCX +(WARN|ERROR)")));
  }
  Program run({"/bin/sh", "-c", "ulimit -n 30 && exec \"$0\" \"$@\"", PENSTOCK_COMMAND, "run",
               Path("job.toml"), "--devices", "4", "--procs", "2"});
  EXPECT_EQ(run.AwaitEnd(), 1) << run.output();
  EXPECT_THAT(run.output(), HasSubstr(" failed: a process here may open only 30 files; raise the "
                                      "limit with `ulimit -n 1024` (UCX: "));
  EXPECT_THAT(run.output(), Not(ContainsRegex("UCX +(WARN|ERROR)")));
}

// Once, as a note.
TEST_F(CmdNodeTest, WarningsOfUcxAreNotes) {
  Program run({PENSTOCK_COMMAND, "run", Path("job.toml"), "--devices", "2", "--procs", "2"},
              {{"UCX_FOO", "1"}});
  EXPECT_EQ(run.AwaitEnd(), 0) << run.output();
  EXPECT_THAT(run.output(), ContainsRegex("\\[[01] .*\\] note: data plane: UCX warns: .*UCX_FOO"));
  EXPECT_THAT(run.output(), Not(ContainsRegex("UCX +(WARN|ERROR)")));
}

TEST_F(CmdNodeTest, AddressesThatCannotBeUsedAreExplained) {
  const auto run = Listen("127.0.0.1:0");
  ReadCommand(*run);
  const auto taken = Listen(address_);
  EXPECT_EQ(taken->AwaitEnd(), 2);
  EXPECT_THAT(taken->output(),
              HasSubstr(StrCat("penstock: cannot listen at ", address_,
                               ": Address already in use; choose an address of this host and a "
                               "free port (port 0: any)")));
  EXPECT_THAT(taken->output(), Not(HasSubstr("sockfd")));
  const auto foreign = Listen("192.0.2.1:0");
  EXPECT_EQ(foreign->AwaitEnd(), 2);
  EXPECT_THAT(foreign->output(), HasSubstr("cannot listen at 192.0.2.1:0: Cannot assign requested "
                                           "address"));
  EXPECT_THAT(
      Finish(Listen("80")),
      HasSubstr("penstock: --listen \"80\": the host is missing; expected HOST:PORT, such as "
                "127.0.0.1:80"));
  EXPECT_THAT(Finish(Listen(StrCat("unix:", Path("none/s")))),
              HasSubstr("No such file or directory; choose a path where no other job listens, in a "
                        "folder that exists and can be written"));
  key_ = std::string(64, 'a');
  address_ = "127.0.0.1";
  const auto without_port = Join();
  EXPECT_EQ(without_port->AwaitEnd(), 2);
  EXPECT_THAT(without_port->output(),
              HasSubstr("penstock: --join \"127.0.0.1\": the port is missing; expected HOST:PORT; "
                        "use the address that `penstock run --listen` prints"));
  // Before the key is looked at.
  key_ = "abc";
  EXPECT_THAT(Finish(Join()), HasSubstr("penstock: --join \"127.0.0.1\": the port is missing"));
  key_ = std::string(64, 'a');
  address_ = "127.0.0.1:1";
  const auto nobody = Join();
  EXPECT_EQ(nobody->AwaitEnd(), 1);
  EXPECT_THAT(nobody->output(),
              HasSubstr("no coordinator answers (Connection refused): rank 0, "
                        "`penstock launch` or `penstock run --listen` has to run"));
  EXPECT_THAT(nobody->output(), Not(HasSubstr("sockfd")));
  // What listens there says nothing.
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in here = {};
  here.sin_family = AF_INET;
  here.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(here);
  auto* const generic = reinterpret_cast<sockaddr*>(&here);
  ASSERT_EQ(bind(silent, generic, size), 0);
  ASSERT_EQ(listen(silent, 1), 0);
  ASSERT_EQ(getsockname(silent, generic, &size), 0);
  address_ = StrCat("127.0.0.1:", ntohs(here.sin_port));
  EXPECT_THAT(
      Finish(Join()),
      HasSubstr("the server at this address did not answer as a coordinator; use the address that "
                "`penstock run --listen` prints, and check that the job still runs"));
  close(silent);
}

}  // namespace
}  // namespace penstock::cli
