// The driver, files and buffers.
#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "cufile.hpp"

namespace fake {
namespace {

template <typename Function>
Function* of_libcuda(const char* name) {
  // By its SONAME: the stand-in has that of the real library.
  static void* const libcuda = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (libcuda == nullptr) return nullptr;
  return reinterpret_cast<Function*>(dlsym(libcuda, name));
}

/// Counts what was never given back, and forgets it.
void drop_all(Driver& all) {
  Control& control = Control::get();
  control.add("handles_left_at_close", static_cast<int64_t>(all.handles.size()));
  control.add("buffers_left_at_close", static_cast<int64_t>(all.buffers.size()));
  control.add("live.handles", -static_cast<int64_t>(all.handles.size()));
  control.add("live.buffers", -static_cast<int64_t>(all.buffers.size()));
  for (Handle* const handle : all.handles) close(handle->buffered_fd);
  all.handles.clear();
  all.buffers.clear();
  all.registered_bytes = 0;
}

CUfileError_t close_driver() {
  const CUfileError_t refused = enter("cuFileDriverClose", true);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  Driver& all = driver();
  std::unique_lock<std::mutex> lock(all.mutex);
  if (all.use_count > 1) {
    --all.use_count;
    Control::get().add("live.use_count", -1);
    return failure(0);
  }
  all.is_closing = true;
  all.changed.wait(lock, [&] { return all.num_in_flight == 0; });
  drop_all(all);
  all.use_count = 0;
  Control::get().add("live.use_count", -1);
  all.is_closing = false;
  return failure(0);
}

int open_buffered(int fd, int access_mode) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  return open(path.c_str(), access_mode | O_CLOEXEC);
}

/// Fills a handle of a descriptor, or says why not.
int describe_file(int fd, Handle& handle) {
  struct stat facts{};
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || fstat(fd, &facts) != 0) return CU_FILE_INVALID_VALUE;
  if (!S_ISREG(facts.st_mode)) return CU_FILE_INVALID_FILE_TYPE;
  if ((flags & O_APPEND) != 0) return CU_FILE_INVALID_FILE_OPEN_FLAG;
  handle.fd = fd;
  handle.access_mode = flags & O_ACCMODE;
  handle.buffered_fd = open_buffered(fd, handle.access_mode);
  return handle.buffered_fd < 0 ? CU_FILE_GETNEWFD_FAILED : 0;
}

}  // namespace

Driver& driver() {
  static Driver* const all = new Driver;
  return *all;
}

CUfileError_t failure(int code, int cuda_code) {
  return {static_cast<CUfileOpError>(code), static_cast<CUresult>(cuda_code)};
}

Place place_of(uint64_t address, size_t nbytes) {
  Place place;
  place.view = reinterpret_cast<char*>(address);
  auto* const describe = of_libcuda<int(uint64_t, int*, uint64_t*, size_t*)>("fake_describe");
  auto* const shadow = of_libcuda<char*(uint64_t, size_t)>("fake_shadow");
  if (describe == nullptr || shadow == nullptr) return place;
  uint64_t base = 0;
  size_t allocated = 0;
  place.device = describe(address, &place.kind, &base, &allocated);
  if (place.device < 0) return place;
  place.view = shadow(address, nbytes);
  place.is_whole = place.view != nullptr;
  return place;
}

int current_device() {
  auto* const current = of_libcuda<int()>("fake_current_device");
  return current == nullptr ? -1 : current();
}

CUfileError_t enter(const char* function, bool needs_open) {
  Driver& all = driver();
  // First of all, as a lock may be held by a thread that a forked child does not have.
  if (all.pid != 0 && all.pid != getpid()) return failure(CU_FILE_DRIVER_NOT_INITIALIZED);
  const Met met = Control::get().enter(function);
  if (met.effect == Effect::kFail) {
    return failure(static_cast<int>(met.value), static_cast<int>(met.detail));
  }
  const std::lock_guard<std::mutex> lock(all.mutex);
  if (all.is_closing) return failure(CU_FILE_DRIVER_CLOSING);
  if (needs_open && all.use_count == 0) return failure(CU_FILE_DRIVER_NOT_INITIALIZED);
  return failure(0);
}

CUfileError_t open_locked() {
  Driver& all = driver();
  Control& control = Control::get();
  if (control.setting("abort_on_open", 0) != 0) std::abort();
  // As the real library does where the kernel has no modules.
  if (control.setting("spin_without_modules", 0) != 0 && access("/proc/modules", F_OK) != 0) {
    for (volatile bool goes_on = true; goes_on;) {
    }
  }
  if (control.setting("gds", 1) == 0 && !allows_compat()) {
    return failure(CU_FILE_DRIVER_NOT_INITIALIZED);
  }
  all.pid = getpid();
  ++all.use_count;
  control.add("live.use_count", 1);
  return failure(0);
}

bool execute_own(const Command&) { return false; }

void reset_own() {
  reset_parameters();
  reset_stats();
}

}  // namespace fake

using fake::Control;
using fake::driver;
using fake::failure;

