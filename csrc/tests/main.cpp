#include <cstdio>
#include <exception>
#include <string>

#include "tests/check.hpp"

/// Runs all tests, or those whose name contains the first argument; 0 when all hold.
int main(int argc, char** argv) {
  const std::string filter = argc > 1 ? argv[1] : "";
  int num_run = 0;
  int num_failed = 0;
  for (const auto& test : gdsckpt::tests::registry()) {
    if (std::string(test.name).find(filter) == std::string::npos) continue;
    ++num_run;
    try {
      test.run();
    } catch (const std::exception& error) {
      ++num_failed;
      std::printf("FAILED %s: %s\n", test.name, error.what());
    }
  }
  std::printf("%d tests, %d failed\n", num_run, num_failed);
  return num_failed == 0 && num_run > 0 ? 0 : 1;
}
