#include "kerf/comm/engine_group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/engine/engine.h"
#include "kerf/comm/internal/reduce.h"
#include "kerf/comm/internal/wire.h"

namespace kerf::comm {

namespace {

using engine::Engine;
using internal::Collective;
using internal::Post;
using tensor::StridedBytes;

constexpr std::int32_t kWhole = 0;  // the number of the engine's group; parts count from 1

// Values of all ranks that every rank is given for a sum; above it each rank adds up a part.
constexpr std::size_t kOneShot = std::size_t{1} << 18;

StridedBytes packed(std::span<const std::byte> bytes) {
  const auto n = static_cast<std::int64_t>(bytes.size());
  return {bytes.data(), 1, n, 1, n, n};
}

// What goes before a post: which group it is of.
struct Envelope {
  std::int32_t group = kWhole;
  std::int32_t unused = 0;
};

Verdict unusable(const EngineGroupCalls& calls) {
  if (calls.size < 1 || calls.rank < 0 || calls.rank >= calls.size)
    return because(ErrorKind::usage, "the engine's group: rank {} of {} ranks", calls.rank, calls.size);
  if (!calls.all_gather || !calls.all_to_all)
    return because(ErrorKind::usage, "the engine's group has no {} to call",
                   calls.all_gather ? "all_to_all" : "all_gather");
  return std::nullopt;
}

// A collective of the whole group is a callback of the engine's. One of a part is an exchange of the whole
// group in which ranks of other parts take part too, with what they have to exchange meanwhile, or nothing:
// the posts of all ranks tell everybody whether there is one.
class EngineGroup final : public Group {
 public:
  // `members`: their ranks in the engine's group.
  EngineGroup(std::shared_ptr<Engine> engine, std::int32_t number, std::vector<int> members)
      : engine_(std::move(engine)),
        number_(number),
        members_(std::move(members)),
        rank_(static_cast<int>(std::ranges::find(members_, engine_->rank()) - members_.begin())),
        message_(sizeof(Envelope) + internal::wire_bytes(engine_->size())),
        messages_(engine_->size() * message_.size()),
        lists_(engine_->size()),
        posts_(members_.size()),
        data_(members_.size()),
        terms_(members_.size()),
        nothing_(engine_->size()) {
    for (const int r : members_) names_.push_back(engine_->numbers()[at(r)]);
  }

  [[nodiscard]] std::string_view name() const override { return engine_->calls().name; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] bool ordered() const override { return adds() || engine_->calls().ordered; }
  [[nodiscard]] int number(int rank) const override { return names_[at(rank)]; }

  void barrier(std::string_view what) override {
    meet({.what = what}, {});
    if (!whole()) return finish(what);
    if (engine_->calls().barrier) return engine_->barrier(what);
    if (checked()) return;
    const std::byte mine{};
    std::vector<std::byte> all(members_.size());
    engine_->all_gather({&mine, 1}, all, what);
  }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    const Post post{.collective = Collective::all_gather, .what = what, .mine = mine, .out = all};
    const bool small = checked() && internal::data_in_message(post, engine_->size());
    if (small) {
      small_.resize(mine.size());
      copy(mine, small_.data());
    }
    meet(post, small ? small_ : std::span<const std::byte>());
    const auto part = [&](std::size_t s) { return all.subspan(s * mine.size(), mine.size()); };
    if (small) {
      for (std::size_t s = 0; s < members_.size(); ++s) copy(data_[s], part(s).data());
      return finish(what);
    }
    if (whole()) return engine_->all_gather(mine, all, what);
    exchange([&](std::size_t) { return packed(mine); }, part, what);
  }

