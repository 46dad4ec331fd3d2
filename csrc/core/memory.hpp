#pragma once

#include <cstddef>
#include <cstdint>

namespace gdsckpt {

/// Asks for huge pages on the whole pages inside [address, address + nbytes). Only advice: a kernel
/// that refuses changes nothing but speed, so the result is not looked at.
void advise_hugepages(std::uint64_t address, std::uint64_t nbytes) noexcept;

/// Has the whole pages inside provided now, so that threads that fill them meet no page faults.
/// Only advice, as above.
void populate(std::uint64_t address, std::uint64_t nbytes) noexcept;

/// Anonymous private memory, unmapped with the object. Not inherited by forked children: a copy on
/// write of a page while direct I/O runs on it would send the bytes to the wrong page (open(2),
/// NOTES on O_DIRECT and fork).
class MappedMemory {
 public:
  /// Maps `nbytes` aligned to 64 KiB (to 2 MiB where that many bytes are asked for, for huge
  /// pages). Pages come when they are touched. Throws AllocationError.
  explicit MappedMemory(std::size_t nbytes);
  ~MappedMemory();
  MappedMemory(MappedMemory&& other) noexcept;
  MappedMemory& operator=(MappedMemory&&) = delete;
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  std::uint8_t* data() const noexcept { return data_; }
  std::size_t nbytes() const noexcept { return nbytes_; }

 private:
  std::uint8_t* data_;
  std::size_t nbytes_;
};

}  // namespace gdsckpt