FAKE_EXPORT CUfileError_t cuFileDriverOpen() {
  const CUfileError_t refused = fake::enter("cuFileDriverOpen", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(driver().mutex);
  return fake::open_locked();
}

FAKE_EXPORT CUfileError_t cuFileDriverClose() { return fake::close_driver(); }

#undef cuFileDriverClose
// The symbol before _v2, which is still exported.
FAKE_EXPORT CUfileError_t cuFileDriverClose() { return fake::close_driver(); }

FAKE_EXPORT long cuFileUseCount() {
  const std::lock_guard<std::mutex> lock(driver().mutex);
  return static_cast<long>(driver().use_count);
}

FAKE_EXPORT CUfileError_t cuFileGetVersion(int* version) {
  const CUfileError_t refused = fake::enter("cuFileGetVersion", false);
  *version = static_cast<int>(Control::get().setting("version", FAKE_CUFILE_VERSION));
  return refused;
}

FAKE_EXPORT CUfileError_t cuFileHandleRegister(CUfileHandle_t* fh, CUfileDescr_t* descr) {
  const CUfileError_t refused = fake::enter("cuFileHandleRegister", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  if (fh == nullptr || descr == nullptr || descr->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD) {
    return failure(CU_FILE_INVALID_VALUE);
  }
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (driver().use_count == 0) {
    const CUfileError_t opened = fake::open_locked();
    if (opened.err != CU_FILE_SUCCESS) return opened;
  }
  for (const fake::Handle* const known : driver().handles) {
    if (known->fd == descr->handle.fd) return failure(CU_FILE_HANDLE_ALREADY_REGISTERED);
  }
  auto* const handle = new fake::Handle;
  if (const int code = fake::describe_file(descr->handle.fd, *handle)) {
    delete handle;
    return failure(code);
  }
  driver().handles.insert(handle);
  Control::get().add("live.handles", 1);
  *fh = handle;
  return failure(0);
}

FAKE_EXPORT void cuFileHandleDeregister(CUfileHandle_t fh) {
  if (fake::enter("cuFileHandleDeregister", true).err != CU_FILE_SUCCESS) return;
  const std::lock_guard<std::mutex> lock(driver().mutex);
  auto* const handle = static_cast<fake::Handle*>(fh);
  if (driver().handles.erase(handle) == 0) {
    Control::get().add("deregistered_twice", 1);
    return;
  }
  if (handle->num_in_flight > 0) Control::get().add("deregistered_in_flight", 1);
  close(handle->buffered_fd);
  Control::get().add("live.handles", -1);
}

static CUfileError_t check_buffer(const fake::Place& place, size_t nbytes) {
  constexpr int kMapped = 1;
  constexpr int kManaged = 2;
  Control& control = Control::get();
  if (place.device >= 0 && fake::current_device() < 0) {
    return failure(CU_FILE_CUDA_DRIVER_ERROR, CUDA_ERROR_INVALID_CONTEXT);
  }
  if (!place.is_whole) return failure(CU_FILE_CUDA_POINTER_RANGE_ERROR);
  if (place.device >= 0 && place.kind == kManaged) {
    return failure(CU_FILE_CUDA_MEMORY_TYPE_INVALID);
  }
  if (place.device >= 0 && place.kind == kMapped && control.setting("register_mapped", 0) == 0) {
    return failure(CU_FILE_CUDA_DRIVER_ERROR, CUDA_ERROR_NOT_SUPPORTED);
  }
  const int64_t most = control.setting("bar_bytes", INT64_MAX);
  if (driver().registered_bytes + static_cast<int64_t>(nbytes) > most) {
    return failure(CU_FILE_INVALID_MAPPING_SIZE);
  }
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileBufRegister(const void* base, size_t nbytes, int) {
  const CUfileError_t refused = fake::enter("cuFileBufRegister", false);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  if (base == nullptr || nbytes == 0) return failure(CU_FILE_INVALID_VALUE);
  const std::lock_guard<std::mutex> lock(driver().mutex);
  if (driver().use_count == 0) {
    const CUfileError_t opened = fake::open_locked();
    if (opened.err != CU_FILE_SUCCESS) return opened;
  }
  const auto address = reinterpret_cast<uint64_t>(base);
  if (driver().buffers.count(address) != 0) return failure(CU_FILE_MEMORY_ALREADY_REGISTERED);
  const fake::Place place = fake::place_of(address, nbytes);
  const CUfileError_t unfit = check_buffer(place, nbytes);
  fake::count_registration(place.device, static_cast<int64_t>(nbytes),
                           unfit.err == CU_FILE_SUCCESS);
  if (unfit.err != CU_FILE_SUCCESS) return unfit;
  driver().buffers[address] = {nbytes, place.device};
  driver().registered_bytes += static_cast<int64_t>(nbytes);
  Control::get().add("live.buffers", 1);
  return failure(0);
}

FAKE_EXPORT CUfileError_t cuFileBufDeregister(const void* base) {
  const CUfileError_t refused = fake::enter("cuFileBufDeregister", true);
  if (refused.err != CU_FILE_SUCCESS) return refused;
  const std::lock_guard<std::mutex> lock(driver().mutex);
  const auto found = driver().buffers.find(reinterpret_cast<uint64_t>(base));
  if (found == driver().buffers.end()) return failure(CU_FILE_MEMORY_NOT_REGISTERED);
  driver().registered_bytes -= static_cast<int64_t>(found->second.nbytes);
  driver().buffers.erase(found);
  Control::get().add("live.buffers", -1);
  return failure(0);
}
