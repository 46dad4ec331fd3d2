#include "engine/cufile_handle.hpp"

#include <cerrno>
#include <utility>

#include "core/error.hpp"

namespace gdsckpt {
namespace {

off_t to_off(std::uint64_t value) noexcept { return static_cast<off_t>(value); }

// What cuFile itself says of a handle that it does not know, and while it is being closed.
constexpr int kNotRegistered = 5027;
constexpr int kClosing = 5006;

}  // namespace

CuFileHandle::CuFileHandle(std::shared_ptr<CuFileDriver> driver, int fd, const std::string& path)
    : driver_(std::move(driver)) {
  driver_->require_owner();
  const std::shared_lock gate(driver_->gate_);
  if (!driver_->facts_.is_open)
    throw EngineUnavailableError(
        "the cufile engine can't be used: its driver is not open. Open it first.", "cufile",
        {"its driver is not open"});
  max_request_bytes_ = driver_->facts_.max_direct_io_bytes;
  CUfileDescr_t descr{};
  descr.type = CU_FILE_HANDLE_TYPE_OPAQUE_FD;
  descr.handle.fd = fd;
  {
    const std::lock_guard lock(driver_->handles_mutex_);
    driver_->handles_.insert(this);
  }
  const CUfileError_t status = driver_->api_.cuFileHandleRegister(&handle_, &descr);
  if (is_success(status)) return;
  handle_ = nullptr;
  {
    const std::lock_guard lock(driver_->handles_mutex_);
    driver_->handles_.erase(this);
  }
  try {
    check_cufile(status, {"cuFileHandleRegister", path, 0, 0});
  } catch (const CuFileError& error) {
    const std::string quote = driver_->quote_log();
    if (quote.empty()) throw;
    throw CuFileError(error.message() + quote, error.context(), error.code());
  }
}

CuFileHandle::~CuFileHandle() {
  if (driver_->fork_guard_.is_forked_child()) return;
  const std::shared_lock gate(driver_->gate_);
  {
    const std::lock_guard lock(driver_->handles_mutex_);
    driver_->handles_.erase(this);
  }
  deregister();
}

void CuFileHandle::deregister() noexcept {
  if (handle_ != nullptr) driver_->api_.cuFileHandleDeregister(std::exchange(handle_, nullptr));
}

template <typename Call>
CuFileResult CuFileHandle::request(Call&& call) noexcept {
  if (driver_->fork_guard_.is_forked_child()) return {0, kNotRegistered};
  if (driver_->is_closing_.load()) return {0, kClosing};
  const std::shared_lock gate(driver_->gate_);
  if (handle_ == nullptr) return {0, kNotRegistered};
  errno = 0;  // so that a -1 without a reason is known as one
  const ssize_t result = call(driver_->api_);
  return decode_cufile_bytes(result, errno);
}

CuFileResult CuFileHandle::write(std::uint64_t base, std::uint64_t nbytes,
                                 std::uint64_t file_offset, std::uint64_t buffer_offset) noexcept {
  return request([&](const CuFileApi& api) {
    return api.cuFileWrite(handle_, reinterpret_cast<const void*>(base), nbytes,
                           to_off(file_offset), to_off(buffer_offset));
  });
}

CuFileResult CuFileHandle::read(std::uint64_t base, std::uint64_t nbytes, std::uint64_t file_offset,
                                std::uint64_t buffer_offset) noexcept {
  return request([&](const CuFileApi& api) {
    return api.cuFileRead(handle_, reinterpret_cast<void*>(base), nbytes, to_off(file_offset),
                          to_off(buffer_offset));
  });
}

}  // namespace gdsckpt
