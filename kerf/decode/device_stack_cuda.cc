#include "kerf/decode/device_stack.h"

#include <algorithm>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/comm/agree.h"
#include "kerf/decode/internal/device_rank.h"

namespace kerf::decode {

namespace {

using internal::DeviceLayer;
using internal::DeviceRank;

// What the conductor knows of all ranks: which of them share a layer's slices, and what each does in a tail.
class Ensemble {
 public:
  Ensemble(std::vector<DeviceRank*> ranks, std::int64_t slices)
      : ranks_(std::move(ranks)), slices_(slices), tensors_(ranks_.size()) {}

  // Each rank's tensors of the next layer's step.
  [[nodiscard]] std::span<DeviceStepTensors> tensors() { return tensors_; }
  void take_loaded(std::size_t position) {
    for (std::size_t r = 0; r < size(); ++r) tensors_[r] = ranks_[r]->loaded(position);
  }

  // One layer's step, of every rank, on tensors().
  void enqueue(std::size_t position, const StackStep& step, cuda::StreamHandle stream) const {
    for (std::size_t r = 0; r < size(); ++r)
      ranks_[r]->run_experts(position, step, tensors_[r], ends(r, position, step) ? own_out(r) : nullptr,
                             stream);
    const bool sliced = ranks_.front()->layer(position).layer->sliced_in(step.mode);
    if (step.tail == tail::Kind::exact)
      exact(position, step, sliced, stream);
    else if (sliced)
      fast_sliced(position, step, stream);
    else
      fast_whole(position, step, stream);
  }

 private:
  using Out = std::uint16_t*;

  [[nodiscard]] std::size_t size() const { return ranks_.size(); }
  [[nodiscard]] Out out(std::size_t rank) const { return tensors_[rank].out; }

  // Where a rank's own routes of each token go: [T, H].
  [[nodiscard]] Out own_out(std::size_t rank) const {
    return size() == 1 ? out(rank) : ranks_[rank]->partial();
  }
  // Whether a rank's own routes are all that ends its tokens, and its experts do it.
  [[nodiscard]] bool ends(std::size_t rank, std::size_t position, const StackStep& step) const {
    const Layer& layer = *ranks_[rank]->layer(position).layer;
    return step.tail == tail::Kind::fast && !layer.sliced_in(step.mode) && !layer.norm &&
           ranks_[rank]->ends_tokens(position, step);
  }

  // What every tail of a layer has, on the rank that ends it.
  [[nodiscard]] tail::DeviceTail common(std::size_t rank, std::size_t position, const StackStep& step) const {
    const DeviceRank& r = *ranks_[rank];
    const DeviceLayer& l = r.layer(position);
    tail::DeviceTail t;
    t.tokens = step.tokens;
    t.top_k = l.layer->bound().top_k();
    t.hidden = l.layer->bound().shape().hidden;
    t.count = step.tokens;
    t.part[0] = r.part(position, step);
    t.weights = r.weights();
    t.ids = r.ids();
    if (l.layer->norm)
      t.norm = {true, l.gain.bytes().empty() ? nullptr : l.gain.as<std::uint16_t>().data(),
                l.layer->norm->gain_before_norm, l.layer->norm->eps};
    return t;
  }

  // Every rank's own routes; then the sum over ranks, of which each adds up a part for all.
  void fast_whole(std::size_t position, const StackStep& step, cuda::StreamHandle stream) const {
    for (std::size_t r = 0; r < size(); ++r) {
      if (ends(r, position, step)) continue;
      tail::DeviceTail t = common(r, position, step);
      t.out[0] = own_out(r);
      tail::device_tail(t, stream);
    }
    if (size() == 1) return;
    std::vector<std::size_t> all(size());
    for (std::size_t r = 0; r < size(); ++r) all[r] = r;
    sum(all, position, step, stream);
  }

