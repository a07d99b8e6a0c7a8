#include "kerf/op/sm90/sm90.h"

#include <memory>
#include <string>

#include "kerf/base/format.h"
#include "kerf/layout/geometry.h"
#include "kerf/op/sm90/bind.h"
#include "kerf/op/sm90/experts.h"
#include "kerf/op/sm90/tactics.h"

namespace kerf::op::sm90 {

namespace {

// Counts up whenever a change to kernels, bodies or tactics could change what is fastest.
constexpr int kernels_version = 2;

// Experts whose weights were handed over in host memory: a copy on the device, and what is bound to it. For
// callers of the op alone; a runtime converts straight into device memory.
class Copied final : public RoutedExperts {
 public:
  explicit Copied(const Nvfp4Args& args) {
    Nvfp4Args there = args;
    for (tensor::TensorView* t :
         {&there.experts.w13, &there.experts.w13_sf, &there.experts.w2, &there.experts.w2_sf})
      hold(*t);
    upload();
    below_ = args.input == Input::nvfp4 ? bind_w4a4(there) : bind_w4a16(there);
  }
  explicit Copied(const Bf16Args& args) {
    Bf16Args there = args;
    for (tensor::TensorView* t : {&there.experts.w13, &there.experts.w2}) hold(*t);
    upload();
    below_ = bind_bf16(there);
  }

  [[nodiscard]] layout::ExpertsShape shape() const override { return below_->shape(); }
  [[nodiscard]] std::int64_t first_expert() const override { return below_->first_expert(); }
  [[nodiscard]] std::int64_t num_experts() const override { return below_->num_experts(); }
  [[nodiscard]] std::int64_t top_k() const override { return below_->top_k(); }
  [[nodiscard]] Input input() const override { return below_->input(); }
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return below_->tactics(tokens);
  }
  [[nodiscard]] Verdict prepare(Tactic tactic) const override { return below_->prepare(tactic); }
  [[nodiscard]] std::size_t workspace_bytes(const routing::MetadataShape& shape,
                                            Tactic tactic) const override {
    return below_->workspace_bytes(shape, tactic);
  }
  void body(const Tokens& tokens, const routing::MetadataShape& shape, const routing::Metadata& metadata,
            Tactic tactic, const Workers& workers, std::span<std::byte> workspace,
            const RowBuffer& rows) const override {
    below_->body(tokens, shape, metadata, tactic, workers, workspace, rows);
  }
  void reread(const GatedParameters& gated) override {
    upload();
    below_->reread(gated);
  }

 private:
  // From here on `view` is of the copy.
  void hold(tensor::TensorView& view) {
    tensors_.emplace_back(memory_, view.dtype, view.shape);
    given_.push_back(view.bytes);
    view.bytes = tensors_.back().bytes();
  }
  void upload() {
    const cuda::Stream stream;
    for (std::size_t i = 0; i < given_.size(); ++i)
      cuda::copy(tensors_[i].bytes().data(), given_[i].data(), given_[i].size(), stream.handle());
    stream.synchronize();
  }

  cuda::DeviceMemory memory_;
  std::vector<std::span<const std::byte>> given_;  // in host memory
  std::vector<tensor::Tensor> tensors_;
  std::unique_ptr<DeviceExperts> below_;
};

class Sm90Backend final : public Backend {
 public:
  Sm90Backend() : package_(fmt::format("cuda-sm90a-{}", kernels_version)) {}

  [[nodiscard]] std::string_view name() const override { return backend_name; }
  [[nodiscard]] std::string_view package() const override { return package_; }
  [[nodiscard]] std::string device() const override {
    const cuda::DeviceFacts f = cuda::facts();
    return fmt::format("{}, {} multiprocessors", f.name, f.multiprocessors);
  }
  [[nodiscard]] std::vector<Tactic> tactics(std::int64_t tokens) const override {
    return internal::tactics_of_use(tactic_table, tokens);
  }
  [[nodiscard]] Verdict supports(Arithmetic arithmetic, const layout::ExpertsShape& shape) const override {
    return internal::unsupported(arithmetic, shape);
  }
  // Device memory, which steps plan for themselves.
  [[nodiscard]] std::size_t workspace_bytes(Arithmetic /*arithmetic*/, const layout::ExpertsShape& /*shape*/,
                                            const routing::MetadataShape& /*step*/) const override {
    return 0;
  }
  [[nodiscard]] Verdict supports(const Nvfp4Args& args) const override { return internal::unsupported(args); }
  [[nodiscard]] Verdict supports(const Bf16Args& args) const override { return internal::unsupported(args); }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Nvfp4Args& args) const override {
    require(supports(args));
    if (!cuda::on_device(args.experts.w13.bytes.data())) return std::make_unique<Copied>(args);
    return args.input == Input::nvfp4 ? bind_w4a4(args) : bind_w4a16(args);
  }
  [[nodiscard]] std::unique_ptr<RoutedExperts> bind(const Bf16Args& args) const override {
    require(supports(args));
    if (!cuda::on_device(args.experts.w13.bytes.data())) return std::make_unique<Copied>(args);
    return bind_bf16(args);
  }

 private:
  std::string package_;
};

}  // namespace

std::vector<const Backend*> backends() {
  if (cuda::library()) return {};
  static const Sm90Backend backend;
  return {&backend};
}

}  // namespace kerf::op::sm90
