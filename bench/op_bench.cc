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

#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace {

using namespace kerf;
using Clock = std::chrono::steady_clock;

double seconds(Clock::time_point since) {
  return std::chrono::duration<double>(Clock::now() - since).count();
}

std::int64_t option(int argc, char** argv, const std::string& name, std::int64_t fallback) {
  for (int i = 1; i + 1 < argc; ++i)
    if (argv[i] == "--" + name) return std::atoll(argv[i + 1]);
  return fallback;
}

double median(std::vector<double> v) {
  std::sort(v.begin(), v.end());
  return v[v.size() / 2];
}

// Reads the chosen experts' four tensors once, on all threads: the floor of a step.
double read_once(const layout::Nvfp4Experts& e, const std::set<std::int64_t>& chosen,
                 const Workers& workers) {
  struct Piece {
    const std::uint64_t* at;
    std::size_t words;
  };
  std::vector<Piece> pieces;
  for (const std::int64_t id : chosen)
    for (const tensor::Tensor* t : {&e.w13, &e.w13_sf, &e.w2, &e.w2_sf}) {
      const std::size_t bytes = t->bytes().size() / static_cast<std::size_t>(e.shape.experts);
      const auto* at =
          reinterpret_cast<const std::uint64_t*>(t->bytes().data() + static_cast<std::size_t>(id) * bytes);
      constexpr std::size_t words = std::size_t{1} << 15;
      for (std::size_t done = 0; done < bytes / 8; done += words)
        pieces.push_back({at + done, std::min(words, bytes / 8 - done)});
    }
  std::vector<std::uint64_t> sums(pieces.size());
  const auto start = Clock::now();
  workers.for_each(pieces.size(), [&](std::size_t i, int) {
    std::uint64_t sum = 0;
    for (std::size_t w = 0; w < pieces[i].words; ++w) sum ^= pieces[i].at[w];
    sums[i] = sum;
  });
  const double t = seconds(start);
  if (std::count(sums.begin(), sums.end(), 0x123456789ULL) == -1) std::puts("");
  return t;
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t experts = option(argc, argv, "experts", 64);
  const layout::ExpertsShape shape{experts, option(argc, argv, "hidden", 4096),
                                   option(argc, argv, "intermediate", 1024)};
  const std::int64_t top_k = option(argc, argv, "top_k", 8);
  const std::int64_t pairs = option(argc, argv, "pairs", 9);
  tensor::HostMemory memory;
  const auto weights = test::random_nvfp4(memory, shape, 0, 1);
  const Workers workers(available_cores());
  const auto expert_bytes = static_cast<double>(weights.w13.bytes().size() + weights.w13_sf.bytes().size() +
                                                weights.w2.bytes().size() + weights.w2_sf.bytes().size()) /
                            static_cast<double>(experts);
  std::printf("E %ld H %ld I %ld K %ld, %d threads, %.1f MiB an expert\n", static_cast<long>(experts),
              static_cast<long>(shape.hidden), static_cast<long>(shape.intermediate),
              static_cast<long>(top_k), workers.size(), expert_bytes / 1048576);
  for (const auto& [input, label] :
       {std::pair{op::Input::nvfp4, "W4A4"}, std::pair{op::Input::bf16, "W4A16"}}) {
    const op::Nvfp4Args args{weights.view(), experts, top_k, input, {}};
    for (const std::int64_t tokens : {1, 4, 8, 16, 32}) {
      const auto step =
          test::random_step(tokens, top_k, experts, shape.hidden, static_cast<std::uint64_t>(tokens));
      const std::set<std::int64_t> chosen(step.ids.begin(), step.ids.end());
      const double bytes = static_cast<double>(chosen.size()) * expert_bytes;
      for (const std::string& name : op::backend_names()) {
        const bool slow = name == "reference" || name == "cpu:scalar";
        if (slow && (tokens != option(argc, argv, "reference", 8) || name != "reference" ||
                     input != op::Input::nvfp4))
          continue;
        const auto bound = op::backend(name).bind(args);
        const auto metadata_shape = bound->metadata_shape(tokens, 8);
        const routing::MetadataBuffer metadata(memory, routing::metadata_words(metadata_shape));
        std::vector<std::byte> workspace(bound->workspace_bytes(metadata_shape, {}));
        std::vector<std::uint16_t> rows(
            static_cast<std::size_t>(op::gemm2_rows(metadata_shape, shape.hidden) * shape.hidden));
        std::vector<double> steps;
        std::vector<double> reads;
        for (std::int64_t i = 0; i < (slow ? 1 : pairs); ++i) {
          const auto start = Clock::now();
          (void)op::routed_experts(*bound, step.input(), step.routes(), {}, workers,
                                   {&metadata, workspace, rows});
          steps.push_back(seconds(start));
          reads.push_back(read_once(weights, chosen, workers));
        }
        std::vector<double> fractions;
        for (std::size_t i = 0; i < steps.size(); ++i) fractions.push_back(reads[i] / steps[i]);
        std::printf("%-5s T %2ld %-12s step %9.3f ms  read %8.3f ms (%5.1f GB/s)  fraction %.2f\n", label,
                    static_cast<long>(tokens), name.c_str(), 1e3 * median(steps), 1e3 * median(reads),
                    1e-9 * bytes / median(reads), median(fractions));
      }
    }
  }
  return 0;
}
