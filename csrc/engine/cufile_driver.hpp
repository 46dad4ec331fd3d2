#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <set>
#include <shared_mutex>
#include <string>
#include <vector>

#include "core/fork_guard.hpp"
#include "engine/cufile_log.hpp"
#include "shim/cufile.hpp"

namespace gdsckpt {

class CuFileHandle;

/// How cuFile's driver is to be opened.
struct CuFileOptions {
  /// cuFile's own way through the host, which the pinned engine goes better: for tests only.
  bool allows_compat_mode = false;
  /// Ask for DMA between drive and GPU by the kernel's own means, which comes before nvidia-fs,
  /// unless CUFILE_USE_PCIP2PDMA decides that.
  bool requests_p2pdma = true;
  /// Unless the user has said where cuFile is to log (CUFILE_LOGFILE_PATH or cufile.json).
  bool keeps_log_private = true;
  /// 0 to 3; which way the bytes went is counted at 3 only.
  int stats_level = 3;
  /// Largest request that cuFile does not split.
  std::uint64_t max_direct_io_bytes = 16 * 1024 * 1024;
  /// What cuFile reads until it is there, in an endless loop; another one for tests.
  std::string modules_path = "/proc/modules";
};

/// What is known of the driver.
struct CuFileFacts {
  bool is_open = false;
  bool allows_compat_mode = false;
  std::uint64_t max_direct_io_bytes = 0;
  /// What did not go as asked, as sentences; such as that somebody else had opened it before.
  std::vector<std::string> notes;
};

/// cuFile's driver, of which a process has one: opens it once, with its parameters set first, and
/// closes it in order (files, then driver). Any thread may call.
///
/// In a forked child every function throws EngineUnavailableError, and nothing of cuFile is called.
class CuFileDriver {
 public:
  /// Opens nothing. `api` lives longer.
  explicit CuFileDriver(const CuFileApi& api) noexcept : api_(api) {}
  /// As `close`, whose error nobody could receive.
  ~CuFileDriver();
  CuFileDriver(const CuFileDriver&) = delete;
  CuFileDriver& operator=(const CuFileDriver&) = delete;

  /// Opens the driver unless it is open; then the options of the first call stay. Throws
  /// EngineUnavailableError (engine "cufile") with the reason.
  ///
  /// May hang or take seconds where the driver is broken: to be tried in a child process before.
  void open(const CuFileOptions& options);

  /// Ends the registration of every file and closes the driver; requests that run are waited for,
  /// later ones refused. Does nothing when it is not open. Throws CuFileError.
  void close();

  CuFileFacts facts() const;
  /// Throws EngineUnavailableError when it is not open or can't count, CuFileError.
  CuFileStats stats() const;
  /// Its own words about what failed last; empty if it has none. Taken only once.
  std::string take_last_error();

  /// Throws EngineUnavailableError in a forked child.
  void require_owner() const;

  const CuFileApi& api() const noexcept { return api_; }

 private:
  friend class CuFileHandle;
  void set_parameters(const CuFileOptions& options);
  void open_driver(const CuFileOptions& options);
  void start_stats(int level);
  void read_properties();
  void note_failure(const char* what, CUfileError_t status);
  std::string quote_log();

  const CuFileApi& api_;
  const ForkGuard fork_guard_;
  CuFileLog log_;
  // Shared: for as long as a function is used that needs the driver open. Exclusive: to open and to
  // close it.
  mutable std::shared_mutex gate_;
  std::atomic<bool> is_closing_{false};  // else requests, one after the other, could keep it out
  CuFileFacts facts_;
  std::mutex handles_mutex_;
  std::set<CuFileHandle*> handles_;
};

/// The process's one driver, not opened yet at the first call. Throws EngineUnavailableError with
/// the reason where there is no library; see load_cufile.
const std::shared_ptr<CuFileDriver>& cufile_driver();

}  // namespace gdsckpt
