// How fast does one thread bring experts from a mapped file into the converted layout, against memcpy of the
// same bytes into the same memory? The file is in the page cache. Both are timed in turns inside one
// benchmark, so that whatever else the machine does falls on both; the medians are reported, and their ratio.
#include <benchmark/benchmark.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "kerf/layout/convert.h"
#include "kerf/layout/experts.h"
#include "kerf/numeric/median.h"
#include "kerf/tensor/storage.h"

namespace {

using namespace kerf;
using numeric::median;

constexpr std::int64_t kHidden = 4096;  // the sizes of a Muse-Spark layer
constexpr std::int64_t kIntermediate = 4096;

// A file of random bytes that has no name any more, mapped for reading, in the page cache.
class MappedFile {
 public:
  explicit MappedFile(std::size_t bytes) : bytes_(bytes) {
    std::string name = (std::filesystem::temp_directory_path() / "kerf-bench-XXXXXX").string();
    const int file = mkstemp(name.data());
    if (file < 0) throw std::system_error(errno, std::generic_category(), name);
    unlink(name.c_str());
    std::vector<std::uint64_t> block((std::size_t{1} << 20) / 8);
    std::mt19937_64 random(7);
    for (std::size_t at = 0; at < bytes; at += block.size() * 8) {
      std::generate(block.begin(), block.end(), std::ref(random));
      const std::size_t size = std::min(block.size() * 8, bytes - at);
      if (write(file, block.data(), size) != static_cast<ssize_t>(size))
        throw std::system_error(errno, std::generic_category(), "writing " + name);
    }
    data_ = mmap(nullptr, bytes, PROT_READ, MAP_SHARED | MAP_POPULATE, file, 0);
    close(file);
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), "mapping " + name);
  }
  ~MappedFile() { munmap(data_, bytes_); }
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  // The next `bytes` bytes; files keep one tensor after the other.
  std::span<const std::byte> take(std::int64_t bytes) {
    const std::span<const std::byte> out{static_cast<const std::byte*>(data_) + taken_,
                                         static_cast<std::size_t>(bytes)};
    taken_ += out.size();
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
  std::size_t taken_ = 0;
};

std::span<std::byte> expert(const tensor::Tensor& t, std::int64_t e) {
  const std::size_t size = t.bytes().size() / static_cast<std::size_t>(t.shape()[0]);
  return t.bytes().subspan(static_cast<std::size_t>(e) * size, size);
}

// memcpy of `pieces` one behind the other into `to`.
void copy(std::initializer_list<std::span<const std::byte>> pieces, std::span<std::byte> to) {
  for (const auto& piece : pieces) {
    std::memcpy(to.data(), piece.data(), piece.size());
    to = to.subspan(piece.size());
  }
}

class Nvfp4 {
 public:
  explicit Nvfp4(std::int64_t experts)
      : file_(static_cast<std::size_t>(experts * 3 * (kMatrix + kScales))),
        to_(memory_, {experts, kHidden, kIntermediate}, 0) {
    for (std::int64_t e = 0; e < experts; ++e)
      from_.push_back({file_.take(kMatrix), file_.take(kScales), file_.take(kMatrix), file_.take(kScales),
                       file_.take(kMatrix), file_.take(kScales)});
  }
  [[nodiscard]] std::int64_t bytes() const { return std::ssize(from_) * 3 * (kMatrix + kScales); }
  void run_memcpy() const {
    for (std::int64_t e = 0; e < std::ssize(from_); ++e) {
      const auto& f = from_[static_cast<std::size_t>(e)];
      copy({f.up, f.gate}, expert(to_.w13, e));
      copy({f.up_sf, f.gate_sf}, expert(to_.w13_sf, e));
      copy({f.down}, expert(to_.w2, e));
      copy({f.down_sf}, expert(to_.w2_sf, e));
    }
  }
  void run_convert() const {
    for (std::int64_t e = 0; e < std::ssize(from_); ++e)
      layout::convert(from_[static_cast<std::size_t>(e)], kHidden, kIntermediate,
                      {expert(to_.w13, e), expert(to_.w13_sf, e), expert(to_.w2, e), expert(to_.w2_sf, e)});
  }

