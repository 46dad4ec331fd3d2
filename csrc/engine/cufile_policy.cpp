#include "engine/cufile_policy.hpp"

#include "core/align.hpp"

namespace gdsckpt {

FileRange cufile_interior(FileRange piece, std::uint64_t address,
                          std::uint64_t alignment) noexcept {
  const FileRange none{piece.begin, piece.begin};
  if ((address - piece.begin) % alignment != 0) return none;  // never both aligned
  const FileRange interior{align_up(piece.begin, alignment), align_down(piece.end, alignment)};
  const bool is_large = interior.begin < interior.end && interior.nbytes() >= kCuFileLeastBytes;
  return is_large ? interior : none;
}

}  // namespace gdsckpt
