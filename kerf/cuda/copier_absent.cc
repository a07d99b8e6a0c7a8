#include "kerf/cuda/copier.h"

#include "kerf/cuda/absent.h"

namespace kerf::cuda {

namespace {
class NoCopier final : public tensor::Copier {
 public:
  void pack(const tensor::StridedBytes& /*from*/, std::byte* /*to*/) const override { require(library()); }
};
}  // namespace

const tensor::Copier& copier() {
  static const NoCopier none;
  return none;
}

}  // namespace kerf::cuda
