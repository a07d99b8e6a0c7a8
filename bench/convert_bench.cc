// How fast do experts come from a mapped file into the converted layout, against the fastest copy of the same
// bytes by the same threads into memory of the same kind? The file is in the page cache. Both copies (memcpy,
// and stores past the caches) and the conversion run in turns, so that whatever else the machine does falls
// on all; the least time of each counts, and the faster copy is the yardstick.
//
//   kerf_convert_bench           a table of shapes, kinds, dialects and threads
//   kerf_convert_bench --check   fails below 0.7 of the yardstick with all threads, 0.5 with one
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "bench/measure.h"
#include "bench/stream_copy.h"
#include "kerf/base/threads.h"
#include "kerf/layout/convert.h"
#include "kerf/tensor/storage.h"

namespace {

using namespace kerf;

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
    std::generate(block.begin(), block.end(), std::ref(random));
    for (std::size_t at = 0; at < bytes; at += block.size() * 8) {
      block[0] = random();
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
  MappedFile(MappedFile&&) = delete;
  MappedFile& operator=(MappedFile&&) = delete;

  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), bytes_};
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_;
};

enum class Dialect { per_expert, fused };  // a tensor an expert and projection, or a tensor of all experts

struct Case {
  bool nvfp4 = true;
  std::int64_t experts = 1;
  std::int64_t hidden = 0;
  std::int64_t intermediate = 0;
  Dialect dialect = Dialect::per_expert;
  bool fresh = false;  // memory that nobody has touched, as when a model is loaded

  [[nodiscard]] std::int64_t codes() const {  // bytes of one matrix
    return nvfp4 ? hidden * intermediate / 2 : hidden * intermediate * 2;
  }
  [[nodiscard]] std::int64_t scales() const { return nvfp4 ? hidden * intermediate / 16 : 0; }
  [[nodiscard]] std::int64_t bytes() const { return experts * 3 * (codes() + scales()); }
};

// Consecutive spans of a file.
class Taker {
 public:
  explicit Taker(std::span<const std::byte> from) : left_(from) {}
  std::span<const std::byte> take(std::int64_t bytes) {
    const auto out = left_.first(static_cast<std::size_t>(bytes));
    left_ = left_.subspan(out.size());
    return out;
  }

 private:
  std::span<const std::byte> left_;
};

// One expert's gate, up and down: codes and scales, or BF16 values and nothing.
struct Source {
  std::span<const std::byte> gate, gate_sf, up, up_sf, down, down_sf;
};

std::vector<Source> sources(const Case& c, std::span<const std::byte> file) {
  Taker from(file);
  const std::int64_t codes = c.codes();
  const std::int64_t scales = c.scales();
  std::vector<Source> out(static_cast<std::size_t>(c.experts));
  if (c.dialect == Dialect::per_expert) {
    for (Source& s : out)
      for (auto* tensor : {&s.gate, &s.gate_sf, &s.up, &s.up_sf, &s.down, &s.down_sf})
        *tensor = from.take(tensor == &s.gate || tensor == &s.up || tensor == &s.down ? codes : scales);
    return out;
  }
  for (Source& s : out) s.gate = from.take(codes), s.up = from.take(codes);
  for (Source& s : out) s.gate_sf = from.take(scales), s.up_sf = from.take(scales);
  for (Source& s : out) s.down = from.take(codes);
  for (Source& s : out) s.down_sf = from.take(scales);
  return out;
}

// Where the experts go: one block of memory, cut into the tensors.
class Target {
 public:
  explicit Target(const Case& c)
      : case_(c), block_(memory_, tensor::Dtype::u8, {c.bytes()}), from_(block_.bytes()) {}
  [[nodiscard]] std::span<std::byte> bytes() const { return block_.bytes(); }
  [[nodiscard]] layout::ConvertedNvfp4<std::byte> nvfp4() const {
    const auto n = static_cast<std::size_t>(case_.experts * case_.codes());
    const auto s = static_cast<std::size_t>(case_.experts * case_.scales());
    return {from_.subspan(0, 2 * n), from_.subspan(2 * n, 2 * s), from_.subspan(2 * n + 2 * s, n),
            from_.subspan(3 * n + 2 * s, s)};
  }
  [[nodiscard]] layout::ConvertedBf16<std::byte> bf16() const {
    const auto n = static_cast<std::size_t>(case_.experts * case_.codes());
    return {from_.subspan(0, 2 * n), from_.subspan(2 * n, n)};
  }

 private:
  Case case_;
  tensor::HostMemory memory_;
  tensor::Tensor block_;
  std::span<std::byte> from_;
};

using Copy = void (*)(const std::byte* from, std::byte* to, std::size_t bytes);

// A share of the bytes each.
void copy_all(std::span<const std::byte> from, std::span<std::byte> to, Copy copy, const Workers& workers) {
  const std::size_t shares = static_cast<std::size_t>(workers.size());
  const std::size_t lines = from.size() / 64;
  workers.for_each(shares, [&](std::size_t i, int) {
    const std::size_t first = lines * i / shares * 64;
    const std::size_t end = lines * (i + 1) / shares * 64;
    copy(from.data() + first, to.data() + first, end - first);
  });
}

void convert(const Case& c, std::span<const Source> from, const Target& to, const Workers& workers) {
  if (c.nvfp4) {
    std::vector<layout::LogicalNvfp4<const std::byte>> experts;
    for (const Source& s : from) experts.push_back({s.gate, s.gate_sf, s.up, s.up_sf, s.down, s.down_sf});
    layout::convert_all(experts, c.hidden, c.intermediate, c.intermediate, to.nvfp4(), workers);
  } else {
    std::vector<layout::LogicalBf16<const std::byte>> experts;
    for (const Source& s : from) experts.push_back({s.gate, s.up, s.down});
    layout::convert_all(experts, c.hidden, c.intermediate, c.intermediate, to.bf16(), workers);
  }
}

