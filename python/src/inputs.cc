// The inputs of measured steps, so that outputs can be compared with those of kerf decode.

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "src/arrays.h"
#include "src/bind.h"
#include "src/callers.h"

namespace kerf::python {

namespace {

using tensor::Dtype;

template <typename T>
Array copied(const std::vector<T>& values, Dtype dtype, const tensor::Shape& shape) {
  const Array out(dtype, shape);
  std::copy(values.begin(), values.end(), out.writable<T>().begin());
  return out;
}

// What the vectors, their copies and the deck of experts take, so that what there is no room for is refused
// before it is begun.
void check_room(std::int64_t tokens, std::int64_t bytes_a_token, std::int64_t experts) {
  const double wanted = 2.0 * static_cast<double>(tokens) * static_cast<double>(bytes_a_token) +
                        4.0 * static_cast<double>(experts);
  const std::int64_t there = available_memory();
  if (there > 0 && wanted > static_cast<double>(there))
    throw Error(ErrorKind::memory,
                fmt::format("inputs of {} tokens take {:.1f} GiB while they are made, there are {:.1f} GiB",
                            tokens, wanted / (1 << 30), static_cast<double>(there) / (1 << 30)));
}

nb::dict decode_inputs(nb::handle layer_object, nb::handle tokens_object, const std::string& kind,
                       nb::handle experts_object, nb::handle hidden_object, nb::handle top_k_object,
                       nb::handle seed_object) {
  const std::int64_t layer = whole("layer", layer_object, 0, most_count);
  const std::int64_t tokens = whole("tokens", tokens_object, 0, most_count);
  const std::int64_t experts = whole("experts", experts_object, 1, most_count);
  const std::int64_t hidden = whole("hidden", hidden_object, 1, most_count);
  const std::int64_t top_k = whole("top_k", top_k_object, 1, experts);
  const std::uint64_t seed = seed_of(seed_object);
  const bool bf16 = kind == "bf16";
  if (!bf16 && kind != "nvfp4")
    throw Error(ErrorKind::usage, fmt::format("kind is '{}', wanted nvfp4 or bf16", kind));
  check_room(tokens, 2 * hidden + (bf16 ? 4 * experts : 8 * top_k), experts);
  decode::Inputs in;
  {
    const Unlocked released;
    in = decode::make_inputs(seed, layer, tokens,
                             bf16 ? checkpoint::ExpertKind::bf16 : checkpoint::ExpertKind::nvfp4,
                             {experts, hidden, top_k});
  }
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
  m.def(
      "decode_inputs", &decode_inputs, nb::arg("layer"), nb::arg("tokens"), nb::arg("kind"), nb::kw_only(),
      nb::arg("experts"), nb::arg("hidden"), nb::arg("top_k"), nb::arg("seed") = 1,
      nb::sig(
          "def decode_inputs(layer: int, tokens: int, kind: str, *, experts: int, hidden: int, top_k: int, "
          "seed: int = 1) -> dict[str, typing.Any]"),
      "What `kerf decode` feeds a layer's step, as `Runtime.execute` takes it: the same bits everywhere.\n\n"
      "`tokens`: T, `experts`: E, `hidden`: H, `top_k`: K. `kind`: the layer's, \"nvfp4\" or \"bf16\". "
      "Returns x "
      "bfloat16 [T, H], and ids int32 [T, K] with weights float32 [T, K], or for BF16 layers logits float32 "
      "[T, E], "
      "which their router, \"renormalize\", selects from: kerf.Array.\n\n"
      "Raises UsageError for another kind and numbers out of range, OutOfMemoryError where there is no "
      "room.");
}

}  // namespace kerf::python
