#pragma once

#include <functional>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

/// A test framework of one page: TEST registers a function, CHECK throws, main runs them all.
namespace gdsckpt::tests {

struct TestCase {
  const char* name;
  void (*run)();
};

inline std::vector<TestCase>& registry() {
  static std::vector<TestCase> cases;
  return cases;
}

struct Registrar {
  Registrar(const char* name, void (*run)()) { registry().push_back({name, run}); }
};

/// A CHECK that did not hold.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

[[noreturn]] inline void fail(const char* file, int line, const std::string& text) {
  std::ostringstream message;
  message << file << ":" << line << ": " << text;
  throw Failure(message.str());
}

template <typename A, typename B>
void check_equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream message;
  message << text << " does not hold: " << a << " != " << b;
  fail(file, line, message.str());
}

/// Runs `work`, which must throw an `Expected`, and returns it.
template <typename Expected, typename Work>
Expected check_throws(Work&& work, const char* file, int line) {
  try {
    work();
  } catch (const Expected& error) {
    return error;
  }
  fail(file, line, "nothing was thrown");
}

}  // namespace gdsckpt::tests

#define TEST(name)                                                       \
  static void name();                                                    \
  static const gdsckpt::tests::Registrar registrar_##name(#name, &name); \
  static void name()
#define CHECK(condition) \
  ((condition) ? void() : gdsckpt::tests::fail(__FILE__, __LINE__, #condition " does not hold"))
#define CHECK_EQUAL(a, b) gdsckpt::tests::check_equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(Expected, work) \
  gdsckpt::tests::check_throws<Expected>([&] { work; }, __FILE__, __LINE__)
