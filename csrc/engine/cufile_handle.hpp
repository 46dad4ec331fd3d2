#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "engine/cufile_driver.hpp"
#include "shim/cufile_result.hpp"

namespace gdsckpt {

/// A file's registration with cuFile. It ends with the object, which must be before the descriptor
/// is closed, or when the driver is closed. Any thread may call, but no request may run when the
/// object goes.
///
/// In a forked child requests come to an error, and the destructor leaves the registration alone:
/// it is the parent's.
class CuFileHandle {
 public:
  /// `fd`: open for direct I/O. Throws CuFileError (op "cuFileHandleRegister"), and
  /// EngineUnavailableError where the driver is not open.
  CuFileHandle(std::shared_ptr<CuFileDriver> driver, int fd, const std::string& path);
  ~CuFileHandle();
  CuFileHandle(const CuFileHandle&) = delete;
  CuFileHandle& operator=(const CuFileHandle&) = delete;

  /// One cuFileWrite or cuFileRead. `base`: begin of the storage, a device or a host address;
  /// `buffer_offset`: of the first byte from there.
  CuFileResult write(std::uint64_t base, std::uint64_t nbytes, std::uint64_t file_offset,
                     std::uint64_t buffer_offset) noexcept;
  CuFileResult read(std::uint64_t base, std::uint64_t nbytes, std::uint64_t file_offset,
                    std::uint64_t buffer_offset) noexcept;

  /// Largest request that cuFile does not split, or 0 where it does not tell.
  std::uint64_t max_request_bytes() const noexcept { return max_request_bytes_; }

 private:
  friend class CuFileDriver;
  template <typename Call>
  CuFileResult request(Call&& call) noexcept;
  /// With the driver's gate held.
  void deregister() noexcept;

  const std::shared_ptr<CuFileDriver> driver_;
  CUfileHandle_t handle_ = nullptr;  // nullptr once it is not registered any more
  std::uint64_t max_request_bytes_ = 0;
};

}  // namespace gdsckpt
