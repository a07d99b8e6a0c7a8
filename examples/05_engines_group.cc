// 05: an engine's own process group behind kerf's Group. Here the engine is four threads
// that meet in a piece of memory of their own; torch.distributed, MPI or a fabric would be called instead.
//     05_engines_group CHECKPOINT
#include <barrier>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <thread>
#include <vector>

#include "kerf/kerf.h"

namespace {

constexpr int ranks = 4;

// The engine: what each rank sends lies in the open until all have read it.
class Engine {
 public:
  // kerf's callbacks for one rank. all_gather and all_to_all are enough: sums are formed from them.
  kerf::comm::EngineGroupCalls calls(int rank) {
    kerf::comm::EngineGroupCalls out;
    out.rank = rank;
    out.size = ranks;
    out.name = "four threads";
    out.all_gather = [this, rank](std::span<const std::byte> mine, std::span<std::byte> all,
                                  std::string_view /*what*/) {
      post(rank, mine, {});
      for (std::size_t r = 0; r < ranks; ++r)
        std::memcpy(all.data() + r * mine.size(), posts_[r].bytes.data(), mine.size());
      meet_.arrive_and_wait();
    };
    out.all_to_all = [this, rank](std::span<const std::byte> send, std::span<const std::int64_t> send_bytes,
                                  std::span<std::byte> received, std::span<const std::int64_t> received_bytes,
                                  std::string_view /*what*/) {
      post(rank, send, send_bytes);
      std::size_t at = 0;
      for (std::size_t r = 0; r < ranks; ++r) {
        std::size_t from = 0;  // where rank r's bytes for this rank begin
        for (std::size_t d = 0; d < static_cast<std::size_t>(rank); ++d)
          from += static_cast<std::size_t>(posts_[r].sizes[d]);
        const auto bytes = static_cast<std::size_t>(received_bytes[r]);
        if (bytes > 0) std::memcpy(received.data() + at, posts_[r].bytes.data() + from, bytes);
        at += bytes;
      }
      meet_.arrive_and_wait();
    };
    return out;
  }

 private:
  void post(int rank, std::span<const std::byte> bytes, std::span<const std::int64_t> sizes) {
    posts_[static_cast<std::size_t>(rank)] = {bytes, sizes};
    meet_.arrive_and_wait();
  }

  struct Post {
    std::span<const std::byte> bytes;
    std::span<const std::int64_t> sizes;
  };
  std::vector<Post> posts_{ranks};
  std::barrier<> meet_{ranks};
};

// One layer's step on resharded experts: [T, H] bf16, the same on every rank.
std::vector<std::uint16_t> step(const kerf::checkpoint::Checkpoint& checkpoint, kerf::comm::Group& group) {
  kerf::tensor::HostMemory host;
  kerf::decode::Meter memory(host);
  kerf::decode::RuntimeOptions options;
  options.expert_tp = true;
  const auto runtime =
      kerf::decode::Runtime::build(checkpoint, options, {group, memory, kerf::Workers(1), {}});
  runtime.warm_up();
  const kerf::checkpoint::ModelConfig& model = checkpoint.config();
  const std::vector<std::uint16_t> x(static_cast<std::size_t>(2 * model.hidden), 0x3F80);
  const auto ids = kerf::decode::spread_routes(2, model.top_k, model.experts);
  const std::vector<float> weights(ids.size(), 0.5F);
  kerf::decode::StepInputs in;
  in.tokens = 2;
  in.x = x;
  in.ids = ids;
  in.weights = weights;
  const auto y = runtime.execute(0, kerf::decode::Mode::tp, in);
  return {y.begin(), y.end()};
}

int compare(const char* path) {
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(path);
  Engine engine;
  std::vector<std::vector<std::uint16_t>> rows(ranks);
  std::vector<kerf::Verdict> failed(ranks);
  {
    std::vector<std::jthread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        failed[static_cast<std::size_t>(r)] = kerf::attempt([&] {
          const auto group = kerf::comm::make_engine_group(engine.calls(r));
          rows[static_cast<std::size_t>(r)] = step(checkpoint, *group);
        });
      });
  }
  for (const kerf::Verdict& why : failed) kerf::require(why);

  // The same step on kerf's own group of threads.
  std::vector<std::uint16_t> wanted;
  kerf::comm::run_local(ranks, {}, [&](kerf::comm::Group& group) {
    auto y = step(checkpoint, group);
    if (group.rank() == 0) wanted = std::move(y);
  });
  bool same = true;
  for (const auto& of_rank : rows) same = same && of_rank == wanted;
  std::printf("sums: %s\n", kerf::comm::engine_sums(engine.calls(0)).c_str());
  std::printf("resharded and decoded on the engine's group: %s\n",
              same ? "the bits of the local group" : "DIFFERENT");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 05_engines_group CHECKPOINT");
    code = compare(argv[1]);
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : code;
}
