// The routing kernel against select(), write_metadata() and quantise_rows(): bit for bit, also where the host
// writes nothing.
#include <gtest/gtest.h>

#include <numeric>
#include <random>
#include <string>

#include "kerf/base/format.h"
#include "kerf/routing/methods.h"
#include "tests/op/route_step.h"

namespace kerf::op::sm90 {
namespace {

using routing::Router;
using routing::rules::Traits;
using test::route_on_host;
using test::Routed;
using test::RouteOnDevice;
using test::RouteProblem;

constexpr float inf = std::numeric_limits<float>::infinity();
constexpr float nan = std::numeric_limits<float>::quiet_NaN();
constexpr std::int64_t most_tokens = 300;
constexpr std::int64_t most_hidden = 7168;

class Random {
 public:
  explicit Random(std::uint64_t seed) : engine_(seed) {}
  std::int64_t below(std::int64_t n) {
    return static_cast<std::int64_t>(engine_() % static_cast<std::uint64_t>(n));
  }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  float normal() { return std::normal_distribution<float>()(engine_); }
  float any_bits() { return std::bit_cast<float>(static_cast<std::uint32_t>(engine_())); }
  template <typename T>
  T of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<std::int64_t>(values.size()))];
  }

 private:
  std::mt19937_64 engine_;
};

// Numbers of a kind: ordinary, tied, special, in order, all alike, anything.
std::vector<float> numbers(Random& random, std::int64_t count, std::int64_t row) {
  std::vector<float> out(static_cast<std::size_t>(count));
  const std::int64_t kind = random.below(8);
  const float same = random.of({0.0F, nan, -inf, inf, 1.5F});
  std::int64_t i = 0;
  for (float& v : out) {
    const auto place = static_cast<float>(i++ % row);
    switch (kind) {
      case 0:
        v = std::round(random.normal() * 2) / 2 * random.of({1.0F, -1.0F});
        break;
      case 1:
        v = random.of({nan, -nan, inf, -inf, 0.0F, -0.0F, 0x1p-149F, -0x1p-149F, 0x1p-130F, 3e38F, -3e38F,
                       1.0F, -1.0F, 90.0F, -90.0F, 0.5F});
        break;
      case 2:
        v = place * 0.01F;
        break;
      case 3:
        v = -place * 0.01F;
        break;
      case 4:
        v = random.one_in(50) ? random.normal() : same;
        break;
      case 5:
        v = random.any_bits();
        break;
      default:
        v = random.normal() * 3;
        break;
    }
  }
  return out;
}

std::vector<std::uint16_t> rows(Random& random, std::int64_t count) {
  std::vector<std::uint16_t> out(static_cast<std::size_t>(count));
  std::int64_t kind = 0;
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (i % 16 == 0) kind = random.below(8);
    const float scale = kind == 1 ? 1e-30F : kind == 2 ? 1e30F : 1.0F;
    out[i] = numeric::f32_to_bf16(random.normal() * scale);
    if (kind == 3) out[i] = 0;
    if (kind == 4) out[i] = static_cast<std::uint16_t>(random.below(65536));
    if (kind == 5 && random.one_in(16))
      out[i] = random.of<std::uint16_t>({0x7FC0, 0xFFC1, 0x7F80, 0xFF80, 1, 0x8000});
  }
  return out;
}

Router router_of(Random& random, const Traits& traits, std::int64_t experts, std::int64_t top_k) {
  Router r{.method = traits.method, .experts = experts, .top_k = top_k};
  r.logit_multiplier = random.of({1.0F, 1.0F, 0x1.6a09e6p-3F, -3.0F});
  r.sum_epsilon = random.of({1e-20F, 1e-15F, 0.0F});
  if (traits.has(routing::rules::takes_scaling)) r.routed_scaling = random.of({1.0F, 2.5F});
  if (traits.has(routing::rules::takes_raw)) r.norm_topk_prob = random.one_in(2);
  if (traits.has(routing::rules::takes_groups) && random.below(4) > 0) {
    Router grouped = r;
    grouped.n_group = random.of<std::int64_t>({2, 4, 8, 16, 32, 128, 256, experts / 2});
    grouped.topk_group = 1 + random.below(std::max<std::int64_t>(grouped.n_group, 1));
    if (!routing::unsupported(grouped)) r = grouped;
  }
  return r;
}

