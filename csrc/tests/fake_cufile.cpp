#include "tests/fake_cufile.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>

namespace gdsckpt::tests {
namespace {

CUfileError_t status_of(int code) {
  CUfileError_t status{};
  std::memcpy(&status.err, &code, sizeof(code));
  return status;
}

}  // namespace

FakeCuFile* FakeCuFile::current_ = nullptr;

FakeCuFile::FakeCuFile() { current_ = this; }

FakeCuFile::~FakeCuFile() { current_ = nullptr; }

ssize_t FakeCuFile::admit(bool is_write, void* handle, std::uint64_t nbytes,
                          std::uint64_t file_offset) {
  CuFileInjected injected;
  errno = ENOENT;  // dirty even when all goes well, as the library leaves it
  if (intercept) injected = intercept(CuFileCall{is_write, num_calls, nbytes, file_offset});
  ++num_calls;
  if (use_count == 0 || registered.count(handle) == 0) injected = {-1, 5027, 0};
  if (injected.code != 0) errno = injected.code;
  if (injected.result < 0) return injected.result;
  return static_cast<ssize_t>(std::min<std::uint64_t>(nbytes, injected.limit));
}

/// The functions of the table.
struct FakeCuFileFunctions {
  static FakeCuFile& fake() { return *FakeCuFile::current_; }

