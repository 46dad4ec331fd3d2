#include "engine/file.hpp"

#include <memory>
#include <utility>

#include "core/align.hpp"
#include "core/error.hpp"

namespace gdsckpt {

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

File::~File() { std::unique_ptr<const std::string>(refusal_.load()).reset(); }

void File::close() noexcept {
  if (!is_closed_.exchange(true)) end_use();
}

void File::end_use() noexcept {
  if (num_users_.fetch_sub(1, std::memory_order_acq_rel) == 1) abandon();
}

void File::abandon() noexcept {
  buffered_fd_.close();
  direct_fd_.close();
}

void File::refuse_direct(std::string reason) {
  auto mine = std::make_unique<const std::string>(std::move(reason));
  const std::string* none = nullptr;
  if (refusal_.compare_exchange_strong(none, mine.get(), std::memory_order_acq_rel))
    static_cast<void>(mine.release());  // the atomic owns it now
}

std::string File::direct_refused() const {
  const std::string* const reason = refusal_.load(std::memory_order_acquire);
  return reason == nullptr ? std::string() : *reason;
}

}  // namespace gdsckpt
