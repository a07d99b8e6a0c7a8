#include "kerf/comm/mpi/datatype.h"

#include <array>
#include <limits>
#include <string>

#include "kerf/base/format.h"

namespace kerf::comm::mpi {

namespace {

constexpr std::int64_t kMostCount = std::int64_t{1} << 30;  // of one derived type's repetitions

// A type that is only a step on the way to another.
class Step {
 public:
  explicit Step(MPI_Datatype type) : type_(type) {}
  ~Step() { (void)MPI_Type_free(&type_); }
  Step(const Step&) = delete;
  Step& operator=(const Step&) = delete;
  Step(Step&&) = delete;
  Step& operator=(Step&&) = delete;
  [[nodiscard]] MPI_Datatype get() const { return type_; }

 private:
  MPI_Datatype type_;
};

MPI_Datatype repeated_few(MPI_Datatype of, std::int64_t count, std::int64_t stride) {
  MPI_Datatype type = MPI_DATATYPE_NULL;
  MPI_Aint low = 0;
  MPI_Aint extent = 0;
  check(MPI_Type_get_extent(of, &low, &extent), "MPI_Type_get_extent");
  if (extent == static_cast<MPI_Aint>(stride))
    check(MPI_Type_contiguous(static_cast<int>(count), of, &type), "MPI_Type_contiguous");
  else
    check(MPI_Type_create_hvector(static_cast<int>(count), 1, static_cast<MPI_Aint>(stride), of, &type),
          "MPI_Type_create_hvector");
  return type;
}

// `count` of them, `stride` bytes apart. More than an int holds are whole blocks, and what is left.
MPI_Datatype repeated(MPI_Datatype of, std::int64_t count, std::int64_t stride) {
  if (count <= kMostCount) return repeated_few(of, count, stride);
  const std::int64_t blocks = count / kMostCount;
  const std::int64_t rest = count % kMostCount;
  const Step one(repeated_few(of, kMostCount, stride));
  MPI_Datatype sized = MPI_DATATYPE_NULL;
  check(MPI_Type_create_resized(one.get(), 0, static_cast<MPI_Aint>(kMostCount * stride), &sized),
        "MPI_Type_create_resized");
  const Step block(sized);
  const Step whole(repeated(block.get(), blocks, kMostCount * stride));
  const Step end(repeated_few(of, rest, stride));
  const std::array<int, 2> lengths = {1, 1};
  const std::array<MPI_Aint, 2> at = {0, static_cast<MPI_Aint>(blocks * kMostCount * stride)};
  const std::array<MPI_Datatype, 2> types = {whole.get(), end.get()};
  MPI_Datatype type = MPI_DATATYPE_NULL;
  check(MPI_Type_create_struct(2, lengths.data(), at.data(), types.data(), &type), "MPI_Type_create_struct");
  return type;
}

bool adjoin(const tensor::StridedBytes& b) {
  const bool runs = b.runs == 1 || b.run_stride == b.run_bytes;
  return runs && (b.planes == 1 || b.plane_stride == b.runs * b.run_bytes);
}

}  // namespace

void check(int code, const char* call) {
  if (code == MPI_SUCCESS) return;
  std::array<char, MPI_MAX_ERROR_STRING> text{};
  int length = 0;
  if (MPI_Error_string(code, text.data(), &length) != MPI_SUCCESS) length = 0;
  fail(ErrorKind::bug, "{}: {}", call, std::string(text.data(), static_cast<std::size_t>(length)));
}

Datatype Datatype::committed(MPI_Datatype type) {
  Datatype out(type, 1, true);
  check(MPI_Type_commit(&out.type_), "MPI_Type_commit");
  return out;
}

Datatype Datatype::contiguous(std::int64_t bytes) {
  if (bytes <= std::numeric_limits<int>::max()) return {MPI_BYTE, static_cast<int>(bytes), false};
  return committed(repeated(MPI_BYTE, bytes, 1));
}

Datatype Datatype::strided(const tensor::StridedBytes& block) {
  if (block.packed_bytes() == 0 || adjoin(block)) return contiguous(block.packed_bytes());
  const Step run(repeated(MPI_BYTE, block.run_bytes, 1));
  const Step plane(repeated(run.get(), block.runs, block.run_stride));
  return committed(repeated(plane.get(), block.planes, block.plane_stride));
}

Datatype::~Datatype() {
  if (owned_) (void)MPI_Type_free(&type_);
}

}  // namespace kerf::comm::mpi