  // The partial sums of `members`, into each of their outputs.
  void sum(const std::vector<std::size_t>& members, std::size_t position, const StackStep& step,
           cuda::StreamHandle stream) const {
    const std::int64_t values = step.tokens * ranks_.front()->layer(position).layer->bound().shape().hidden;
    const auto n = static_cast<std::int64_t>(members.size());
    constexpr std::int64_t unit = 64;  // every width is a multiple of it
    const std::int64_t share = (values + n * unit - 1) / (n * unit) * unit;
    tail::DeviceSum s;
    s.parts = s.outs = static_cast<int>(n);
    for (std::size_t i = 0; i < members.size(); ++i) {
      s.part[i] = ranks_[members[i]]->partial();
      s.out[i] = out(members[i]);
    }
    for (std::int64_t i = 0; i < n; ++i) {
      s.first = std::min(i * share, values);
      s.count = std::min(values - s.first, share);
      if (s.count > 0) tail::device_sum(s, stream);
    }
  }

  // A rank ends its own tokens: [first, first + count).
  static void own(tail::DeviceTail& t, std::int64_t member, std::int64_t members) {
    const std::int64_t share = (t.tokens + members - 1) / members;
    t.first = std::min(member * share, t.tokens);
    t.count = std::min(t.tokens - t.first, share);
  }

  // Inside each row of ranks the K-partials are summed by the rank that ends the token; over several rows,
  // whose experts are others, [T, H] is.
  void fast_sliced(std::size_t position, const StackStep& step, cuda::StreamHandle stream) const {
    const auto n = static_cast<std::size_t>(slices_);
    const std::size_t rows = size() / n;
    for (std::size_t r = 0; r < size(); ++r) {
      const std::size_t first = r / n * n;
      tail::DeviceTail t = common(r, position, step);
      t.source = tail::RowSource::bf16_sum;
      t.parts = t.outs = static_cast<int>(n);
      for (std::size_t i = 0; i < n; ++i) {
        t.part[i] = ranks_[first + i]->part(position, step);
        t.out[i] = rows == 1 ? out(first + i) : ranks_[first + i]->partial();
      }
      own(t, static_cast<std::int64_t>(r - first), slices_);
      if (t.count > 0) tail::device_tail(t, stream);
    }
    if (rows == 1) return;
    for (std::size_t column = 0; column < n; ++column) {
      std::vector<std::size_t> members;
      for (std::size_t r = column; r < size(); r += n) members.push_back(r);
      sum(members, position, step, stream);
    }
  }

  void exact(std::size_t position, const StackStep& step, bool sliced, cuda::StreamHandle stream) const {
    for (std::size_t r = 0; r < size(); ++r) {
      tail::DeviceTail t = common(r, position, step);
      t.source = !sliced                                        ? tail::RowSource::any
                 : static_cast<std::int64_t>(size()) == slices_ ? tail::RowSource::tree_sum
                                                                : tail::RowSource::tree_any;
      t.parts = t.outs = static_cast<int>(size());
      t.slices = sliced ? static_cast<int>(slices_) : 1;
      if (sliced) t.g2_alphas = ranks_[r]->layer(position).g2_alphas.as<float>().data();
      for (std::size_t i = 0; i < size(); ++i) {
        t.part[i] = ranks_[i]->part(position, step);
        t.out[i] = out(i);
      }
      own(t, static_cast<std::int64_t>(r), static_cast<std::int64_t>(size()));
      if (t.count > 0) tail::device_tail(t, stream);
    }
  }