  static CUfileError_t open() {
    FakeCuFile& cufile = fake();
    cufile.events.emplace_back("open");
    const char* const path = std::getenv("CUFILE_LOGFILE_PATH");
    cufile.log_path = path == nullptr ? "" : path;
    if (path != nullptr) std::ofstream(path, std::ios::app) << cufile.log_text;
    if (cufile.open_code == 0) ++cufile.use_count;
    return status_of(cufile.open_code);
  }
  static CUfileError_t close() {
    FakeCuFile& cufile = fake();
    cufile.events.emplace_back("close");
    if (cufile.use_count == 0) return status_of(5001);
    if (cufile.close_code == 0) --cufile.use_count;
    return status_of(cufile.close_code);
  }
  static long use_count() { return fake().use_count; }
  static CUfileError_t get_properties(CUfileDrvProps_t* properties) {
    *properties = CUfileDrvProps_t{};
    properties->nvfs.max_direct_io_size = 64;
    properties->nvfs.dcontrolflags = fake().allows_compat_mode ? 2 : 0;
    return status_of(0);
  }
  static CUfileError_t get_version(int* version) {
    *version = 1200;
    return status_of(0);
  }
  static CUfileError_t set_size(CUFileSizeTConfigParameter_t param, std::size_t value) {
    fake().events.push_back("set size " + std::to_string(param) + " " + std::to_string(value));
    return status_of(fake().use_count > 0 ? 5026 : 0);
  }
  static CUfileError_t set_bool(CUFileBoolConfigParameter_t param, bool value) {
    FakeCuFile& cufile = fake();
    cufile.events.push_back("set " + std::to_string(param) + " " + std::to_string(value));
    if (cufile.use_count > 0) return status_of(5026);
    if (param == CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE) cufile.allows_compat_mode = value;
    return status_of(cufile.set_code);
  }
  static CUfileError_t register_handle(CUfileHandle_t* handle, CUfileDescr_t* descr) {
    FakeCuFile& cufile = fake();
    const std::lock_guard lock(cufile.mutex_);
    cufile.events.emplace_back("register");
    if (cufile.register_code != 0) return status_of(cufile.register_code);
    if (descr->type != CU_FILE_HANDLE_TYPE_OPAQUE_FD || descr->handle.fd < 0 ||
        descr->fs_ops != nullptr)
      return status_of(5022);
    *handle = reinterpret_cast<CUfileHandle_t>(cufile.next_handle_++);
    cufile.registered.insert(*handle);
    return status_of(0);
  }
  static void deregister_handle(CUfileHandle_t handle) {
    FakeCuFile& cufile = fake();
    const std::lock_guard lock(cufile.mutex_);
    cufile.events.emplace_back("deregister");
    cufile.registered.erase(handle);
  }
  static ssize_t read(CUfileHandle_t handle, void* base, std::size_t nbytes, off_t file_offset,
                      off_t buffer_offset) {
    FakeCuFile& cufile = fake();
    const std::lock_guard lock(cufile.mutex_);
    const auto begin = static_cast<std::size_t>(file_offset);
    const ssize_t admitted = cufile.admit(false, handle, nbytes, begin);
    if (admitted <= 0 || begin >= cufile.bytes.size()) return std::min<ssize_t>(admitted, 0);
    const std::size_t moved =
        std::min(static_cast<std::size_t>(admitted), cufile.bytes.size() - begin);
    std::memcpy(static_cast<std::uint8_t*>(base) + buffer_offset, cufile.bytes.data() + begin,
                moved);
    return static_cast<ssize_t>(moved);
  }
  static ssize_t write(CUfileHandle_t handle, const void* base, std::size_t nbytes,
                       off_t file_offset, off_t buffer_offset) {
    FakeCuFile& cufile = fake();
    const std::lock_guard lock(cufile.mutex_);
    const auto begin = static_cast<std::size_t>(file_offset);
    const ssize_t admitted = cufile.admit(true, handle, nbytes, begin);
    if (admitted <= 0) return admitted;
    const auto moved = static_cast<std::size_t>(admitted);
    if (cufile.bytes.size() < begin + moved) cufile.bytes.resize(begin + moved);
    std::memcpy(cufile.bytes.data() + begin, static_cast<const std::uint8_t*>(base) + buffer_offset,
                moved);
    return admitted + cufile.num_claimed;
  }
  static CUfileError_t set_stats_level(int level) {
    fake().events.push_back("stats level " + std::to_string(level));
    return status_of(0);
  }
  static CUfileError_t start_stats() {
    fake().events.emplace_back("stats start");
    return status_of(0);
  }
  static CUfileError_t get_stats(CUfileStatsLevel3_t* stats) {
    stats->num_gpus = 2;
    stats->per_gpu_stats[0].n_p2p_writes = 3;
    stats->per_gpu_stats[1].n_p2p_writes = 4;
    stats->per_gpu_stats[1].n_posix_reads = 5;
    return status_of(0);
  }
};

const CuFileApi& FakeCuFile::api() noexcept {
  static const CuFileApi kFake = [] {
    using F = FakeCuFileFunctions;
    CuFileApi api;
    api.cuFileDriverOpen = &F::open;
    api.cuFileDriverClose_v2 = &F::close;
    api.cuFileUseCount = &F::use_count;
    api.cuFileDriverGetProperties = &F::get_properties;
    api.cuFileGetVersion = &F::get_version;
    api.cuFileSetParameterSizeT = &F::set_size;
    api.cuFileSetParameterBool = &F::set_bool;
    api.cuFileHandleRegister = &F::register_handle;
    api.cuFileHandleDeregister = &F::deregister_handle;
    api.cuFileRead = &F::read;
    api.cuFileWrite = &F::write;
    api.cuFileSetStatsLevel = &F::set_stats_level;
    api.cuFileStatsStart = &F::start_stats;
    api.cuFileGetStatsL3 = &F::get_stats;
    api.version = 1200;
    return api;
  }();
  return kFake;
}

std::shared_ptr<CuFileDriver> FakeCuFile::driver() { return std::make_shared<CuFileDriver>(api()); }

CuFileOptions FakeCuFile::options() {
  CuFileOptions options;
  options.modules_path = "/proc/self/status";  // there on every kernel
  return options;
}

std::shared_ptr<CuFileDriver> FakeCuFile::open_driver() {
  auto opened = driver();
  opened->open(options());
  return opened;
}

}  // namespace gdsckpt::tests
