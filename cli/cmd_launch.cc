// penstock launch: `penstock run` with its processes on the hosts of a cluster.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "cli/coordinator_host.h"
#include "cli/environment.h"
#include "cli/files.h"
#include "cli/help_text.h"
#include "cli/interrupts.h"
#include "cli/job_key_option.h"
#include "cli/launch_hosts.h"
#include "cli/launch_member.h"
#include "cli/member_run.h"
#include "cli/munge_text.h"
#include "cli/node_log.h"
#include "cli/option_checks.h"

#include "actors/cluster/network_interface.h"
#include "actors/cluster/socket_address.h"
#include "actors/cluster/starter_watch.h"
#include "base/counted.h"
#include "base/find_program.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr size_t kMaxHostFileBytes = size_t{16} << 20;

struct LaunchOptions {
  std::string hosts;
  std::string host_file;
  std::string launcher = "auto";
  std::string through;         // the program that starts processes, with options of its own
  std::string remote_program;  // on the hosts
  uint32_t fanout = 0;         // agents that one process starts; 0: this one starts all
  uint32_t max_starts = 0;     // hosts that are starting at a time; 0: as ClusterOptions has it
  std::string listen;
  std::string probe = "auto";
  std::string timeout;
  std::string log_folder;  // empty: DefaultLogFolder
  MemberOptions member;
  std::vector<std::string> run;  // the arguments of `run`
};

absl::Status AtVariable(const char* name, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(name, ": ", ToStd(status.message())));
}

// Inside an allocation: its nodes, with as many slots as it has tasks there.
absl::StatusOr<std::vector<HostSlots>> HostsOfSlurm() {
  if (EnvironmentVariable("SLURM_JOB_NODELIST").empty()) {
    return absl::FailedPreconditionError(
        "--launcher slurm: this is no allocation of Slurm (SLURM_JOB_NODELIST); start it with "
        "salloc or sbatch, or add -H");
  }
  const absl::StatusOr<std::vector<std::string>> names =
      ExpandNodeList(EnvironmentVariable("SLURM_JOB_NODELIST"));
  RETURN_IF_ERROR(AtVariable("SLURM_JOB_NODELIST", names.status()));
  std::vector<int64_t> tasks(names->size(), 1);
  if (const std::string text = EnvironmentVariable("SLURM_TASKS_PER_NODE"); !text.empty()) {
    const absl::StatusOr<std::vector<int64_t>> parsed = ParseTasksPerNode(text);
    RETURN_IF_ERROR(AtVariable("SLURM_TASKS_PER_NODE", parsed.status()));
    // Inside a step, such as a shell of `srun --pty`, it says what the step has.
    if (parsed->size() == names->size()) {
      tasks = *parsed;
    } else if (EnvironmentVariable("SLURM_STEP_ID").empty()) {
      return absl::InvalidArgumentError(StrCat("SLURM_TASKS_PER_NODE says tasks of ",
                                               Counted(parsed->size(), "node"),
                                               ", SLURM_JOB_NODELIST names ", names->size()));
    }
  }
  std::vector<HostSlots> hosts;
  for (size_t i = 0; i < names->size(); ++i) hosts.push_back({(*names)[i], tasks[i]});
  return hosts;
}