  std::vector<DeviceRank*> ranks_;
  std::int64_t slices_;  // ranks of a row
  std::vector<DeviceStepTensors> tensors_;
};

Verdict unusable(const DeviceStepTensors& t) {
  const auto aligned = [](const void* p) {
    return p != nullptr && reinterpret_cast<std::uintptr_t>(p) % 16 == 0;
  };
  if (!aligned(t.x) || !aligned(t.out))
    return because(ErrorKind::usage, "a device's step: x and out wanted, each at a multiple of 16 bytes");
  if (t.router != nullptr ? t.logits == nullptr : t.ids == nullptr || t.weights == nullptr)
    return because(ErrorKind::usage, "a device's step: no {}, wanted with {}",
                   t.router != nullptr ? "logits" : "ids and weights",
                   t.router != nullptr ? "a router" : "x");
  return std::nullopt;
}

class Stack final : public DeviceStack {
 public:
  Stack(std::span<const Layer* const> layers, const Plan& plan, std::span<const StackStep> steps,
        const Rank& rank)
      : group_(rank.group), steps_(steps.begin(), steps.end()) {
    const std::int64_t before = rank.weights().current();
    comm::agreed(group_, "planning the device's steps",
                 [&] { mine_ = std::make_unique<DeviceRank>(layers, plan, steps, rank); });
    DeviceRank* const mine = mine_.get();
    std::vector<DeviceRank*> all =
        comm::gathered(group_, std::span<DeviceRank* const>(&mine, 1), "the ranks' devices");
    const std::int64_t slices = rank.row().size();
    slices_ = static_cast<std::size_t>(slices);
    for (std::size_t i = 0; i < layers.size(); ++i) share_g2_alphas(i);
    bytes_ = rank.weights().current() - before;
    ensemble_ = std::make_unique<Ensemble>(std::move(all), slices);
  }

  void load(std::size_t position, const StepInputs& inputs) override {
    comm::agreed(group_, "loading a step's inputs", [&] { mine_->load(position, inputs); });
  }

  void run(const StackStep& step) override {
    prepared(step);
    follow_refills();
    conduct("running the device's steps", [&] {
      enqueue_loaded(step);
      stream_.synchronize();
    });
  }

  void capture(const StackStep& step) override {
    prepared(step);
    follow_refills();
    conduct("capturing the device's steps",
            [&] { graph_ = cuda::Graph::capture(stream_.handle(), [&] { enqueue_loaded(step); }); });
  }

  void replay() override {
    follow_refills();
    conduct("replaying the device's steps", [&] {
      graph_.launch(stream_.handle());
      stream_.synchronize();
    });
  }

  [[nodiscard]] std::vector<double> time(int times) override {
    follow_refills();
    std::vector<double> us(static_cast<std::size_t>(times), 0);
    conduct("timing the device's steps", [&] {
      for (double& t : us) {
        begin_.record(stream_.handle());
        graph_.launch(stream_.handle());
        end_.record(stream_.handle());
        end_.synchronize();
        t = end_.us_since(begin_);
      }
    });
    const std::vector<double> all = comm::gathered(group_, std::span<const double>(us), "the steps' times");
    us.assign(all.begin(), all.begin() + times);  // rank 0's
    return us;
  }

  [[nodiscard]] std::vector<std::uint16_t> output(std::size_t position) const override {
    const DeviceLayer& l = mine_->layer(position);
    std::vector<std::uint16_t> out(static_cast<std::size_t>(tokens_ * l.layer->bound().shape().hidden));
    cuda::copy(out.data(), l.out.bytes().data(), out.size() * sizeof(std::uint16_t));
    return out;
  }

