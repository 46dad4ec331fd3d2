// Device memory, page-locked host memory, and what a pointer is.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "cuda.hpp"

namespace fake {
namespace {

struct Memory {
  std::mutex mutex;
  std::map<CUdeviceptr, std::shared_ptr<Allocation>> allocations;
  std::map<char*, HostRange> host_ranges;
  int64_t device_bytes[kMaxDevices] = {};
  int64_t host_bytes = 0;
  uint64_t next_id = 1;
};

Memory& memory() {
  static Memory* const all = new Memory;
  return *all;
}

size_t round_up(size_t nbytes, size_t unit) { return (nbytes + unit - 1) / unit * unit; }

/// Maps a memory file twice: closed to the host at an aligned address, and open elsewhere.
bool map_twice(Allocation& made) {
  constexpr size_t kAlign = size_t{2} << 20;  // of CUDA's own pages
  const int fd = memfd_create("fake-device-memory", MFD_CLOEXEC);
  if (fd < 0) return false;
  bool is_mapped = false;
  if (ftruncate(fd, static_cast<off_t>(made.mapped_bytes)) == 0) {
    const size_t reserved_bytes = made.mapped_bytes + kAlign;
    void* const reserved = mmap(nullptr, reserved_bytes, PROT_NONE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    void* const shadow =
        mmap(nullptr, made.mapped_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (reserved != MAP_FAILED && shadow != MAP_FAILED) {
      const auto begin = reinterpret_cast<uintptr_t>(reserved);
      const uintptr_t base = round_up(begin, kAlign);
      // A host pointer to managed memory is good; any other one faults.
      const int access = made.kind == MemoryKind::kManaged ? PROT_READ | PROT_WRITE : PROT_NONE;
      void* const closed = mmap(reinterpret_cast<void*>(base), made.mapped_bytes, access,
                                MAP_SHARED | MAP_FIXED, fd, 0);
      if (base > begin) munmap(reserved, base - begin);
      const uintptr_t end = base + made.mapped_bytes;
      if (begin + reserved_bytes > end) {
        munmap(reinterpret_cast<void*>(end), begin + reserved_bytes - end);
      }
      made.base = base;
      made.shadow = static_cast<char*>(shadow);
      is_mapped = closed != MAP_FAILED;
    }
  }
  close(fd);
  return is_mapped;
}

bool is_mapped(const void* address, size_t nbytes) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(address) / page * page;
  const uintptr_t end = reinterpret_cast<uintptr_t>(address) + nbytes;
  std::vector<unsigned char> resident((end - begin + page - 1) / page);
  return mincore(reinterpret_cast<void*>(begin), end - begin, resident.data()) == 0;
}

void count_host(int64_t change, const HostRange& range) {
  memory().host_bytes += change * static_cast<int64_t>(range.nbytes);
  Control::get().add("live.host_bytes", change * static_cast<int64_t>(range.nbytes));
  Control::get().add(range.is_allocated ? "live.host_allocations" : "live.host_registrations",
                     change);
}

/// The first range that ends after an address; for one lookup with the lock held.
std::map<char*, HostRange>::iterator range_after(char* address) {
  auto at = memory().host_ranges.upper_bound(address);
  if (at != memory().host_ranges.begin()) {
    auto before = std::prev(at);
    if (before->second.base + before->second.nbytes > address) return before;
  }
  return at;
}

CUresult pin(char* base, size_t nbytes, unsigned flags, bool is_allocated) {
  if (base == nullptr || nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_mapped(base, nbytes)) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto at = range_after(base);
  if (at != memory().host_ranges.end() && at->first < base + nbytes) {
    return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  }
  const int64_t most = Control::get().setting("host_bytes_max", INT64_MAX);
  if (memory().host_bytes + static_cast<int64_t>(nbytes) > most) return CUDA_ERROR_OUT_OF_MEMORY;
  HostRange range{base, nbytes, is_allocated, flags, current_context()};
  memory().host_ranges[base] = range;
  count_host(1, range);
  return CUDA_SUCCESS;
}

CUresult unpin(char* base, bool is_allocated) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto found = memory().host_ranges.find(base);
  if (found == memory().host_ranges.end() || found->second.is_allocated != is_allocated) {
    return is_allocated ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  }
  // Memory must stay mapped as long as it is registered; the driver would not say so.
  if (!is_mapped(base, found->second.nbytes)) Control::get().add("unmapped_while_registered", 1);
  count_host(-1, found->second);
  if (is_allocated) munmap(base, round_up(found->second.nbytes, 4096));
  memory().host_ranges.erase(found);
  return CUDA_SUCCESS;
}

}  // namespace

Allocation::~Allocation() {
  if (base != 0) munmap(reinterpret_cast<void*>(base), mapped_bytes);
  if (shadow != nullptr) munmap(shadow, mapped_bytes);
}

std::shared_ptr<Allocation> allocation_at(CUdeviceptr address) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  auto after = memory().allocations.upper_bound(address);
  if (after == memory().allocations.begin()) return nullptr;
  const std::shared_ptr<Allocation>& found = std::prev(after)->second;
  return address < found->base + found->nbytes ? found : nullptr;
}

