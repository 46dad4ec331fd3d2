#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "engine/cufile_driver.hpp"

namespace gdsckpt::tests {

/// One cuFileWrite or cuFileRead as the intercepting function sees it.
struct CuFileCall {
  bool is_write;
  std::size_t index;  ///< number of calls before this one
  std::uint64_t nbytes;
  std::uint64_t file_offset;
};

/// What a call is to do instead of its work.
struct CuFileInjected {
  ssize_t result = 0;                   ///< below 0: returned, with `code` as errno
  int code = 0;                         ///< errno after the call, whatever it returns
  std::size_t limit = ~std::size_t{0};  ///< most bytes to move
};

/// cuFile behind its function table: one file in memory, faults on demand. There is one at a time.
/// What it is asked is checked as the library would, and written down in `events`.
class FakeCuFile {
 public:
  static constexpr int kFd = 1000004;  // FakeDisk's direct descriptor

  FakeCuFile();
  ~FakeCuFile();
  FakeCuFile(const FakeCuFile&) = delete;
  FakeCuFile& operator=(const FakeCuFile&) = delete;

  static const CuFileApi& api() noexcept;
  /// A driver of this table, and how to open it on kernels without modules, too.
  static std::shared_ptr<CuFileDriver> driver();
  static CuFileOptions options();
  static std::shared_ptr<CuFileDriver> open_driver();

  std::vector<std::uint8_t> bytes;
  std::function<CuFileInjected(const CuFileCall&)> intercept;
  std::size_t num_calls = 0;
  std::vector<std::string> events;  ///< "set 1 0", "open", "register", "deregister", "close"
  std::set<void*> registered;
  long use_count = 0;
  int open_code = 0;
  int register_code = 0;
  int set_code = 0;
  int close_code = 0;
  ssize_t num_claimed = 0;  ///< bytes that a write says it has moved beyond those it has
  bool allows_compat_mode = true;
  std::string log_text;  ///< written at the next open to where the environment says
  std::string log_path;  ///< where that was

 private:
  friend struct FakeCuFileFunctions;
  ssize_t admit(bool is_write, void* handle, std::uint64_t nbytes, std::uint64_t file_offset);
  std::mutex mutex_;
  std::uintptr_t next_handle_ = 1;
  static FakeCuFile* current_;
};

}  // namespace gdsckpt::tests
