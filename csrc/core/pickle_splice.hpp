#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

/// Puts what rebuilds tensors into a pickle that holds only their numbers: Python's pickler needs a
/// dozen calls of Python for each tensor, and states have 100,000.
namespace gdsckpt {

/// `TensorRow::dtype` of a tensor whose storage has its dtype.
inline constexpr std::uint64_t kNoPiece = ~std::uint64_t{0};

/// How a tensor is rebuilt: `rebuild(storage, offset, size, stride, requires_grad, None[, dtype])`
/// with the persistent id ("storage", storage_type, str(key), location, numel). A row of ten 64-bit
/// numbers: Python hands over arrays of them. Those that are not numbers of elements, the key or
/// the flag are indices of pieces.
struct TensorRow {
  std::uint64_t rebuild;
  std::uint64_t storage_type;
  std::uint64_t dtype;  ///< or kNoPiece
  std::uint64_t key;
  std::uint64_t location;
  std::uint64_t numel;
  std::uint64_t offset;
  std::uint64_t size;
  std::uint64_t stride;
  std::uint64_t requires_grad;
};
static_assert(sizeof(TensorRow) == 80, "rows of ten uint64");

/// Gives a pickle in which tensors stand in the place of their numbers.
///
/// `pickle`: Of protocol 2, by a pickler whose persistent id of tensor `n` is the number `n`; other
/// persistent ids that are not whole numbers stay. `pieces`: Opcodes that push one object each,
/// without memo; the pickle gets each of them once.
///
/// Throws ConfigError (field "pickle") where it is no such pickle or names a tensor without a row,
/// (field "rows") where a row names no piece.
std::string splice_pickle(const std::uint8_t* pickle, std::size_t nbytes,
                          const std::vector<TensorRow>& rows,
                          const std::vector<std::string>& pieces);

}  // namespace gdsckpt
