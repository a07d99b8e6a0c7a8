// What is refused when a layer is bound, and the op that routes itself.
#include <gtest/gtest.h>

#include <algorithm>

#include "kerf/numeric/bf16.h"
#include "kerf/op/op.h"
#include "tests/support/experts.h"

namespace kerf::op {
namespace {

TEST(Bind, AbsentScalesAreRefusedByName) {
  tensor::HostMemory memory;
  const auto experts = test::random_nvfp4(memory, {4, 128, 64}, 0, 3);
  using View = layout::Nvfp4View;
  const std::vector<std::pair<std::string, tensor::TensorView View::*>> scales = {
      {"w13_sf", &View::w13_sf},         {"w2_sf", &View::w2_sf},         {"g1_alphas", &View::g1_alphas},
      {"g1_scale_c", &View::g1_scale_c}, {"g2_alphas", &View::g2_alphas}, {"a1_gscale", &View::a1_gscale},
      {"a2_gscale", &View::a2_gscale}};
  for (const auto& [name, member] : scales) {
    Nvfp4Args args{experts.view(), 4, 2, Input::nvfp4, {}};
    args.experts.*member = {};
    const Verdict v = backend("cpu").supports(args);
    ASSERT_TRUE(v) << name;
    EXPECT_EQ(v->kind, ErrorKind::unsupported);
    EXPECT_EQ(v->text.rfind(name, 0), 0U) << v->text;
  }
}

struct RouterCase {
  routing::Router router;
  bool bias;
};

// Every method, with all that a router may have.
std::vector<RouterCase> routers() {
  using routing::Method;
  std::vector<RouterCase> out;
  for (int m = 0; m <= 9; ++m) {
    routing::Router r;
    r.method = static_cast<Method>(m);
    r.experts = 16;
    r.top_k = r.method == Method::llama4 ? 1 : 3;
    const bool biased = r.method == Method::deepseek_v3 || r.method == Method::minimax2;
    out.push_back({r, false});
    if (!biased) continue;
    r.routed_scaling = 2.5F;
    r.logit_multiplier = 0.125F;
    if (r.method == Method::deepseek_v3) {
      r.n_group = 4;
      r.topk_group = 2;
    }
    out.push_back({r, true});
  }
  return out;
}

struct OpSpace {
  tensor::HostMemory memory;
  routing::MetadataBuffer metadata;
  std::vector<std::byte> workspace;
  std::vector<std::uint16_t> rows;

  OpSpace(const RoutedExperts& experts, std::int64_t tokens)
      : metadata(memory, routing::metadata_words(experts.metadata_shape(tokens, 8))),
        workspace(experts.workspace_bytes(experts.metadata_shape(tokens, 8), {})),
        rows(static_cast<std::size_t>(gemm2_rows(experts.metadata_shape(tokens, 8), 128) * 128), 0) {}
  Buffers buffers() { return {&metadata, workspace, rows}; }
};

template <typename T>
std::vector<T> kept(std::span<const T> values) {
  return {values.begin(), values.end()};
}

// The op that routes itself is: select, round each weight to bf16, run as with prepared routes.
TEST(OpThatRoutesItself, IsSelectThenRoundThenTheOp) {
  tensor::HostMemory memory;
  const auto experts = test::random_bf16(memory, {8, 128, 64}, 4, 71);  // experts [4, 12) of 16
  std::int64_t rounded = 0;
  for (const RouterCase& c : routers()) {
    SCOPED_TRACE(std::string(routing::name(c.router.method)) + (c.bias ? " with a bias" : ""));
    ASSERT_FALSE(routing::unsupported(c.router));
    for (const std::string name : {"cpu", "reference"}) {
      const auto bound = backend(name).bind(Bf16Args{experts.view(), 16, c.router.top_k, {}});
      for (const std::int64_t tokens : {0, 1, 9}) {
        const test::StepData step = test::random_step(tokens, 1, 16, 128, 72);
        test::Random random(73);
        std::vector<float> logits(static_cast<std::size_t>(tokens * 16));
        for (float& l : logits) l = 2 * random.normal();
        std::vector<float> bias;
        if (c.bias)
          for (int e = 0; e < 16; ++e) bias.push_back(0.5F * random.normal());
        const auto routes = static_cast<std::size_t>(tokens * c.router.top_k);
        std::vector<std::int32_t> ids(routes);
        std::vector<float> weights(routes);
        OpSpace inside(*bound, tokens);
        const Unfinalized got = routed_experts_from_logits(*bound, step.input(), c.router, logits, bias, ids,
                                                           weights, {}, Workers(1), inside.buffers());

        std::vector<std::int32_t> chosen(routes);
        std::vector<float> exact(routes);
        routing::select(c.router, logits, bias, chosen, exact);
        std::vector<float> want = exact;
        for (float& w : want) w = numeric::bf16_to_f32(numeric::f32_to_bf16(w));
        for (std::size_t r = 0; r < routes; ++r) rounded += want[r] != exact[r] ? 1 : 0;
        OpSpace outside(*bound, tokens);
        const Unfinalized plain =
            routed_experts(*bound, step.input(), {chosen, want}, {}, Workers(1), outside.buffers());
        EXPECT_EQ(kept(got.weights), want);
        EXPECT_EQ(ids, chosen);
        EXPECT_EQ(kept(got.map), kept(plain.map));
        EXPECT_EQ(inside.rows, outside.rows);
        // All nine metadata tensors lie in these words.
        const auto shape = bound->metadata_shape(tokens, 8);
        const routing::Metadata a = inside.metadata.view(shape);
        const routing::Metadata b = outside.metadata.view(shape);
        EXPECT_TRUE(std::ranges::equal(a.total_padded, b.total_padded));
        EXPECT_TRUE(std::ranges::equal(a.expanded_to_permuted, b.expanded_to_permuted));
        EXPECT_TRUE(std::ranges::equal(a.permuted_to_token, b.permuted_to_token));
        EXPECT_TRUE(std::ranges::equal(a.expert_weights, b.expert_weights));
        EXPECT_TRUE(std::ranges::equal(a.histogram, b.histogram));
        EXPECT_TRUE(std::ranges::equal(a.tokens_per_expert, b.tokens_per_expert));
        EXPECT_TRUE(std::ranges::equal(a.tile_to_expert, b.tile_to_expert));
        EXPECT_TRUE(std::ranges::equal(a.tile_to_limit, b.tile_to_limit));
        EXPECT_TRUE(std::ranges::equal(a.live_tiles, b.live_tiles));
      }
    }
  }
  EXPECT_GT(rounded, 0) << "no weight needed rounding, so that nothing was shown";
}

TEST(OpThatRoutesItself, ARouterOfAnotherKIsRefused) {
  tensor::HostMemory memory;
  const auto experts = test::random_bf16(memory, {4, 128, 64}, 0, 74);
  const auto bound = backend("cpu").bind(Bf16Args{experts.view(), 4, 2, {}});
  const test::StepData step = test::random_step(1, 1, 4, 128, 75);
  routing::Router router;
  router.experts = 4;
  router.top_k = 3;
  std::vector<std::int32_t> ids(2);
  std::vector<float> weights(2);
  const std::vector<float> logits(4);
  OpSpace run(*bound, 1);
  try {
    (void)routed_experts_from_logits(*bound, step.input(), router, logits, {}, ids, weights, {}, Workers(1),
                                     run.buffers());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::unsupported);
    EXPECT_NE(std::string(e.what()).find("top_k 3"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace kerf::op
