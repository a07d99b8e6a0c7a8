// 02: the theorem. Experts that are converted and then cut are, byte for byte, experts that are cut and then
// converted: so a cut needs no checkpoint and no second conversion.
//     02_cut_it CHECKPOINT
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include "kerf/kerf.h"

namespace {

using Bytes = std::vector<std::byte>;
using Expert = kerf::layout::LogicalNvfp4<const std::byte>;

constexpr std::int64_t tp = 2;

kerf::layout::Nvfp4Experts convert(kerf::tensor::Memory& memory, const Expert& from, std::int64_t hidden,
                                   std::int64_t intermediate) {
  kerf::layout::Nvfp4Experts to(memory, {1, hidden, intermediate}, 0);
  kerf::layout::convert(from, hidden, intermediate,
                        {to.w13.bytes(), to.w13_sf.bytes(), to.w2.bytes(), to.w2_sf.bytes()});
  return to;
}

// Part `part` of tp of a row-major matrix's rows, or of its columns.
std::span<const std::byte> rows(std::span<const std::byte> matrix, std::int64_t part) {
  const std::size_t bytes = matrix.size() / static_cast<std::size_t>(tp);
  return matrix.subspan(static_cast<std::size_t>(part) * bytes, bytes);
}
Bytes columns(std::span<const std::byte> matrix, std::int64_t height, std::int64_t part) {
  const std::int64_t row = std::ssize(matrix) / height;
  Bytes out(matrix.size() / static_cast<std::size_t>(tp));
  kerf::tensor::pack({matrix.data() + part * row / tp, 1, 0, height, row, row / tp}, out.data());
  return out;
}

int prove(const char* path) {
  const auto checkpoint = kerf::checkpoint::Checkpoint::open(path);
  const std::int64_t hidden = checkpoint.config().hidden;
  const std::int64_t intermediate = checkpoint.config().intermediate;
  const auto layers = checkpoint.moe_layers();
  const auto nvfp4 = std::ranges::find_if(layers, [&](std::int64_t layer) {
    return checkpoint.layer(layer).kind() == kerf::checkpoint::ExpertKind::nvfp4;
  });
  if (nvfp4 == layers.end())
    throw kerf::Error(kerf::ErrorKind::unsupported, "no layer has NVFP4 experts: wanted one");
  const auto file = checkpoint.layer(*nvfp4).expert(0);
  kerf::tensor::HostMemory memory;

  const auto whole = convert(memory,
                             {file.gate.bytes, file.gate_sf.bytes, file.up.bytes, file.up_sf.bytes,
                              file.down.bytes, file.down_sf.bytes},
                             hidden, intermediate);
  bool all = true;
  for (std::int64_t part = 0; part < tp; ++part) {
    // The file's matrices cut, by rows of gate and up and columns of down, and then converted ...
    const Bytes down = columns(file.down.bytes, hidden, part);
    const Bytes down_sf = columns(file.down_sf.bytes, hidden, part);
    const auto wanted = convert(memory,
                                {rows(file.gate.bytes, part), rows(file.gate_sf.bytes, part),
                                 rows(file.up.bytes, part), rows(file.up_sf.bytes, part), down, down_sf},
                                hidden, intermediate / tp);
    const std::array tensors = {wanted.w13.bytes(), wanted.w13_sf.bytes(), wanted.w2.bytes(),
                                wanted.w2_sf.bytes()};
    // ... and the converted expert cut: views, which move nothing until they are packed.
    const auto slices = kerf::layout::slice_views(whole.view(), tp, part);
    for (std::size_t kind = 0; kind < slices.size(); ++kind) {
      Bytes packed(static_cast<std::size_t>(slices[kind].packed_bytes()));
      kerf::tensor::pack(slices[kind], packed.data());
      const bool same = std::ranges::equal(packed, tensors[kind]);
      all = all && same;
      std::printf("slice %d of %d, %-6s %7zu bytes: %s\n", static_cast<int>(part), static_cast<int>(tp),
                  kerf::layout::nvfp4_kind_names[kind], packed.size(), same ? "the same" : "DIFFERENT");
    }
  }
  return all ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  int code = 0;
  const kerf::Verdict failed = kerf::attempt([&] {
    if (argc != 2) throw kerf::Error(kerf::ErrorKind::usage, "usage: 02_cut_it CHECKPOINT");
    code = prove(argv[1]);
  });
  if (failed) std::fprintf(stderr, "%s\n", failed->text.c_str());
  return failed ? static_cast<int>(failed->kind) : code;
}
