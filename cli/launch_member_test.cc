#include "cli/launch_member.h"

#include <map>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

absl::StatusOr<std::optional<LaunchMember>> Detect(
    const std::map<std::string, std::string>& variables, bool is_on_terminal = true) {
  return DetectMember(
      [&](const char* name) {
        const auto it = variables.find(name);
        return it != variables.end() ? it->second : std::string();
      },
      is_on_terminal);
}

// "srun 1/4 at n1:20005, on hosts 2+2", "none", or the message of an error.
std::string Describe(const std::map<std::string, std::string>& variables) {
  const absl::StatusOr<std::optional<LaunchMember>> member = Detect(variables);
  if (!member.ok()) return std::string(ToStd(member.status().message()));
  if (!member->has_value()) return "none";
  const LaunchMember& found = **member;
  std::string hosts;
  for (const int64_t count : found.host_sizes) {
    StrAppend(&hosts, hosts.empty() ? ", on hosts " : "+", count);
  }
  return StrCat(found.starter, " ", found.rank, "/", found.size, " at ", found.host, ":",
                found.port, hosts);
}

TEST(LaunchMemberTest, DetectsWhatHasStartedTheProcess) {
  EXPECT_EQ(Describe({}), "none");
  EXPECT_EQ(Describe({{"RANK", "3"},
                      {"WORLD_SIZE", "8"},
                      {"MASTER_ADDR", "10.0.0.1"},
                      {"MASTER_PORT", "29500"},
                      {"LOCAL_WORLD_SIZE", "4"}}),
            "torchrun 3/8 at 10.0.0.1:29500, on hosts 4+4");
  EXPECT_EQ(Describe({{"OMPI_COMM_WORLD_RANK", "0"}, {"OMPI_COMM_WORLD_SIZE", "2"}}),
            "mpirun 0/2 at :0");
  EXPECT_EQ(Describe({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MASTER_ADDR", "a"}}),
            "mpirun 1/2 at a:0");
  EXPECT_EQ(Describe({{"JOB_COMPLETION_INDEX", "5"}, {"MASTER_ADDR", "job-0.job"}}),
            "Kubernetes 5/0 at job-0.job:0");
  std::map<std::string, std::string> pmix = {{"PMIX_RANK", "1"}, {"PMIX_NAMESPACE", "prterun-7"}};
  EXPECT_EQ(Describe(pmix), "a PMIx server 1/0 at :0");
  pmix["SLURM_JOB_ID"] = "3";  // a shell in an allocation
  EXPECT_EQ(Describe(pmix), "none");
}

// Others than torchrun set RANK, too, and no command has started a pod.
TEST(LaunchMemberTest, KnowsTheCommandThatTheUserHasCalled) {
  const auto command = [](const std::map<std::string, std::string>& variables) {
    return Detect(variables).value()->command;
  };
  std::map<std::string, std::string> variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(command(variables), "");
  variables["TORCHELASTIC_RUN_ID"] = "1";
  EXPECT_EQ(command(variables), "torchrun");
  EXPECT_EQ(command({{"PMI_RANK", "1"}, {"PMI_SIZE", "2"}}), "mpirun");
  EXPECT_EQ(command({{"JOB_COMPLETION_INDEX", "5"}}), "");
}

// Processes of other hosts keep their logs in folders of the same name.
TEST(LaunchMemberTest, AllProcessesHaveOneNameOfTheJob) {
  const auto job = [](const std::map<std::string, std::string>& variables) {
    return Detect(variables).value()->job;
  };
  std::map<std::string, std::string> variables = {{"RANK", "0"}, {"WORLD_SIZE", "2"}};
  EXPECT_EQ(job(variables), "");
  variables["MASTER_PORT"] = "29500";
  EXPECT_EQ(job(variables), "port-29500");
  variables["TORCHELASTIC_RUN_ID"] = "my/run";
  EXPECT_EQ(job(variables), "torchrun-my_run-29500");
}

// The static rendezvous of torchrun listens at MASTER_PORT with a store of its own.
TEST(LaunchMemberTest, AnAgentOfTorchrunKeepsItsPort) {
  std::map<std::string, std::string> variables = {{"RANK", "0"},
                                                  {"WORLD_SIZE", "2"},
                                                  {"MASTER_ADDR", "a"},
                                                  {"MASTER_PORT", "29500"},
                                                  {"TORCHELASTIC_USE_AGENT_STORE", "True"}};
  EXPECT_EQ(Describe(variables), "torchrun 0/2 at a:29501");
  variables["MASTER_PORT"] = "65535";
  EXPECT_EQ(Describe(variables), "torchrun 0/2 at a:65534");
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(Describe(variables), "torchrun 0/2 at a:65535");
}

TEST(LaunchMemberTest, AStepOfSlurmNamesItsHosts) {
  std::map<std::string, std::string> task = {
      {"SLURM_PROCID", "2"}, {"SLURM_STEP_NUM_TASKS", "4"},       {"SLURM_STEP_ID", "1"},
      {"SLURM_JOB_ID", "7"}, {"SLURM_STEP_NODELIST", "n[08-09]"}, {"MASTER_ADDR", "10.1.1.1"}};
  const auto hosts = [&] { return (**Detect(task)).hosts; };
  EXPECT_EQ(hosts(), (std::vector<std::string>{"n08", "n09"}));
  task["SLURM_DISTRIBUTION"] = "block,Pack";
  EXPECT_EQ(hosts().size(), 2u);
  // Ranks of a host are not neighbours.
  task["SLURM_DISTRIBUTION"] = "cyclic";
  EXPECT_TRUE(hosts().empty());
}

// A folder of logs has this name on all hosts.
TEST(LaunchMemberTest, AJobHasTheSameNameEverywhere) {
  const auto job_of = [](std::map<std::string, std::string> variables) {
    const absl::StatusOr<std::optional<LaunchMember>> member = Detect(variables);
    return member.ok() && member->has_value() ? (*member)->job : "none";
  };
  std::map<std::string, std::string> task = {{"SLURM_PROCID", "0"},
                                             {"SLURM_STEP_NUM_TASKS", "4"},
                                             {"SLURM_STEP_ID", "1"},
                                             {"SLURM_JOB_ID", "120004"},
                                             {"SLURM_STEP_NODELIST", "n[08-11]"}};
  EXPECT_EQ(job_of(task), "slurm-120004.1");
  task["SLURM_PROCID"] = "3";
  EXPECT_EQ(job_of(task), "slurm-120004.1");
  std::map<std::string, std::string> process = {{"OMPI_COMM_WORLD_RANK", "0"},
                                                {"OMPI_COMM_WORLD_SIZE", "2"}};
  EXPECT_EQ(job_of(process), "");
  process["PMIX_NAMESPACE"] = "prterun-a/../b@1";
  EXPECT_EQ(job_of(process), "mpi-prterun-a_.._b_1");
  EXPECT_EQ(job_of({{"RANK", "3"},
                    {"WORLD_SIZE", "8"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "none"}}),
            "torchrun-none-29500");
}

TEST(LaunchMemberTest, AStepOfSlurmTellsWhereRankZeroListens) {
  std::map<std::string, std::string> task = {{"SLURM_PROCID", "2"},
                                             {"SLURM_STEP_NUM_TASKS", "4"},
                                             {"SLURM_STEP_ID", "1"},
                                             {"SLURM_JOB_ID", "120004"},
                                             {"SLURM_STEP_NODELIST", "n[08-11]"}};
  EXPECT_EQ(Describe(task), "srun 2/4 at n08:26185");
  task["SLURM_STEP_TASKS_PER_NODE"] = "1(x4)";
  EXPECT_EQ(Describe(task), "srun 2/4 at n08:26185, on hosts 1+1+1+1");
  task["SLURM_STEP_TASKS_PER_NODE"] = "2,1(x2)";
  EXPECT_EQ(Describe(task), "srun 2/4 at n08:26185, on hosts 2+1+1");
  task["SLURM_STEP_TASKS_PER_NODE"] = "?";
  task["MASTER_ADDR"] = "10.1.1.1";
  task["MASTER_PORT"] = "1234";
  EXPECT_EQ(Describe(task), "srun 2/4 at 10.1.1.1:1234");
  // torchrun and mpirun run below srun.
  task["OMPI_COMM_WORLD_RANK"] = "1";
  task["OMPI_COMM_WORLD_SIZE"] = "2";
  EXPECT_EQ(Describe(task), "mpirun 1/2 at 10.1.1.1:1234");
  task["RANK"] = "7";
  task["WORLD_SIZE"] = "8";
  EXPECT_EQ(Describe(task), "torchrun 7/8 at 10.1.1.1:1234");
}

// Several may run at once on the host where their ranks 0 listen.
TEST(LaunchMemberTest, StepsNearEachOtherHaveDifferentPorts) {
  std::map<std::string, std::string> task = {
      {"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}, {"SLURM_STEP_NODELIST", "n1"}};
  std::map<int64_t, std::string> step_of_port;
  for (int job = 9980; job < 10020; ++job) {
    for (int step = 0; step < 100; ++step) {
      task["SLURM_JOB_ID"] = StrCat(job);
      task["SLURM_STEP_ID"] = StrCat(step);
      const absl::StatusOr<std::optional<LaunchMember>> member = Detect(task);
      ASSERT_TRUE(member.ok() && member->has_value());
      const int64_t port = (*member)->port;
      EXPECT_GE(port, 20'000);
      EXPECT_LT(port, 30'000);
      const auto [it, is_new] = step_of_port.emplace(port, StrCat(job, ".", step));
      EXPECT_TRUE(is_new) << it->second << " and " << job << "." << step << " have port " << port;
    }
  }
}

TEST(LaunchMemberTest, ScriptsAndShellsOfAnAllocationAreNoMembers) {
  EXPECT_EQ(Describe({{"SLURM_PROCID", "0"}, {"SLURM_JOB_ID", "1"}, {"SLURM_NTASKS", "4"}}),
            "none");
  EXPECT_EQ(Describe({{"SLURM_PROCID", "0"},
                      {"SLURM_STEP_NUM_TASKS", "1"},
                      {"SLURM_STEP_ID", "4294967291"},
                      {"SLURM_JOB_ID", "1"}}),
            "none");
  // srun --pty bash, with its terminal or told of it.
  std::map<std::string, std::string> shell = {{"SLURM_PROCID", "0"},
                                              {"SLURM_STEP_NUM_TASKS", "1"},
                                              {"SLURM_STEP_ID", "0"},
                                              {"SLURM_STEP_NODELIST", "n1"},
                                              {"SLURM_JOB_ID", "7"}};
  EXPECT_EQ(Describe(shell), "srun 0/1 at n1:20007");
  for (const char* name : {"SLURM_PTY_PORT", "SLURM_PTY_WIN_COL"}) {
    shell[name] = "80";
    EXPECT_EQ(Describe(shell), "none") << name;
    // A step that the shell has started inherits the variables, but not its terminal.
    EXPECT_TRUE(Detect(shell, /*is_on_terminal=*/false)->has_value()) << name;
    shell.erase(name);
  }
  // The first of several tasks, which has the terminal.
  shell["SLURM_PTY_WIN_COL"] = "80";
  shell["SLURM_STEP_NUM_TASKS"] = "2";
  EXPECT_EQ(Describe(shell), "srun 0/2 at n1:20007");
}

TEST(LaunchMemberTest, WrongVariablesAreNamed) {
  EXPECT_EQ(Describe({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
            "RANK = '2': expected a number of 0 to 1");
  EXPECT_EQ(Describe({{"RANK", "0"}, {"WORLD_SIZE", "many"}}),
            "WORLD_SIZE = 'many': expected a number of 1 to 65536");
  EXPECT_EQ(Describe({{"JOB_COMPLETION_INDEX", "0"}, {"MASTER_PORT", "80000"}}),
            "MASTER_PORT = '80000': expected a number of 1 to 65535");
  EXPECT_THAT(Describe({{"SLURM_PROCID", "0"},
                        {"SLURM_STEP_NUM_TASKS", "1"},
                        {"SLURM_STEP_ID", "0"},
                        {"SLURM_STEP_NODELIST", "n[1-"},
                        {"SLURM_JOB_ID", "1"}}),
              ::testing::HasSubstr("SLURM_STEP_NODELIST: "));
}

}  // namespace
}  // namespace penstock::cli
