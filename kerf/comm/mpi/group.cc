#include "kerf/comm/mpi/group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "kerf/base/format.h"
#include "kerf/base/fp_guard.h"
#include "kerf/comm/agree.h"
#include "kerf/comm/internal/reduce.h"
#include "kerf/comm/internal/wire.h"
#include "kerf/comm/mpi/exchange.h"

namespace kerf::comm::mpi {

namespace {

using internal::Collective;
using internal::Post;

// Values of all ranks that a sum holds at a time; up to so many in all, every rank gets everything.
constexpr std::size_t kHeld = std::size_t{1} << 20;

class MpiGroup final : public Group {
 public:
  MpiGroup(Process& process, std::vector<int> members, int number)
      : process_(process),
        members_(std::move(members)),
        rank_(static_cast<int>(std::ranges::find(members_, process.rank()) - members_.begin())),
        post_tag_(2 * number),
        exchange_(process, members_),
        memory_(std::make_unique<Memory>(internal::wire_bytes(members_.size()), members_.size())),
        lists_(members_.size()),
        posts_(members_.size()),
        data_(members_.size()),
        terms_(members_.size()) {
    if (post_tag_ >= process.most_tag())
      fail(ErrorKind::unsupported, "MPI: no tag for group {}; they end at {}", number, process.most_tag());
  }

  // After a fault messages may be under way from and to it, and MPI goes on until the process ends.
  ~MpiGroup() override {
    if (process_.astray()) (void)memory_.release();
  }
  MpiGroup(const MpiGroup&) = delete;
  MpiGroup& operator=(const MpiGroup&) = delete;
  MpiGroup(MpiGroup&&) = delete;
  MpiGroup& operator=(MpiGroup&&) = delete;

  [[nodiscard]] std::string_view name() const override { return "mpi"; }
  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return static_cast<int>(members_.size()); }
  [[nodiscard]] bool ordered() const override { return true; }
  [[nodiscard]] int number(int rank) const override { return members_[static_cast<std::size_t>(rank)]; }

