#include "control.hpp"

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <thread>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake {

std::string plain_name(const std::string& function) {
  const size_t mark = function.rfind("_v");
  const bool is_version = mark != std::string::npos && mark + 3 == function.size() &&
                          function[mark + 2] >= '2' && function[mark + 2] <= '9';
  return is_version ? function.substr(0, mark) : function;
}

int64_t Command::value(const std::string& key, int64_t otherwise) const {
  const auto found = values.find(key);
  return found == values.end() ? otherwise : found->second;
}

static bool parse(const std::string& text, Command& command) {
  std::istringstream words(text);
  std::string word;
  words >> command.verb;
  while (words >> word) {
    const size_t equals = word.find('=');
    if (equals == std::string::npos) {
      command.words.push_back(word);
      continue;
    }
    char* end = nullptr;
    const std::string number = word.substr(equals + 1);
    command.values[word.substr(0, equals)] = std::strtoll(number.c_str(), &end, 0);
    if (number.empty() || *end != '\0') return false;
  }
  return true;
}

Control& Control::get() {
  static Control* const control = new Control;
  return *control;
}

void Control::block(std::unique_lock<std::mutex>& lock, const std::string& function) {
  if (!hangs_[function]) return;
  ++hanging_[function];
  changed_.notify_all();
  while (hangs_[function]) changed_.wait(lock);
  --hanging_[function];
}

void Control::wait(const std::string& function) {
  int64_t delay_us = 0;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = delays_us_.find(function);
    if (found != delays_us_.end()) delay_us = found->second;
  }
  if (delay_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(delay_us));
}

Met Control::match(const std::string& function) {
  Met met;
  for (Rule& rule : rules_) {
    if (rule.function != function && rule.function != "*") continue;
    const int64_t number = ++rule.seen;
    const bool is_due = number >= rule.nth && (rule.count < 0 || number < rule.nth + rule.count);
    if (!is_due || met.effect != Effect::kNone) continue;
    const bool is_hit =
        rule.permille >= 1000 || static_cast<int64_t>(random_() % 1000) < rule.permille;
    if (!is_hit) continue;
    met = rule.met;
    ++counts_["fired"];
  }
  return met;
}

Met Control::enter(const std::string& function) {
  const std::string name = plain_name(function);
  Met met;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    ++counts_["calls." + name];
    block(lock, name);
    met = match(name);
  }
  wait(name);
  return met;
}

Met Control::run(const std::string& function) {
  Met met;
  {
    std::unique_lock<std::mutex> lock(mutex_);
    block(lock, function);
    met = match(function);
  }
  wait(function);
  return met;
}

void Control::add(const std::string& name, int64_t change) {
  const std::lock_guard<std::mutex> lock(mutex_);
  counts_[name] += change;
}

int64_t Control::stat(const std::string& name) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = counts_.find(name);
  return found == counts_.end() ? 0 : found->second;
}

int64_t Control::setting(const std::string& name, int64_t otherwise) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = settings_.find(name);
  return found == settings_.end() ? otherwise : found->second;
}

int64_t Control::random(int64_t most) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return most <= 0 ? 0 : static_cast<int64_t>(random_() % static_cast<uint64_t>(most + 1));
}

bool Control::wait_hanging(const std::string& function, int num_calls, int timeout_ms) {
  std::unique_lock<std::mutex> lock(mutex_);
  return changed_.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                           [&] { return hanging_[plain_name(function)] >= num_calls; });
}

void Control::reset() {
  const std::lock_guard<std::mutex> lock(mutex_);
  rules_.clear();
  hangs_.clear();
  delays_us_.clear();
  settings_.clear();
  // What is live goes on being live.
  for (auto& [name, number] : counts_) {
    if (name.compare(0, 5, "live.") != 0) number = 0;
  }
  random_.seed(1);
  changed_.notify_all();
}

bool Control::execute_one(const Command& command) {
  static const std::map<std::string, std::pair<Effect, const char*>> kEffects = {
      {"fault", {Effect::kFail, "code"}},
      {"short", {Effect::kShort, "bytes"}},
      {"flip", {Effect::kFlip, "bit"}},
      {"misplace", {Effect::kMisplace, "bytes"}}};
  const std::lock_guard<std::mutex> lock(mutex_);
  if (command.verb == "set") {
    for (const auto& [name, number] : command.values) settings_[name] = number;
    if (command.values.count("seed") != 0) {
      random_.seed(static_cast<uint64_t>(command.values.at("seed")));
    }
    return !command.values.empty() && command.words.empty();
  }
  if (command.verb == "clear") {
    rules_.clear();
    delays_us_.clear();
    return true;
  }
  if (command.words.size() != 1) return false;
  const std::string function = plain_name(command.words[0]);
  if (command.verb == "hang" || command.verb == "release") {
    hangs_[function] = command.verb == "hang";
    changed_.notify_all();
    return true;
  }
  if (command.verb == "delay") {
    delays_us_[function] = command.value("us", 0);
    return true;
  }
  const auto effect = kEffects.find(command.verb);
  if (effect == kEffects.end() || command.values.count(effect->second.second) == 0) return false;
  Rule rule;
  rule.function = function;
  rule.met = {effect->second.first, command.values.at(effect->second.second),
              command.value("detail", 0)};
  rule.nth = command.value("nth", 1);
  rule.permille = command.value("permille", 1000);
  rule.count = command.value("count", rule.permille < 1000 ? -1 : 1);
  rules_.push_back(rule);
  return true;
}

bool Control::execute(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line, ';')) {
    Command command;
    if (!parse(line, command)) return false;
    if (command.verb.empty()) continue;
    if (!execute_own(command) && !execute_one(command)) return false;
  }
  return true;
}

}  // namespace fake

EXPORT int fake_command(const char* text) { return fake::Control::get().execute(text) ? 0 : -1; }

EXPORT int64_t fake_stat(const char* name) { return fake::Control::get().stat(name); }

EXPORT int fake_wait_hanging(const char* function, int num_calls, int timeout_ms) {
  return fake::Control::get().wait_hanging(function, num_calls, timeout_ms) ? 0 : -1;
}

EXPORT void fake_reset() {
  fake::Control::get().reset();
  fake::reset_own();
}

// For processes that a test does not start itself, such as the children of a probe.
__attribute__((constructor)) static void read_environment() {
  const char* text = std::getenv(FAKE_ENVIRONMENT);
  if (text != nullptr && !fake::Control::get().execute(text)) {
    std::fputs("not understood: " FAKE_ENVIRONMENT "\n", stderr);
    std::abort();
  }
}
