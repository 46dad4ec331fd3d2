#include "engine/cufile_policy.hpp"

#include "core/align.hpp"

namespace gdsckpt {
namespace {

bool has_attribute(const Device& device, CUpointer_attribute attribute, std::uint64_t address) {
  const CudaDriver& driver = device.driver();
  unsigned int value = 0;  // a bool is written to its first byte, or all of it
  driver.check(driver.cuPointerGetAttribute(&value, attribute, address), "cuPointerGetAttribute",
               "looking up memory on cuda:" + std::to_string(device.ordinal()));
  return value != 0;
}

}  // namespace

FileRange cufile_interior(FileRange piece, std::uint64_t address,
                          std::uint64_t alignment) noexcept {
  const FileRange none{piece.begin, piece.begin};
  if ((address - piece.begin) % alignment != 0) return none;  // never both aligned
  const FileRange interior{align_up(piece.begin, alignment), align_down(piece.end, alignment)};
  const bool is_large = interior.begin < interior.end && interior.nbytes() >= kCuFileLeastBytes;
  return is_large ? interior : none;
}

std::string cufile_unfit(const Device& device, const Extent& extent) {
  const ContextScope scope(device);
  if (has_attribute(device, CU_POINTER_ATTRIBUTE_IS_MANAGED, extent.address))
    return "managed memory moves between host and device by itself.";
  // What can be given to another process the old way is one allocation (NCCL tells it so, too).
  if (!has_attribute(device, CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, extent.address))
    return "memory that is mapped in pieces (expandable_segments) or comes from a pool is not "
           "safe for cuFile.";
  return "";
}

}  // namespace gdsckpt