// Shape, and everything but the routes.
RouteProblem problem_of(Random& random, std::int64_t tokens, std::int64_t experts, std::int64_t top_k) {
  RouteProblem p;
  p.shape = {.tokens = tokens, .top_k = top_k, .experts = experts, .offset = 0, .local = experts};
  if (random.one_in(2)) {
    p.shape.local = random.below(experts + 1);
    p.shape.offset = random.below(experts - p.shape.local + 1);
  }
  p.shape.tile = random.of<std::int64_t>({8, 16, 32, 64});
  if (random.one_in(3)) {
    p.hidden = random.of<std::int64_t>({16, 128, 256, 2048, 4096, 7168});
    p.x = rows(random, tokens * p.hidden);
    p.gs = random.of({1.0F, 0x1p5F, 0.37F, 4321.0F, 1e-6F});
  }
  p.bf16_weights = random.one_in(3);
  return p;
}

RouteProblem routed(Random& random, const Traits& traits, std::int64_t tokens, std::int64_t experts,
                    std::int64_t top_k) {
  RouteProblem p = problem_of(random, tokens, experts, top_k);
  p.router = router_of(random, traits, experts, top_k);
  p.logits = numbers(random, tokens * experts, experts);
  if (traits.has(routing::rules::takes_bias) && random.below(3) > 0)
    p.bias = numbers(random, experts, experts);
  return p;
}

RouteProblem given(Random& random, std::int64_t tokens, std::int64_t experts, std::int64_t top_k) {
  RouteProblem p = problem_of(random, tokens, experts, top_k);
  p.bf16_weights = false;
  const std::int64_t few = random.of<std::int64_t>({1, 3, experts, experts});
  for (std::int64_t i = 0; i < p.shape.routes(); ++i) {
    p.ids.push_back(static_cast<std::int32_t>(random.below(few)));
    if (random.one_in(10)) p.ids.back() = -1;
    if (random.one_in(20))
      p.ids.back() =
          random.of<std::int32_t>({static_cast<std::int32_t>(experts), -2, 2147483647, -2147483647 - 1});
  }
  p.weights = numbers(random, p.shape.routes(), top_k);
  p.ahead = random.one_in(2);
  return p;
}

std::string words(const RouteProblem& p) {
  return fmt::format(
      "{} T {} K {} E {} [{}, +{}) tile {} H {} groups {} of {} bias {} multiplier {} ahead {}",
      p.router ? routing::name(p.router->method) : "given", p.shape.tokens, p.shape.top_k, p.shape.experts,
      p.shape.offset, p.shape.local, p.shape.tile, p.hidden, p.router ? p.router->topk_group : 0,
      p.router ? p.router->n_group : 0, p.bias.size(), p.router ? p.router->logit_multiplier : 0, p.ahead);
}

template <typename T>
void expect_same(const std::vector<T>& got, const std::vector<T>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  const auto [g, w] = std::ranges::mismatch(got, want);
  EXPECT_TRUE(g == got.end()) << what << '[' << g - got.begin() << "] of " << got.size() << " is " << +*g
                              << ", wanted " << +*w;
}
void expect_same(const Routed& got, const Routed& want) {
  expect_same(got.ids, want.ids, "ids");
  expect_same(got.weights, want.weights, "weights");
  expect_same(got.metadata, want.metadata, "metadata");
  expect_same(got.a, want.a, "a");
  expect_same(got.a_sf, want.a_sf, "a_sf");
  expect_same(got.counters, want.counters, "counters");
}

class Route : public test::OnGpu {
 protected:
  // Whether the device did as the host; says what differs where it did not.
  bool check(const RouteProblem& p) {
    SCOPED_TRACE(words(p));
    device().put(p);
    device().enqueue(p, stream().handle());
    stream().synchronize();
    expect_same(device().result(p), route_on_host(p));
    return !HasFailure();
  }
  RouteOnDevice& device() {
    if (!device_) device_.emplace(most_tokens, most_route_experts, most_route_top_k, most_hidden);
    return *device_;
  }
  cuda::Stream& stream() {
    if (!stream_) stream_.emplace();
    return *stream_;
  }

 private:
  std::optional<RouteOnDevice> device_;
  std::optional<cuda::Stream> stream_;
};

