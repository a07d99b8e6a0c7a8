// How fast does a checkpoint become experts, from files into the converted layout? Three questions, each with
// its yardstick in the same run:
//
//   warm   the files are in the page cache: loading (scales checked, everything converted, decode::build)
//          against memcpy of the same files' bytes by the same threads, in turns; both into the same memory,
//          which was used before, and with --fresh 1 both into fresh memory, which the kernel clears first:
//          on a virtual machine that may take longer than all else
//   cold   they are not (POSIX_FADV_DONTNEED): loading against one thread that reads the files from end to
//   end ways   the same conversion, without the checks, from a mapping and from reads, both warm
//
//   kerf_load_bench [--gib 1] [--rounds 3] [--threads N] [--fresh 1] [--cold 1] [--dir DIR]
//   kerf_load_bench --check 1     fails where warm loading is below 0.6 of memcpy
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <map>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "bench/measure.h"
#include "kerf/base/error.h"
#include "kerf/base/file.h"
#include "kerf/checkpoint/checkpoint.h"
#include "kerf/checkpoint/safetensors.h"
#include "kerf/comm/local.h"
#include "kerf/decode/build.h"
#include "kerf/layout/convert.h"
#include "kerf/tensor/storage.h"
#include "kerf/tools/synth.h"

namespace {

using namespace kerf;
using bench::Clock;

// Experts of 4096 x 2048, 64 a layer, 0.84 GiB: about `gib` of them, gone at the end.
class Made {
 public:
  Made(const std::string& directory, std::int64_t gib, int threads) {
    std::string name = (std::filesystem::path(directory) / "kerf-load-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot make " + name);
    path_ = name;
    tools::SynthOptions o = tools::synth_defaults(tools::SynthModel::qwen3_moe);
    o.experts = 64;
    o.hidden = 4096;
    o.intermediate = 2048;
    o.bf16_layers = {};
    o.top_k = 8;
    const std::int64_t layer = o.experts * 3 * o.hidden * o.intermediate * 9 / 16;
    o.layers = std::max<std::int64_t>(1, ((gib << 30) + layer - 1) / layer);
    tools::synth(path_, o, Workers(threads));
    for (const auto& item : std::filesystem::directory_iterator(path_))
      if (item.path().extension() == ".safetensors") files_.push_back(item.path());
    std::sort(files_.begin(), files_.end());
  }
  ~Made() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Made(const Made&) = delete;
  Made& operator=(const Made&) = delete;
  Made(Made&&) = delete;
  Made& operator=(Made&&) = delete;

  [[nodiscard]] const std::filesystem::path& path() const { return path_; }
  [[nodiscard]] const std::vector<std::filesystem::path>& files() const { return files_; }

 private:
  std::filesystem::path path_;
  std::vector<std::filesystem::path> files_;
};

// One block of memory, used before, which is handed out from its beginning again once all of it came back.
class Used final : public tensor::Memory {
 public:
  explicit Used(std::int64_t bytes) : all_(memory_, tensor::Dtype::u8, {bytes}) {
    std::ranges::fill(all_.bytes(), std::byte{1});
  }
  std::byte* allocate(std::size_t bytes) override {
    const std::size_t room = (bytes + 4095) / 4096 * 4096;
    if (at_ + room > all_.bytes().size()) throw Error(ErrorKind::memory, "the bench's memory is too small");
    std::byte* block = all_.bytes().data() + at_;
    at_ += room;
    ++held_;
    return block;
  }
  void release(std::byte* /*block*/, std::size_t /*bytes*/) noexcept override {
    if (--held_ == 0) at_ = 0;
  }

 private:
  tensor::HostMemory memory_;
  tensor::Tensor all_;
  std::size_t at_ = 0;
  std::int64_t held_ = 0;
};

struct Loaded {
  double seconds = 0;
  std::int64_t bytes = 0;  // of experts
};

// What `kerf decode` does on one rank before it plans.
Loaded load(const std::filesystem::path& path, int threads, tensor::Memory& memory) {
  Loaded out;
  comm::run_local(1, {}, [&](comm::Group& group) {
    decode::Meter meter(memory);
    const auto start = Clock::now();
    const auto from = checkpoint::Checkpoint::open(path);
    decode::Startup times;
    const auto layers = decode::build(from, {}, {group, meter, Workers(threads), {}}, &times);
    out.seconds = bench::seconds(start);
    out.bytes = times.bytes;
  });
  return out;
}

// A file, mapped.
class Mapping {
 public:
  explicit Mapping(const std::filesystem::path& path) {
    const OpenedFile file = open_regular(path);
    bytes_ = static_cast<std::size_t>(file.bytes);
    data_ = ::mmap(nullptr, bytes_, PROT_READ, MAP_PRIVATE, file.descriptor.get(), 0);
    if (data_ == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path.string());
  }
  ~Mapping() { ::munmap(data_, bytes_); }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  Mapping(Mapping&&) = delete;
  Mapping& operator=(Mapping&&) = delete;
  [[nodiscard]] std::span<const std::byte> bytes() const {
    return {static_cast<const std::byte*>(data_), bytes_};
  }