struct Rates {  // bytes a second
  double memcpy = 0;
  double stream = 0;
  double convert = 0;
  [[nodiscard]] double yardstick() const { return std::max(memcpy, stream); }
  [[nodiscard]] double ratio() const { return convert / yardstick(); }
};

Rates measure(const Case& c, const MappedFile& file, int threads, int rounds) {
  const Workers workers(threads);
  const std::span<const std::byte> bytes = file.bytes().first(static_cast<std::size_t>(c.bytes()));
  const std::vector<Source> from = sources(c, bytes);
  std::optional<Target> touched;
  if (!c.fresh) {
    touched.emplace(c);
    std::memset(touched->bytes().data(), 1, touched->bytes().size());
  }
  double best[3] = {};
  const auto run = [&](std::size_t what, const std::function<void(const Target&)>& step) {
    std::optional<Target> fresh;
    if (c.fresh) fresh.emplace(c);
    const Target& to = c.fresh ? *fresh : *touched;
    const auto start = bench::Clock::now();
    step(to);
    best[what] = std::max(best[what], static_cast<double>(c.bytes()) / bench::seconds(start));
  };
  const Copy plain = [](const std::byte* a, std::byte* b, std::size_t n) { std::memcpy(b, a, n); };
  for (int i = 0; i < rounds; ++i) {
    run(0, [&](const Target& to) { copy_all(bytes, to.bytes(), plain, workers); });
    run(1, [&](const Target& to) { copy_all(bytes, to.bytes(), bench::stream_copy, workers); });
    run(2, [&](const Target& to) { convert(c, from, to, workers); });
  }
  return {best[0], best[1], best[2]};
}

void print(const Case& c, int threads, const Rates& r) {
  std::printf("%-5s %5lld of %5lld x %5lld  %-10s  %-7s  %3d  %8.2f %8.2f %8.2f   %5.2f\n",
              c.nvfp4 ? "NVFP4" : "BF16", static_cast<long long>(c.experts), static_cast<long long>(c.hidden),
              static_cast<long long>(c.intermediate), c.dialect == Dialect::fused ? "fused" : "per expert",
              c.fresh ? "fresh" : "touched", threads, 1e-9 * r.memcpy, 1e-9 * r.stream, 1e-9 * r.convert,
              r.ratio());
  std::fflush(stdout);
}

void print_head() {
  std::printf(
      "experts                      tensors     memory   thr    memcpy   stream  convert   convert/best"
      " (GB/s)\n");
}

std::vector<int> thread_counts() {
  std::vector<int> out = {1};
  if (available_cores() > 1) out.push_back(available_cores());
  return out;
}

// The same bytes in few large experts, in many small ones, and in one alone.
std::vector<Case> cases(bool nvfp4, bool all) {
  const std::int64_t few = nvfp4 ? 8 : 2;
  const std::int64_t many = nvfp4 ? 256 : 64;
  std::vector<Case> out;
  for (const Dialect d : {Dialect::per_expert, Dialect::fused}) {
    out.push_back({nvfp4, few, 4096, 4096, d, false});
    out.push_back({nvfp4, many, 1024, 512, d, false});
  }
  if (!all) return out;
  out.push_back({nvfp4, 1, 4096, 4096, Dialect::per_expert, false});
  out.push_back({nvfp4, few, 4096, 4096, Dialect::per_expert, true});
  out.push_back({nvfp4, many, 1024, 512, Dialect::per_expert, true});
  return out;
}

std::int64_t most_bytes(std::span<const Case> all) {
  std::int64_t most = 0;
  for (const Case& c : all) most = std::max(most, c.bytes());
  return most;
}

int bench_all(int rounds) {
  print_head();
  for (const bool nvfp4 : {true, false}) {
    const std::vector<Case> all = cases(nvfp4, true);
    const MappedFile file(static_cast<std::size_t>(most_bytes(all)));
    for (const Case& c : all)
      for (const int threads : thread_counts()) print(c, threads, measure(c, file, threads, rounds));
  }
  return 0;
}

// One kind and shape each of the four; kept small, since every build runs it.
int check() {
  // One thread has the machine's memory to itself, and a copy gains more by that than a conversion does.
  constexpr double wanted_of_one = 0.5;
  constexpr double wanted_of_all = 0.7;
  const std::vector<Case> all = {{true, 4, 4096, 4096, Dialect::per_expert, false},
                                 {true, 96, 1024, 512, Dialect::fused, false},
                                 {false, 1, 4096, 4096, Dialect::fused, false},
                                 {false, 24, 1024, 512, Dialect::per_expert, false}};
  const MappedFile file(static_cast<std::size_t>(most_bytes(all)));
  print_head();
  bool good = true;
  for (const Case& c : all)
    for (const int threads : thread_counts()) {
      const Rates r = measure(c, file, threads, 7);
      print(c, threads, r);
      good = good && r.ratio() >= (threads == 1 && available_cores() > 1 ? wanted_of_one : wanted_of_all);
    }
  std::printf("at least %.1f of the faster copy wanted with one thread of several, %.1f with all: %s\n",
              wanted_of_one, wanted_of_all, good ? "so it is" : "NOT reached");
  return good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "--check") return check();
  return bench_all(static_cast<int>(bench::option(argc, argv, "rounds", 9)));
}
