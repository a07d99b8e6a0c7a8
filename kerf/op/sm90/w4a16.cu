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
  return std::make_unique<HalfExperts<Fp4Chunk>>(args, maps, w.w13_sf, w.w2_sf, w.scalars,
                                                 "NVFP4 experts with bf16 rows (W4A16)");
}

}  // namespace kerf::op::sm90
