#pragma once

#include <pthread.h>
#include <signal.h>

namespace gdsckpt {

/// Blocks signals of the calling thread for its lifetime: threads started meanwhile inherit it. Not
/// those that a thread raises by a fault of its own: blocked, they would kill the process before
/// Python's faulthandler could speak.
class SignalBlock {
 public:
  SignalBlock() noexcept {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) {
      sigdelset(&all, fault);
    }
    is_set_ = pthread_sigmask(SIG_SETMASK, &all, &previous_) == 0;
  }
  ~SignalBlock() {
    if (is_set_) static_cast<void>(pthread_sigmask(SIG_SETMASK, &previous_, nullptr));
  }
  SignalBlock(const SignalBlock&) = delete;
  SignalBlock& operator=(const SignalBlock&) = delete;

 private:
  sigset_t previous_{};
  bool is_set_ = false;
};

}  // namespace gdsckpt
