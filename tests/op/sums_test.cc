// Canonical sums: the op's f32 rows, over every backend that is listed and each of its tactics. They are what
// finished rows are made of, and what the slices of an expert add up to.
#include <gtest/gtest.h>

#include <bit>
#include <string>

#include "kerf/layout/slice.h"
#include "kerf/numeric/bf16.h"
#include "kerf/numeric/segment_tree.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

using layout::ExpertsShape;
using test::StepData;

// Row h of every route, [T * K, H].
std::vector<float> run_sums(const RoutedExperts& experts, const StepData& step, Tactic tactic, int threads) {
  tensor::HostMemory memory;
  const std::int64_t hidden = experts.shape().hidden;
  const routing::MetadataShape shape = experts.metadata_shape(step.tokens, tactic.tile > 0 ? tactic.tile : 8);
  const routing::MetadataBuffer metadata(memory, routing::metadata_words(shape));
  std::vector<std::byte> workspace(experts.workspace_bytes(shape, tactic), std::byte{0xFF});
  std::vector<float> rows(static_cast<std::size_t>(gemm2_rows(shape, hidden) * hidden), -7.0F);
  const Unfinalized out = routed_experts(experts, step.input(), step.routes(), tactic, Workers(threads),
                                         {&metadata, workspace, std::span(rows)});
  EXPECT_TRUE(out.rows.empty());
  EXPECT_EQ(out.sums.size(), rows.size());
  EXPECT_TRUE(std::equal(out.ids.begin(), out.ids.end(), step.ids.begin(), step.ids.end()));
  std::vector<float> result;
  for (const std::int32_t row : out.map)
    for (std::int64_t h = 0; h < hidden; ++h)
      result.push_back(row < 0 ? 0.0F : out.sums[static_cast<std::size_t>(row * hidden + h)]);
  return result;
}

std::vector<std::uint32_t> bits(const std::vector<float>& values) {
  std::vector<std::uint32_t> out;
  for (const float v : values) out.push_back(std::bit_cast<std::uint32_t>(v));
  return out;
}

// Slice `part` of `tp` of experts in the converted layout.
layout::Nvfp4Experts cut(tensor::Memory& memory, const layout::Nvfp4Experts& whole, std::int64_t tp,
                         std::int64_t part) {
  const ExpertsShape s = whole.shape;
  layout::Nvfp4Experts out(memory, {s.experts, s.hidden, s.intermediate / tp}, whole.first_expert);
  const auto views = layout::slice_views(whole.view(), tp, part);
  const std::array<const tensor::Tensor*, 4> kinds = {&out.w13, &out.w13_sf, &out.w2, &out.w2_sf};
  for (std::size_t i = 0; i < kinds.size(); ++i) tensor::pack(views[i], kinds[i]->bytes().data());
  const auto copy = [](const tensor::Tensor& from, const tensor::Tensor& to) {
    std::copy(from.bytes().begin(), from.bytes().end(), to.bytes().begin());
  };
  copy(whole.g1_alphas, out.g1_alphas);
  copy(whole.g1_scale_c, out.g1_scale_c);
  copy(whole.g2_alphas, out.g2_alphas);
  copy(whole.a1_gscale, out.a1_gscale);
  copy(whole.a2_gscale, out.a2_gscale);
  return out;
}

class SumsOn : public ::testing::TestWithParam<std::string> {};

TEST_P(SumsOn, RoundToTheFinishedRows) {
  tensor::HostMemory memory;
  struct Case {
    ExpertsShape shape;
    std::int64_t num_experts, first, top_k;
  };
  std::uint64_t seed = 300;
  for (const Case& c : {Case{{4, 256, 128}, 4, 0, 2}, Case{{3, 128, 64}, 8, 2, 3},
                        Case{{2, 640, 576}, 2, 0, 2}, Case{{2, 384, 1088}, 6, 3, 2}}) {
    const auto experts = test::random_nvfp4(memory, c.shape, c.first, ++seed);
    const auto g2 = experts.g2_alphas.as<const float>();
    const auto bound =
        backend(GetParam()).bind(Nvfp4Args{experts.view(), c.num_experts, c.top_k, Input::nvfp4, {}});
    for (const std::int64_t tokens : {1, 5}) {
      const StepData step = test::random_step(tokens, c.top_k, c.num_experts, c.shape.hidden, ++seed);
      std::vector<std::uint32_t> first;
      for (const Tactic tactic : bound->tactics(tokens)) {
        const test::OpResult finished = test::run_op(*bound, step, tactic);
        const std::vector<float> sums = run_sums(*bound, step, tactic, 1 + static_cast<int>(seed % 3));
        ASSERT_EQ(sums.size(), finished.rows.size());
        for (std::size_t i = 0; i < sums.size(); ++i) {
          const std::size_t route = i / static_cast<std::size_t>(c.shape.hidden);
          if (finished.map[route] < 0) continue;
          const float scale = g2[static_cast<std::size_t>(step.ids[route] - c.first)];
          ASSERT_EQ(numeric::f32_to_bf16(scale * sums[i]), finished.rows[i]) << "value " << i;
        }
        if (first.empty()) first = bits(sums);
        ASSERT_EQ(bits(sums), first) << "tile " << tactic.tile << ", config " << tactic.config;
      }
    }
  }
}

