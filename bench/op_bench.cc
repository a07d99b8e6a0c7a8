// How fast the CPU op runs a step, against a plain read of the same bytes and against the scalar reference,
// all in one run. Sizes are options of the program: --experts --hidden --intermediate --top_k --tokens
// --reference.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "kerf/op/op.h"
#include "kerf/tools/made_experts.h"
#include "kerf/tools/plain_read.h"
#include "tests/support/experts.h"

namespace {

using namespace kerf;
using bench::Clock;
using bench::median;
using bench::option;
using bench::seconds;

// Reads the chosen experts' four tensors once, on all threads: the floor of a step.
tools::PlainRead read_of(const layout::Nvfp4Experts& e, const std::set<std::int64_t>& chosen) {
  std::vector<std::span<const std::byte>> runs;
  for (const std::int64_t id : chosen)
    for (const std::span<const std::byte> run : tools::expert_runs(e.view(), id)) runs.push_back(run);
  return tools::PlainRead(runs);
}

struct Setup {
  layout::ExpertsShape shape;
  std::int64_t top_k = 8;
  std::int64_t pairs = 9;
  const layout::Nvfp4Experts& weights;
  tensor::Memory& memory;
  const Workers& workers;
};

struct Times {
  double step = 0;  // seconds, median
  double read = 0;
  double fraction = 0;  // read / step, median over pairs
};

// Steps of one backend and reads of the same bytes, in turns.
Times measure(const Setup& s, op::Input input, std::int64_t tokens, const std::string& name,
              std::int64_t pairs) {
  const op::Nvfp4Args args{s.weights.view(), s.shape.experts, s.top_k, input, {}};
  const auto step =
      test::random_step(tokens, s.top_k, s.shape.experts, s.shape.hidden, static_cast<std::uint64_t>(tokens));
  const std::set<std::int64_t> chosen(step.ids.begin(), step.ids.end());
  const tools::PlainRead read = read_of(s.weights, chosen);
  const auto bound = op::backend(name).bind(args);
  const auto shape = bound->metadata_shape(tokens, 8);
  const routing::MetadataBuffer metadata(s.memory, routing::metadata_words(shape));
  std::vector<std::byte> workspace(bound->workspace_bytes(shape, {}));
  std::vector<std::uint16_t> rows(
      static_cast<std::size_t>(op::gemm2_rows(shape, s.shape.hidden) * s.shape.hidden));
  std::vector<double> steps, reads, fractions;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const auto start = Clock::now();
    (void)op::routed_experts(*bound, step.input(), step.routes(), {}, s.workers,
                             {&metadata, workspace, rows});
    steps.push_back(seconds(start));
    const auto read_start = Clock::now();
    (void)read.run(s.workers);
    reads.push_back(seconds(read_start));
    fractions.push_back(reads.back() / steps.back());
  }
  const auto bytes = static_cast<double>(read.bytes());
  const Times out{median(steps), median(reads), median(fractions)};
  std::printf("%-5s T %2ld %-12s step %9.3f ms  read %8.3f ms (%5.1f GB/s)  fraction %.2f\n",
              input == op::Input::nvfp4 ? "W4A4" : "W4A16", static_cast<long>(tokens), name.c_str(),
              1e3 * out.step, 1e3 * out.read, 1e-9 * bytes / out.read, out.fraction);
  return out;
}

// --check: fails where the cpu op is less than 8 times as fast as the reference at 8 tokens.
int check(const Setup& s) {
  const double reference = measure(s, op::Input::nvfp4, 8, "reference", 1).step;
  const double cpu = measure(s, op::Input::nvfp4, 8, "cpu", s.pairs).step;
  std::printf("reference %.1f ms, cpu %.1f ms, ratio %.1f (at least 8 wanted)\n", 1e3 * reference, 1e3 * cpu,
              reference / cpu);
  return reference >= 8 * cpu ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  const layout::ExpertsShape shape{option(argc, argv, "experts", 64), option(argc, argv, "hidden", 4096),
                                   option(argc, argv, "intermediate", 1024)};
  tensor::HostMemory memory;
  const Workers workers(available_cores());
  const auto weights = tools::made_nvfp4(memory, shape, 0, op::Input::nvfp4, 1, workers);
  const Setup s{shape,  option(argc, argv, "top_k", 8), option(argc, argv, "pairs", 9), weights, memory,
                workers};
  std::printf("E %ld H %ld I %ld K %ld, %d threads, %.1f MiB an expert\n", static_cast<long>(shape.experts),
              static_cast<long>(shape.hidden), static_cast<long>(shape.intermediate),
              static_cast<long>(s.top_k), workers.size(),
              static_cast<double>(weights.bytes()) / static_cast<double>(shape.experts) / 1048576);
  if (std::string(argv[argc - 1]) == "--check") return check(s);
  for (const op::Input input : {op::Input::nvfp4, op::Input::bf16})
    for (const std::int64_t tokens : {1, 4, 8, 16, 32})
      for (const std::string& name : op::backend_names()) {
        const bool plain = name == "reference" || name == "cpu:scalar";
        if (!plain) measure(s, input, tokens, name, s.pairs);
        if (name == "reference" && tokens == 8 && input == op::Input::nvfp4)
          measure(s, input, tokens, name, 1);
      }
  return 0;
}
