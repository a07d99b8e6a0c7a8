// Experts that hand everything on to others: tests change one thing about them.
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "kerf/base/format.h"
#include "kerf/op/op.h"

namespace kerf::test {

class ForwardingExperts : public op::RoutedExperts {
 public:
  explicit ForwardingExperts(std::unique_ptr<op::RoutedExperts> below) : below_(std::move(below)) {}
  [[nodiscard]] layout::ExpertsShape shape() const override { return below_->shape(); }
  [[nodiscard]] std::int64_t first_expert() const override { return below_->first_expert(); }
  [[nodiscard]] std::int64_t num_experts() const override { return below_->num_experts(); }
  [[nodiscard]] std::int64_t top_k() const override { return below_->top_k(); }
  [[nodiscard]] op::Input input() const override { return below_->input(); }
  [[nodiscard]] std::vector<op::Tactic> tactics(std::int64_t tokens) const override {
    return below_->tactics(tokens);
  }
  [[nodiscard]] Verdict prepare(op::Tactic tactic) const override { return below_->prepare(tactic); }
  [[nodiscard]] std::string_view workspace_kind(op::Tactic tactic) const override {
    return below_->workspace_kind(tactic);
  }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& shape,
                                            op::Tactic tactic) const override {
    return below_->workspace_bytes(shape, tactic);
  }
  void body(const op::Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            op::Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const op::RowBuffer& rows) const override {
    below_->body(tokens, shape, metadata, tactic, workers, workspace, rows);
  }
  void reread(const op::GatedParameters& gated) override { below_->reread(gated); }

 private:
  std::unique_ptr<op::RoutedExperts> below_;
};

// They have no body at some tactics; what is prepared, and what runs, is kept.
class LackingExperts : public ForwardingExperts {
 public:
  struct Seen {
    std::vector<op::Tactic> prepared;
    std::vector<op::Tactic> run;
  };
  LackingExperts(std::unique_ptr<op::RoutedExperts> below, std::vector<op::Tactic> lacks,
                 Seen* seen = nullptr)
      : ForwardingExperts(std::move(below)), lacks_(std::move(lacks)), seen_(seen) {}
  [[nodiscard]] Verdict prepare(op::Tactic tactic) const override {
    if (seen_ != nullptr) seen_->prepared.push_back(tactic);
    if (!lacks(tactic)) return ForwardingExperts::prepare(tactic);
    return because(ErrorKind::unsupported, "no body at tile {}, config {}", tactic.tile, tactic.config);
  }
  void body(const op::Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            op::Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const op::RowBuffer& rows) const override {
    if (seen_ != nullptr) seen_->run.push_back(tactic);
    if (lacks(tactic))
      fail(ErrorKind::bug, "a body was run that does not exist: tile {}, config {}", tactic.tile,
           tactic.config);
    ForwardingExperts::body(tokens, shape, metadata, tactic, workers, workspace, rows);
  }

 private:
  [[nodiscard]] bool lacks(op::Tactic tactic) const {
    return std::find(lacks_.begin(), lacks_.end(), tactic) != lacks_.end();
  }
  std::vector<op::Tactic> lacks_;
  Seen* seen_;
};

// Puts a wrapper around a layer's experts.
template <typename Wrapper, typename... Args>
void wrap(std::unique_ptr<op::RoutedExperts>& experts, Args&&... args) {
  experts = std::make_unique<Wrapper>(std::move(experts), std::forward<Args>(args)...);
}

}  // namespace kerf::test
