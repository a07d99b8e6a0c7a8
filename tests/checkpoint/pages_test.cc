// Which pages of a checkpoint are read: those of the experts that are asked for.
#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <optional>
#include <set>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/tools/synth.h"
#include "tests/support/test_env.h"

namespace kerf::checkpoint {
namespace {

using tensor::TensorView;

std::uintptr_t begin_of(const TensorView& view) {
  return reinterpret_cast<std::uintptr_t>(view.bytes.data());
}

// A touched page brings neighbours in, but only of its own 2 MiB (the reach of a page table, and of a huge
// page). Blocks that hold something which was read tell nothing; in all others no page may be there.
class Blocks {
 public:
  void add(const TensorView& view) {
    for (std::uintptr_t b = begin_of(view) / bytes; b <= (begin_of(view) + view.bytes.size() - 1) / bytes;
         ++b)
      blocks_.insert(b);
  }
  [[nodiscard]] bool contains(std::uintptr_t address) const { return blocks_.contains(address / bytes); }

 private:
  static constexpr std::uintptr_t bytes = std::uintptr_t{1} << 21;
  std::set<std::uintptr_t> blocks_;
};

struct Pages {
  std::int64_t touched = 0;
  std::int64_t all = 0;
};

// The pages under a view that are outside `except`, and how many of them this process has mapped in (bit 63
// of a page's entry). Nothing where the system does not tell.
std::optional<Pages> pages_of(const TensorView& view, const Blocks& except) {
  const int fd = ::open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
  const std::uintptr_t begin = begin_of(view) / page;
  std::vector<std::uint64_t> entries((begin_of(view) + view.bytes.size() - 1) / page + 1 - begin);
  const std::size_t bytes = entries.size() * sizeof(std::uint64_t);
  const ssize_t got = ::pread(fd, entries.data(), bytes, static_cast<off_t>(begin * sizeof(std::uint64_t)));
  ::close(fd);
  if (got != static_cast<ssize_t>(bytes)) return std::nullopt;
  Pages out;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (except.contains((begin + i) * page)) continue;
    ++out.all;
    out.touched += static_cast<std::int64_t>(entries[i] >> 63);
  }
  return out;
}

// A rank that opens a checkpoint, reads all global scales, what stands beside the experts and its own expert
// leaves the pages of the other experts alone.
TEST(Pages, OfOtherExpertsStayUnread) {
  for (const tools::SynthModel model : {tools::SynthModel::qwen3_moe, tools::SynthModel::muse_spark}) {
    const test::TempDir dir;
    tools::SynthOptions o = tools::synth_defaults(model);
    o.experts = 4;
    o.hidden = 4096;
    o.intermediate = 2048;
    o.layers = 1;
    o.top_k = 2;
    o.bf16_layers = {};
    tools::synth(dir.path(), o, Workers(2));

    const Checkpoint opened = Checkpoint::open(dir.path());
    const MoeLayer& layer = opened.layer(0);
    Faults faults;
    (void)layer.scales(faults);
    layer.scan_extras(faults);
    layer.scan_block_scales(0, faults);
    EXPECT_TRUE(faults.empty()) << faults.text();
    const ExpertViews own = layer.expert(0);
    std::vector<std::byte> copy;
    for (const TensorView* view : {&own.gate, &own.up, &own.down})
      copy.insert(copy.end(), view->bytes.begin(), view->bytes.end());

    Blocks read;
    for (const TensorView* view : {&own.gate, &own.up, &own.down, &own.gate_sf, &own.up_sf, &own.down_sf}) {
      const auto pages = pages_of(*view, Blocks{});
      if (!pages) GTEST_SKIP() << "/proc/self/pagemap cannot be read";
      EXPECT_EQ(pages->touched, pages->all) << tools::name(model);
      read.add(*view);
    }
    std::vector<std::string> scalars = {"mlp.experts.post_expert_norm.weight",
                                        "mlp.gate.e_score_correction_bias"};
    for (const char* scale : {"weight_scale_2", "input_scale"}) {
      for (const char* stack : {"gate_up_proj", "down_proj"})
        scalars.push_back(fmt::format("mlp.experts.{}_{}", stack, scale));
      for (std::int64_t e = 0; e < o.experts; ++e)
        for (const char* projection : {"gate_proj", "up_proj", "down_proj"})
          scalars.push_back(fmt::format("mlp.experts.{}.{}.{}", e, projection, scale));
    }
    for (const std::string& name : scalars)
      if (const auto view = layer.find(name)) read.add(*view);

    Pages others;
    for (std::int64_t e = 1; e < o.experts; ++e) {
      const ExpertViews views = layer.expert(e);
      for (const TensorView* view : {&views.gate, &views.up, &views.down}) {
        const auto pages = pages_of(*view, read);
        ASSERT_TRUE(pages);
        EXPECT_EQ(pages->touched, 0) << tools::name(model) << " expert " << e << ", of " << pages->all;
        others.touched += pages->touched;
        others.all += pages->all;
      }
    }
    // Nine matrices of 4 MiB: at least one in eight of their pages must have had something to tell.
    EXPECT_GE(others.all * ::sysconf(_SC_PAGESIZE), 9 * (4 << 20) / 8) << tools::name(model);
  }
}

}  // namespace
}  // namespace kerf::checkpoint
