// The inputs of measured steps, so that outputs can be compared with those of kerf decode.

#include <algorithm>
#include <string>

#include "src/arrays.h"
#include "src/bind.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

template <typename T>
Array copied(const std::vector<T>& values, Dtype dtype, const tensor::Shape& shape) {
  const Array out(dtype, shape);
  std::copy(values.begin(), values.end(), out.writable<T>().begin());
  return out;
}

nb::dict decode_inputs(std::int64_t layer, std::int64_t tokens, const std::string& kind, std::int64_t experts,
                       std::int64_t hidden, std::int64_t top_k, std::uint64_t seed) {
  if (tokens < 0 || experts < 1 || hidden < 1 || top_k < 1 || top_k > experts)
    throw Error(ErrorKind::usage, "inputs want T >= 0, E, H >= 1 and K of 1 to E");
  const bool bf16 = kind == "bf16";
  if (!bf16 && kind != "nvfp4") throw Error(ErrorKind::usage, "kind is '" + kind + "', wanted nvfp4 or bf16");
  const decode::Inputs in = decode::make_inputs(
      seed, layer, tokens, bf16 ? checkpoint::ExpertKind::bf16 : checkpoint::ExpertKind::nvfp4,
      {experts, hidden, top_k});
  nb::dict out;
  out["x"] = copied(in.x, Dtype::bf16, {tokens, hidden});
  if (bf16) {
    out["logits"] = copied(in.logits, Dtype::f32, {tokens, experts});
  } else {
    out["ids"] = copied(in.ids, Dtype::i32, {tokens, top_k});
    out["weights"] = copied(in.weights, Dtype::f32, {tokens, top_k});
  }
  return out;
}

}  // namespace

void bind_inputs(nb::module_& m) {
  m.def("decode_inputs", &decode_inputs, nb::arg("layer"), nb::arg("tokens"), nb::arg("kind"), nb::kw_only(),
        nb::arg("experts"), nb::arg("hidden"), nb::arg("top_k"), nb::arg("seed") = 1,
        "What `kerf decode` feeds a layer's step: x [T, H] bf16, and ids [T, K] with weights, or for BF16 "
        "layers logits "
        "[T, E], which its router, \"renormalize\", selects from. The same bits everywhere.");
}

}  // namespace kerf::python