  void all_to_all(std::span<const StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    meet({.collective = Collective::all_to_all, .what = what, .send = send, .received = received}, {});
    exchange([&](std::size_t d) { return send[d]; }, [&](std::size_t s) { return received[s]; }, what);
  }

  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    const Post post{.collective = Collective::all_reduce,
                    .what = what,
                    .mine = std::as_bytes(mine),
                    .out = std::as_writable_bytes(sum)};
    if (meet_to_add(post)) {
      sum_messages(0, sum);
      return finish(what);
    }
    if (!adds()) {
      if (mine.data() != sum.data()) std::ranges::copy(mine, sum.begin());
      return engine_->all_reduce_sum(sum, what);
    }
    if (!whole()) {
      gather_terms(
          mine.size(), [&](std::size_t) { return mine; }, what);
      return add(sum);
    }
    if (mine.size() * members_.size() <= kOneShot) {
      held_.resize(mine.size() * members_.size());
      point_terms(mine.size());
      engine_->all_gather_host(std::as_bytes(mine), std::as_writable_bytes(std::span(held_)), what);
      return add(sum);
    }
    const auto part_of = [&](std::size_t rank) { return mine.size() * rank / members_.size(); };
    const std::size_t first = part_of(at(rank_));
    const auto own = sum.subspan(first, part_of(at(rank_) + 1) - first);
    gather_terms(
        own.size(), [&](std::size_t d) { return mine.subspan(part_of(d), part_of(d + 1) - part_of(d)); },
        what);
    add(own);
    exchange([&](std::size_t) { return packed(std::as_bytes(own)); },
             [&](std::size_t s) {
               return std::as_writable_bytes(sum.subspan(part_of(s), part_of(s + 1) - part_of(s)));
             },
             what);
  }

  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    const Post post{.collective = Collective::reduce_scatter,
                    .what = what,
                    .mine = std::as_bytes(mine),
                    .out = std::as_writable_bytes(part)};
    const std::size_t first = at(rank_) * part.size();
    if (meet_to_add(post)) {
      sum_messages(first, part);
      return finish(what);
    }
    if (!adds()) {
      if (engine_->calls().reduce_scatter_sum) return engine_->reduce_scatter_sum(mine, part, what);
      std::vector<std::uint16_t> sum(mine.begin(), mine.end());
      engine_->all_reduce_sum(sum, what);
      std::ranges::copy(std::span(sum).subspan(first, part.size()), part.begin());
      return;
    }
    gather_terms(
        part.size(), [&](std::size_t d) { return mine.subspan(d * part.size(), part.size()); }, what);
    add(part);
  }

  [[nodiscard]] std::unique_ptr<Group> split(int colour, std::string_view what) override {
    struct Mine {
      std::int32_t colour, next;
    };
    const Mine mine{colour, engine_->groups()};
    const auto all = gathered(*this, std::span(&mine, 1), what);
    std::vector<int> colours, members;
    std::int32_t number = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      colours.push_back(all[r].colour);
      number = std::max(number, all[r].next);
      if (all[r].colour == colour) members.push_back(static_cast<int>(r));
    }
    if (whole() && engine_->calls().split) return part_of_the_engine(colours, members, what);
    // Ranks of other colours are no members, so that parts which begin together may share a number.
    engine_->set_groups(number + 1);
    for (int& member : members) member = members_[at(member)];
    return std::make_unique<EngineGroup>(engine_, number, std::move(members));
  }

 private:
  static std::size_t at(int rank) { return static_cast<std::size_t>(rank); }
  [[nodiscard]] bool whole() const { return number_ == kWhole; }
  [[nodiscard]] bool checked() const { return engine_->options().checked; }
  // Whether sums are formed here.
  [[nodiscard]] bool adds() const { return !whole() || !engine_->own_sums(); }

  void copy(std::span<const std::byte> from, std::byte* to) const {
    if (!from.empty() && from.data() != to) engine_->options().copier->copy(from, to);
  }

  std::unique_ptr<Group> part_of_the_engine(std::span<const int> colours, const std::vector<int>& members,
                                            std::string_view what) {
    EngineGroupCalls calls;
    agreed(*this, what, [&] {
      calls = engine_->split(colours, what);
      require(unusable(calls));
      const auto rank = std::ranges::find(members, rank_) - members.begin();
      if (calls.rank != rank || calls.size != std::ssize(members))
        fail(ErrorKind::usage, "'{}': the engine's part has this rank as {} of {}, wanted {} of {}", what,
             calls.rank, calls.size, rank, members.size());
    });
    std::vector<int> numbers, ranks;
    for (const int member : members) {
      ranks.push_back(static_cast<int>(ranks.size()));
      numbers.push_back(names_[at(member)]);
    }
    return std::make_unique<EngineGroup>(
        std::make_shared<Engine>(std::move(calls), engine_->options(), std::move(numbers)), kWhole,
        std::move(ranks));
  }

  // Every rank's post is here and this group's are one collective; or throws. `data`: what goes along.
  void meet(const Post& post, std::span<const std::byte> data) {
    if (fault_) throw GroupFailed(fault_->kind, fault_->text);
    engine_->check();
    others_exchange_ = !whole();
    if (!checked()) {
      fault_ = internal::inconsistent_alone(post, at(rank_), names_);
      if (fault_) throw GroupFailed(fault_->kind, fault_->text);
      return;
    }
    const Envelope mine{number_};
    std::ranges::fill(message_, std::byte{});
    std::memcpy(message_.data(), &mine, sizeof(mine));
    internal::write_post(post, std::span(message_).subspan(sizeof(mine)), data);
    engine_->all_gather_host(message_, messages_, post.what);
    bool exchanged = false;
    fault_ = attempt([&] {
      std::size_t member = 0;
      Verdict elsewhere;
      for (std::size_t r = 0; r < engine_->size(); ++r) {
        Envelope theirs;
        const auto message = std::span(messages_).subspan(r * message_.size(), message_.size());
        std::memcpy(&theirs, message.data(), sizeof(theirs));
        const auto read = internal::read_post(message.subspan(sizeof(theirs)), lists_[r]);
        exchanged = exchanged || (theirs.group != kWhole && exchanges(read));
        if (member == members_.size() || at(members_[member]) != r) continue;
        posts_[member] = read.post;
        data_[member] = read.data;
        if (theirs.group != number_ && !elsewhere)
          elsewhere = because(ErrorKind::bug,
                              "rank {} is in '{}' of another group while '{}' was awaited: parts that the "
                              "engine does not split itself take their collectives together",
                              names_[member], read.post.what, post.what);
        ++member;
      }
      require(elsewhere);
      Post& own = posts_[at(rank_)];
      own = post;
      own.what = own.what.substr(0, internal::most_wire_what);
      require(internal::inconsistent(posts_, names_));
    });
    others_exchange_ = exchanged;
    if (!fault_) return;
    finish(post.what);
    throw GroupFailed(fault_->kind, fault_->text);
  }

  // Whether a part's post, as all ranks read it, is followed by an exchange.
  static bool exchanges(const internal::Received& read) {
    const Post& post = read.post;
    if (post.collective == Collective::barrier) return false;
    return post.collective == Collective::all_to_all || read.data.size() != post.mine.size();
  }

  // meet() for a sum: whether it is to be formed of the posts' data.
  bool meet_to_add(const Post& post) {
    const bool small = adds() && checked() && internal::data_in_message(post, engine_->size());
    meet(post, small ? post.mine : std::span<const std::byte>());
    return small;
  }

  // Takes part, with nothing, in the exchange of other parts that is under way.
  void finish(std::string_view what) {
    if (!std::exchange(others_exchange_, false)) return;
    const std::vector<StridedBytes> send(engine_->size());
    engine_->all_to_all(send, nothing_, what);
  }

  // send(d) goes to member d, received(s) takes what member s has.
  template <typename Send, typename Received>
  void exchange(Send send, Received received, std::string_view what) {
    std::vector<StridedBytes> out(engine_->size());
    std::vector<std::span<std::byte>> in(engine_->size());
    for (std::size_t m = 0; m < members_.size(); ++m) {
      out[at(members_[m])] = send(m);
      in[at(members_[m])] = received(m);
    }
    others_exchange_ = false;
    engine_->all_to_all(out, in, what);
  }

  // terms_[s]: the `count` values that member s has for this rank.
  template <typename For>
  void gather_terms(std::size_t count, For for_rank, std::string_view what) {
    held_.resize(count * members_.size());
    point_terms(count);
    exchange(
        [&](std::size_t d) { return packed(std::as_bytes(std::span<const std::uint16_t>(for_rank(d)))); },
        [&](std::size_t s) { return std::as_writable_bytes(std::span(held_).subspan(s * count, count)); },
        what);
  }

  void point_terms(std::size_t count) {
    for (std::size_t s = 0; s < members_.size(); ++s) terms_[s] = held_.data() + s * count;
  }

  void add(std::span<std::uint16_t> sum) {
    const FpGuard guard;
    for (std::size_t i = 0; i < sum.size(); i += internal::reduce_chunk)
      internal::sum_run(terms_, i, sum.subspan(i, std::min(internal::reduce_chunk, sum.size() - i)));
    if (held_.size() > kOneShot) held_ = {};
  }

  // The same of values that came with the posts, from value `first` on. Messages don't align them.
  void sum_messages(std::size_t first, std::span<std::uint16_t> sum) {
    held_.resize(sum.size() * members_.size());
    point_terms(sum.size());
    for (std::size_t s = 0; s < members_.size() && !sum.empty(); ++s)
      std::memcpy(held_.data() + s * sum.size(), data_[s].data() + 2 * first, sum.size_bytes());
    add(sum);
  }

  std::shared_ptr<Engine> engine_;
  std::int32_t number_;
  std::vector<int> members_;  // ranks of the engine's group
  int rank_;
  std::vector<int> names_;
  std::vector<std::byte> message_;   // this rank's post
  std::vector<std::byte> messages_;  // all ranks'
  std::vector<internal::WireLists> lists_;
  std::vector<Post> posts_;                       // by member, as the rest
  std::vector<std::span<const std::byte>> data_;  // that came with them
  std::vector<std::byte> small_;
  std::vector<std::uint16_t> held_;
  std::vector<const std::uint16_t*> terms_;  // of a sum
  std::vector<std::span<std::byte>> nothing_;
  bool others_exchange_ = false;  // all ranks are about to exchange, whether this one has anything or not
  Verdict fault_;
};

}  // namespace

std::unique_ptr<Group> make_engine_group(EngineGroupCalls calls, const EngineGroupOptions& options) {
  require(unusable(calls));
  std::vector<int> ranks(static_cast<std::size_t>(calls.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  auto engine = std::make_shared<Engine>(std::move(calls), options, ranks);
  return std::make_unique<EngineGroup>(std::move(engine), kWhole, std::move(ranks));
}

std::string engine_sums(const EngineGroupCalls& calls, const EngineGroupOptions& options) {
  if (calls.all_reduce_sum && !options.rank_order)
    return fmt::format("the engine's all_reduce, {}",
                       calls.ordered ? "in rank order" : "in an order that it does not promise");
  return "kerf's, in rank order, on the engine's all_to_all";
}

}  // namespace kerf::comm