std::shared_ptr<Allocation> allocation_of(CUdeviceptr address, size_t nbytes) {
  std::shared_ptr<Allocation> found = allocation_at(address);
  if (found == nullptr || nbytes > found->base + found->nbytes - address) return nullptr;
  return found;
}

char* shadow_of(CUdeviceptr address, size_t nbytes) {
  const std::shared_ptr<Allocation> found = allocation_of(address, nbytes);
  return found == nullptr ? nullptr : found->shadow + (address - found->base);
}

bool host_range_at(const void* address, HostRange& range) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  auto* const place = static_cast<char*>(const_cast<void*>(address));
  const auto at = range_after(place);
  if (at == memory().host_ranges.end() || at->first > place) return false;
  range = at->second;
  return true;
}

bool is_pinned(const void* address, size_t nbytes) {
  const char* place = static_cast<const char*>(address);
  const char* const end = place + nbytes;
  // Neighbours may be registered by separate calls.
  while (place < end) {
    HostRange range;
    if (!host_range_at(place, range)) return false;
    place = range.base + range.nbytes;
  }
  return true;
}

CUresult allocate(int device, size_t nbytes, MemoryKind kind, CUdeviceptr* address) {
  if (nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const int64_t most = Control::get().setting("memory_bytes", int64_t{8} << 30);
  const auto change = static_cast<int64_t>(nbytes);
  if (memory().device_bytes[device] + change > most) return CUDA_ERROR_OUT_OF_MEMORY;
  auto made = std::make_shared<Allocation>();
  made->nbytes = nbytes;
  made->mapped_bytes = round_up(nbytes, 4096);
  made->device = device;
  made->kind = kind;
  made->context = current_context();
  if (!map_twice(*made)) return CUDA_ERROR_OUT_OF_MEMORY;
  made->id = memory().next_id++;
  memory().device_bytes[device] += change;
  Control::get().add("live.allocations", 1);
  Control::get().add("live.device_bytes", change);
  *address = made->base;
  memory().allocations[made->base] = std::move(made);
  return CUDA_SUCCESS;
}

bool release_allocation(CUdeviceptr base) {
  const std::lock_guard<std::mutex> lock(memory().mutex);
  const auto found = memory().allocations.find(base);
  if (found == memory().allocations.end()) return false;
  const auto change = static_cast<int64_t>(found->second->nbytes);
  memory().device_bytes[found->second->device] -= change;
  Control::get().add("live.allocations", -1);
  Control::get().add("live.device_bytes", -change);
  memory().allocations.erase(found);
  return true;
}

}  // namespace fake

using fake::Control;
using fake::MemoryKind;
using fake::Need;

static CUresult allocate_here(CUdeviceptr* address, size_t nbytes, MemoryKind kind) {
  return fake::allocate(fake::current_context()->device, nbytes, kind, address);
}

FAKE_EXPORT CUresult cuMemAlloc(CUdeviceptr* address, size_t nbytes) {
  FAKE_ENTER(cuMemAlloc, Need::kContext);
  return allocate_here(address, nbytes, MemoryKind::kDevice);
}

FAKE_EXPORT CUresult cuMemAllocManaged(CUdeviceptr* address, size_t nbytes, unsigned) {
  FAKE_ENTER(cuMemAllocManaged, Need::kContext);
  return allocate_here(address, nbytes, MemoryKind::kManaged);
}

FAKE_EXPORT CUresult cuMemFree(CUdeviceptr address) {
  FAKE_ENTER(cuMemFree, Need::kContext);
  if (address == 0) return CUDA_SUCCESS;
  const CUresult lost = fake::finish_context(fake::current_context());
  if (!fake::release_allocation(address)) return CUDA_ERROR_INVALID_VALUE;
  return lost;
}

FAKE_EXPORT CUresult cuMemAllocAsync(CUdeviceptr* address, size_t nbytes, CUstream stream) {
  FAKE_ENTER(cuMemAllocAsync, Need::kContext);
  if (fake::stream_of(stream, fake::current_context()) == nullptr) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  return allocate_here(address, nbytes, MemoryKind::kPool);
}

