#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace gdsckpt {

/// Remembers the process that made an object. A forked child has none of the parent's threads, and
/// a mutex may be held for ever by a thread that does not exist there; so what owns threads asks
/// this guard before it locks or joins anything. (glibc does not cache getpid since 2.25.)
class ForkGuard {
 public:
  ForkGuard() noexcept : owner_(getpid()) {}
  bool is_forked_child() const noexcept { return getpid() != owner_; }

 private:
  pid_t owner_;
};

}  // namespace gdsckpt
