// A record of which entries were reached. It is handed to what has entries to record, which finds it nowhere
// else; recording sets a bit, from any thread, and allocates nothing.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#pragma GCC visibility push(default)
namespace kerf {

// The entries that a decode step may reach.
enum class Call : std::uint8_t {
  routed_experts,                // the public op on prepared routes
  routed_experts_from_logits,    // the public op that routes itself
  routed_experts_from_metadata,  // the op's body alone
  all_reduce,                    // the sum over ranks that is a step of its own
};
inline constexpr std::array<std::string_view, 4> call_names = {"routed_experts", "routed_experts_from_logits",
                                                               "routed_experts_from_metadata", "all_reduce"};

// A set of them.
class CallSet {
 public:
  constexpr CallSet() = default;
  // Of these, or of a set's bits (bit()).
  constexpr CallSet(std::initializer_list<Call> calls) {
    for (const Call call : calls) add(call);
  }
  constexpr explicit CallSet(std::uint32_t bits) : bits_(bits) {}

  // Puts one in; whether one is in.
  constexpr void add(Call call) { bits_ |= bit(call); }
  [[nodiscard]] constexpr bool has(Call call) const { return (bits_ & bit(call)) != 0; }
  // Their names with commas between, "nothing" for the empty set.
  [[nodiscard]] std::string text() const {
    std::string out;
    for (std::size_t i = 0; i < call_names.size(); ++i)
      if (has(static_cast<Call>(i))) (out += out.empty() ? "" : ", ") += call_names[i];
    return out.empty() ? "nothing" : out;
  }

  // The bit that stands for an entry.
  static constexpr std::uint32_t bit(Call call) { return 1U << static_cast<unsigned>(call); }
  friend constexpr bool operator==(const CallSet&, const CallSet&) = default;

 private:
  std::uint32_t bits_ = 0;
};

// The entries that have been reached since the last reset. Any thread may add to it.
class CallRecord {
 public:
  // Records one; forgets all; all that were recorded.
  void add(Call call) noexcept { bits_.fetch_or(CallSet::bit(call), std::memory_order_relaxed); }
  void reset() noexcept { bits_.store(0, std::memory_order_relaxed); }
  [[nodiscard]] CallSet seen() const noexcept { return CallSet(bits_.load(std::memory_order_relaxed)); }

 private:
  std::atomic<std::uint32_t> bits_{0};
};

// Records `call` where there is a record.
inline void record(CallRecord* calls, Call call) noexcept {
  if (calls != nullptr) calls->add(call);
}

}  // namespace kerf
#pragma GCC visibility pop
