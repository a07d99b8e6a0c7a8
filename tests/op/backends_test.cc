// The contract of the op, over every backend that is listed: NVFP4 input gives the reference's bits at every
// tactic, batch size and thread count; bf16 input stays within a derived bound of f64.
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "kerf/layout/rows.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/nvfp4.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

using layout::ExpertsShape;
using test::OpResult;
using test::StepData;

struct ShapeCase {
  ExpertsShape shape;
  std::int64_t num_experts;
  std::int64_t first;
  std::int64_t top_k;
};

// Widths on both sides of a chunk (128) and a segment (512), whole and half chunks, EP offsets.
const std::vector<ShapeCase>& shapes() {
  static const std::vector<ShapeCase> list = {
      {{4, 256, 128}, 4, 0, 2},   {{3, 128, 64}, 8, 2, 3},   {{2, 512, 192}, 4, 2, 2},
      {{4, 640, 320}, 4, 0, 4},   {{2, 1152, 576}, 2, 0, 2}, {{8, 384, 64}, 8, 0, 5},
      {{2, 2048, 1088}, 6, 3, 2},
  };
  return list;
}

class EveryBackend : public ::testing::TestWithParam<std::string> {};

TEST_P(EveryBackend, QuantisedInputHasTheReferencesBits) {
  tensor::HostMemory memory;
  std::uint64_t seed = 1;
  for (const ShapeCase& c : shapes()) {
    const auto experts = test::random_nvfp4(memory, c.shape, c.first, ++seed);
    const Nvfp4Args args{experts.view(), c.num_experts, c.top_k, Input::nvfp4, {}};
    const auto reference = backend("reference").bind(args);
    const auto tested = backend(GetParam()).bind(args);
    for (const std::int64_t tokens : {1, 2, 5, 19}) {
      const StepData step = test::random_step(tokens, c.top_k, c.num_experts, c.shape.hidden, ++seed);
      const OpResult want = test::run_op(*reference, step);
      for (const Tactic tactic : tested->tactics(tokens)) {
        const OpResult got = test::run_op(*tested, step, tactic, 1 + static_cast<int>(seed % 3));
        ASSERT_EQ(got.rows, want.rows)
            << GetParam() << " H " << c.shape.hidden << " I " << c.shape.intermediate << " T " << tokens
            << " tile " << tactic.tile << " config " << tactic.config;
      }
      ASSERT_EQ(test::run_op(*tested, step).rows, want.rows) << "default tactic";
    }
  }
}

TEST_P(EveryBackend, ClampsBetaAndAlphaHaveTheReferencesBits) {
  tensor::HostMemory memory;
  const ExpertsShape shape{4, 256, 128};
  const auto experts = test::random_nvfp4(memory, shape, 0, 77);
  const std::vector<float> alpha = {1.0F, 1.702F, 0.5F, 2.0F};
  const std::vector<float> beta = {0.0F, 1500.0F, -3.0F, 1.0F};
  const std::vector<float> limit = {30000.0F, 2000.0F, 1e9F, 100.0F};
  const Nvfp4Args args{experts.view(), 4, 4, Input::nvfp4, {alpha, beta, limit, limit}};
  const StepData step = test::random_step(6, 4, 4, shape.hidden, 78);
  const OpResult want = test::run_op(*backend("reference").bind(args), step);
  EXPECT_EQ(test::run_op(*backend(GetParam()).bind(args), step).rows, want.rows);
  // They matter: without them the rows differ.
  const Nvfp4Args plain{experts.view(), 4, 4, Input::nvfp4, {}};
  EXPECT_NE(test::run_op(*backend(GetParam()).bind(plain), step).rows, want.rows);
}

TEST_P(EveryBackend, OddBlockScalesHaveTheReferencesBits) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 128};
  for (const int byte : {0x7F, 0xFF, 0xB8, 0x7E, 0x80, 0x01, 0xFE}) {
    const auto scale = static_cast<std::uint8_t>(byte);
    const auto experts = test::random_nvfp4(memory, shape, 0, 5);
    experts.w13_sf.as<std::uint8_t>()[1234] = scale;
    experts.w2_sf.as<std::uint8_t>()[777] = scale;
    const Nvfp4Args args{experts.view(), 2, 2, Input::nvfp4, {}};
    const StepData step = test::random_step(3, 2, 2, shape.hidden, 6);
    EXPECT_EQ(test::run_op(*backend(GetParam()).bind(args), step).rows,
              test::run_op(*backend("reference").bind(args), step).rows)
        << static_cast<int>(scale);
  }
}

TEST_P(EveryBackend, NanInOneRowStaysThere) {
  tensor::HostMemory memory;
  const ExpertsShape shape{4, 256, 128};
  const auto experts = test::random_nvfp4(memory, shape, 0, 9);
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 4, 2, Input::nvfp4, {}});
  StepData step = test::random_step(5, 2, 4, shape.hidden, 10);
  const OpResult clean = test::run_op(*bound, step);
  std::fill(step.a_sf.begin() + 16, step.a_sf.begin() + 32, std::uint8_t{0x7F});  // token 1
  const OpResult got = test::run_op(*bound, step);
  for (std::size_t i = 0; i < got.rows.size(); ++i) {
    const std::size_t token = i / 256 / 2;
    ASSERT_EQ(got.rows[i], token == 1 ? numeric::bf16_nan : clean.rows[i]) << i;
  }
}

