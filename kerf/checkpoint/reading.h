// Who reads a checkpoint's files: the files themselves, unless somebody stands in between, to count, to bring
// the bytes from elsewhere, or (tests) to fail.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "kerf/base/function_ref.h"
#include "kerf/tensor/source.h"

#pragma GCC visibility push(default)
namespace kerf::checkpoint {

// Makes of a file's reader the one that is asked in its place, by any thread. Never null.
using WrapReader =
    std::function<std::shared_ptr<const tensor::Reader>(std::shared_ptr<const tensor::Reader> file)>;

// For ranks that act together and of which some do not have the files: bytes are asked for
// (tensor::Reader::will_need()), then brought to all that asked, then read. Every rank of the group has one,
// those with the files as well, since to bring is collective.
class Carrier {
 public:
  virtual ~Carrier() = default;
  // Local: runs `step` with readers that note what is read and give zeros; what it makes of them, its errors
  // included, is dropped. Where the files are here, nothing is run.
  virtual void rehearse(FunctionRef<void()> step) = 0;
  // Collective. What was asked for since the last call can be read when this returns: until the next call,
  // or, where it is to be kept, for good. `what`: for messages. Errors, the same on every rank: those of
  // reading.
  virtual void bring(bool keep, std::string_view what) = 0;
  // About so many bytes should be asked for on a rank between two calls of bring().
  [[nodiscard]] virtual std::int64_t window() const = 0;
};

}  // namespace kerf::checkpoint
#pragma GCC visibility pop
