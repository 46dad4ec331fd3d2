#include "core/parallel.hpp"

#include <sched.h>

namespace gdsckpt {

std::size_t usable_processors() noexcept {
  cpu_set_t usable;
  CPU_ZERO(&usable);
  // Refused where there are more processors than the set has room for: then all count.
  if (sched_getaffinity(0, sizeof usable, &usable) == 0)
    return std::max<std::size_t>(1, static_cast<std::size_t>(CPU_COUNT(&usable)));
  return std::max<std::size_t>(1, std::thread::hardware_concurrency());
}

}  // namespace gdsckpt