constexpr std::int64_t token_counts[] = {0, 1, 2, 7, 8, 33, 64, 65, 300};
constexpr std::int64_t expert_counts[] = {1, 8, 64, 128, 256, 300, 1000, 1024};

TEST_F(Route, ChoosesAsTheHostDoesInEveryMethod) {
  Random random(1);
  std::int64_t cases = 0;
  for (const Traits& traits : routing::rules::table) {
    for (const std::int64_t tokens : token_counts) {
      for (const std::int64_t experts : expert_counts) {
        for (const std::int64_t wanted : {8, 32, static_cast<int>(1 + random.below(32))}) {
          const std::int64_t top_k = traits.method == routing::Method::llama4 ? 1 : std::min(wanted, experts);
          ASSERT_TRUE(check(routed(random, traits, tokens, experts, top_k)));
          ++cases;
        }
      }
    }
  }
  RecordProperty("cases", std::to_string(cases));
}

TEST_F(Route, ChoosesInSmallProblemsOfEveryKind) {
  Random random(2);
  for (int i = 0; i < 1500; ++i) {
    const Traits& traits = routing::rules::table[static_cast<std::size_t>(random.below(10))];
    const std::int64_t experts = 1 + random.below(random.one_in(2) ? 40 : 1024);
    const std::int64_t top_k =
        traits.method == routing::Method::llama4 ? 1 : 1 + random.below(std::min(experts, most_route_top_k));
    ASSERT_TRUE(check(routed(random, traits, random.below(70), experts, top_k)));
  }
}

TEST_F(Route, TakesGivenRoutes) {
  Random random(3);
  for (const std::int64_t tokens : token_counts)
    for (const std::int64_t experts : expert_counts)
      for (const std::int64_t top_k : {1, 3, 8, 32})
        ASSERT_TRUE(check(given(random, tokens, experts, top_k)));
}

TEST_F(Route, ReplaysOnWhatIsThereThen) {
  Random random(4);
  for (const std::int64_t tokens : {1, 8, 64, 100}) {
    for (const auto method : {routing::Method::softmax, routing::Method::deepseek_v3}) {
      const Traits& traits = *routing::rules::traits_of(method);
      RouteProblem p = routed(random, traits, tokens, 256, 8);
      p.hidden = 256;
      p.x = rows(random, tokens * p.hidden);
      device().put(p);
      const cuda::Graph graph =
          cuda::Graph::capture(stream().handle(), [&] { device().enqueue(p, stream().handle()); });
      for (int replay = 0; replay < 25; ++replay) {
        p.logits = numbers(random, tokens * 256, 256);
        p.x = rows(random, tokens * p.hidden);
        device().put(p);
        graph.launch(stream().handle());
        stream().synchronize();
        SCOPED_TRACE(words(p));
        expect_same(device().result(p), route_on_host(p));
        ASSERT_FALSE(HasFailure());
      }
    }
  }
}

TEST_F(Route, ManyLaunchesInARowLeaveTheSameBits) {
  Random random(5);
  for (const std::int64_t tokens : {8, 64}) {
    const RouteProblem p = routed(random, routing::rules::table[0], tokens, 256, 8);
    const Routed want = route_on_host(p);
    for (int round = 0; round < 20; ++round) {
      device().put(p);
      for (int i = 0; i < 50; ++i) device().enqueue(p, stream().handle());
      stream().synchronize();
      expect_same(device().result(p), want);
      ASSERT_FALSE(HasFailure());
    }
  }
}

TEST(RouteRefusals, SayWhatTheDeviceCannot) {
  const Router r{.experts = 8, .top_k = 2};
  routing::MetadataShape shape{.tokens = 1, .top_k = 2, .experts = 8, .local = 8};
  EXPECT_FALSE(unsupported_route(shape, &r));
  EXPECT_FALSE(unsupported_route(shape, nullptr));
  shape.experts = 16;
  EXPECT_EQ(unsupported_route(shape, &r)->kind, ErrorKind::bug);
  shape.experts = 1025;
  EXPECT_EQ(unsupported_route(shape, nullptr)->kind, ErrorKind::unsupported);
  shape.experts = 64;
  shape.top_k = 33;
  EXPECT_EQ(unsupported_route(shape, nullptr)->kind, ErrorKind::unsupported);
}

}  // namespace
}  // namespace kerf::op::sm90
