#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <thread>
#include <vector>

#include "core/signal_block.hpp"

namespace gdsckpt {

/// Processors that this thread may run on, at least 1.
std::size_t usable_processors() noexcept;

/// Calls `work(unit)`, which must not throw, for each unit in [0, num_units): in the calling thread
/// and in up to `num_threads - 1` others, which begin and end here. Units are handed out in order.
/// Where threads cannot be started, fewer do it all. Works in a forked child.
template <typename Work>
void for_each_unit(std::size_t num_units, std::size_t num_threads, const Work& work) {
  std::atomic<std::size_t> next{0};
  const auto take_units = [&]() noexcept {
    for (std::size_t unit = next.fetch_add(1); unit < num_units; unit = next.fetch_add(1)) {
      work(unit);
    }
  };
  const std::size_t num_others = std::min(num_threads, num_units);
  std::vector<std::thread> others;
  if (num_others > 1) {
    const SignalBlock block;
    others.reserve(num_others - 1);
    try {
      while (others.size() + 1 < num_others) others.emplace_back(take_units);
    } catch (const std::exception&) {
      // No memory, or the kernel refuses more threads; those that run take all units.
    }
  }
  take_units();
  for (std::thread& other : others) other.join();
}

}  // namespace gdsckpt
