// Counts, faults, hangs and delays of a stand-in; both libraries have one of their own.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <vector>

namespace fake {

/// What a rule does to the calls that it meets.
enum class Effect { kNone, kFail, kShort, kFlip, kMisplace };

/// The effect met by one call. `value` is a code, a number of bytes, or a bit.
struct Met {
  Effect effect = Effect::kNone;
  int64_t value = 0;
  int64_t detail = 0;
};

/// A command: a verb, words, and key=value pairs.
struct Command {
  std::string verb;
  std::vector<std::string> words;
  std::map<std::string, int64_t> values;

  int64_t value(const std::string& key, int64_t otherwise) const;
};

/// A name without the `_v2` that a header's macro gave it.
std::string plain_name(const std::string& function);

/// State behind the exported control functions; any thread may call any method.
class Control {
 public:
  /// The library's one object; never destroyed, as threads may outlive static objects.
  static Control& get();

  /// Counts a call, hangs or waits if it is told to, and gives what else is to happen to it.
  Met enter(const std::string& function);

  /// As `enter`, for the end of asynchronous work that has been waiting since its call.
  Met run(const std::string& function);

  void add(const std::string& name, int64_t change);
  int64_t stat(const std::string& name);

  /// Runs commands separated by `;`; false if one is not understood.
  bool execute(const std::string& text);

  /// Waits until so many calls of a function hang.
  bool wait_hanging(const std::string& function, int num_calls, int timeout_ms);

  /// A setting of the library, from `set name=value`.
  int64_t setting(const std::string& name, int64_t otherwise);

  /// A random number up to `most`, from the seed.
  int64_t random(int64_t most);

  /// Forgets rules, hangs, delays, settings and counts; what hangs goes on.
  void reset();

 private:
  struct Rule {
    std::string function;
    Met met;
    int64_t nth = 1;
    int64_t count = 1;
    int64_t permille = 1000;
    int64_t seen = 0;
  };

  bool execute_one(const Command& command);
  Met match(const std::string& function);
  void block(std::unique_lock<std::mutex>& lock, const std::string& function);
  void wait(const std::string& function);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rule> rules_;
  std::map<std::string, bool> hangs_;
  std::map<std::string, int> hanging_;
  std::map<std::string, int64_t> delays_us_;
  std::map<std::string, int64_t> settings_;
  std::map<std::string, int64_t> counts_;
  std::mt19937_64 random_{1};
};

/// The library's own verbs (not fault, short, flip, misplace, hang, release, delay, set, clear).
bool execute_own(const Command& command);

/// The library's own part of `reset`.
void reset_own();

}  // namespace fake
