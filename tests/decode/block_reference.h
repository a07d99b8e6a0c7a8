// A layer's whole block in plain float64, from the checkpoint's tensors: values are rounded to bf16 where the
// model's definition rounds them, and nowhere else. It can also be wrong on purpose, in each of the ways that
// are easily taken for right: a test that cannot tell these from kerf would not see the mistake in kerf.
#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kerf/checkpoint/checkpoint.h"
#include "kerf/decode/layer.h"
#include "kerf/op/op.h"

namespace kerf::test {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

enum class Wrong : std::uint8_t {
  nothing,
  router_on_pooled_rows,      // the router sees what the experts see
  no_multiplier,              // logits as they are
  multiplier_after_sigmoid,   // scores multiplied, not logits
  bias_in_weights,            // weights from the biased scores
  no_bias,                    // selection by the scores alone
  no_renormalisation,         // weights are the scores
  pre_gain_is_w,              // gains not centred at 1
  pre_gain_not_rounded,       // 1 + w where bf16(1 + w) is wanted
  pre_gain_first,             // bf16(h0 * gain), then the norm
  pre_eps_of_post,            // 1e-8 before the experts
  no_pre_norm,                //
  post_gain_not_rounded,      //
  post_gain_last,             // the norm, then the gain
  post_product_not_rounded,   // row * gain enters the norm unrounded
  post_eps_of_pre,            // 1e-5 after the experts
  post_norm_before_rank_sum,  // TP: each K-partial is normed, and then they are added
  unpool_before_rank_sum,     // EP: each rank projects its own part back
  gate_and_up_swapped,        //
};

struct BlockCase {
  decode::Mode mode = decode::Mode::ep;
  int ranks = 1;
  op::Input input = op::Input::nvfp4;  // of NVFP4 layers
  bool roundings = true;               // false: float64 throughout, but for quantised inputs
  Wrong wrong = Wrong::nothing;
};

namespace reference {

inline double bf16_value(std::uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(std::uint32_t{bits} << 16));
}

// To 8 significant bits, ties to even; the rows here are far from bf16's ends.
inline double r16(double v) {
  if (v == 0) return v;
  const int exponent = std::ilogb(v);
  return std::ldexp(std::nearbyint(std::ldexp(v, 7 - exponent)), exponent - 7);
}

inline double e4m3_value(unsigned code) {
  const unsigned exponent = (code >> 3) & 15U;
  const unsigned mantissa = code & 7U;
  return exponent == 0 ? std::ldexp(mantissa, -9)
                       : std::ldexp(8.0 + mantissa, static_cast<int>(exponent) - 10);
}

// The nearest of the codes' values, ties to the even code. Not negative, at most 448.
inline unsigned e4m3_nearest(double v) {
  unsigned best = 0;
  for (unsigned code = 1; code <= 0x7E; ++code) {
    const double nearer = std::fabs(v - e4m3_value(code)) - std::fabs(v - e4m3_value(best));
    if (nearer < 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return best;
}

inline double e2m1_value(unsigned code) {
  static constexpr double magnitude[8] = {0, .5, 1, 1.5, 2, 3, 4, 6};
  return (code & 8U) != 0 ? -magnitude[code & 7U] : magnitude[code & 7U];
}

inline double e2m1_nearest(double v) {
  unsigned best = 0;
  for (unsigned code = 1; code < 8; ++code) {
    const double nearer =
        std::fabs(std::fabs(v) - e2m1_value(code)) - std::fabs(std::fabs(v) - e2m1_value(best));
    if (nearer < 0 || (nearer == 0 && code % 2 == 0)) best = code;
  }
  return v < 0 ? -e2m1_value(best) : e2m1_value(best);
}

// Blocks of 16 through e2m1 and e4m3, as decoded values: of x * gs (the input's global scale is 1 / gs, and
// comes back in the factors of the GEMMs).
inline Row quantised(const Row& x, float gs) {
  Row out;
  for (std::size_t first = 0; first < x.size(); first += 16) {
    double a = 0;
    for (std::size_t i = first; i < first + 16; ++i) a = std::max(a, std::fabs(x[i]));
    const double scale =
        e4m3_value(e4m3_nearest(static_cast<double>(gs * (static_cast<float>(a) * (1.0F / 6.0F)))));
    const double t = scale != 0 ? gs / scale : 0;
    for (std::size_t i = first; i < first + 16; ++i) out.push_back(e2m1_nearest(x[i] * t) * scale);
  }
  return out;
}

// A matrix of the file, [rows, columns].
struct Matrix {
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  Row values;
  [[nodiscard]] double dot(std::int64_t row, const Row& x, std::int64_t first, std::int64_t last) const {
    double sum = 0;
    for (std::int64_t k = first; k < last; ++k)
      sum += values[static_cast<std::size_t>(row * columns + k)] * x[static_cast<std::size_t>(k)];
    return sum;
  }
  [[nodiscard]] Row times(const Row& x) const {
    Row out;
    for (std::int64_t n = 0; n < rows; ++n) out.push_back(dot(n, x, 0, columns));
    return out;
  }
};

inline Row values_of(const tensor::TensorView& v) {
  Row out;
  if (v.dtype == tensor::Dtype::f32) {
    std::vector<float> stored(v.bytes.size() / 4);
    std::memcpy(stored.data(), v.bytes.data(), v.bytes.size());
    out.assign(stored.begin(), stored.end());
  } else {
    std::vector<std::uint16_t> stored(v.bytes.size() / 2);
    std::memcpy(stored.data(), v.bytes.data(), v.bytes.size());
    for (const std::uint16_t bits : stored) out.push_back(bf16_value(bits));
  }
  return out;
}

inline Matrix matrix_of(const tensor::TensorView& v) { return {v.shape[0], v.shape[1], values_of(v)}; }

// Codes times block scales; the global scale is left out.
inline Matrix matrix_of(const tensor::TensorView& codes, const tensor::TensorView& scales) {
  Matrix out{codes.shape[0], 2 * codes.shape[1], {}};
  for (std::size_t i = 0; i < codes.bytes.size(); ++i) {
    const auto byte = static_cast<unsigned>(codes.bytes[i]);
    const double scale = e4m3_value(static_cast<unsigned>(scales.bytes[i / 8]));
    out.values.push_back(e2m1_value(byte & 15U) * scale);
    out.values.push_back(e2m1_value(byte >> 4) * scale);
  }
  return out;
}

}  // namespace reference

class BlockReference {
 public:
  struct Result {
    Rows out;                       // [T, D]
    std::vector<std::int32_t> ids;  // [T, K]: the reference's own choice
    std::vector<double> weights;    // [T, K]
    std::vector<double> gap;        // [T]: the least distance between the first K + 1 keys
    std::vector<double> key_error;  // [T]: what an f32 router's keys may be off
  };

  BlockReference(const checkpoint::Checkpoint& from, std::int64_t layer)
      : config_(from.config()), layer_(from.layer(layer)) {
    const auto matrix = [&](const char* name) { return reference::matrix_of(layer_.find(name).value()); };
    gate_ = matrix("mlp.gate.weight");
    if (const auto bias = layer_.find("mlp.gate.e_score_correction_bias"))
      bias_ = reference::values_of(*bias);
    if (const auto norm = layer_.find("mlp.experts.post_expert_norm.weight"))
      post_offsets_ = reference::values_of(*norm);
    pooled_ = layer_.find("mlp.pre_expert_proj.weight").has_value();
    if (pooled_) {
      pre_ = matrix("mlp.pre_expert_proj.weight");
      post_ = matrix("mlp.post_expert_proj.weight");
      pre_offsets_ = reference::values_of(layer_.find("mlp.pre_expert_norm.weight").value());
    }
    if (layer_.kind() == checkpoint::ExpertKind::nvfp4) {
      checkpoint::Faults faults;
      scales_ = layer_.scales(faults);
    }
    for (std::int64_t e = 0; e < config_.experts; ++e) {
      const checkpoint::ExpertViews v = layer_.expert(e);
      const bool bf16 = layer_.kind() == checkpoint::ExpertKind::bf16;
      gates_.push_back(bf16 ? reference::matrix_of(v.gate) : reference::matrix_of(v.gate, v.gate_sf));
      ups_.push_back(bf16 ? reference::matrix_of(v.up) : reference::matrix_of(v.up, v.up_sf));
      downs_.push_back(bf16 ? reference::matrix_of(v.down) : reference::matrix_of(v.down, v.down_sf));
    }
  }

  // x [T, D] bf16. Routes: `ids` where they are given, else the reference's own.
  [[nodiscard]] Result run(const std::vector<std::uint16_t>& x, const BlockCase& c,
                           const std::vector<std::int32_t>& ids = {}) const {
    Result result;
    const auto width = static_cast<std::size_t>(gate_.columns);
    const auto k = static_cast<std::size_t>(config_.top_k);
    for (std::size_t t = 0; t * width < x.size(); ++t) {
      Row row;
      for (std::size_t d = 0; d < width; ++d) row.push_back(reference::bf16_value(x[t * width + d]));
      const Row input = pooled_ ? entered(row, c) : row;
      route(c.wrong == Wrong::router_on_pooled_rows ? input : row, c, result);
      if (!ids.empty()) {
        const std::vector<std::int32_t> given(ids.begin() + static_cast<std::ptrdiff_t>(t * k),
                                              ids.begin() + static_cast<std::ptrdiff_t>((t + 1) * k));
        weigh(given, c, result);
      }
      result.out.push_back(token(input, &result.ids[t * k], &result.weights[t * k], c));
    }
    return result;
  }

 private:
  [[nodiscard]] static double rounded(double v, const BlockCase& c) {
    return c.roundings ? reference::r16(v) : v;
  }
  [[nodiscard]] static Row rounded(Row row, const BlockCase& c) {
    for (double& v : row) v = rounded(v, c);
    return row;
  }
  [[nodiscard]] static double inverse_rms(const Row& row, double eps) {
    double squares = 0;
    for (const double v : row) squares += v * v;
    return 1 / std::sqrt(squares / static_cast<double>(row.size()) + eps);
  }
  // bf16(1 + w)
  [[nodiscard]] static Row gains(const Row& offsets, bool round) {
    Row out;
    for (const double w : offsets) out.push_back(round ? reference::r16(1 + w) : 1 + w);
    return out;
  }

  [[nodiscard]] Row entered(const Row& x, const BlockCase& c) const {
    Row row = rounded(pre_.times(x), c);
    if (c.wrong == Wrong::no_pre_norm) return row;
    const Row gain = c.wrong == Wrong::pre_gain_is_w
                         ? pre_offsets_
                         : gains(pre_offsets_, c.wrong != Wrong::pre_gain_not_rounded);
    const double eps = c.wrong == Wrong::pre_eps_of_post ? 1e-8 : 1e-5;
    const bool first = c.wrong == Wrong::pre_gain_first;
    if (first)
      for (std::size_t h = 0; h < row.size(); ++h) row[h] = rounded(row[h] * gain[h], c);
    const double inverse = inverse_rms(row, eps);
    for (std::size_t h = 0; h < row.size(); ++h)
      row[h] = rounded(row[h] * inverse * (first ? 1 : gain[h]), c);
    return row;
  }

  [[nodiscard]] double score(double logit, const BlockCase& c) const {
    if (config_.router.scoring == "softmax") return logit;
    const double multiplier = std::exp2(-2.5);
    const bool late = c.wrong == Wrong::multiplier_after_sigmoid;
    const bool never = c.wrong == Wrong::no_multiplier;
    const double s = 1 / (1 + std::exp(-logit * (late || never ? 1 : multiplier)));
    return late ? s * multiplier : s;
  }
  [[nodiscard]] double key(std::size_t e, const BlockCase& c) const {
    const bool biased = !bias_.empty() && c.wrong != Wrong::no_bias;
    return score(logits_[e], c) + (biased ? bias_[e] : 0);
  }

  // One token's routes, and how near to each other the keys at stake are.
  void route(const Row& x, const BlockCase& c, Result& result) const {
    logits_.clear();
    double magnitude = 0;
    for (std::int64_t e = 0; e < gate_.rows; ++e) {
      // The pooled rows (of a wrong router) are narrower: the weight's first columns.
      const auto width = std::min<std::int64_t>(gate_.columns, std::ssize(x));
      logits_.push_back(gate_.dot(e, x, 0, width));
      double sum = 0;
      for (std::int64_t d = 0; d < width; ++d)
        sum += std::fabs(gate_.values[static_cast<std::size_t>(e * gate_.columns + d)] *
                         x[static_cast<std::size_t>(d)]);
      magnitude = std::max(magnitude, sum);
    }
    std::vector<std::int32_t> order(logits_.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
      return key(static_cast<std::size_t>(a), c) > key(static_cast<std::size_t>(b), c);
    });
    const auto k = static_cast<std::size_t>(config_.top_k);
    double gap = 1e9;
    for (std::size_t i = 0; i < std::min(k, order.size() - 1); ++i)
      gap = std::min(
          gap, key(static_cast<std::size_t>(order[i]), c) - key(static_cast<std::size_t>(order[i + 1]), c));
    result.gap.push_back(gap);
    // An f32 dot is off by one rounding of its partial for each value in it, and 8 of the halving, each of at
    // most 2^-24 of the sum of magnitudes; a sigmoid has slope 1/4 at most, and it and the bias round to f32.
    const double dot_error = (static_cast<double>(gate_.columns) / 256 + 9) * 0x1p-24 * magnitude;
    result.key_error.push_back(dot_error + 8 * 0x1p-24);
    order.resize(k);
    result.ids.insert(result.ids.end(), order.begin(), order.end());
    result.weights.resize(result.ids.size());
    weigh(order, c, result);
  }

  // The weights of the last token, for these ids.
  void weigh(const std::vector<std::int32_t>& ids, const BlockCase& c, Result& result) const {
    Row w;
    for (const std::int32_t id : ids) {
      const auto e = static_cast<std::size_t>(id);
      if (config_.router.scoring == "softmax")
        w.push_back(std::exp(logits_[e] - logits_[static_cast<std::size_t>(ids[0])]));
      else
        w.push_back(c.wrong == Wrong::bias_in_weights ? key(e, c) : score(logits_[e], c));
    }
    const double sum = std::accumulate(w.begin(), w.end(), 0.0) + 1e-15;
    const bool op_routes = layer_.kind() == checkpoint::ExpertKind::bf16;
    for (double& v : w) {
      if (c.wrong != Wrong::no_renormalisation) v /= sum;
      if (op_routes) v = rounded(v, c);
    }
    std::copy(ids.begin(), ids.end(), result.ids.end() - std::ssize(ids));
    std::copy(w.begin(), w.end(), result.weights.end() - std::ssize(w));
  }

  // GEMM2 rows of expert e over [first, last) of the intermediate, before and after their rounding.
  [[nodiscard]] Row partial_row(const Row& input, std::int32_t expert, std::int64_t first, std::int64_t last,
                                const BlockCase& c) const {
    const auto e = static_cast<std::size_t>(expert);
    const bool bf16_layer = layer_.kind() == checkpoint::ExpertKind::bf16;
    const bool w4a4 = !bf16_layer && c.input == op::Input::nvfp4;
    const float gs = 1.0F / scales_.in13;
    const Row x = w4a4 ? reference::quantised(input, gs) : input;
    const double in13 = w4a4 ? scales_.in13 : 1;
    const double in2 = w4a4 ? scales_.in2 : 1;
    const double gate_factor = bf16_layer ? 1 : in13 * scales_.ws2_gate[e];
    const double up_factor = bf16_layer ? 1 : in13 * scales_.ws2_up[e] / in2;
    const double down_factor = bf16_layer ? 1 : in2 * scales_.ws2_down[e];
    const bool swapped = c.wrong == Wrong::gate_and_up_swapped;
    Row h(static_cast<std::size_t>(config_.intermediate));
    for (std::int64_t i = 0; i < config_.intermediate; ++i) {
      double g = gates_[e].dot(i, x, 0, config_.hidden) * gate_factor;
      double u = ups_[e].dot(i, x, 0, config_.hidden) * up_factor;
      if (swapped) std::swap(g, u);
      h[static_cast<std::size_t>(i)] = u * g / (1 + std::exp(-g));
    }
    h = w4a4 ? reference::quantised(h, 1.0F) : rounded(h, c);
    Row out;
    for (std::int64_t n = 0; n < config_.hidden; ++n)
      out.push_back(rounded(downs_[e].dot(n, h, first, last) * down_factor, c));
    return out;
  }

  // A route's row, normed if the model norms it.
  [[nodiscard]] Row finished(Row row, const BlockCase& c) const {
    if (post_offsets_.empty()) return row;
    const Row gain = gains(post_offsets_, c.wrong != Wrong::post_gain_not_rounded);
    const double eps = c.wrong == Wrong::post_eps_of_pre ? 1e-5 : 1e-8;
    const bool last = c.wrong == Wrong::post_gain_last;
    if (!last)
      for (std::size_t n = 0; n < row.size(); ++n) {
        row[n] *= gain[n];
        if (c.wrong != Wrong::post_product_not_rounded) row[n] = rounded(row[n], c);
      }
    const double inverse = inverse_rms(row, eps);
    for (std::size_t n = 0; n < row.size(); ++n) row[n] *= inverse * (last ? gain[n] : 1);
    return row;
  }

  static void add(Row& to, const Row& row, double weight) {
    for (std::size_t n = 0; n < to.size(); ++n) to[n] += weight * row[n];
  }

  [[nodiscard]] Row token(const Row& input, const std::int32_t* ids, const double* weights,
                          const BlockCase& c) const {
    const bool sliced = c.mode == decode::Mode::tp && layer_.kind() == checkpoint::ExpertKind::nvfp4;
    const auto width = static_cast<std::size_t>(config_.hidden);
    const std::int64_t i = config_.intermediate;
    Row m(width, 0.0);
    if (sliced) {
      for (std::int64_t k = 0; k < config_.top_k; ++k) {
        Row sum(width, 0.0);
        for (int r = 0; r < c.ranks; ++r) {
          const Row part = partial_row(input, ids[k], r * i / c.ranks, (r + 1) * i / c.ranks, c);
          add(sum, c.wrong == Wrong::post_norm_before_rank_sum ? finished(part, c) : part, 1);
        }
        sum = rounded(sum, c);
        add(m, c.wrong == Wrong::post_norm_before_rank_sum ? sum : finished(sum, c), weights[k]);
      }
      return left(rounded(m, c), c);
    }
    Row out(static_cast<std::size_t>(gate_.columns), 0.0);
    for (int r = 0; r < c.ranks; ++r) {
      Row mine(width, 0.0);
      for (std::int64_t k = 0; k < config_.top_k; ++k)
        if (ids[k] / (config_.experts / c.ranks) == r)
          add(mine, finished(partial_row(input, ids[k], 0, i, c), c), weights[k]);
      mine = rounded(mine, c);
      if (c.wrong == Wrong::unpool_before_rank_sum) add(out, left(mine, c), 1);
      add(m, mine, 1);
    }
    return c.wrong == Wrong::unpool_before_rank_sum ? rounded(out, c) : left(rounded(m, c), c);
  }

  [[nodiscard]] Row left(const Row& m, const BlockCase& c) const {
    return pooled_ ? rounded(post_.times(m), c) : m;
  }

  checkpoint::ModelConfig config_;
  const checkpoint::MoeLayer& layer_;
  bool pooled_ = false;
  reference::Matrix gate_, pre_, post_;
  Row bias_, pre_offsets_, post_offsets_;
  checkpoint::LayerScales scales_;
  std::vector<reference::Matrix> gates_, ups_, downs_;
  mutable Row logits_;  // of the token at hand
};

}  // namespace kerf::test
