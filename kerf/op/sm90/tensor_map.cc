#include "kerf/op/sm90/tensor_map.h"

#include "kerf/base/format.h"
#include "kerf/cuda/check.h"

namespace kerf::op::sm90 {

namespace {
// The driver's function, asked for by name: kerf is not linked against the driver.
auto encoder() {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  cuda::check(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &found, 12000, cudaEnableDefault, &result),
      "looking for cuTensorMapEncodeTiled");
  if (found == nullptr || result != cudaDriverEntryPointSuccess)
    fail(ErrorKind::device, "the driver has no cuTensorMapEncodeTiled");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(found);
}
CUtensorMapSwizzle native(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return CU_TENSOR_MAP_SWIZZLE_NONE;
    case Swizzle::bytes_64:
      return CU_TENSOR_MAP_SWIZZLE_64B;
    case Swizzle::bytes_128:
      return CU_TENSOR_MAP_SWIZZLE_128B;
  }
  fail(ErrorKind::bug, "swizzle {}", static_cast<int>(swizzle));
}
}  // namespace

CUtensorMap byte_map(const void* base, std::int64_t rows, std::int64_t row_bytes, int box_rows, int box_bytes,
                     Swizzle swizzle) {
  static const auto encode = encoder();
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(row_bytes), static_cast<cuuint64_t>(rows)};
  const cuuint64_t strides[1] = {static_cast<cuuint64_t>(row_bytes)};
  const cuuint32_t box[2] = {static_cast<cuuint32_t>(box_bytes), static_cast<cuuint32_t>(box_rows)};
  const cuuint32_t steps[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, const_cast<void*>(base), sizes,
                                 strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, native(swizzle),
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS)
    fail(ErrorKind::device, "no tensor map of [{}, {}] bytes in boxes of [{}, {}]: driver error {}", rows,
         row_bytes, box_rows, box_bytes, static_cast<int>(result));
  return map;
}

}  // namespace kerf::op::sm90