 private:
  static constexpr std::int64_t kMatrix = kHidden * kIntermediate / 2;
  static constexpr std::int64_t kScales = kHidden * kIntermediate / 16;
  tensor::HostMemory memory_;
  MappedFile file_;
  layout::Nvfp4Experts to_;
  std::vector<layout::LogicalNvfp4<const std::byte>> from_;
};

class Bf16 {
 public:
  explicit Bf16(std::int64_t experts)
      : file_(static_cast<std::size_t>(experts * 3 * kMatrix)),
        to_w13_(memory_, tensor::Dtype::u8, {experts, 2 * kMatrix}),
        to_w2_(memory_, tensor::Dtype::u8, {experts, kMatrix}) {
    for (std::int64_t e = 0; e < experts; ++e)
      from_.push_back({file_.take(kMatrix), file_.take(kMatrix), file_.take(kMatrix)});
  }
  [[nodiscard]] std::int64_t bytes() const { return std::ssize(from_) * 3 * kMatrix; }
  void run_memcpy() const {
    for (std::int64_t e = 0; e < std::ssize(from_); ++e) {
      const auto& f = from_[static_cast<std::size_t>(e)];
      copy({f.up, f.gate}, expert(to_w13_, e));
      copy({f.down}, expert(to_w2_, e));
    }
  }
  void run_convert() const {
    for (std::int64_t e = 0; e < std::ssize(from_); ++e)
      layout::convert(from_[static_cast<std::size_t>(e)], kHidden, kIntermediate,
                      layout::ConvertedBf16<std::byte>{expert(to_w13_, e), expert(to_w2_, e)});
  }

 private:
  static constexpr std::int64_t kMatrix = kHidden * kIntermediate * 2;
  tensor::HostMemory memory_;
  MappedFile file_;
  tensor::Tensor to_w13_, to_w2_;
  std::vector<layout::LogicalBf16<const std::byte>> from_;
};

// Seconds of this thread's own processor time: waiting while others have the processor belongs to neither
// side.
template <typename F>
double seconds(const F& f) {
  const auto now = [] {
    timespec t{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
  };
  const double begin = now();
  f();
  return now() - begin;
}

template <typename Experts>
void convert_against_memcpy(benchmark::State& state) {
  const Experts experts(state.range(0));
  experts.run_memcpy();  // first touch of the destination belongs to neither
  std::vector<double> copies, conversions;
  for (auto _ : state) {
    copies.push_back(seconds([&] { experts.run_memcpy(); }));
    conversions.push_back(seconds([&] { experts.run_convert(); }));
    state.SetIterationTime(conversions.back());
  }
  const auto bytes = static_cast<double>(experts.bytes());
  state.counters["MiB"] = bytes / (1 << 20);
  state.counters["memcpy_B/s"] = bytes / median(copies);
  state.counters["convert_B/s"] = bytes / median(conversions);
  state.counters["convert/memcpy"] = median(copies) / median(conversions);
}

BENCHMARK(convert_against_memcpy<Nvfp4>)
    ->Arg(8)
    ->Iterations(21)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(convert_against_memcpy<Bf16>)
    ->Arg(4)
    ->Iterations(11)
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

// --check: fails where one thread converts NVFP4 experts at less than half of memcpy's rate.
int check() {
  const Nvfp4 experts(4);
  experts.run_memcpy();
  std::vector<double> copies, conversions;
  for (int i = 0; i < 7; ++i) {
    copies.push_back(seconds([&] { experts.run_memcpy(); }));
    conversions.push_back(seconds([&] { experts.run_convert(); }));
  }
  const auto bytes = static_cast<double>(experts.bytes());
  const double copied = bytes / median(copies);
  const double converted = bytes / median(conversions);
  std::printf("convert %.2f GB/s, memcpy %.2f GB/s, ratio %.2f (at least 0.5 wanted)\n", 1e-9 * converted,
              1e-9 * copied, converted / copied);
  return converted >= 0.5 * copied ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--check") return check();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
