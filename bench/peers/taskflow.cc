// What a task costs in Taskflow, from the submission of a graph to its completion: tasks that do
// nothing, in the shapes of `penstock bench actors`. Prints a JSON object, ns a task.
//   taskflow WORKERS SHAPE NUM_TASKS...
//     phase   task i depends on tasks i - 1 and i - 2
//     chain   two rounds; task i depends on i - 1, and in the second round also on i and i + 1 of
//             the first, which free the register that it writes

#include <taskflow/taskflow.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <vector>

namespace {

// Both return the number of tasks.
size_t AddPhase(tf::Taskflow& graph, size_t num_actors) {
  std::vector<tf::Task> tasks;
  for (size_t i = 0; i < num_actors; ++i) {
    tasks.push_back(graph.emplace([] {}));
    for (size_t back = 1; back <= 2 && back <= i; ++back) tasks[i - back].precede(tasks[i]);
  }
  return tasks.size();
}

size_t AddChain(tf::Taskflow& graph, size_t num_actors) {
  std::vector<tf::Task> tasks;
  for (size_t i = 0; i < 2 * num_actors; ++i) {
    tasks.push_back(graph.emplace([] {}));
    const size_t actor = i % num_actors;
    if (actor > 0) tasks[i - 1].precede(tasks[i]);
    if (i < num_actors) continue;
    tasks[i - num_actors].precede(tasks[i]);
    if (actor + 1 < num_actors) tasks[i - num_actors + 1].precede(tasks[i]);
  }
  return tasks.size();
}

double NsPerTask(tf::Executor& executor, std::string_view shape, size_t num_actors) {
  tf::Taskflow graph;
  const size_t num_tasks =
      shape == "chain" ? AddChain(graph, num_actors) : AddPhase(graph, num_actors);
  using Clock = std::chrono::steady_clock;
  double fastest = 1e300;
  const Clock::time_point end = Clock::now() + std::chrono::milliseconds(500);
  for (int round = 0; round < 3 || Clock::now() < end; ++round) {
    const Clock::time_point begin = Clock::now();
    executor.run(graph).wait();
    const std::chrono::duration<double, std::nano> spent = Clock::now() - begin;
    fastest = std::min(fastest, spent.count() / static_cast<double>(num_tasks));
  }
  return fastest;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 4) return 2;
  tf::Executor executor(std::strtoul(argv[1], nullptr, 10));
  std::printf("{");
  for (int i = 3; i < argc; ++i) {
    std::printf("%s\"%s\": %.1f", i > 3 ? ", " : "", argv[i],
                NsPerTask(executor, argv[2], std::strtoul(argv[i], nullptr, 10)));
  }
  std::printf("}\n");
}