  void barrier(std::string_view what) override { meet({.what = what}); }

  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    const Post post{.collective = Collective::all_gather, .what = what, .mine = mine, .out = all};
    meet(post);
    const auto part = [&](int s) { return all.data() + static_cast<std::size_t>(s) * mine.size(); };
    internal::copy_host(mine, part(rank_));
    if (internal::data_in_message(post, members_.size())) {
      for_each_peer([&](int s) { internal::copy_host(data_[static_cast<std::size_t>(s)], part(s)); });
      return;
    }
    const Datatype type = Datatype::contiguous(static_cast<std::int64_t>(mine.size()));
    for_each_peer([&](int s) { exchange_.receive(s, part(s), type, data_tag()); });
    for_each_peer([&](int d) { exchange_.send(d, mine.data(), type, data_tag()); });
    finish(what);
  }

  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    meet({.collective = Collective::all_to_all, .what = what, .send = send, .received = received});
    // MPI counts the types as used until their messages are through.
    for_each_peer([&](int s) {
      const std::span<std::byte> to = received[static_cast<std::size_t>(s)];
      if (to.empty()) return;
      exchange_.receive(s, to.data(), Datatype::contiguous(static_cast<std::int64_t>(to.size())), data_tag());
    });
    for_each_peer([&](int d) {
      const tensor::StridedBytes& block = send[static_cast<std::size_t>(d)];
      if (block.packed_bytes() > 0) exchange_.send(d, block.base, Datatype::strided(block), data_tag());
    });
    const auto me = static_cast<std::size_t>(rank_);
    if (!received[me].empty()) tensor::pack(send[me], received[me].data());
    finish(what);
  }

  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    const Post post{.collective = Collective::all_reduce,
                    .what = what,
                    .mine = std::as_bytes(mine),
                    .out = std::as_writable_bytes(sum)};
    meet(post);
    if (internal::data_in_message(post, members_.size())) return sum_messages(mine, 0, sum);
    if (mine.size() * members_.size() <= kHeld / 2) {
      gather_terms(mine, 0, mine.size(), true, what);
      return add(mine.size(), sum);
    }
    // A part a rank of as much as is held at a time: its owner adds it up and sends it to all. From the
    // second exchange on nobody reads these values, so that sums may take their place.
    for (std::size_t at = 0; at < mine.size(); at += kHeld) {
      const std::size_t count = std::min(kHeld, mine.size() - at);
      gather_terms(mine.subspan(at, count), 0, count, false, what);
      const auto [first, size] = part_of(count, rank_);
      const auto own = sum.subspan(at + first, size);
      add(size, own);
      const Datatype type = values(size);
      for_each_peer([&](int s) {
        const auto [theirs, length] = part_of(count, s);
        if (length > 0) exchange_.receive(s, sum.data() + at + theirs, values(length), data_tag());
      });
      for_each_peer([&](int d) {
        if (size > 0) exchange_.send(d, own.data(), type, data_tag());
      });
      finish(what);
    }
  }

  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    const Post post{.collective = Collective::reduce_scatter,
                    .what = what,
                    .mine = std::as_bytes(mine),
                    .out = std::as_writable_bytes(part)};
    meet(post);
    if (internal::data_in_message(post, members_.size()))
      return sum_messages(mine, part.size() * static_cast<std::size_t>(rank_), part);
    const std::size_t held = std::max<std::size_t>(kHeld / members_.size(), 1);
    for (std::size_t at = 0; at < part.size(); at += held) {
      const std::size_t count = std::min(held, part.size() - at);
      exchange_terms(
          count, [&](int d) { return mine.data() + static_cast<std::size_t>(d) * part.size() + at; },
          [&](int) { return count; }, what);
      add(count, part.subspan(at, count));
    }
  }

  [[nodiscard]] std::unique_ptr<Group> split(int colour, std::string_view what) override {
    struct Mine {
      std::int32_t colour, next;
    };
    const Mine mine{colour, process_.next_group()};
    const std::vector<Mine> all = gathered(*this, std::span(&mine, 1), what);
    std::vector<int> members;
    std::int32_t number = 0;
    for (std::size_t r = 0; r < all.size(); ++r) {
      number = std::max(number, all[r].next);
      if (all[r].colour == colour) members.push_back(members_[r]);
    }
    process_.group_opened(number);
    return std::make_unique<MpiGroup>(process_, std::move(members), number);
  }

 private:
  struct Part {
    std::size_t first, size;
  };
  // What MPI is given of the group's own.
  struct Memory {
    Memory(std::size_t bytes, std::size_t ranks) : message(bytes), messages(ranks * bytes) {}
    std::vector<std::byte> message;   // this rank's post
    std::vector<std::byte> messages;  // the others', wire_bytes() each
    std::vector<std::uint16_t> held;  // what the terms of a sum lead to
  };
  [[nodiscard]] Part part_of(std::size_t count, int rank) const {
    const std::size_t ranks = members_.size();
    const auto r = static_cast<std::size_t>(rank);
    const std::size_t first = count * r / ranks;
    return {first, count * (r + 1) / ranks - first};
  }

  [[nodiscard]] int data_tag() const { return post_tag_ + 1; }

  static Datatype values(std::size_t count) {
    return Datatype::contiguous(static_cast<std::int64_t>(2 * count));
  }

  // The ranks after this one first: at any moment the ranks send to different peers.
  template <typename Visit>
  void for_each_peer(Visit visit) const {
    for (int i = 1; i < size(); ++i) visit((rank_ + i) % size());
  }

  // Every rank's post is here and all are one collective; or throws.
  void meet(const Post& post) {
    if (fault_) throw_fault(post.what);
    const std::size_t most = memory_->message.size();
    const auto own = static_cast<std::int64_t>(internal::write_post(post, memory_->message));
    const Datatype any = Datatype::contiguous(static_cast<std::int64_t>(most));
    const Datatype type = Datatype::contiguous(own);
    for_each_peer([&](int s) {
      exchange_.receive(s, memory_->messages.data() + static_cast<std::size_t>(s) * most, any, post_tag_);
    });
    for_each_peer([&](int d) { exchange_.send(d, memory_->message.data(), type, post_tag_); });
    settle(exchange_.finish(false), post.what, false);
    const auto unlike = attempt([&] {
      for_each_peer([&](int s) {
        const auto at = static_cast<std::size_t>(s);
        const auto read = internal::read_post(
            std::span(memory_->messages).subspan(at * most, exchange_.received(s)), lists_[at]);
        posts_[at] = read.post;
        data_[at] = read.data;
      });
      Post& mine = posts_[static_cast<std::size_t>(rank_)];
      mine = post;
      mine.what = mine.what.substr(0, internal::most_wire_what);
      require(internal::inconsistent(posts_, members_));
    });
    if (!unlike) return;
    fault_ = unlike;
    throw_fault(post.what);
  }

  void finish(std::string_view what) { settle(exchange_.finish(true), what, true); }

  // What became of an exchange; its first fault is final.
  void settle(Exchange::Ended ended, std::string_view what, bool data) {
    if (ended == Exchange::Ended::done) return;
    const std::vector<int> missing = numbers(exchange_.missing());
    if (ended == Exchange::Ended::left) {
      const Left& left = *process_.left(missing.front());
      fault_ = left.reason ? *left.reason : Reason{ErrorKind::peer, {}};
      // One that ended because of another rank has the words already.
      if (!left.group_failed) gone_ = missing.front();
    } else {
      fault_ = because(ErrorKind::peer, "{} {} did not {} '{}' within {:g} s",
                       missing.size() == 1 ? "rank" : "ranks", fmt::join(missing, ", "),
                       data ? "exchange its data of" : "reach", what,
                       std::chrono::duration<double>(process_.timeout()).count());
    }
    throw_fault(what);
  }

  [[nodiscard]] std::vector<int> numbers(std::span<const int> ranks) const {
    std::vector<int> out;
    for (const int r : ranks) out.push_back(number(r));
    return out;
  }

  [[noreturn]] void throw_fault(std::string_view what) const {
    if (gone_ < 0) throw GroupFailed(fault_->kind, fault_->text);
    throw GroupFailed(
        ErrorKind::peer,
        fault_->text.empty()
            ? fmt::format("rank {} returned while '{}' was awaited", gone_, what)
            : fmt::format("rank {} left while '{}' was awaited: {}", gone_, what, fault_->text));
  }

  // terms_[r]: `counts(rank_)` values of every rank, from where address(d) leads on each rank for every d.
  template <typename Address, typename Count>
  void exchange_terms(std::size_t own, Address address, Count counts, std::string_view what) {
    if (memory_->held.size() < own * members_.size()) memory_->held.resize(own * members_.size());
    const Datatype type = values(own);
    for_each_peer([&](int s) {
      std::uint16_t* to = memory_->held.data() + static_cast<std::size_t>(s) * own;
      terms_[static_cast<std::size_t>(s)] = to;
      if (own > 0) exchange_.receive(s, to, type, data_tag());
    });
    for_each_peer([&](int d) {
      if (const std::size_t count = counts(d); count > 0)
        exchange_.send(d, address(d), values(count), data_tag());
    });
    terms_[static_cast<std::size_t>(rank_)] = address(rank_);
    finish(what);
  }

  // The terms of this rank's part of `count` values, or of all of them.
  void gather_terms(std::span<const std::uint16_t> mine, std::size_t at, std::size_t count, bool whole,
                    std::string_view what) {
    exchange_terms(
        whole ? count : part_of(count, rank_).size,
        [&](int d) { return mine.data() + at + (whole ? 0 : part_of(count, d).first); },
        [&](int d) { return whole ? count : part_of(count, d).size; }, what);
  }

  // sum = the terms' first values. `sum` may be where this rank's term is.
  void add(std::size_t count, std::span<std::uint16_t> sum) {
    const FpGuard guard;
    std::array<std::uint16_t, internal::reduce_chunk> run;
    for (std::size_t at = 0; at < count; at += run.size()) {
      const auto part = std::span(run).first(std::min(run.size(), count - at));
      internal::sum_run(terms_, at, part);
      std::ranges::copy(part, sum.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }

  // The same of values that came with the posts, from value `first` on. Messages don't align them.
  void sum_messages(std::span<const std::uint16_t> mine, std::size_t first, std::span<std::uint16_t> sum) {
    if (memory_->held.size() < sum.size() * members_.size())
      memory_->held.resize(sum.size() * members_.size());
    for (int r = 0; r < size(); ++r) {
      const auto at = static_cast<std::size_t>(r);
      std::uint16_t* to = memory_->held.data() + at * sum.size();
      terms_[at] = to;
      const auto from = r == rank_ ? std::as_bytes(mine) : data_[at];
      if (!sum.empty()) std::memcpy(to, from.data() + 2 * first, sum.size_bytes());
    }
    add(sum.size(), sum);
  }

  Process& process_;
  std::vector<int> members_;
  int rank_;
  int post_tag_;
  Exchange exchange_;
  std::unique_ptr<Memory> memory_;
  std::vector<internal::WireLists> lists_;  // by rank, as the rest
  std::vector<Post> posts_;
  std::vector<std::span<const std::byte>> data_;
  std::vector<const std::uint16_t*> terms_;  // of a sum
  Verdict fault_;                            // the first one, final
  int gone_ = -1;                            // the rank that left, where that was it
};

}  // namespace

std::unique_ptr<Group> make_group(Process& process, std::vector<int> members, int number) {
  return std::make_unique<MpiGroup>(process, std::move(members), number);
}

}  // namespace kerf::comm::mpi