FAKE_EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream handle) {
  FAKE_ENTER(cuMemFreeAsync, Need::kContext);
  const CUstream stream = fake::stream_of(handle, fake::current_context());
  if (stream == nullptr) return CUDA_ERROR_INVALID_HANDLE;
  if (fake::allocation_at(address) == nullptr) return CUDA_ERROR_INVALID_VALUE;
  fake::submit(stream, {[address] { fake::release_allocation(address); }, {}, true});
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
  FAKE_ENTER(cuMemGetInfo, Need::kContext);
  const std::lock_guard<std::mutex> lock(fake::memory().mutex);
  *total_bytes = static_cast<size_t>(Control::get().setting("memory_bytes", int64_t{8} << 30));
  const int64_t used = fake::memory().device_bytes[fake::current_context()->device];
  *free_bytes = *total_bytes - static_cast<size_t>(used);
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAddressRange(CUdeviceptr* base, size_t* nbytes, CUdeviceptr address) {
  FAKE_ENTER(cuMemGetAddressRange, Need::kInit);
  const auto found = fake::allocation_at(address);
  if (found == nullptr) return CUDA_ERROR_NOT_FOUND;
  if (base != nullptr) *base = found->base;
  if (nbytes != nullptr) *nbytes = found->nbytes;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                                   CUmemAllocationGranularity_flags) {
  FAKE_ENTER(cuMemGetAllocationGranularity, Need::kInit);
  *granularity = size_t{2} << 20;
  return CUDA_SUCCESS;
}

// Tells memory made by cuMemMap (torch's expandable segments) from that of cuMemAlloc.
FAKE_EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle* handle,
                                                 void* address) {
  FAKE_ENTER(cuMemRetainAllocationHandle, Need::kInit);
  const auto found = fake::allocation_at(reinterpret_cast<CUdeviceptr>(address));
  if (found == nullptr || found->kind != MemoryKind::kMapped) return CUDA_ERROR_INVALID_VALUE;
  Control::get().add("live.memory_handles", 1);
  *handle = found->id;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle) {
  FAKE_ENTER(cuMemRelease, Need::kInit);
  Control::get().add("live.memory_handles", -1);
  return CUDA_SUCCESS;
}

static CUresult allocate_host(void** address, size_t nbytes, unsigned flags) {
  if (nbytes == 0) return CUDA_ERROR_INVALID_VALUE;
  const size_t mapped_bytes = fake::round_up(nbytes, 4096);
  void* const made =
      mmap(nullptr, mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (made == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  const CUresult refused = fake::pin(static_cast<char*>(made), nbytes, flags, true);
  if (refused != CUDA_SUCCESS) munmap(made, mapped_bytes);
  *address = refused == CUDA_SUCCESS ? made : nullptr;
  return refused;
}

FAKE_EXPORT CUresult cuMemHostAlloc(void** address, size_t nbytes, unsigned flags) {
  FAKE_ENTER(cuMemHostAlloc, Need::kContext);
  return allocate_host(address, nbytes, flags);
}

FAKE_EXPORT CUresult cuMemAllocHost(void** address, size_t nbytes) {
  FAKE_ENTER(cuMemAllocHost, Need::kContext);
  return allocate_host(address, nbytes, 0);
}

FAKE_EXPORT CUresult cuMemFreeHost(void* address) {
  FAKE_ENTER(cuMemFreeHost, Need::kInit);
  return fake::unpin(static_cast<char*>(address), true);
}

FAKE_EXPORT CUresult cuMemHostRegister(void* address, size_t nbytes, unsigned flags) {
  FAKE_ENTER(cuMemHostRegister, Need::kContext);
  constexpr unsigned kKnown = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                              CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;
  if ((flags & ~kKnown) != 0) return CUDA_ERROR_INVALID_VALUE;
  return fake::pin(static_cast<char*>(address), nbytes, flags, false);
}

FAKE_EXPORT CUresult cuMemHostUnregister(void* address) {
  FAKE_ENTER(cuMemHostUnregister, Need::kInit);
  const CUcontext context = fake::current_context();
  if (context == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
  const CUresult refused = fake::unpin(static_cast<char*>(address), false);
  // A lost device does not keep the range on the books: what counts is that it was given back.
  return refused != CUDA_SUCCESS ? refused : fake::lost_code(context->device);
}

FAKE_EXPORT CUresult cuMemHostGetFlags(unsigned* flags, void* address) {
  FAKE_ENTER(cuMemHostGetFlags, Need::kInit);
  fake::HostRange range;
  if (!fake::host_range_at(address, range)) return CUDA_ERROR_INVALID_VALUE;
  *flags = range.flags;
  return CUDA_SUCCESS;
}

FAKE_EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr* device_address, void* address,
                                               unsigned) {
  FAKE_ENTER(cuMemHostGetDevicePointer, Need::kContext);
  fake::HostRange range;
  if (!fake::host_range_at(address, range)) return CUDA_ERROR_INVALID_VALUE;
  *device_address = reinterpret_cast<CUdeviceptr>(address);
  return CUDA_SUCCESS;
}
