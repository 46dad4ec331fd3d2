#include <thread>
#include <vector>

#include "core/nvtx.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

TEST(nvtx_names_are_found_by_their_spelling) {
  CHECK(find_nvtx_name("plan") == NvtxName::kPlan);
  CHECK(find_nvtx_name("read") == NvtxName::kRead);
  CHECK(!find_nvtx_name("rea"));
  CHECK(!find_nvtx_name(""));
}

TEST(nvtx_first_ranges_of_several_threads_may_come_at_once) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      const NvtxRange outer(NvtxName::kWrite, 1);
      const NvtxRange inner(NvtxName::kChecksum, 0);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace gdsckpt
