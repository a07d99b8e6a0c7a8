// MPI datatypes of bytes in memory: contiguous ones of any number, and strided blocks, which are sent from
// where they lie. Nothing here counts bytes in an int.
#pragma once

#include <mpi.h>

#include <cstdint>
#include <utility>

#include "kerf/tensor/view.h"

namespace kerf::comm::mpi {

// Throws Error{bug} with MPI's text unless `code` is MPI_SUCCESS. `call`: what was called.
void check(int code, const char* call);

// What a message is made of: count() values of get().
class Datatype {
 public:
  // `bytes` of them, one after the other.
  static Datatype contiguous(std::int64_t bytes);
  // A block as it lies, in packed order.
  static Datatype strided(const tensor::StridedBytes& block);

  Datatype(Datatype&& other) noexcept
      : type_(std::exchange(other.type_, MPI_BYTE)),
        count_(other.count_),
        owned_(std::exchange(other.owned_, false)) {}
  Datatype(const Datatype&) = delete;
  Datatype& operator=(const Datatype&) = delete;
  Datatype& operator=(Datatype&&) = delete;
  ~Datatype();

  [[nodiscard]] MPI_Datatype get() const { return type_; }
  [[nodiscard]] int count() const { return count_; }

 private:
  Datatype(MPI_Datatype type, int count, bool owned) : type_(type), count_(count), owned_(owned) {}
  static Datatype committed(MPI_Datatype type);

  MPI_Datatype type_;
  int count_;
  bool owned_;
};

}  // namespace kerf::comm::mpi