  void enqueue(std::size_t position, const StackStep& step, const DeviceStepTensors& tensors,
               cuda::StreamHandle stream) override {
    if (position >= mine_->layers())
      fail(ErrorKind::usage, "layer {} of a stack of {}", position, mine_->layers());
    if (std::none_of(steps_.begin(), steps_.end(), [&](const StackStep& made) {
          return made.mode == step.mode && made.tail == step.tail && step.tokens <= made.tokens;
        }))
      refuse(step);
    follow_refills();
    if (step.tokens == 0) return;
    if (group_.size() == 1) {
      require(unusable(tensors));
      ensemble_->tensors().front() = tensors;
      return ensemble_->enqueue(position, step, stream);
    }
    const auto all = comm::gathered(group_, std::span(&tensors, 1), "the ranks' tensors");
    conduct("enqueueing a step", [&] {
      for (std::size_t r = 0; r < all.size(); ++r) {
        require(unusable(all[r]));
        ensemble_->tensors()[r] = all[r];
      }
      ensemble_->enqueue(position, step, stream);
    });
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  // Rank 0 works; what it meets, all meet.
  template <typename Work>
  void conduct(std::string_view what, Work work) {
    comm::agreed(group_, what, [&] {
      if (group_.rank() == 0) work();
    });
  }

  [[noreturn]] static void refuse(const StackStep& step) {
    fail(ErrorKind::usage, "a step of {} tokens ({}, {} tail) that the device's stack was not made for",
         step.tokens, name(step.mode), tail::name(step.tail));
  }

  void prepared(const StackStep& step) {
    if (std::find(steps_.begin(), steps_.end(), step) == steps_.end()) refuse(step);
    tokens_ = step.tokens;
  }

  void enqueue_loaded(const StackStep& step) const {
    if (step.tokens == 0) return;
    for (std::size_t i = 0; i < mine_->layers(); ++i) {
      ensemble_->take_loaded(i);
      ensemble_->enqueue(i, step, stream_.handle());
    }
  }

  // Collective where a layer has been refilled since its values were taken, which is so on every rank; else
  // nothing. What is taken again goes to where it was: graphs have its addresses.
  void follow_refills() {
    for (std::size_t i = 0; i < mine_->layers(); ++i) {
      if (!mine_->outdated(i)) continue;
      share_g2_alphas(i);
      comm::agreed(group_, "following a refill", [&] { mine_->take_values(i); });
    }
  }

  // The rank that ends a token of sliced experts needs g2_alphas of all rows of ranks.
  void share_g2_alphas(std::size_t position) {
    const std::optional<layout::Nvfp4Experts>& sliced = mine_->layer(position).layer->sliced;
    if (!sliced) return;
    const auto mine = sliced->g2_alphas.as<const float>();
    const std::vector<float> gathered = comm::gathered(group_, std::span<const float>(mine), "g2_alphas");
    std::vector<float> all;  // one rank of each row has its row's
    for (std::size_t r = 0; r < static_cast<std::size_t>(group_.size()); r += slices_)
      all.insert(all.end(), gathered.begin() + static_cast<std::ptrdiff_t>(r * mine.size()),
                 gathered.begin() + static_cast<std::ptrdiff_t>((r + 1) * mine.size()));
    comm::agreed(group_, "uploading g2_alphas", [&] { mine_->set_g2_alphas(position, all); });
  }

  comm::Group& group_;
  std::vector<StackStep> steps_;
  cuda::Stream stream_;
  cuda::Event begin_, end_;
  std::unique_ptr<DeviceRank> mine_;
  std::unique_ptr<Ensemble> ensemble_;
  cuda::Graph graph_;
  std::size_t slices_ = 1;  // ranks of a row
  std::int64_t tokens_ = 0;
  std::int64_t bytes_ = 0;
};

}  // namespace

Verdict no_device_stack(const Rank& rank) {
  if (rank.device == nullptr) return because(ErrorKind::unsupported, "the experts are not on a device");
  if (rank.group.size() > 1 && !rank.group.shares_memory())
    return because(ErrorKind::unsupported,
                   "group '{}': the ranks of a device's stack are threads of one process", rank.group.name());
  if (rank.group.size() > tail::most_device_ranks)
    return because(ErrorKind::unsupported, "{} ranks on one device, at most {}", rank.group.size(),
                   tail::most_device_ranks);
  return std::nullopt;
}

std::unique_ptr<DeviceStack> make_device_stack(std::span<const Layer* const> layers, const Plan& plan,
                                               std::span<const StackStep> steps, const Rank& rank) {
  require(no_device_stack(rank));
  if (layers.empty() || steps.empty()) fail(ErrorKind::bug, "a stack without layers or steps");
  return std::make_unique<Stack>(layers, plan, steps, rank);
}

}  // namespace kerf::decode