// srun refuses hosts that are not of the allocation, but not before the job is planned.
absl::Status CheckAreAllocated(const std::vector<HostSlots>& hosts) {
  const std::string nodes = EnvironmentVariable("SLURM_JOB_NODELIST");
  if (nodes.empty()) return absl::OkStatus();
  const absl::StatusOr<std::vector<std::string>> allocated = ExpandNodeList(nodes);
  RETURN_IF_ERROR(AtVariable("SLURM_JOB_NODELIST", allocated.status()));
  for (const HostSlots& host : hosts) {
    if (std::find(allocated->begin(), allocated->end(), host.host) != allocated->end()) continue;
    return absl::InvalidArgumentError(
        StrCat("host ", host.host, " is not in Slurm's allocation (", nodes, ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<HostSlots>> FindHosts(const LaunchOptions& options,
                                                 const std::string& launcher) {
  if (!options.hosts.empty() && !options.host_file.empty()) {
    return absl::InvalidArgumentError("-H and --hostfile exclude each other");
  }
  if (launcher == "local" && !(options.hosts.empty() && options.host_file.empty())) {
    return absl::InvalidArgumentError(
        "--launcher local starts processes on this host alone; leave out -H and --hostfile");
  }
  if (!options.host_file.empty()) {
    ASSIGN_OR_RETURN(const std::string text, ReadTextFile(options.host_file, kMaxHostFileBytes));
    return ParseHostFile(options.host_file, text);
  }
  if (!options.hosts.empty()) {
    absl::StatusOr<std::vector<HostSlots>> hosts = ParseHosts(options.hosts);
    if (hosts.ok()) return hosts;
    return absl::InvalidArgumentError(StrCat("-H ", ToStd(hosts.status().message())));
  }
  if (launcher == "slurm") return HostsOfSlurm();
  if (launcher == "local") return std::vector<HostSlots>();
  return absl::InvalidArgumentError(StrCat("--launcher ", launcher, " needs -H or --hostfile"));
}

bool HasHosts(const LaunchOptions& options) {
  return !options.hosts.empty() || !options.host_file.empty();
}

// LaunchOptions that were given and say how this process starts others on hosts.
std::vector<std::string_view> OptionsOfHosts(const LaunchOptions& options) {
  std::vector<std::string_view> given;
  if (!options.hosts.empty()) given.push_back("-H");
  if (!options.host_file.empty()) given.push_back("--hostfile");
  if (!options.through.empty()) given.push_back("--through");
  if (!options.remote_program.empty()) given.push_back("--remote-program");
  if (options.fanout > 0) given.push_back("--fanout");
  if (options.max_starts > 0) given.push_back("--starts");
  return given;
}

// Refuses options that have a member start processes: each of the other members would start as
// many.
absl::Status CheckIsMember(const LaunchOptions& options, const LaunchMember& member) {
  const std::vector<std::string_view> given = OptionsOfHosts(options);
  if (given.empty()) return absl::OkStatus();
  const std::string who =
      member.starter.empty()
          ? std::string("--rendezvous is for processes that something else has started")
          : StrCat("the variables of ", member.starter,
                   " say that it has started this process as "
                   "rank ",
                   member.rank, member.size > 0 ? StrCat(" of ", member.size) : std::string());
  return absl::InvalidArgumentError(StrCat(
      StrJoin(given, ", "), given.size() == 1 ? " is" : " are",
      " for a process that starts the others, but ", who, "; leave out ",
      given.size() == 1 ? "this option" : "these options",
      " to join the others, or add --launcher ssh, slurm or mpi to start a job on hosts all the "
      "same"));
}

// "member" goes with `*member`.
absl::StatusOr<std::string> ChooseLauncher(const Environment& environment,
                                           const LaunchOptions& options,
                                           std::optional<LaunchMember>* member) {
  if (options.launcher == "auto" || options.launcher == "member") {
    ASSIGN_OR_RETURN(*member, DetectMember(EnvironmentVariable, isatty(STDIN_FILENO) != 0));
    if (!member->has_value() && !options.member.rendezvous.empty()) {
      LaunchMember unranked;
      unranked.rank = -1;
      *member = std::move(unranked);
    }
    if (member->has_value()) {
      // A process alone has nobody to join.
      const bool is_alone = options.launcher == "auto" && (*member)->size == 1 &&
                            options.member.rendezvous.empty() && options.member.size <= 1;
      if (!is_alone || !HasHosts(options)) return std::string("member");
      environment.err << "note: the hosts of " << (options.hosts.empty() ? "--hostfile" : "-H")
                      << " count, not the variables of " << (*member)->starter
                      << ", which has started this process alone" << std::endl;
      member->reset();
    }
  }
  if (options.launcher == "k8s") {
    // What else may have started a process in the pod does not count.
    ASSIGN_OR_RETURN(*member, DetectMember(
                                  [](const char* name) {
                                    const bool is_for_pods =
                                        std::string_view(name) == "JOB_COMPLETION_INDEX" ||
                                        std::string_view(name) == "MASTER_ADDR" ||
                                        std::string_view(name) == "MASTER_PORT";
                                    return is_for_pods ? EnvironmentVariable(name) : std::string();
                                  },
                                  /*is_on_terminal=*/false));
    if (member->has_value()) return std::string("member");
    return absl::FailedPreconditionError(
        "--launcher k8s: JOB_COMPLETION_INDEX is not set; expected a pod of a Kubernetes job with "
        "completionMode: Indexed");
  }
  if (options.launcher == "member") {
    return absl::FailedPreconditionError(
        "--launcher member: nothing has started this process as one of several; expected the "
        "variables of srun, mpirun, torchrun (RANK, WORLD_SIZE) or a Kubernetes job "
        "(JOB_COMPLETION_INDEX)");
  }
  if (options.launcher != "auto") return options.launcher;
  if (!EnvironmentVariable("SLURM_JOB_NODELIST").empty()) return std::string("slurm");
  return std::string(HasHosts(options) ? "ssh" : "local");
}

// srun and mpirun take names of hosts alone.
absl::Status CheckUsers(const std::string& launcher, const std::vector<HostSlots>& hosts) {
  if (launcher == "ssh") return absl::OkStatus();
  for (const HostSlots& host : hosts) {
    const size_t at = host.host.find('@');
    if (at == std::string::npos) continue;
    return absl::InvalidArgumentError(
        StrCat("'", host.host, "': ", launcher == "slurm" ? "srun" : "mpirun",
               " starts processes as the user who calls it; expected '", host.host.substr(at + 1),
               "' without a user, or --launcher ssh"));
  }
  return absl::OkStatus();
}

// Whether the options of srun, given by the user, say how processes are bound to cores.
bool HasCoreBinding(const std::vector<std::string>& program) {
  return std::any_of(program.begin(), program.end(), [](std::string_view word) {
    return word.starts_with("--cpu-bind") || word.starts_with("--cpu_bind");
  });
}

// The program and arguments before the command of a node on `host`.
std::vector<std::string> Through(const std::string& launcher, std::vector<std::string> program,
                                 const std::string& host) {
  if (launcher == "ssh") {
    program.insert(program.end(),
                   {"-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20", "--", host});
  } else if (launcher == "slurm") {
    if (!HasCoreBinding(program)) program.emplace_back("--cpu-bind=quiet,none");
    program.insert(program.end(),
                   {"--nodes=1", "--ntasks=1", "--overlap", StrCat("--nodelist=", host)});
  } else {
    program.insert(program.end(), {"-np", "1", "--bind-to", "none", "--host", host});
  }
  return program;
}

// The program that starts processes, with the options that the user has given it.
std::vector<std::string> ProgramOf(const LaunchOptions& options, const std::string& launcher) {
  const std::string standard = launcher == "ssh" ? "ssh" : launcher == "slurm" ? "srun" : "mpirun";
  return CLI::detail::split_up(options.through.empty() ? standard : options.through);
}

absl::StatusOr<std::vector<actors::NodePlace>> PlacesOf(const Environment& environment,
                                                        const LaunchOptions& options,
                                                        const std::string& launcher,
                                                        const std::vector<HostSlots>& hosts) {
  std::vector<std::string> program = ProgramOf(options, launcher);
  if (program.empty()) return absl::InvalidArgumentError("--through is empty");
  // A name stays one: with --fanout, other hosts look for it, too.
  RETURN_IF_ERROR(FindProgram(program[0]).status());
  if (program[0].find('/') != std::string::npos) {
    program[0] = std::filesystem::absolute(program[0]).string();
  }
  std::vector<std::string> addresses;
  if (options.listen.empty()) {
    std::vector<std::string> names;
    for (const HostSlots& host : hosts) names.push_back(host.host);
    addresses = CoordinatorHosts(environment.err, program, names,
                                 absl::Seconds(options.member.join_timeout_s));
  }
  std::vector<actors::NodePlace> places;
  for (size_t i = 0; i < hosts.size(); ++i) {
    actors::NodePlace place;
    place.host = hosts[i].host;
    place.through = Through(launcher, program, place.host);
    place.joins_arguments = launcher == "ssh";
    if (!addresses.empty()) place.coordinator_host = addresses[i];
    places.insert(places.end(), static_cast<size_t>(hosts[i].slots), place);
  }
  return places;
}

// The address to listen at: that of the one network that joins all hosts, or every address.
std::string ListenAddress(const std::vector<actors::NodePlace>& places) {
  std::set<std::string> addresses;
  for (const actors::NodePlace& place : places) addresses.insert(place.coordinator_host);
  if (addresses.size() == 1) return actors::JoinAddress(*addresses.begin(), 0);
  const bool has_ipv6 = std::any_of(
      addresses.begin(), addresses.end(),
      [](const std::string& address) { return address.find(':') != std::string::npos; });
  return actors::JoinAddress(has_ipv6 ? "::" : "0.0.0.0", 0);
}

// Takes an option and its values, which follow it or a "=", out of the arguments of `run`.
absl::StatusOr<std::vector<std::string>> TakeOption(std::string_view option,
                                                    std::vector<std::string>* arguments) {
  std::vector<std::string> found;
  std::vector<std::string> others;
  for (size_t i = 0; i < arguments->size(); ++i) {
    const std::string& argument = (*arguments)[i];
    if (argument == option) {
      if (i + 1 == arguments->size()) {
        return absl::InvalidArgumentError(StrCat("launch: ", option, " needs a value"));
      }
      found.push_back((*arguments)[++i]);
    } else if (argument.substr(0, option.size() + 1) == StrCat(option, "=")) {
      found.push_back(argument.substr(option.size() + 1));
    } else {
      others.push_back(argument);
    }
  }
  *arguments = std::move(others);
  return found;
}

// Sets --procs of `run`, which may have been given all the same.
absl::Status SetProcesses(int64_t count, std::vector<std::string>* arguments) {
  ASSIGN_OR_RETURN(const std::vector<std::string> given, TakeOption("--procs", arguments));
  for (const std::string& text : given) {
    if (text == StrCat(count)) continue;
    return absl::InvalidArgumentError(StrCat("--procs ", text, ": this job has ",
                                             Counted(count, "process", "es"),
                                             ", one for each slot or member; leave out --procs"));
  }
  arguments->insert(arguments->end(), {"--procs", StrCat(count)});
  return absl::OkStatus();
}

// Loads the plug-ins that the arguments of `run` name. On other hosts, the working directory is
// another one.
absl::Status LoadPlugins(Environment& environment, std::vector<std::string>* arguments) {
  ASSIGN_OR_RETURN(const std::vector<std::string> found, TakeOption("--plugin", arguments));
  for (const std::string& path : found) {
    RETURN_IF_ERROR(LoadPlugin(environment, path));
    environment.plugins.push_back(path);
  }
  for (std::string& path : environment.plugins) path = std::filesystem::absolute(path).string();
  return absl::OkStatus();
}

// `run` with these arguments.
absl::Status RunJob(const Environment& environment, std::vector<std::string> arguments) {
  CLI::App app("", "penstock");
  Action action;
  AddRunCommand(app, environment, &action);
  app.require_subcommand(1);
  arguments.insert(arguments.begin(), "run");
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes the last first
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& error) {
    return absl::InvalidArgumentError(
        StrCat("launch: ", std::string(error.what()), "; `penstock run --help` lists the options"));
  }
  return action();
}

// The job and its options follow "--"; a single word without "--" may be the job. Any other word
// before it is a mistake, such as the second of several hosts that are separated by blanks.
absl::Status CheckWords(const Environment& environment, const LaunchOptions& options) {
  constexpr char kExpected[] = "expected penstock launch ... -- JOB.toml [OPTIONS of run]";
  if (options.run.empty()) {
    return absl::InvalidArgumentError(StrCat("launch: the job is missing; ", kExpected));
  }
  const std::vector<std::string>& all = environment.arguments;
  const auto dashes = std::find(all.begin(), all.end(), "--");
  const bool has_dashes = dashes != all.end();
  const size_t num_behind = has_dashes ? static_cast<size_t>(all.end() - dashes) - 1 : 0;
  const bool is_clear = has_dashes ? options.run.size() <= num_behind : options.run.size() == 1;
  if (is_clear) return absl::OkStatus();
  const size_t wrong = has_dashes || !options.hosts.empty() ? 0 : 1;
  return absl::InvalidArgumentError(
      StrCat("launch: '", options.run[wrong], "' is not expected before \"--\"",
             options.hosts.empty() ? "" : "; hosts are separated by commas, without blanks", "; ",
             kExpected));
}

// A line that says how the key crosses the network.
std::string DescribeKeyTransport(const std::string& launcher, const LaunchPlan& plan) {
  if (plan.seal_key != nullptr) {
    return "launch: munge encrypts the job's key on its way to the hosts\n";
  }
  return StrCat("note: ", launcher == "slurm" ? "srun" : "mpirun",
                " passes the job's key on without encryption, unless this cluster has that of its "
                "own; where others can read its network, ",
                launcher == "mpi" ? "start the job through ssh (--launcher ssh), or " : "",
                "put a key into a file on each host, and add --key-file\n");
}

absl::Status Launch(const Environment& environment, const LaunchOptions& options) {
  RETURN_IF_ERROR(CheckWords(environment, options));
  std::optional<LaunchMember> member;
  ASSIGN_OR_RETURN(const std::string launcher, ChooseLauncher(environment, options, &member));
  if (member.has_value()) RETURN_IF_ERROR(CheckIsMember(options, *member));
  Environment there = environment;
  std::vector<std::string> arguments = options.run;
  RETURN_IF_ERROR(LoadPlugins(there, &arguments));
  const bool is_member = launcher == "member";
  if (!options.timeout.empty()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> given, TakeOption("--timeout", &arguments));
    if (!given.empty()) {
      return absl::InvalidArgumentError("--timeout is given before and after --; leave out one");
    }
    arguments.insert(arguments.end(), {"--timeout", options.timeout});
  }
  there.launch.insecure = options.member.insecure;
  if (options.probe != "auto") there.launch.probes_links = options.probe == "yes";
  MemberOptions member_options = options.member;
  member_options.listen = options.listen;
  // Behind "--" it is an option of the nodes of all members, too.
  ASSIGN_OR_RETURN(const std::vector<std::string> folders, TakeOption("--log-dir", &arguments));
  member_options.log_folder = folders.empty() ? options.log_folder : folders.back();
  if (member_options.log_folder.empty()) {
    // Without a name of the job, members that one process has started on this host have one folder.
    const std::string job = is_member ? member->job : StrCat(getpid());
    member_options.log_folder = DefaultLogFolder(job.empty() ? StrCat(getppid()) : job);
  }
  arguments.insert(arguments.end(), {"--log-dir", member_options.log_folder});
  if (is_member) {
    return RunMember(there, *member, member_options,
                     [&arguments](const Environment& environment_of_job, int64_t num_processes) {
                       RETURN_IF_ERROR(SetProcesses(num_processes, &arguments));
                       return RunJob(environment_of_job, arguments);
                     });
  }
  if (options.member.size > 0 || options.member.device != "cpu" ||
      !options.member.coordinator.empty() || !options.member.rendezvous.empty()) {
    return absl::InvalidArgumentError(
        "--members, --device, --coordinator and --rendezvous are for a member, which something "
        "else has started; the job says what its devices are (cluster.device_kind)");
  }
  if (launcher == "local" && !options.member.key_file.empty()) {
    return absl::InvalidArgumentError(
        "--key-file does not go with local processes, which are handed the key on a descriptor");
  }
  ASSIGN_OR_RETURN(const std::vector<HostSlots> hosts, FindHosts(options, launcher));
  if (launcher == "local") {
    std::vector<std::string_view> given = OptionsOfHosts(options);
    if (options.probe == "yes") given.push_back("--probe yes");
    if (!options.listen.empty()) given.push_back("--listen");
    if (!given.empty()) {
      return absl::InvalidArgumentError(
          StrCat(given[0], " is for processes on several hosts: add -H or --hostfile"));
    }
  }
  RETURN_IF_ERROR(CheckUsers(launcher, hosts));
  if (launcher == "slurm") RETURN_IF_ERROR(CheckAreAllocated(hosts));
  int64_t num_processes = 0;
  for (const HostSlots& host : hosts) num_processes += host.slots;
  if (num_processes > 0) RETURN_IF_ERROR(SetProcesses(num_processes, &arguments));
  if (launcher == "local") {
    environment.err << "launch: local processes" << std::endl;
    return RunJob(there, std::move(arguments));
  }
  Interrupts interrupts(environment.err);
  there.interrupts = &interrupts;
  if (!options.timeout.empty()) interrupts.SetTimeLimit(ParseTimeLimit(options.timeout));
  interrupts.SetActivity("while the addresses of the hosts were looked up");
  LaunchPlan& plan = there.launch;
  ASSIGN_OR_RETURN(plan.places, PlacesOf(environment, options, launcher, hosts));
  // The command that continues the job is for after the end of the allocation.
  if (launcher == "slurm" && !EnvironmentVariable("SLURM_JOB_ID").empty()) plan.starter = "salloc";
  plan.hides_core_binding = launcher == "slurm" && !HasCoreBinding(ProgramOf(options, launcher));
  if (const std::string& key_file = options.member.key_file; !key_file.empty()) {
    ASSIGN_OR_RETURN(plan.key, ReadJobKey(key_file));
    if (key_file != "-") {
      const std::string path = std::filesystem::absolute(key_file).string();
      for (actors::NodePlace& place : plan.places) place.key_file = path;
    }
  }
  if (options.fanout > 0 && launcher != "ssh") {
    return absl::InvalidArgumentError(
        StrCat("--fanout goes with --launcher ssh alone, not with ", launcher));
  }
  plan.fanout = options.fanout;
  plan.max_starts = options.max_starts;
  plan.listen = options.listen.empty() ? ListenAddress(plan.places) : options.listen;
  if (const absl::Status address = actors::CheckListenAddress(plan.listen); !address.ok()) {
    return absl::InvalidArgumentError(StrCat("--listen ", ToStd(address.message())));
  }
  if (plan.insecure) RETURN_IF_ERROR(actors::CheckIsInsecureAddress(plan.listen));
  there.program = options.remote_program;
  if (there.program.empty()) {
    std::error_code error;
    there.program = std::filesystem::read_symlink(environment.program, error).string();
    if (error) there.program = std::filesystem::absolute(environment.program).string();
  }
  environment.err << "launch: " << Counted(num_processes, "process", "es") << " on "
                  << Counted(hosts.size(), "host") << " through "
                  << FindProgram(plan.places[0].through[0]).value_or("") << std::endl;
  plan.join_timeout = absl::Seconds(options.member.join_timeout_s);
  const absl::StatusOr<std::unique_ptr<actors::StarterWatch>> watch =
      actors::StarterWatch::Start({environment.program, kWatchStarters});
  if (watch.ok()) {
    plan.on_starter = [&watch](int pid, int pid_fd) { (*watch)->Add(pid, pid_fd); };
  } else {
    environment.err << "note: if this process is killed, the programs that start nodes go on: "
                    << ToStd(watch.status().message()) << std::endl;
  }
  plan.seal_key = KeySealFor(plan.places);
  if (options.member.key_file.empty() && launcher != "ssh") {
    environment.err << DescribeKeyTransport(launcher, plan) << std::flush;
  }
  return RunJob(there, std::move(arguments));
}

}  // namespace

void AddLaunchCommand(CLI::App& app, const Environment& environment, Action* action) {
  auto options = std::make_shared<LaunchOptions>();
  CLI::App* command = app.add_subcommand("launch", "Train a job in processes on several hosts.");
  command->footer(WrapText(
      "Examples:\n"
      "  penstock launch -H node1:2,node2:2 -- job.toml --strategy dp=4\n"
      "  penstock launch --hostfile hosts -- job.toml\n"
      "  salloc -N 2 --ntasks-per-node 2 penstock launch -- job.toml\n"
      "  srun -N 2 penstock launch --key-file key -- job.toml\n"
      "  mpirun -np 4 --bind-to none penstock launch -- job.toml\n\n"
      "This process coordinates: it starts one process for each slot through ssh, srun or mpirun "
      "and hands it the job's key on its standard input. ssh encrypts it, and for srun munge does, "
      "where there is one; mpirun does not: with --key-file, each reads the key from that file. A "
      "host file has a host a "
      "line, with slots=N. The program must be at the same path on every host, or at "
      "--remote-program; data "
      "of the job are read here alone. Control connections are encrypted with TLS 1.3; tensors "
      "are not, and travel over the interface of the route to this host.\n\n"
      "If srun, mpirun, torchrun or a Kubernetes job has started `launch` on all hosts, the "
      "process "
      "of rank 0 coordinates and the others join it. They need a key: a file that each of them can "
      "read (--key-file, or PENSTOCK_KEY), or a PMIx server, which mpirun and srun --mpi=pmix are.",
      kHelpColumns, 0));
  command
      ->add_option("-H,--host", options->hosts,
                   "Hosts, each with its number of processes (1): a,b:4,node[01-16]:2")
      ->option_text("HOSTS");
  command->add_option("--hostfile", options->host_file, "Read the hosts from a file")
      ->option_text("FILE");
  command
      ->add_option(
          "--launcher", options->launcher,
          "How processes are started: ssh, slurm (srun, in an allocation), mpi (mpirun), "
          "local, member (they have been, and this is one of them), or k8s (of a Kubernetes job) "
          "(auto: member where variables say so, slurm in an allocation, ssh with hosts, otherwise "
          "local)")
      ->option_text("NAME")
      ->check(CLI::IsMember({"auto", "ssh", "slurm", "mpi", "local", "member", "k8s"}));
  command
      ->add_option("--through", options->through,
                   "Program to start processes through, with options of its own, such as "
                   "\"ssh -p 2222\" (ssh, srun or mpirun)")
      ->option_text("COMMAND");
  command
      ->add_option("--remote-program", options->remote_program,
                   "Path of penstock on the hosts (the path of this one)")
      ->option_text("PATH");
  command
      ->add_option(
          "--fanout", options->fanout,
          "With ssh: start at most N hosts from here, and let each of them start at most N "
          "others, which needs ssh keys there or \"ssh -A\" (0: start all from here)")
      ->option_text("N")
      ->check(CLI::Range(uint32_t{0}, uint32_t{4096}));
  command
      ->add_option("--starts", options->max_starts,
                   "Let at most N hosts be starting at a time: the next one starts when a node of "
                   "another has joined (8 for each core that this process may use)")
      ->option_text("N")
      ->check(CLI::Range(uint32_t{1}, uint32_t{65536}));
  command
      ->add_option("--listen", options->listen,
                   "Listen for the processes at HOST or HOST:PORT (the address from which this "
                   "host reaches the others; as a member, the one at which they look for rank 0)")
      ->option_text("ADDRESS");
  command
      ->add_option("--probe", options->probe,
                   "Measure the links between the hosts first, and plan for them: yes, no, or auto "
                   "(auto: if the strategy is auto, on up to 64 hosts or members)")
      ->option_text("WHEN")
      ->check(CLI::IsMember({"auto", "yes", "no"}));
  command
      ->add_option(
          "--timeout", options->timeout,
          "End the job after this time as Ctrl-C does, with exit status 124: seconds, or a "
          "number with s, m, h or d")
      ->option_text("TIME")
      ->check(TimeLimit());
  command
      ->add_option("--log-dir", options->log_folder,
                   "Folder in which each process keeps what it prints, on its host, in "
                   "HOST.RANK.log (/tmp/penstock-logs-UID/DATE-JOB)")
      ->option_text("DIR");
  command
      ->add_option("--members", options->member.size,
                   "As a member: number of processes (WORLD_SIZE or as the variables say)")
      ->option_text("N")
      ->check(CLI::Range(int64_t{1}, kMaxSlots));
  command
      ->add_option("--coordinator", options->member.coordinator,
                   "As a member: where rank 0 listens (MASTER_ADDR:MASTER_PORT, PMIx, or the first "
                   "host of a Slurm step)")
      ->option_text("HOST:PORT");
  command
      ->add_option("--key-file", options->member.key_file,
                   "Read the job's key, 64 hexadecimal digits, from this file, on each host (a "
                   "random one that is sent to each process; as a member: PENSTOCK_KEY, or a "
                   "random one that rank 0 publishes through PMIx)")
      ->option_text("FILE");
  command->add_flag("--insecure", options->member.insecure,
                    "Let processes join without TLS, at a loopback address alone");
  command
      ->add_option("--rendezvous", options->member.rendezvous,
                   "As a member: find the others under a name in etcd, which also gives ranks to "
                   "processes that have none")
      ->option_text("http[s]://HOST:PORT,.../NAME");
  command
      ->add_option(
          "--device", options->member.device,
          "As a member: kind of its devices, cpu or cuda, or the kinds of all devices of the "
          "job in order, such as cpu:2,cuda:6 (cpu)")
      ->option_text("KINDS");
  command
      ->add_option("--join-timeout", options->member.join_timeout_s,
                   "Seconds to wait for all processes to join (60)")
      ->option_text("S")
      ->check(CLI::Range(1.0, 86400.0));
  command->add_option("RUN", options->run, "After --: the job and options of `penstock run`")
      ->option_text("JOB.toml ...")
      ->allow_extra_args();
  command->callback([options, &environment, action] {
    *action = [options, &environment] { return Launch(environment, *options); };
  });
}

}  // namespace penstock::cli