 private:
  void* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// memcpy of the mapped files, a MiB a task.
double copy_files(const std::vector<std::filesystem::path>& files, int threads, tensor::Memory& memory,
                  std::int64_t& bytes) {
  constexpr std::size_t piece = std::size_t{1} << 20;
  const Workers workers(threads);
  std::vector<tensor::Tensor> to;
  bytes = 0;
  const auto start = Clock::now();
  for (const auto& path : files) {
    const Mapping from(path);
    to.emplace_back(memory, tensor::Dtype::u8, tensor::Shape{std::ssize(from.bytes())});
    std::byte* const target = to.back().bytes().data();
    workers.for_each((from.bytes().size() + piece - 1) / piece, [&](std::size_t i, int) {
      const auto part = from.bytes().subspan(i * piece, std::min(piece, from.bytes().size() - i * piece));
      std::memcpy(target + i * piece, part.data(), part.size());
    });
    bytes += std::ssize(from.bytes());
  }
  return bench::seconds(start);
}

// The files from end to end, by one thread, thrown away.
double read_files(const std::vector<std::filesystem::path>& files, std::int64_t& bytes) {
  std::vector<std::byte> buffer(std::size_t{8} << 20);
  bytes = 0;
  const auto start = Clock::now();
  for (const auto& path : files) {
    const OpenedFile file = open_regular(path);
    for (std::int64_t at = 0; at < file.bytes; at += std::ssize(buffer))
      read_exactly(
          file, path, at,
          std::span(buffer).first(static_cast<std::size_t>(std::min(std::ssize(buffer), file.bytes - at))));
    bytes += file.bytes;
  }
  return bench::seconds(start);
}

// All layers converted, each into the same memory, from mapped files or by reads. Seconds.
double convert_layers(const std::filesystem::path& path, int threads, bool mapped) {
  const auto from = checkpoint::Checkpoint::open(path);
  const Workers workers(threads);
  tensor::HostMemory memory;
  const checkpoint::ModelConfig& c = from.config();
  const layout::Nvfp4Experts to(memory, {c.experts, c.hidden, c.intermediate}, 0);
  const std::array<std::span<std::byte>, 4> target{to.w13.bytes(), to.w13_sf.bytes(), to.w2.bytes(),
                                                   to.w2_sf.bytes()};
  for (const auto t : target) std::ranges::fill(t, std::byte{1});
  std::map<const tensor::Reader*, Mapping> maps;
  const auto view = [&](const tensor::StoredTensor& t) {
    const auto* file = dynamic_cast<const checkpoint::DataFile*>(t.source.reader());
    const Mapping& map = maps.try_emplace(file, file->path()).first->second;
    return map.bytes().subspan(static_cast<std::size_t>(t.source.begin()),
                               static_cast<std::size_t>(t.source.bytes()));
  };
  const auto start = Clock::now();
  for (const std::int64_t l : from.moe_layers()) {
    std::vector<layout::LogicalNvfp4<const std::byte>> views;
    std::vector<layout::StoredNvfp4> files;
    for (std::int64_t e = 0; e < c.experts; ++e) {
      const checkpoint::ExpertFiles f = from.layer(l).expert_files(e);
      if (mapped)
        views.push_back(
            {view(f.gate), view(f.gate_sf), view(f.up), view(f.up_sf), view(f.down), view(f.down_sf)});
      else
        files.push_back(
            {f.gate.source, f.gate_sf.source, f.up.source, f.up_sf.source, f.down.source, f.down_sf.source});
    }
    const layout::ConvertedNvfp4<std::byte> all{target[0], target[1], target[2], target[3]};
    mapped ? layout::convert_all(views, c.hidden, c.intermediate, c.intermediate, all, workers)
           : layout::convert_all(files, c.hidden, c.intermediate, c.intermediate, all, workers);
  }
  return bench::seconds(start);
}

double rate(std::int64_t bytes, double seconds) { return 1e-9 * static_cast<double>(bytes) / seconds; }

std::int64_t all_bytes(const Made& made) {
  std::int64_t bytes = 0;
  for (const auto& path : made.files()) bytes += static_cast<std::int64_t>(std::filesystem::file_size(path));
  return bytes;
}

// Both in turns; the medians' ratio. Without `used`, into fresh memory.
double warm(const Made& made, int threads, std::int64_t rounds, Used* used) {
  std::vector<double> loads;
  std::vector<double> copies;
  std::int64_t bytes = 0;
  (void)read_files(made.files(), bytes);
  const char* kind = used != nullptr ? "used" : "fresh";
  for (std::int64_t r = 0; r < rounds; ++r) {
    tensor::HostMemory fresh;
    tensor::Memory& memory = used != nullptr ? static_cast<tensor::Memory&>(*used) : fresh;
    const double seconds = copy_files(made.files(), threads, memory, bytes);
    copies.push_back(rate(bytes, seconds));
    const Loaded loaded = load(made.path(), threads, memory);
    loads.push_back(rate(loaded.bytes, loaded.seconds));
    std::printf("warm  %s memory, round %d: memcpy %.2f GB/s, load %.2f GB/s, %.2f\n", kind,
                static_cast<int>(r), copies.back(), loads.back(), loads.back() / copies.back());
    std::fflush(stdout);
  }
  const double ratio = bench::median(loads) / bench::median(copies);
  std::printf(
      "warm  %s memory, %.2f GB on %d threads, medians: memcpy %.2f GB/s, load %.2f GB/s: %.2f of it\n", kind,
      1e-9 * static_cast<double>(bytes), threads, bench::median(copies), bench::median(loads), ratio);
  return ratio;
}

void ways(const Made& made, int threads, std::int64_t rounds, std::int64_t bytes) {
  for (std::int64_t r = 0; r < rounds; ++r) {
    const double mapped = convert_layers(made.path(), threads, true);
    const double reads = convert_layers(made.path(), threads, false);
    std::printf("ways  round %d: converted from a mapping %.2f GB/s, by reads %.2f GB/s\n",
                static_cast<int>(r), rate(bytes, mapped), rate(bytes, reads));
    std::fflush(stdout);
  }
}

// Out of the page cache, as far as the system follows the advice.
void drop(const std::vector<std::filesystem::path>& files) {
  for (const auto& path : files) {
    const OpenedFile file = open_regular(path);
    ::fdatasync(file.descriptor.get());
    ::posix_fadvise(file.descriptor.get(), 0, 0, POSIX_FADV_DONTNEED);
  }
}

void cold(const Made& made, int threads, std::int64_t rounds, Used& used) {
  for (std::int64_t r = 0; r < rounds; ++r) {
    std::int64_t bytes = 0;
    drop(made.files());
    const double reads = read_files(made.files(), bytes);
    drop(made.files());
    const Loaded loaded = load(made.path(), threads, used);
    drop(made.files());
    const double mapped = convert_layers(made.path(), threads, true);
    std::printf(
        "cold  round %d: read from end to end %.2f GB/s, load %.2f GB/s, %.2f; from a mapping %.2f GB/s\n",
        static_cast<int>(r), rate(bytes, reads), rate(loaded.bytes, loaded.seconds),
        rate(loaded.bytes, loaded.seconds) / rate(bytes, reads), rate(loaded.bytes, mapped));
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = bench::option(argc, argv, "check", 0) != 0;
  const auto threads = static_cast<int>(bench::option(argc, argv, "threads", available_cores()));
  const std::int64_t rounds = bench::option(argc, argv, "rounds", 3);
  std::string directory = std::filesystem::temp_directory_path().string();
  for (int i = 1; i + 1 < argc; ++i)
    if (std::string_view(argv[i]) == "--dir") directory = argv[i + 1];
  const Made made(directory, bench::option(argc, argv, "gib", 1), threads);
  Used used(all_bytes(made) + (std::int64_t{64} << 20));
  const double ratio = warm(made, threads, check ? 5 : rounds, &used);
  if (check) {
    constexpr double wanted = 0.6;
    std::printf("at least %.1f of memcpy wanted: %s\n", wanted, ratio >= wanted ? "so it is" : "NOT reached");
    return ratio >= wanted ? 0 : 1;
  }
  if (bench::option(argc, argv, "fresh", 0) != 0) (void)warm(made, threads, rounds, nullptr);
  ways(made, threads, rounds, all_bytes(made));
  if (bench::option(argc, argv, "cold", 0) != 0) cold(made, threads, rounds, used);
  return 0;
}
