#include <random>
#include <string>
#include <vector>

#include "core/error.hpp"
#include "core/pickle_splice.hpp"
#include "tests/check.hpp"

namespace gdsckpt {
namespace {

std::string splice(const std::string& pickle, const std::vector<TensorRow>& rows = {}) {
  const std::vector<std::string> pieces = {"cm\nf\n", "cm\nS\n", "X\x03...cpu", ")"};
  return splice_pickle(reinterpret_cast<const std::uint8_t*>(pickle.data()), pickle.size(), rows,
                       pieces);
}

constexpr TensorRow kRow = {0, 1, kNoPiece, 7, 2, 12, 0, 3, 3, 0};

TEST(splice_pickle_writes_the_second_tensor_from_the_memo) {
  // [tensor 0, tensor 1, tensor 0]: the last one is what the first one was.
  const std::string pickle =
      "\x80\x02]q\x01(K" + std::string(1, '\0') + "QK\x01QK" + std::string(1, '\0') + "Qe.";
  const std::string spliced = splice(pickle, {kRow, kRow});
  CHECK_EQUAL(spliced.substr(0, 6), "\x80\x02]q\x01(");
  CHECK_EQUAL(spliced.substr(spliced.size() - 4),
              "h\x07"
              "e.");
  CHECK_EQUAL(spliced.find("cm\nf\nq\x02(("), std::size_t{6});
}

TEST(splice_pickle_of_anything_reads_no_byte_beyond_the_end) {
  // Under the address sanitizer this finds what a test on results cannot.
  std::mt19937 generator(1);
  int num_refused = 0;
  for (int turn = 0; turn < 20'000; ++turn) {
    std::string pickle = "\x80\x02";
    const std::size_t nbytes = generator() % 24;
    for (std::size_t i = 0; i < nbytes; ++i)
      pickle += generator() % 2 == 0 ? "(KXUQcqjJM\n\x8aT."[generator() % 14]
                                     : static_cast<char>(generator());
    try {
      splice(pickle, {kRow});
    } catch (const ConfigError&) {
      ++num_refused;
    }
  }
  CHECK(num_refused > 0 && num_refused < 20'000);
}

}  // namespace
}  // namespace gdsckpt
