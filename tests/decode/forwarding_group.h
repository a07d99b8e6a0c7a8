// A group that hands everything on to another: tests change one thing about it.
#pragma once

#include <memory>
#include <string_view>

#include "kerf/comm/group.h"

namespace kerf::test {

class ForwardingGroup : public comm::Group {
 public:
  explicit ForwardingGroup(comm::Group& below) : below_(below) {}
  [[nodiscard]] std::string_view name() const override { return below_.name(); }
  [[nodiscard]] int rank() const override { return below_.rank(); }
  [[nodiscard]] int size() const override { return below_.size(); }
  [[nodiscard]] bool ordered() const override { return below_.ordered(); }
  [[nodiscard]] int number(int rank) const override { return below_.number(rank); }
  void barrier(std::string_view what) override {
    before(what);
    below_.barrier(what);
  }
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all, std::string_view what) override {
    before(what);
    below_.all_gather(mine, all, what);
  }
  void all_to_all(std::span<const tensor::StridedBytes> send, std::span<const std::span<std::byte>> received,
                  std::string_view what) override {
    before(what);
    below_.all_to_all(send, received, what);
  }
  void all_reduce_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> sum,
                      std::string_view what) override {
    before(what);
    below_.all_reduce_sum(mine, sum, what);
  }
  void reduce_scatter_sum(std::span<const std::uint16_t> mine, std::span<std::uint16_t> part,
                          std::string_view what) override {
    before(what);
    below_.reduce_scatter_sum(mine, part, what);
  }
  [[nodiscard]] bool shares_memory() const override { return below_.shares_memory(); }
  void lend(std::span<const std::byte> mine, FunctionRef<void(comm::Lent)> work,
            std::string_view what) override {
    before(what);
    below_.lend(mine, work, what);
  }
  [[nodiscard]] std::unique_ptr<comm::Group> split(int colour, std::string_view what) override {
    before(what);
    return below_.split(colour, what);
  }

 protected:
  // Called before every collective.
  virtual void before(std::string_view /*what*/) {}

 private:
  comm::Group& below_;
};

}  // namespace kerf::test