TEST_P(EveryBackend, RoutesThatAreNowhereCostNothing) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 128};
  const auto experts = test::random_nvfp4(memory, shape, 2, 11);  // experts 2 and 3 of 6
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 6, 3, Input::nvfp4, {}});
  StepData step = test::random_step(4, 3, 6, shape.hidden, 12);
  step.ids = {-1, -1, -1, 2, 2, 3, 0, 1, 5, 3, -1, 4};
  const OpResult got = test::run_op(*bound, step);
  const std::vector<bool> here = {false, false, false, true, true,  true,
                                  false, false, false, true, false, false};
  for (std::size_t r = 0; r < here.size(); ++r) EXPECT_EQ(got.map[r] >= 0, here[r]) << r;
  // A duplicate id gives the same row twice; another token's rows do not change with its neighbours.
  const auto row = [&](std::size_t r) {
    return std::vector<std::uint16_t>(got.rows.begin() + static_cast<std::ptrdiff_t>(r * 256),
                                      got.rows.begin() + static_cast<std::ptrdiff_t>((r + 1) * 256));
  };
  EXPECT_EQ(row(3), row(4));
  StepData alone = step;
  alone.ids.assign(12, -1);
  alone.ids[9] = 3;
  const OpResult single = test::run_op(*bound, alone);
  EXPECT_EQ(row(9),
            std::vector<std::uint16_t>(single.rows.begin() + 9 * 256, single.rows.begin() + 10 * 256));

  StepData none = test::random_step(0, 3, 6, shape.hidden, 13);
  EXPECT_TRUE(test::run_op(*bound, none).rows.empty());
}

TEST_P(EveryBackend, IdsOutsideTheModelAreNamed) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 128};
  const auto experts = test::random_nvfp4(memory, shape, 0, 14);
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 2, 2, Input::nvfp4, {}});
  for (const std::int32_t id : {2, -2, 2147483647}) {
    StepData step = test::random_step(3, 2, 2, shape.hidden, 15);
    step.ids[3] = id;
    try {
      test::run_op(*bound, step);
      FAIL() << id;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage);
      EXPECT_NE(std::string(e.what()).find(std::to_string(id)), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("token 1"), std::string::npos) << e.what();
    }
  }
}

// One row of the layer in f64, from the converted bytes, the intermediate rounded to bf16: what bf16 input
// means.
template <typename W13, typename W2>
std::vector<double> exact_row(const ExpertsShape& s, const std::uint16_t* x, double gate_scale,
                              double up_scale, double down_scale, W13 w13, W2 w2,
                              std::vector<double>& magnitude) {
  std::vector<double> h(static_cast<std::size_t>(s.intermediate));
  for (std::int64_t i = 0; i < s.intermediate; ++i) {
    double up = 0;
    double gate = 0;
    for (std::int64_t k = 0; k < s.hidden; ++k) {
      up += w13(layout::w13_converted(layout::Half::up, i), k) * numeric::bf16_to_f32(x[k]);
      gate += w13(layout::w13_converted(layout::Half::gate, i), k) * numeric::bf16_to_f32(x[k]);
    }
    const double g = gate * gate_scale;
    h[static_cast<std::size_t>(i)] = up * up_scale * g / (1 + std::exp(-g));
  }
  std::vector<double> row(static_cast<std::size_t>(s.hidden));
  magnitude.assign(row.size(), 0);
  for (std::int64_t o = 0; o < s.hidden; ++o)
    for (std::int64_t i = 0; i < s.intermediate; ++i) {
      const double term = w2(layout::w2_converted(o), i) * h[static_cast<std::size_t>(i)] * down_scale;
      row[static_cast<std::size_t>(o)] += term;
      magnitude[static_cast<std::size_t>(o)] += std::abs(term);
    }
  return row;
}

// Bound for bf16 input, per output: the intermediate is rounded to bf16 (2^-8 of each term), its f32 dots
// carry at most K * 2^-24 of their own sum of magnitudes (below 2^-12 here even where 15/16 cancels), and the
// row is rounded once (2^-8 of the row). Together below 17/16 * 2^-8 of the sum of magnitudes and of the row.
void expect_near(const std::vector<double>& want, const std::vector<double>& magnitude,
                 const std::uint16_t* got) {
  for (std::size_t o = 0; o < want.size(); ++o)
    ASSERT_NEAR(numeric::bf16_to_f32(got[o]), want[o],
                17.0 / 16 * 0x1p-8 * (magnitude[o] + std::abs(want[o])))
        << o;
}

