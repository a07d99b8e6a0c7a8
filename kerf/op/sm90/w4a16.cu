// NVFP4 experts with bf16 rows: weights are decoded to bf16 on their way to the tensor cores.
#include "kerf/op/sm90/half_experts.cuh"

namespace kerf::op::sm90 {

std::unique_ptr<DeviceExperts> bind_w4a16(const Nvfp4Args& args) {
  const internal::Nvfp4Weights w(args);
  const auto [n, hidden, inter] = w.shape;
  std::array<HalfMaps, configs> maps;
  for (std::size_t c = 0; c < maps.size(); ++c) {
    const int rows = rows_of_unit(splits[c]);
    maps[c].w13 = byte_map(w.w13, n * 2 * inter, hidden / 2, rows, Fp4Chunk::box_bytes, Swizzle::bytes_64);
    maps[c].w2 = byte_map(w.w2, n * hidden, inter / 2, rows, Fp4Chunk::box_bytes, Swizzle::bytes_64);
  }
  const std::int64_t values = hidden * inter;  // of one of three matrices
  const Ahead ahead{
      .first_expert = static_cast<std::int32_t>(args.experts.first_expert),
      .experts = static_cast<std::int32_t>(n),
      .matrices = {{{w.w13, values}, {w.w13_sf, values / 8}}, {{w.w2, values / 2}, {w.w2_sf, values / 16}}},
      .most_bytes = most_ahead_bytes};
  return std::make_unique<HalfExperts<Fp4Chunk, internal::Nvfp4Weights>>(
      args, maps, w.w13_sf, w.w2_sf, ahead, w, "NVFP4 experts with bf16 rows (W4A16)");
}

}  // namespace kerf::op::sm90
