// BF16 experts: weights are multiplied as they lie.
#include "kerf/op/sm90/half_experts.cuh"

namespace kerf::op::sm90 {

std::unique_ptr<DeviceExperts> bind_bf16(const Bf16Args& args) {
  const internal::Bf16Weights w(args);
  const auto [n, hidden, inter] = w.shape;
  std::array<HalfMaps, configs> maps;
  for (std::size_t c = 0; c < maps.size(); ++c) {
    const int rows = rows_of_unit(splits[c]);
    maps[c].w13 =
        byte_map(w.w13, n * (hidden / 64) * 2 * inter, 128, rows, Bf16Chunk::box_bytes, Swizzle::bytes_128);
    maps[c].w2 =
        byte_map(w.w2, n * (inter / 64) * hidden, 128, rows, Bf16Chunk::box_bytes, Swizzle::bytes_128);
  }
  return std::make_unique<HalfExperts<Bf16Chunk, internal::Bf16Weights>>(args, maps, nullptr, nullptr,
                                                                         Ahead{}, w, "BF16 experts");
}

}  // namespace kerf::op::sm90