TEST_P(EveryBackend, Bf16ExpertsAreNearF64) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 192};
  const auto experts = test::random_bf16(memory, shape, 1, 21);
  const auto bound = backend(GetParam()).bind(Bf16Args{experts.view(), 3, 2, {}});
  const StepData step = test::random_step(3, 2, 3, shape.hidden, 22);
  const OpResult got = test::run_op(*bound, step);
  const auto* w13 = experts.w13.as<std::uint16_t>().data();
  const auto* w2 = experts.w2.as<std::uint16_t>().data();
  for (std::size_t r = 0; r < step.ids.size(); ++r) {
    if (got.map[r] < 0) continue;
    const std::int64_t e = step.ids[r] - 1;
    const auto at13 = [&](std::int64_t row, std::int64_t k) {
      return numeric::bf16_to_f32(w13[((e * 4 + k / 64) * 384 + row) * 64 + k % 64]);
    };
    const auto at2 = [&](std::int64_t row, std::int64_t k) {
      return numeric::bf16_to_f32(w2[((e * 3 + k / 64) * 256 + row) * 64 + k % 64]);
    };
    std::vector<double> magnitude;
    const auto want = exact_row(shape, step.x.data() + (r / 2) * 256, 1, 1, 1, at13, at2, magnitude);
    expect_near(want, magnitude, got.rows.data() + r * 256);
  }
  // Every tactic and thread count within the bound; and a row's bits do not depend on its neighbours at one
  // tactic.
  for (const Tactic tactic : bound->tactics(3)) {
    const OpResult again = test::run_op(*bound, step, tactic, 2);
    EXPECT_EQ(again.rows, got.rows);
  }
}

TEST_P(EveryBackend, WeightOnlyInputIsNearF64) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 192};
  const auto experts = test::random_nvfp4(memory, shape, 0, 31);
  experts.g1_alphas.as<float>()[0] = experts.g1_alphas.as<float>()[1] = 0.01F;
  experts.g1_scale_c.as<float>()[0] = experts.g1_scale_c.as<float>()[1] = 0.02F;
  experts.g2_alphas.as<float>()[0] = experts.g2_alphas.as<float>()[1] = 0.03F;
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 2, 2, Input::bf16, {}});
  const StepData step = test::random_step(3, 2, 2, shape.hidden, 32);
  const OpResult got = test::run_op(*bound, step);
  const auto value = [](std::span<const std::uint8_t> codes, std::span<const std::uint8_t> scales,
                        std::int64_t e, std::int64_t rows, std::int64_t k_all, std::int64_t row,
                        std::int64_t k) -> double {
    const std::uint8_t byte = codes[static_cast<std::size_t>((e * rows + row) * k_all / 2 + k / 2)];
    const auto code = static_cast<std::uint8_t>(k % 2 == 0 ? byte & 15U : byte >> 4);
    const auto offset =
        static_cast<std::size_t>(e * rows * k_all / 16 + layout::scale_offset_128x4(row, k / 16, k_all / 16));
    return numeric::e2m1_to_f32(code) * numeric::e4m3_to_f32(scales[offset]);
  };
  for (std::size_t r = 0; r < step.ids.size(); ++r) {
    const std::int64_t e = step.ids[r];
    const auto at13 = [&](std::int64_t row, std::int64_t k) {
      return value(experts.w13.as<std::uint8_t>(), experts.w13_sf.as<std::uint8_t>(), e, 384, 256, row, k);
    };
    const auto at2 = [&](std::int64_t row, std::int64_t k) {
      return value(experts.w2.as<std::uint8_t>(), experts.w2_sf.as<std::uint8_t>(), e, 256, 192, row, k);
    };
    std::vector<double> magnitude;
    const auto want =
        exact_row(shape, step.x.data() + (r / 2) * 256, 0.01F, 0.02F, 0.03F, at13, at2, magnitude);
    expect_near(want, magnitude, got.rows.data() + r * 256);
  }
}

INSTANTIATE_TEST_SUITE_P(Listed, EveryBackend, ::testing::ValuesIn(backend_names()), [](const auto& listed) {
  std::string name = listed.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

TEST(Backends, AnUnknownNameNeverFallsBack) {
  try {
    (void)backend("cpu:avx9000");
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage);
    EXPECT_NE(std::string(e.what()).find("reference"), std::string::npos);
  }
}

TEST(Op, TheVectorTablesAgreeOnFloatInputToo) {
  tensor::HostMemory memory;
  const auto experts = test::random_bf16(memory, {4, 512, 256}, 0, 41);
  const StepData step = test::random_step(7, 2, 4, 512, 42);
  std::vector<std::uint16_t> first;
  for (const std::string& name : backend_names()) {
    if (name == "reference" || name == "cpu:scalar") continue;
    const auto rows = test::run_op(*backend(name).bind(Bf16Args{experts.view(), 4, 2, {}}), step).rows;
    if (first.empty()) first = rows;
    EXPECT_EQ(rows, first) << name;
  }
}

}  // namespace
}  // namespace kerf::op
