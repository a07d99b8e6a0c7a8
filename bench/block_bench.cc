// How fast a projection of the block around the experts runs, against a plain read of the same weight, in
// turns in one run. Options of the program: --rows --columns (4096 8192: Muse Spark's, 64 MiB) --threads
// --pairs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/measure.h"
#include "kerf/block/internal/kernels.h"
#include "kerf/block/project.h"
#include "kerf/numeric/bf16.h"
#include "kerf/tensor/storage.h"
#include "kerf/tools/plain_read.h"
#include "tests/support/experts.h"

namespace {

using namespace kerf;
using bench::Clock;
using bench::median;
using bench::option;
using bench::seconds;

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t rows = option(argc, argv, "rows", 4096);
  const std::int64_t columns = option(argc, argv, "columns", 8192);
  const std::int64_t pairs = option(argc, argv, "pairs", 9);
  const Workers workers(static_cast<int>(option(argc, argv, "threads", available_cores())));
  tensor::HostMemory memory;
  const tensor::Tensor weight(memory, tensor::Dtype::bf16, {rows, columns});
  test::Random random(1);
  for (std::uint16_t& v : weight.as<std::uint16_t>()) v = numeric::f32_to_bf16(random.normal());
  const std::span<const std::byte> all = weight.bytes();
  const tools::PlainRead read(std::span(&all, 1));
  const block::Matrix matrix{rows, columns, weight.as<const std::uint16_t>()};
  std::printf("[%ld, %ld] bf16, %d threads, %s\n", static_cast<long>(rows), static_cast<long>(columns),
              workers.size(), block::internal::best_kernels().isa);
  for (const std::int64_t tokens : {1, 2, 4, 8}) {
    std::vector<std::uint16_t> x(static_cast<std::size_t>(tokens * columns));
    for (std::uint16_t& v : x) v = numeric::f32_to_bf16(random.normal());
    std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens * rows));
    std::vector<double> steps, reads, fractions;
    for (std::int64_t i = 0; i < pairs; ++i) {
      const auto start = Clock::now();
      block::project(matrix, tokens, x, workers, std::span(out));
      steps.push_back(seconds(start));
      const auto read_start = Clock::now();
      (void)read.run(workers);  // all of the weight once: the floor of a step
      reads.push_back(seconds(read_start));
      fractions.push_back(reads.back() / steps.back());
    }
    std::printf("T %2ld  projection %8.3f ms  read %8.3f ms (%5.1f GB/s)  fraction %.2f\n",
                static_cast<long>(tokens), 1e3 * median(steps), 1e3 * median(reads),
                1e-9 * static_cast<double>(weight.bytes().size()) / median(reads), median(fractions));
  }
  return 0;
}
