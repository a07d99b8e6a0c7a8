// Experts, from checkpoint rows to the converted layout (docs/layout.md; rows.h has its formulas) and back.
// Whole rows and 4-byte scale groups are copied; no byte of a weight is ever recomputed. H and I are `hidden`
// and `intermediate`. Spans are of bytes of the host's memory, at any alignment, and a target overlaps no
// source.
//
// Errors of all functions: Error{unsupported} for an H and I that do not suit, with the reason of
// convertible() (convertible_bf16()); Error{bug} for a span, or a source, that does not have as many bytes as
// its matrix, and for a width below I. Both before anything is written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kerf/base/threads.h"
#include "kerf/tensor/source.h"

#pragma GCC visibility push(default)
namespace kerf::layout {

// One NVFP4 expert as [out, in] matrices, row-major: gate, up U8 [I, H/2] with scales [I, H/16]; down U8 [H,
// I/2] with scales [H, I/16]. T is const std::byte for a source, std::byte for a target.
template <typename T>
struct LogicalNvfp4 {
  std::span<T> gate, gate_sf, up, up_sf, down, down_sf;
};
// The same expert converted: w13 [2I, H/2], w13_sf [2I, H/16], w2 [H, I/2], w2_sf [H, I/16].
template <typename T>
struct ConvertedNvfp4 {
  std::span<T> w13, w13_sf, w2, w2_sf;
};

// Converts one expert. H % 128 == 0 and I % 64 == 0.
void convert(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedNvfp4<std::byte>& to);
// The same at a width >= I, width % 64 == 0, for any I % 16 == 0 (paddable()): `to` is as large as of experts
// of that width, and from index I on, rows of up and gate and columns of down are zero codes with zero
// scales, as if the checkpoint had them.
void convert_padded(const LogicalNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedNvfp4<std::byte>& to);
// The way back, byte for byte; the conditions of convert().
void restore(const ConvertedNvfp4<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalNvfp4<std::byte>& to);

// One BF16 expert, 2 bytes a value: gate, up [I, H], down [H, I] <-> w13 [H/64, 2I, 64], w2 [I/64, H, 64].
// H % 64 == 0, I % 64 == 0.
template <typename T>
struct LogicalBf16 {
  std::span<T> gate, up, down;
};
template <typename T>
struct ConvertedBf16 {
  std::span<T> w13, w2;
};

// Converts one expert.
void convert(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const ConvertedBf16<std::byte>& to);
// At a width >= I, width % 64 == 0, for any I >= 1: zeros from I on.
void convert_padded(const LogicalBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
                    std::int64_t width, const ConvertedBf16<std::byte>& to);
// The way back, byte for byte.
void restore(const ConvertedBf16<const std::byte>& from, std::int64_t hidden, std::int64_t intermediate,
             const LogicalBf16<std::byte>& to);

// n experts of one layer into tensors that hold all of them ([n, ...], in the order of `from`), at a width >=
// I as convert_padded(). None: tensors without bytes. Work is cut by bytes, so that one expert keeps all
// workers busy as well as many do; all spans are checked before anything is written.
void convert_all(std::span<const LogicalNvfp4<const std::byte>> from, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width, const ConvertedNvfp4<std::byte>& to,
                 const Workers& workers);
void convert_all(std::span<const LogicalBf16<const std::byte>> from, std::int64_t hidden,
                 std::int64_t intermediate, std::int64_t width, const ConvertedBf16<std::byte>& to,
                 const Workers& workers);

// The same of experts that are not in memory: matrices as above, to be read. Each worker reads what one piece
// of work needs into a buffer of its own, which its core's cache holds, and converts it from there. Also the
// sources' errors, after which `to` is written in part.
struct StoredNvfp4 {
  tensor::Source gate, gate_sf, up, up_sf, down, down_sf;
};
struct StoredBf16 {
  tensor::Source gate, up, down;
};
void convert_all(std::span<const StoredNvfp4> from, std::int64_t hidden, std::int64_t intermediate,
                 std::int64_t width, const ConvertedNvfp4<std::byte>& to, const Workers& workers);
void convert_all(std::span<const StoredBf16> from, std::int64_t hidden, std::int64_t intermediate,
                 std::int64_t width, const ConvertedBf16<std::byte>& to, const Workers& workers);

// Interleaves a [rows, columns] matrix of scale bytes, any size of 0 to 2^30 each; padding is written 0.
// scale_offset_128x4() and scale_offset_8x4() say where each goes. `to` holds roundup(rows, 128) *
// roundup(columns, 4) bytes for 128x4, roundup(rows, 8) * roundup(columns, 4) for 8x4.
void interleave_128x4(std::span<const std::byte> from, std::int64_t rows, std::int64_t columns,
                      std::span<std::byte> to);
void interleave_8x4(std::span<const std::byte> from, std::int64_t rows, std::int64_t columns,
                    std::span<std::byte> to);

}  // namespace kerf::layout
#pragma GCC visibility pop
