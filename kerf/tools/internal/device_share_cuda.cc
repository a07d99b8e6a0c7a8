#include "kerf/tools/internal/device_share.h"

#include <algorithm>
#include <set>

#include "kerf/numeric/median.h"
#include "kerf/tactics/choose.h"
#include "kerf/tools/internal/device_words.h"
#include "kerf/tools/made_experts.h"

namespace kerf::tools::internal {

namespace {
constexpr int replays = 5;
}  // namespace

DeviceShare::DeviceShare(const Held& held, std::uint64_t seed, std::int64_t most_tokens,
                         const decode::Rank& rank)
    : held_(held), rank_(rank), result_(rank.weights(), tensor::Dtype::i32, {1}) {
  const auto fill = [](std::span<std::byte> bytes, const MadeWords& words) { fill_device(bytes, words); };
  const MadeIn in{rank.weights(), rank.memory, fill};
  const op::Backend& backend = op::backend("cuda");
  if (held.arithmetic == op::Arithmetic::bf16) {
    layer_.kind = checkpoint::ExpertKind::bf16;
    layer_.input = op::Input::bf16;
    layout::Bf16Experts made = made_bf16(in, held.shape, held.first_expert, seed);
    layer_.ep = backend.bind(op::Bf16Args{made.view(), held.num_experts, held.top_k, {}});
    weights_ = {made.w13.bytes(), made.w2.bytes()};
    layer_.stock = std::move(made);
  } else {
    layer_.input = held.arithmetic == op::Arithmetic::w4a4 ? op::Input::nvfp4 : op::Input::bf16;
    layout::Nvfp4Experts made = made_nvfp4(in, held.shape, held.first_expert, layer_.input, seed);
    layer_.ep = backend.bind(op::Nvfp4Args{made.view(), held.num_experts, held.top_k, layer_.input, {}});
    weights_ = {made.w13.bytes(), made.w2.bytes(), made.w13_sf.bytes(), made.w2_sf.bytes()};
    layer_.stock = std::move(made);
  }
  plan_ = decode::make_plan(std::span(&layer_, 1), {most_tokens, op::tiles.back(), {}}, rank);
}

double DeviceShare::expert_bytes() const {
  return static_cast<double>(layer_.expert_bytes(decode::Mode::ep));
}

double DeviceShare::bytes(std::span<const std::int32_t> ids) const {
  std::set<std::int32_t> distinct;
  for (const std::int32_t id : ids)
    if (id >= held_.first_expert && id < held_.first_expert + held_.shape.experts) distinct.insert(id);
  return expert_bytes() * static_cast<double>(distinct.size());
}

void DeviceShare::choose(std::int64_t tokens, op::Tactic tactic) {
  plan_.prepared.front().tuned = {{tactics::bucket_of(tokens, plan_.max_tokens), tactic}};
  stack_.reset();
}

DeviceShare::Times DeviceShare::time(std::int64_t tokens, std::span<const decode::Inputs> routes,
                                     std::span<const std::uint16_t> x) {
  const decode::StackStep step{decode::Mode::ep, tokens, tail::Kind::fast};
  if (const std::pair wanted(tokens, routes.size()); !stack_ || captured_ != wanted) {
    const std::vector<const decode::Layer*> layers(routes.size(), &layer_);
    stack_.reset();
    stack_ = decode::make_device_stack(layers, plan_, std::span(&step, 1), rank_);
    captured_ = {-1, 0};
  }
  std::vector<std::size_t> reads;
  for (std::size_t i = 0; i < routes.size(); ++i) {
    stack_->load(i, {tokens, x, {}, {}, routes[i].ids, routes[i].weights, nullptr, {}, {}});
    reads.push_back(static_cast<std::size_t>(bytes(routes[i].ids)));
  }
  if (captured_.first < 0) {
    stack_->capture(step);
    captured_ = {tokens, routes.size()};
  }
  const cuda::Graph reading = cuda::Graph::capture(stream_.handle(), [&] {
    for (const std::size_t n : reads) read(n);
  });
  (void)stack_->time(1);
  std::vector<double> us;
  std::vector<double> read_us;
  for (int i = 0; i < replays; ++i) {
    us.push_back(stack_->time(1).front());
    begin_.record(stream_.handle());
    reading.launch(stream_.handle());
    end_.record(stream_.handle());
    end_.synchronize();
    read_us.push_back(end_.us_since(begin_));
  }
  const auto n = static_cast<double>(routes.size());
  return {numeric::median(std::move(us)) / n, numeric::median(std::move(read_us)) / n};
}

// Reads go through the tensors in turns, so that no cache holds what comes next.
void DeviceShare::read(std::size_t bytes) {
  for (std::size_t tensor = 0; bytes > 0; ++tensor) {
    const std::span<const std::byte> all = weights_[tensor % weights_.size()];
    std::size_t& at = at_[tensor % weights_.size()];
    if (at >= all.size()) at = 0;
    const std::size_t part = std::min(bytes, all.size() - at);
    read_device(all.subspan(at, part), result_.as<std::uint32_t>().data(), stream_.handle());
    at += part;
    bytes -= part;
  }
}

}  // namespace kerf::tools::internal