// By the rule for as many terms as there are slices, written out.
float tree(const std::vector<float>& terms) {
  if (terms.size() == 1) return terms[0];
  std::size_t left = 1;
  while (2 * left < terms.size()) left *= 2;
  const auto middle = terms.begin() + static_cast<std::ptrdiff_t>(left);
  return tree({terms.begin(), middle}) + tree({middle, terms.end()});
}

TEST_P(SumsOn, OfSlicesAddUpToTheWholes) {
  tensor::HostMemory memory;
  std::uint64_t seed = 400;
  struct Case {
    std::int64_t intermediate, tp;
    bool nodes;
  };
  for (const Case& c : {Case{1024, 2, true}, Case{2048, 2, true}, Case{2048, 4, true}, Case{4096, 8, true},
                        Case{1536, 3, true}, Case{3072, 3, true}, Case{3072, 6, true}, Case{3584, 7, true},
                        Case{3072, 2, false}, Case{2048, 8, false}}) {
    const auto whole = test::random_nvfp4(memory, {2, 128, c.intermediate}, 0, ++seed);
    const StepData step = test::random_step(3, 2, 2, 128, ++seed);
    const auto bind = [&](const layout::Nvfp4Experts& e) {
      return backend(GetParam()).bind(Nvfp4Args{e.view(), 2, 2, Input::nvfp4, {}});
    };
    const auto bound = bind(whole);
    // The fastest and the plainest tactic: that all give the same sums is the other test's.
    const std::vector<Tactic> all = bound->tactics(3);
    for (const Tactic tactic : {all.front(), all.back()}) {
      const std::vector<float> want = run_sums(*bound, step, tactic, 1);
      std::vector<std::vector<float>> slices;
      for (std::int64_t part = 0; part < c.tp; ++part)
        slices.push_back(run_sums(*bind(cut(memory, whole, c.tp, part)), step, tactic, 2));
      std::vector<float> got;
      for (std::size_t i = 0; i < want.size(); ++i) {
        std::vector<float> terms;
        for (const auto& slice : slices) terms.push_back(slice[i]);
        got.push_back(tree(terms));
      }
      EXPECT_EQ(bits(got) == bits(want), c.nodes) << c.intermediate << " in " << c.tp;
      EXPECT_EQ(numeric::slices_are_nodes(c.intermediate, c.tp), c.nodes);
    }
  }
}

TEST_P(SumsOn, AreRefusedWhereThereAreNone) {
  tensor::HostMemory memory;
  const ExpertsShape shape{2, 256, 128};
  const auto nvfp4 = test::random_nvfp4(memory, shape, 0, 7);
  const auto bf16 = test::random_bf16(memory, shape, 0, 8);
  const StepData step = test::random_step(2, 2, 2, 256, 9);
  const Backend& tested = backend(GetParam());
  const auto refusal = [&](const RoutedExperts& experts) {
    return attempt([&] { (void)run_sums(experts, step, {}, 1); });
  };
  const Verdict w4a16 = refusal(*tested.bind(Nvfp4Args{nvfp4.view(), 2, 2, Input::bf16, {}}));
  const Verdict whole = refusal(*tested.bind(Bf16Args{bf16.view(), 2, 2, {}}));
  ASSERT_TRUE(w4a16);
  ASSERT_TRUE(whole);
  EXPECT_EQ(w4a16->kind, ErrorKind::unsupported);
  EXPECT_EQ(whole->kind, ErrorKind::unsupported);
  EXPECT_NE(w4a16->text.find("asked of NVFP4 experts with bf16 rows (W4A16)"), std::string::npos)
      << w4a16->text;
  EXPECT_NE(whole->text.find("asked of BF16 experts"), std::string::npos) << whole->text;
  EXPECT_EQ(refusal(*tested.bind(Nvfp4Args{nvfp4.view(), 2, 2, Input::nvfp4, {}})), std::nullopt);
}

TEST_P(SumsOn, ARowBufferThatIsTooSmallIsRefused) {
  tensor::HostMemory memory;
  const auto experts = test::random_nvfp4(memory, {2, 256, 128}, 0, 7);
  const auto bound = backend(GetParam()).bind(Nvfp4Args{experts.view(), 2, 2, Input::nvfp4, {}});
  const StepData step = test::random_step(2, 2, 2, 256, 9);
  const routing::MetadataShape shape = bound->metadata_shape(2, 8);
  const routing::MetadataBuffer metadata(memory, routing::metadata_words(shape));
  std::vector<std::byte> workspace(bound->workspace_bytes(shape, {}));
  std::vector<float> rows(static_cast<std::size_t>(gemm2_rows(shape, 256) * 256 - 1));
  const Verdict v = attempt([&] {
    (void)routed_experts(*bound, step.input(), step.routes(), {}, Workers(1),
                         {&metadata, workspace, std::span(rows)});
  });
  ASSERT_TRUE(v);
  EXPECT_EQ(v->kind, ErrorKind::usage);
}

INSTANTIATE_TEST_SUITE_P(Listed, SumsOn, ::testing::ValuesIn(backend_names()), [](const auto& listed) {
  std::string name = listed.param;
  std::replace(name.begin(), name.end(), ':', '_');
  return name;
});

}  // namespace
}  // namespace kerf::op
