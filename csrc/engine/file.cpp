#include "engine/file.hpp"

#include <memory>
#include <utility>

#include "core/align.hpp"
#include "core/error.hpp"
#include "engine/cufile_handle.hpp"

namespace gdsckpt {

Refusal::~Refusal() { std::unique_ptr<const std::string>(reason_.load()).reset(); }

void Refusal::set(std::string reason) {
  auto mine = std::make_unique<const std::string>(std::move(reason));
  const std::string* none = nullptr;
  if (reason_.compare_exchange_strong(none, mine.get(), std::memory_order_acq_rel))
    static_cast<void>(mine.release());  // the atomic owns it now
}

std::string Refusal::reason() const {
  const std::string* const reason = reason_.load(std::memory_order_acquire);
  return reason == nullptr ? std::string() : *reason;
}

File::File(std::string path, int buffered_fd, int direct_fd, std::uint64_t alignment)
    : path_(std::move(path)),
      buffered_fd_(buffered_fd, path_),
      direct_fd_(direct_fd, path_),
      alignment_(alignment) {
  if (!is_power_of_two(alignment) || alignment > kMaxAlignment)
    throw ConfigError("alignment is " + std::to_string(alignment) +
                          "; it must be a power of two from 1 to 65536 (64 KiB).",
                      "alignment");
}

File::~File() { delete cufile_.load(); }

void File::close() noexcept {
  if (!is_closed_.exchange(true)) end_use();
}

void File::end_use() noexcept {
  if (num_users_.fetch_sub(1, std::memory_order_acq_rel) == 1) abandon();
}

void File::abandon() noexcept {
  delete cufile_.exchange(nullptr);  // a registration must not outlive its descriptor
  buffered_fd_.close();
  direct_fd_.close();
}

bool File::attach_cufile(std::shared_ptr<CuFileDriver> driver) {
  driver->require_owner();  // a forked child must not lock
  const std::lock_guard lock(attaching_);
  if (cufile_.load() != nullptr || cufile_refusal_.is_set()) return cufile() != nullptr;
  if (!is_direct()) {
    refuse_cufile("the file is not open for direct I/O, without which all goes through the host.");
    return false;
  }
  try {
    cufile_.store(new CuFileHandle(std::move(driver), direct_fd(), path_));
  } catch (const CuFileError& error) {
    refuse_cufile(error.message());
  }
  return cufile() != nullptr;
}

}  // namespace gdsckpt
