#include "engine/cufile_driver.hpp"

#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <utility>

#include "core/error.hpp"
#include "engine/cufile_handle.hpp"
#include "shim/cufile_result.hpp"

namespace gdsckpt {
namespace {

constexpr std::uint64_t kKibibyte = 1024;

[[noreturn]] void raise_unavailable(const std::string& reason, const std::string& remedy) {
  throw EngineUnavailableError("the cufile engine can't be used: " + reason + ". " + remedy,
                               "cufile", {reason});
}

}  // namespace

CuFileDriver::~CuFileDriver() {
  if (fork_guard_.is_forked_child()) return;
  try {
    close();
  } catch (const CuFileError&) {
    // Closed or not, nothing uses it any more.
  }
}

void CuFileDriver::require_owner() const {
  if (fork_guard_.is_forked_child())
    raise_unavailable("cuFile was loaded before this process was forked",
                      "Start worker processes with spawn, or save from the parent.");
}

void CuFileDriver::open(const CuFileOptions& options) {
  require_owner();
  const std::unique_lock lock(gate_);
  if (facts_.is_open) return;
  facts_ = CuFileFacts{};
  if (access(options.modules_path.c_str(), F_OK) != 0)
    raise_unavailable(
        options.modules_path + " does not exist, and cuFile would wait for it for ever",
        "Use a kernel that can load modules, or engine='pinned'.");
  if (api_.cuFileUseCount() > 0)
    facts_.notes.emplace_back(
        "somebody else in this process had opened cuFile's driver before; it keeps their settings");
  else
    set_parameters(options);
  open_driver(options);
  facts_.is_open = true;
  read_properties();
  if (facts_.allows_compat_mode && !options.allows_compat_mode)
    facts_.notes.emplace_back(
        "compatibility mode is on, so cuFile may send bytes through the host and not tell");
  start_stats(options.stats_level);
}

void CuFileDriver::set_parameters(const CuFileOptions& options) {
  const CUfileError_t compat = api_.cuFileSetParameterBool(
      CUFILE_PARAM_PROPERTIES_ALLOW_COMPAT_MODE, options.allows_compat_mode);
  if (!is_success(compat))
    raise_unavailable("compatibility mode can't be switched: " + describe(compat),
                      "Use engine='pinned'.");
  if (options.requests_p2pdma && std::getenv("CUFILE_USE_PCIP2PDMA") == nullptr)
    note_failure("P2PDMA can't be asked for",
                 api_.cuFileSetParameterBool(CUFILE_PARAM_USE_PCIP2PDMA, true));
  note_failure("the largest request can't be set",
               api_.cuFileSetParameterSizeT(CUFILE_PARAM_PROPERTIES_MAX_DIRECT_IO_SIZE_KB,
                                            options.max_direct_io_bytes / kKibibyte));
}

void CuFileDriver::open_driver(const CuFileOptions& options) {
  CUfileError_t status{};
  if (options.keeps_log_private && !has_configured_log()) {
    const EnvironmentDefault log_path("CUFILE_LOGFILE_PATH", log_.path());
    status = api_.cuFileDriverOpen();
  } else {
    status = api_.cuFileDriverOpen();
  }
  if (is_success(status)) return;
  raise_unavailable("cuFileDriverOpen failed: " + describe(status) + quote_log(),
                    mend_cufile_code(code_of(status)));
}

void CuFileDriver::start_stats(int level) {
  if (level <= 0) return;
  if (api_.cuFileSetStatsLevel == nullptr || api_.cuFileStatsStart == nullptr) {
    facts_.notes.emplace_back("this cuFile can't count which way the bytes go");
    return;
  }
  note_failure("statistics can't be switched on", api_.cuFileSetStatsLevel(level));
  note_failure("statistics can't be started", api_.cuFileStatsStart());
}

void CuFileDriver::read_properties() {
  CUfileDrvProps_t properties{};
  const CUfileError_t status = api_.cuFileDriverGetProperties(&properties);
  note_failure("the driver's properties can't be read", status);
  if (!is_success(status)) return;
  facts_.max_direct_io_bytes = properties.nvfs.max_direct_io_size * kKibibyte;
  facts_.allows_compat_mode =
      (properties.nvfs.dcontrolflags >> static_cast<unsigned>(CU_FILE_ALLOW_COMPAT_MODE) & 1U) != 0;
}

void CuFileDriver::note_failure(const char* what, CUfileError_t status) {
  if (!is_success(status)) facts_.notes.push_back(std::string(what) + ": " + describe(status));
}

std::string CuFileDriver::quote_log() {
  const std::string text = log_.take_last_error();
  return text.empty() ? "" : "; cuFile logged '" + text + "'";
}

std::string CuFileDriver::take_last_error() {
  require_owner();
  return log_.take_last_error();
}

void CuFileDriver::close() {
  require_owner();
  is_closing_.store(true);
  const std::unique_lock lock(gate_);
  is_closing_.store(false);
  if (!std::exchange(facts_.is_open, false)) return;
  for (CuFileHandle* const handle : std::exchange(handles_, {})) handle->deregister();
  check_cufile(api_.cuFileDriverClose_v2(), {"cuFileDriverClose", "", 0, 0});
}

CuFileFacts CuFileDriver::facts() const {
  require_owner();
  const std::shared_lock lock(gate_);
  return facts_;
}

CuFileStats CuFileDriver::stats() const {
  require_owner();
  const std::shared_lock lock(gate_);
  if (!facts_.is_open) raise_unavailable("its driver is not open", "Open it first.");
  if (api_.cuFileGetStatsL3 == nullptr)
    raise_unavailable("this cuFile can't count which way the bytes go", "Install 1.15 or newer.");
  // Of its own version, which may be newer and longer than the header's.
  union {
    CUfileStatsLevel3_t stats;
    std::uint8_t bytes[kStatsBufferBytes];
  } buffer;
  std::memset(buffer.bytes, 0, sizeof(buffer.bytes));
  check_cufile(api_.cuFileGetStatsL3(&buffer.stats), {"cuFileGetStatsL3", "", 0, 0});
  return parse_cufile_stats(buffer.bytes, api_.version);
}

const std::shared_ptr<CuFileDriver>& cufile_driver() {
  const CuFileState& state = load_cufile();
  if (state.api == nullptr)
    raise_unavailable(state.reason, "Install nvidia-cufile (CUDA 13) or use engine='pinned'.");
  // Never destroyed: static destructors run when CUDA is gone (rapidsai/kvikio#497).
  static const auto* const driver =
      new std::shared_ptr<CuFileDriver>(std::make_shared<CuFileDriver>(*state.api));
  return *driver;
}

}  // namespace gdsckpt
