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
    tails(position, step, stream, [&](std::size_t r) { return ends(r, position, step); });
  }

  // The tails of all ranks, whose rows are there, into the outputs of tensors().
  void enqueue_tail(std::size_t position, const StackStep& step, cuda::StreamHandle stream) const {
    tails(position, step, stream, [](std::size_t) { return false; });
  }

 private:
  using Out = std::uint16_t*;

  // `ended(rank)`: its experts have ended its tokens already.
  template <typename Ended>
  void tails(std::size_t position, const StackStep& step, cuda::StreamHandle stream, Ended ended) const {
    const bool sliced = ranks_.front()->layer(position).layer->sliced_in(step.mode);
    if (step.tail == tail::Kind::exact)
      exact(position, step, sliced, stream);
    else if (sliced)
      fast_sliced(position, step, stream);
    else
      fast_whole(position, step, stream, ended);
  }

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
  template <typename Ended>
  void fast_whole(std::size_t position, const StackStep& step, cuda::StreamHandle stream, Ended ended) const {
    for (std::size_t r = 0; r < size(); ++r) {
      if (ended(r)) continue;
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

bool aligned(const void* p, std::uintptr_t to = 16) {
  return p != nullptr && reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

Verdict unusable(const Layer& layer, const DeviceStepTensors& t) {
  if (t.a != nullptr && layer.input != op::Input::nvfp4)
    return because(ErrorKind::unsupported, "layer {} takes bf16 rows, not quantised ones", layer.index);
  if (t.a != nullptr ? !aligned(t.a) || !aligned(t.a_sf, 8) : !aligned(t.x))
    return because(ErrorKind::usage,
                   "a device's step: x or a wanted at a multiple of 16 bytes, a_sf at one of 8");
  if (t.router != nullptr ? t.logits == nullptr : t.ids == nullptr || t.weights == nullptr)
    return because(ErrorKind::usage, "a device's step: no {}, wanted with {}",
                   t.router != nullptr ? "logits" : "ids and weights",
                   t.router != nullptr ? "a router" : "x");
  return std::nullopt;
}

Verdict unusable_out(const std::uint16_t* out) {
  if (aligned(out)) return std::nullopt;
  return because(ErrorKind::usage, "a device's step: out wanted at a multiple of 16 bytes");
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
    made_for(position, step);
    follow_refills();
    if (step.tokens == 0) return;
    const auto fits = [&](const DeviceStepTensors& t) {
      require(unusable(*mine_->layer(position).layer, t));
      require(unusable_out(t.out));
    };
    together("enqueueing a step", tensors, stream, fits,
             [&](cuda::StreamHandle on) { ensemble_->enqueue(position, step, on); });
  }

  DeviceUnfinalized enqueue_experts(std::size_t position, const StackStep& step,
                                    const DeviceStepTensors& tensors, cuda::StreamHandle stream) override {
    made_for(position, step);
    follow_refills();
    if (step.tokens > 0) {
      require(unusable(*mine_->layer(position).layer, tensors));
      mine_->run_experts(position, step, tensors, nullptr, stream);
    }
    return mine_->unfinalized(position, step);
  }

  void enqueue_tail(std::size_t position, const StackStep& step, std::uint16_t* out,
                    cuda::StreamHandle stream) override {
    made_for(position, step);
    if (step.tokens == 0) return;
    DeviceStepTensors tensors;
    tensors.out = out;
    together(
        "enqueueing a tail", tensors, stream,
        [](const DeviceStepTensors& t) { require(unusable_out(t.out)); },
        [&](cuda::StreamHandle on) { ensemble_->enqueue_tail(position, step, on); });
  }

  void enqueue_sum(numeric::SumOrder order, const std::uint16_t* mine, std::uint16_t* sum,
                   std::int64_t values, cuda::StreamHandle stream) override {
    // A kernel that reads all ranks' values goes by one number of them.
    std::vector<std::int64_t> all = {values};
    if (group_.size() > 1)
      all = comm::gathered(group_, std::span<const std::int64_t>(&values, 1), "the values of a sum");
    for (std::size_t r = 0; r < all.size(); ++r)
      if (all[r] < 0 || all[r] % 8 != 0 || all[r] != all.front())
        fail(ErrorKind::usage,
             "a device's sum of {} values on rank {} and {} on rank 0, wanted equally many, a multiple of 8",
             all[r], group_.number(static_cast<int>(r)), all.front());
    if (values == 0) return;
    DeviceStepTensors tensors;
    tensors.x = mine;
    tensors.out = sum;
    const auto fits = [](const DeviceStepTensors& t) {
      if (!aligned(t.x) || !aligned(t.out))
        fail(ErrorKind::usage, "a device's sum: values and their sum wanted at multiples of 16 bytes");
    };
    together("enqueueing a sum", tensors, stream, fits, [&](cuda::StreamHandle on) {
      tail::DeviceSum s;
      s.order = order;
      s.parts = s.outs = group_.size();
      s.count = values;
      for (std::size_t r = 0; r < ensemble_->tensors().size(); ++r) {
        s.part[r] = ensemble_->tensors()[r].x;
        s.out[r] = ensemble_->tensors()[r].out;
      }
      tail::device_sum(s, on);
    });
  }

  // Collective where a layer has been refilled since its values were taken, which is so on every rank; else
  // nothing. What is taken again goes to where it was: graphs have its addresses.
  void follow_refills() override {
    for (std::size_t i = 0; i < mine_->layers(); ++i) {
      if (!mine_->outdated(i)) continue;
      share_g2_alphas(i);
      comm::agreed(group_, "following a refill", [&] { mine_->take_values(i); });
    }
  }

  [[nodiscard]] std::int64_t bytes() const override { return bytes_; }

 private:
  // What a rank brings to work that rank 0 enqueues for all.
  struct Seat {
    DeviceStepTensors tensors;
    cuda::StreamHandle stream = nullptr;
    const cuda::Event* event = nullptr;  // what the rank's stream had, where that is not rank 0's
  };

  // Work on the tensors of all ranks, on rank 0's stream; each rank's own is ordered before and behind it.
  template <typename Fits, typename Work>
  void together(std::string_view what, const DeviceStepTensors& tensors, cuda::StreamHandle stream, Fits fits,
                Work work) {
    if (group_.size() == 1) {
      fits(tensors);
      ensemble_->tensors().front() = tensors;
      return work(stream);
    }
    Seat mine{tensors, stream, &here_};
    const std::vector<Seat> all =
        comm::gathered(group_, std::span<const Seat>(&mine, 1), "the ranks' tensors");
    const bool apart =
        std::any_of(all.begin(), all.end(), [&](const Seat& s) { return s.stream != all.front().stream; });
    if (apart)
      comm::agreed(group_, "ordering the ranks' streams", [&] {
        if (group_.rank() != 0) here_.record(stream);
      });
    conduct(what, [&] {
      for (std::size_t r = 0; r < all.size(); ++r) {
        fits(all[r].tensors);
        ensemble_->tensors()[r] = all[r].tensors;
        if (apart && r > 0) all[r].event->make_wait(stream);
      }
      work(stream);
      if (apart) here_.record(stream);
    });
    if (apart && group_.rank() != 0) all.front().event->make_wait(stream);
  }

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

  void made_for(std::size_t position, const StackStep& step) const {
    if (position >= mine_->layers())
      fail(ErrorKind::usage, "layer {} of a stack of {}", position, mine_->layers());
    if (std::none_of(steps_.begin(), steps_.end(), [&](const StackStep& made) {
          return made.mode == step.mode && made.tail == step.tail && step.tokens <= made.tokens;
        }))
      refuse(step);
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
  cuda::Event here_;  // what this rank's caller's stream had
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
