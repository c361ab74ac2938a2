// What a task costs in Taskflow: a graph in which task i depends on tasks i - 1 and i - 2 and does
// nothing, as the actors of `penstock bench actors`. Prints a JSON object.
//   taskflow WORKERS NUM_TASKS...

#include <taskflow/taskflow.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

double NsPerTask(tf::Executor& executor, size_t num_tasks) {
  tf::Taskflow graph;
  std::vector<tf::Task> tasks;
  for (size_t i = 0; i < num_tasks; ++i) {
    tasks.push_back(graph.emplace([] {}));
    for (size_t back = 1; back <= 2 && back <= i; ++back) tasks[i - back].precede(tasks[i]);
  }
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
  if (argc < 3) return 2;
  tf::Executor executor(std::strtoul(argv[1], nullptr, 10));
  std::printf("{");
  for (int i = 2; i < argc; ++i) {
    std::printf("%s\"%s\": %.1f", i > 2 ? ", " : "", argv[i],
                NsPerTask(executor, std::strtoul(argv[i], nullptr, 10)));
  }
  std::printf("}\n");
}
