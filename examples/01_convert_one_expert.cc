// 01: one expert from a checkpoint into the layout that the op reads, and back, byte for byte.
//     01_convert_one_expert CHECKPOINT
#include <algorithm>
#include <cstdio>
#include <vector>

#include "kerf/kerf.h"

namespace {

using Bytes = std::vector<std::byte>;

int convert_and_restore(const char* path) {
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(path);
  const kerf::checkpoint::ModelConfig& model = checkpoint.config();
  const std::int64_t h = model.hidden;
  const std::int64_t i = model.intermediate;

  const auto layers = checkpoint.moe_layers();
  const auto nvfp4 = std::ranges::find_if(layers, [&](std::int64_t layer) {
    return checkpoint.layer(layer).kind() == kerf::checkpoint::ExpertKind::nvfp4;
  });
  if (nvfp4 == layers.end())
    throw kerf::Error(kerf::ErrorKind::unsupported, "no layer has NVFP4 experts: wanted one");

  // As the file has it: gate and up [I, H/2] with scales [I, H/16], down [H, I/2] with scales [H, I/16].
  const kerf::checkpoint::ExpertViews expert = checkpoint.layer(*nvfp4).expert(0);
  const kerf::layout::LogicalNvfp4<const std::byte> file = {expert.gate.bytes, expert.gate_sf.bytes,
                                                            expert.up.bytes,   expert.up_sf.bytes,
                                                            expert.down.bytes, expert.down_sf.bytes};

  // As the op reads it: w13 [2I, H/2], w13_sf [2I, H/16], w2 [H, I/2], w2_sf [H, I/16].
  Bytes w13(2 * file.gate.size()), w13_sf(2 * file.gate_sf.size()), w2(file.down.size()),
      w2_sf(file.down_sf.size());
  kerf::layout::convert(file, h, i, {w13, w13_sf, w2, w2_sf});

  // Nothing was computed, so the way back is exact.
  Bytes gate(file.gate.size()), gate_sf(file.gate_sf.size()), up(file.up.size()), up_sf(file.up_sf.size()),
      down(file.down.size()), down_sf(file.down_sf.size());
  kerf::layout::restore({w13, w13_sf, w2, w2_sf}, h, i, {gate, gate_sf, up, up_sf, down, down_sf});
  const bool same = std::ranges::equal(gate, file.gate) && std::ranges::equal(gate_sf, file.gate_sf) &&
                    std::ranges::equal(up, file.up) && std::ranges::equal(up_sf, file.up_sf) &&
                    std::ranges::equal(down, file.down) && std::ranges::equal(down_sf, file.down_sf);
  std::printf("an expert of %lld x %lld: %zu bytes converted, %s when restored\n", static_cast<long long>(h),
              static_cast<long long>(i), w13.size() + w13_sf.size() + w2.size() + w2_sf.size(),
              same ? "the same" : "DIFFERENT");
  return same ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 01_convert_one_expert CHECKPOINT");
    code = convert_and_restore(argv[1]);
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : code;
}
