#include "core/memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

#include "core/align.hpp"
#include "core/error.hpp"

namespace gdsckpt {
namespace {

constexpr std::size_t kHugePageBytes = 2 * 1024 * 1024;

// <asm-generic/mman-common.h> of Linux 5.14; older kernels refuse it, older headers lack it.
constexpr int kMadvPopulateWrite = 23;

/// Advises on the whole pages inside; a refusal costs speed only.
void advise(std::uint64_t address, std::uint64_t nbytes, int advice) noexcept {
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = align_up(address, page_bytes);
  const std::uint64_t end = align_down(address + nbytes, page_bytes);
  if (begin < end) static_cast<void>(madvise(reinterpret_cast<void*>(begin), end - begin, advice));
}

}  // namespace

void advise_hugepages(std::uint64_t address, std::uint64_t nbytes) noexcept {
  advise(address, nbytes, MADV_HUGEPAGE);
}

void populate(std::uint64_t address, std::uint64_t nbytes) noexcept {
  advise(address, nbytes, kMadvPopulateWrite);
}

MappedMemory::MappedMemory(std::size_t nbytes) : data_(nullptr), nbytes_(nbytes) {
  const std::size_t alignment = nbytes >= kHugePageBytes ? kHugePageBytes : kMaxAlignment;
  const std::size_t mapped_bytes = nbytes + alignment;
  void* mapped =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED)
    throw AllocationError("mmap of a slab of " + std::to_string(nbytes) +
                          " bytes failed: " + std::generic_category().message(errno) +
                          ". Free memory or lower pinned_pool_bytes.");
  auto* const begin = static_cast<std::uint8_t*>(mapped);
  const auto address = reinterpret_cast<std::uintptr_t>(mapped);
  const std::size_t head_bytes = align_up(address, alignment) - address;
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t kept_bytes = align_up(nbytes, page_bytes);
  data_ = begin + head_bytes;
  // Trimming can't fail for what was just mapped; if it did, address space would stay reserved.
  if (head_bytes > 0) static_cast<void>(munmap(begin, head_bytes));
  const std::size_t tail_bytes = mapped_bytes - head_bytes - kept_bytes;
  if (tail_bytes > 0) static_cast<void>(munmap(data_ + kept_bytes, tail_bytes));
  static_cast<void>(madvise(data_, kept_bytes, MADV_DONTFORK));
  advise_hugepages(reinterpret_cast<std::uintptr_t>(data_), nbytes);
}

MappedMemory::MappedMemory(MappedMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), nbytes_(other.nbytes_) {}

MappedMemory::~MappedMemory() {
  if (data_ == nullptr) return;
  const auto page_bytes = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  static_cast<void>(munmap(data_, align_up(nbytes_, page_bytes)));
}

}  // namespace gdsckpt
